"""Replay of the update by one rule; parameters of a group with equal scalars share a *key*."""

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
    stands,
    tensor_addresses_of,
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
# A column, and its numbers after the step: one for all parameters, or one for each.
ColumnUpdate = tuple[Column, list[Any]]


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
        self._other_keys: list[Hashable] = []  # distinct keys without the first
        self._shared_flags: list[bool] = []  # for each column, True if one number serves all
        self._reads: list[int] = []  # the last known `Column.reads` of each column
        self._launches: Sequence[Launch] = ()
        self._scalars: dict[Hashable, Any] = {}  # by key
        # For each kernel, (key, scalars that the native call computes); [] if Python computes them.
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
        """Return True if the last step consisted of `stages` and an update by dense gradients.

        Return False if the step called user code, such as constraints, or if slots are sharded.
        """
        params = self.part.params
        param_ids = set(map(id, params))
        return (
            is_repeatable(self.plan, self.adapter, stages, may_have_passes=True)
            and is_ours(self.adapter.__class__)
            and all(id(owner) in param_ids for owner in self.owners)
            and all(map(self._is_replayable, self.columns))
            and all(getattr(param, "constraint", None) is None for param in params)
        )

    def stands(self, optimizer: Any, gradients: Sequence[Tensor | None]) -> bool:
        """Return True if a step without replay would run the last plan again.

        Return False if parameters or state were replaced. Also return False if changed options
        select another rule, or if stochastic rounding would use other random bits.
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
        """Add guards of the rule's parameters and state, except for gradient sums, to `guards`.

        Return False if an object cannot be guarded, else True.
        """
        params = self.part.params
        if not all(type(param) in PARAM_CLASSES for param in params):
            return False
        tensors: list[Tensor] = [*params]
        for entries in self.part.owners:
            # The native call checks a gradient sum as the gradient that it is.
            guards.guard_dict(entries, SUM)
            read = [x for key, x in entries.items() if key not in (SUM, ENCODED_SHAPE)]
            tensors += [x for x in read if isinstance(x, Tensor)]
        # A parameter may be given a constraint, which is among its attributes.
        if not all(map(guards.guard_attributes, params)):
            return False
        return hold_tensors(guards, [*tensors, *self.written()])

    def written(self) -> list[Tensor]:
        """Return one tensor for each version counter that the update raises."""
        return [*written_of(self.plan), *(column.views[0] for column in self.columns)]

    def tensor_addresses(self) -> list[tuple[Tensor, int]]:
        """Return (tensor, address) of all tensors that the update accesses."""
        numbers = [
            pair
            for column in self.columns
            for pair in zip(column.views, column.pointers, strict=True)
        ]
        return tensor_addresses_of(self.plan) + numbers

    def numbers(self) -> Iterator[tuple[int, int, int]]:
        """Yield (address, length, format in `KINDS`) of an array for each number that a step sets.

        A number shared by all parameters is an array with an element per parameter. A number of one
        parameter is an array of length 1.
        """
        for column, is_shared in zip(self.columns, self._shared_flags, strict=True):
            kind = KINDS[column.dtype]
            if is_shared:
                yield column.block.data_ptr(), len(column.views), kind
            else:
                yield from ((pointer, 1, kind) for pointer in column.pointers)

    def group_by_scalars(self) -> None:
        """Set `keys` from group indices and per-parameter numbers; create the scalars of each key.

        Called once, if Python computes the scalars.
        """
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
        """Store the kernels of the rule, into which `prepare` writes scalars.

        With TensorFlow's arithmetic, the native call may compute the scalars, if the state has no
        numbers except the step count and `products`.

        Args:
            products: State keys of running products of hyperparameters, such as of `beta1`.
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
        """Read columns to which other code has written.

        Return False if the replay has become invalid: parameters with equal keys have different
        numbers, or the state has new columns.
        """
        for k, column in enumerate(self.columns):
            # Writes that change no version counter are found by the native call.
            if not column.is_known:
                column.read()
            # A step without replay that failed may have read the column, too.
            if column.reads != self._reads[k]:
                if column.common is None and not self._have_equal_numbers(column.values):
                    return False
                self._reads[k] = column.reads
        return self.part.columns is self.columns

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
            of_gradients: {dtype: scalars} of gradient transforms to write, too; or None.

        Returns:
            (column, numbers after the step) pairs, as from `_next_numbers`. None if an option other
                than the rate changed, or if `_next_numbers` returned None.
        """
        for group_scalars in self._scalars.values():
            if not group_scalars.hold(groups[group_scalars.place]):
                return None
        # Invalid options raise even if no kernel reads them.
        for group_scalars in self._unlaunched:
            group_scalars.numbers(self.columns, np.float32)
        # TensorFlow's scalars depend on the compute dtype of each kernel.
        if self.is_torchs:
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

        Keys whose scalars the native call computes have placeholders. Scalars in the dtype of the
        kernel may also be stored in `self.adapter.scalars_by_key`.

        Args:
            index: The index of the kernel `launch` in `self._launches`.
            has_extra: True if the caller adds scalars to each key; the result then has all keys.
        """
        scalars_by_key, dtype, columns = self.adapter.scalars_by_key, launch.dtype, self.columns
        if self.is_torchs:
            return scalars_by_key
        if self._in_call:
            sources = [(key, self._scalars[key], maker) for key, maker in self._in_call[index]]
            inputs = [(key, source.numbers(columns, dtype), x) for key, source, x in sources]
            launch_scalars = {key: maker.made(*numbers) for key, numbers, maker in inputs}
            if not has_extra and not any(launch_scalars.values()):
                return {}
            return {key: scalars or launch.unset for key, scalars in launch_scalars.items()}
        dtype_scalars = {key: source.made(columns, dtype) for key, source in self._scalars.items()}
        scalars_by_key.update({(dtype, key): scalars for key, scalars in dtype_scalars.items()})
        return dtype_scalars

    def _next_numbers(self) -> list[ColumnUpdate] | None:
        """Return (column, numbers after the step) pairs.

        The list of numbers has one element if all parameters share the number, else one per
        parameter. Return None if parameters that share a number would get different numbers.
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
    """Return the parameters of a plan; a plan's variable may be the copy of a parameter."""
    request = plan.request
    copies = request.copies or [None] * len(request.variables)
    pairs = zip(request.variables, copies, strict=True)
    return [var if copy is None else copy for var, copy in pairs]
