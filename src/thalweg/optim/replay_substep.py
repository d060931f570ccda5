"""Replayed update of one rule in a torch-style step."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.execution_context import is_ours
from thalweg._core.options.accumulation import SUM
from thalweg._core.options.update_targets import ENCODED_SHAPE
from thalweg._core.replay import (
    KINDS,
    GuardTable,
    Launch,
    hold_tensors,
    is_repeatable,
    places_of,
    stands,
    written_of,
)
from thalweg._core.scalar_programs import RuleScalars
from thalweg._engines.protocol import Stages
from thalweg.optim.param_scalars import STEP, Column
from thalweg.optim.replay_scalars import TensorFlowScalars, TorchScalars, hold
from thalweg.optim.step_adapter import ParamGroupAdapter, TorchStepAdapter

if TYPE_CHECKING:
    from thalweg._core.replay_transforms import Scalars

PARAM_CLASSES = (Tensor, torch.nn.Parameter)
ColumnUpdate = tuple[Column, list[Any]]  # its next numbers: one for all, or one for each


class ReplayedSubStep:
    """Replayed update of one rule.

    Args:
        adapter: The adapter of the update in the step that was repeated.

    Attributes:
        owners: The parameters whose gradients the update uses.
        places: The index of the group of each owner.
        keys: A key for each owner. Owners of one group with equal numbers have equal keys.
        is_torchs: True if scalars are computed as in torch, False if as in TensorFlow.
    """

    def __init__(self, adapter: ParamGroupAdapter) -> None:
        self.adapter: Any = adapter
        self.part, self.places = adapter.part, adapter.owner_places
        self.plan: Any = self.part.plans.last
        self.columns: Any = self.part.columns
        self.owners = [] if self.plan is None else _owners_of(self.plan)
        self.is_torchs = type(self.adapter) is TorchStepAdapter  # else the numbers are TensorFlow's
        self.keys: Sequence[Hashable] = self.places
        self._other_keys: list[Hashable] = []  # keys but for the first
        self._shared_flags: list[bool] = []  # for each column, True if one number serves all
        self._reads: list[int] = []  # of each column, when its numbers were looked at last
        self._launches: Sequence[Launch] = ()
        self._scalars: dict[Hashable, Any] = {}  # by key
        # Those that the call makes, of each launch and place, if the adapter needs none of them.
        self._in_call: list[list[tuple[Hashable, RuleScalars]]] = []
        self._unlaunched: list[TensorFlowScalars] = []  # of groups that have no elements

    def _is_replayable(self, column: Any) -> bool:
        """Return True if the native call can read and write the numbers of a column.

        The numbers must lie in one block. For TensorFlow's rules, they must be equal.
        """
        if type(column) is not Column or column.dtype not in KINDS:
            return False
        return self.is_torchs or (column.places is None and column.common is not None)

    def is_repeatable(self, stages: Stages) -> bool:
        """Return True if the last step was only `stages` and the rule's update of dense gradients.

        User code such as constraints, sparse gradients, and slots sharded over ranks prevent a
        replay.
        """
        params = self.part.params
        param_ids = set(map(id, params))
        return (
            is_repeatable(self.plan, self.adapter, stages, may_have_passes=True)
            and is_ours(type(self.adapter))
            and all(id(owner) in param_ids for owner in self.owners)
            and all(map(self._is_replayable, self.columns))
            and all(getattr(param, "constraint", None) is None for param in params)
        )

    def stands(self, optimizer: Any, gradients: Sequence[Tensor | None]) -> bool:
        """Return True if a step with all checks would repeat the last one exactly.

        Changed options are accepted if they choose the same rule. Return False if parameters moved
        within groups and random bits of stochastic rounding depend on it.
        """
        part, groups, request = self.part, optimizer.param_groups, self.plan.request
        return (
            part.stands(optimizer.state, part.params)
            and all(
                hold(part.options_by_place.get(place), groups[place])
                or (
                    part.rule in optimizer.rules_around(groups[place])
                    and not optimizer.is_torchs_group(groups[place])
                )
                for place in {*self.places}
            )
            and list(self.adapter.places_of(request.variables)) == list(request.places)
            and stands(self.plan, gradients)
        )

    def hold(self, guards: GuardTable) -> bool:
        """Add guards of the rule's parameters and state to `guards`, but not of gradient sums.

        Return False if an object cannot be guarded.
        """
        params = self.part.params
        if not all(type(param) in PARAM_CLASSES for param in params):
            return False
        tensors: list[Tensor] = [*params]
        for entries in self.part.owners:
            guards.guard_dict(entries, SUM)  # which is looked at as a gradient
            read = [x for key, x in entries.items() if key not in (SUM, ENCODED_SHAPE)]
            tensors += [x for x in read if isinstance(x, Tensor)]
        # A parameter may be given a constraint, which is among its attributes.
        if not all(map(guards.guard_attributes, params)):
            return False
        return hold_tensors(guards, [*tensors, *self.written()])

    def written(self) -> list[Tensor]:
        """Return one tensor for each version counter that the update raises."""
        return [*written_of(self.plan), *(column.views[0] for column in self.columns)]

    def accessed_places(self) -> list[tuple[Tensor, int]]:
        """Return (tensor, address) of all tensors that the update accesses."""
        numbers = [
            pair
            for column in self.columns
            for pair in zip(column.views, column.pointers, strict=True)
        ]
        return places_of(self.plan) + numbers

    def numbers(self) -> Iterator[tuple[int, int, int]]:
        """Yield (address, length, format) of arrays: a step adds one value to a whole array.

        `KINDS` has the formats.
        """
        for column, is_shared in zip(self.columns, self._shared_flags, strict=True):
            kind = KINDS[column.dtype]
            if is_shared:
                yield column.block.data_ptr(), len(column.views), kind
            else:
                yield from ((pointer, 1, kind) for pointer in column.pointers)

    def group_by_scalars(self) -> None:
        """Set `keys`, equal for parameters with equal scalars; create the scalars of each key."""
        self._reads = [column.reads for column in self.columns]
        varying = [column.values for column in self.columns if column.common is None]
        if varying:
            self.keys = list(zip(self.places, *varying, strict=True))
        kind: Any = TorchScalars if self.is_torchs else TensorFlowScalars
        for first, key in enumerate(self.keys):
            if key not in self._scalars:
                self._scalars[key] = kind(self.adapter, self.places[first], first)
        self._other_keys = [*self._scalars][1:]
        has_single_key = not self._other_keys
        self._shared_flags = [
            column.places is None
            and (has_single_key or not self.is_torchs or (column.name == STEP and not varying))
            for column in self.columns
        ]

    def set_launches(self, launches: Sequence[Launch], products: Collection[str]) -> None:
        """Set the kernels that receive the scalars of the rule.

        The native call computes the scalars of a TensorFlow rule if the only numbers in the state
        are the step count and `products`, the keys of running products of hyperparameters.
        """
        self._launches = launches
        if self.is_torchs:
            return
        launched = {key for launch in launches for key in launch.places}
        unlaunched = self._scalars.keys() - launched
        self._unlaunched = [self._scalars[key] for key in unlaunched]
        if all(column.name in {STEP, *products} for column in self.columns):
            rule = self.adapter.step_rule()
            self._in_call = [
                [(key, RuleScalars(rule, launch, index)) for index, key in enumerate(launch.places)]
                for launch in launches
            ]

    def read(self) -> bool:
        """Read columns again to which other code may have written.

        Return False if parameters with equal keys have different numbers now: the replay is
        invalid.
        """
        for k, column in enumerate(self.columns):
            if not column.is_known:  # what no version tells of, the call itself sees
                column.read()
            if column.reads != self._reads[k]:  # also by a careful step, which was refused
                if column.common is None and not self._have_equal_numbers(column.values):
                    return False
                self._reads[k] = column.reads
        return self.part.columns is self.columns  # else a careful step was planned anew

    def _have_equal_numbers(self, values: Sequence[Any]) -> bool:
        """Return True if parameters with equal keys have equal numbers."""
        if not self.is_torchs:
            return False
        values_by_key = dict(zip(self.keys, values, strict=True))
        return [values_by_key[key] for key in self.keys] == values

    def prepare(
        self, groups: Sequence[Any], of_gradients: Scalars | None
    ) -> list[ColumnUpdate] | None:
        """Compute the scalars of the next step, and write them into the kernels.

        Args:
            groups: The parameter groups of the optimizer, whose rates are read.
            of_gradients: {dtype: scalars} of gradient transforms, which are written, too; or None.

        Returns:
            (column, next numbers) pairs, with one number for all parameters or one for each. None
            if an option other than the rate changed, or a shared number would become several.
        """
        for group_scalars in self._scalars.values():
            if not group_scalars.hold(groups[group_scalars.place]):
                return None
        for group_scalars in self._unlaunched:  # they are read, and may be refused
            group_scalars.numbers(self.columns, np.float32)
        if self.is_torchs:  # else each dtype has its own
            scalars = {key: x.made(self.columns) for key, x in self._scalars.items()}
            self.adapter.scalars_by_key = scalars
        else:
            self.adapter.scalars_by_key = {}
        for k, launch in enumerate(self._launches):
            launch_scalars = self._scalars_of(k, launch, of_gradients is not None)
            if of_gradients is not None:
                gradients = of_gradients[launch.dtype]
                launch_scalars = {key: {**x, **gradients} for key, x in launch_scalars.items()}
            if launch_scalars:
                launch.set_scalars(launch_scalars)
        return self._next_numbers()

    def _scalars_of(self, index: int, launch: Launch, has_extra: bool) -> Mapping[Any, Any]:
        """Return {key: scalars} to write into a kernel; {} if the native call computes all scalars.

        Args:
            index: The index of the kernel in `self._launches`.
            launch: The kernel.
            has_extra: True if scalars of gradient transforms are written, too; then {} is not
                returned.
        """
        scalars_by_key, dtype, columns = self.adapter.scalars_by_key, launch.dtype, self.columns
        if self.is_torchs:
            return scalars_by_key
        if self._in_call:
            sources = [(key, self._scalars[key], maker) for key, maker in self._in_call[index]]
            inputs = [(key, source.numbers(columns, dtype), x) for key, source, x in sources]
            launch_scalars = {key: maker.made(*numbers) for key, numbers, maker in inputs}
            if not has_extra and not any(launch_scalars.values()):
                return {}  # the call makes all
            return {key: scalars or launch.unset for key, scalars in launch_scalars.items()}
        dtype_scalars = {key: source.made(columns, dtype) for key, source in self._scalars.items()}
        scalars_by_key.update({(dtype, key): scalars for key, scalars in dtype_scalars.items()})
        return dtype_scalars

    def _next_numbers(self) -> list[ColumnUpdate] | None:
        """Return (column, numbers after the step) pairs: one number for all parameters or for each.

        Return None if parameters that share a number would get different numbers.
        """
        updates: list[ColumnUpdate] = []
        next_number = self.adapter.next_number
        for column, is_shared in zip(self.columns, self._shared_flags, strict=True):
            if not is_shared:
                numbers_by_key = {key: next_number(column, key) for key in self._scalars}
                updates.append((column, [numbers_by_key[key] for key in self.keys]))
                continue
            value = next_number(column, self.keys[0])
            for key in self._other_keys:
                if next_number(column, key) != value:
                    return None
            updates.append((column, [value]))
        return updates


def _owners_of(plan: Any) -> list[Tensor]:
    """Return the parameters that a plan updates: its variables, or the parameters behind them."""
    request = plan.request
    copies = request.copies or [None] * len(request.variables)
    pairs = zip(request.variables, copies, strict=True)
    return [var if copy is None else copy for var, copy in pairs]
