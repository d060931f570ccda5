"""What one rule updates in a step of torch's kind that is taken again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from thalweg.core.derivation import RuleScalars
from thalweg.core.options.accumulation import SUM
from thalweg.core.steady import (
    KINDS,
    Launch,
    Snapshot,
    hold_tensors,
    is_repeatable,
    plan_of,
    stands,
)
from thalweg.engines.engine import Stages
from thalweg.ground.running import is_ours
from thalweg.optim.columns import STEP, Column
from thalweg.optim.fused_optimizer import Repeated
from thalweg.optim.hooks import TorchHooks
from thalweg.optim.steady_scalars import TensorFlowScalars, TorchScalars, hold

if TYPE_CHECKING:
    from thalweg.core.steady_gradients import Scalars

PLAIN = (Tensor, torch.nn.Parameter)


class SteadyShare:
    """The same.

    Args:
        repeated: What was repeated.

    Attributes:
        owners: The parameters that have its gradients.
        places: For each of these the index of its group.
    """

    def __init__(self, repeated: Repeated) -> None:
        self.part, self.hooks, self.places = repeated
        self.planned: Any = self.part.kept.last
        self.columns: Any = self.part.columns
        self.owners = [] if self.planned is None else _owners_of(self.planned)
        self._is_torchs = type(self.hooks) is TorchHooks  # else the numbers are TensorFlow's
        self._launches: Sequence[Launch] = ()
        self._scalars: list[Any] = []  # of each group
        # Those that the call makes, of each launch and place, if the hooks need none of them.
        self._in_call: list[list[tuple[TensorFlowScalars, RuleScalars]]] = []
        self._unlaunched: list[TensorFlowScalars] = []  # of groups that have no elements

    def is_repeatable(self, stages: Stages) -> bool:
        """Whether it is the update of a rule, and no more.

        Args:
            stages: What is done to gradients.
        """
        params = self.part._params
        own = set(map(id, params))
        return (
            is_repeatable(self.planned, self.hooks, stages)
            and is_ours(type(self.hooks))
            and all(id(owner) in own for owner in self.owners)
            and all(map(_is_common, self.columns))
            and all(getattr(param, "constraint", None) is None for param in params)
        )

    def stands(self, state: Any, groups: Sequence[Any], gradients: Sequence[Tensor | None]) -> bool:
        """Whether the careful look finds it to be the one before."""
        part = self.part
        return (
            part.stands(state, part._params)
            and all(hold(part._options.get(place), groups[place]) for place in {*self.places})
            and stands(self.planned, gradients)
        )

    def hold(self, found: Snapshot) -> bool:
        """Have the look compare all that the careful one does."""
        params = self.part._params
        if not all(type(each) in PLAIN for each in params):
            return False
        tensors: list[Tensor] = [*params]
        for own in self.part._owners:
            found.hold_dict(own, SUM)  # which is looked at as a gradient
            tensors += [x for key, x in own.items() if key != SUM and isinstance(x, Tensor)]
        for param in params:
            found.hold_dict(vars(param))  # where it may be given a constraint
        return hold_tensors(found, [*tensors, *self.written()])

    def written(self) -> list[Tensor]:
        """What it writes, as far as versions tell."""
        return [*plan_of(self.planned).written, *(column._views[0] for column in self.columns)]

    def numbers(self) -> Iterator[tuple[int, int, int]]:
        """Where the numbers of parameters are, how many, and of which kind."""
        for column in self.columns:
            yield column._block.data_ptr(), len(column._views), KINDS[column.dtype]

    def set_launches(self, launches: Sequence[Launch], products: Collection[str]) -> None:
        """Have it give scalars to its kernels.

        Args:
            launches: The kernels.
            products: Numbers that are counted without scalars.
        """
        kind: Any = TorchScalars if self._is_torchs else TensorFlowScalars
        self._launches = launches
        self._places = list(dict.fromkeys(self.places))
        self._scalars = [kind(self.hooks, place) for place in self._places]
        if self._is_torchs:
            return
        launched = {place for each in launches for place in each.places}
        self._unlaunched = [each for each in self._scalars if each.place not in launched]
        if all(column.name in {STEP, *products} for column in self.columns):
            own, rule = {each.place: each for each in self._scalars}, self.hooks.step_rule()
            self._in_call = [
                [(own[k], RuleScalars(rule, each, at)) for at, k in enumerate(each.places)]
                for each in launches
            ]

    def read(self) -> bool:
        """Look at the numbers of parameters; whether these have each in common."""
        for column in self.columns:
            column.read()
            if column.common is None:
                return False
        return self.part.columns is self.columns  # else a careful step was planned anew

    def prepare(self, groups: Sequence[Any], of_gradients: Scalars | None) -> list[Any] | None:
        """Give the kernels the scalars of the step.

        Args:
            groups: Those of the optimizer.
            of_gradients: Optional. Those of what happens to gradients.

        Returns:
            What the numbers of parameters become; None if groups differ in one, or have other
            options than rates, which are read.
        """
        for each in self._scalars:
            if not each.hold(groups[each.place]):
                return None
        for each in self._unlaunched:  # they are read, and may be refused
            each.numbers(self.columns, np.float32)
        own = self._scalars if self._is_torchs else ()  # else each dtype has its own
        self.hooks._made = {each.place: each.made(self.columns) for each in own}
        for k, launch in enumerate(self._launches):
            found = self._scalars_of(k, launch, of_gradients is not None)
            if of_gradients is not None:
                beside = of_gradients[launch.dtype]
                found = {place: {**own, **beside} for place, own in found.items()}
            if found:
                launch.set_scalars(found)
        return self._following()

    def _scalars_of(self, k: int, launch: Launch, have_more: bool) -> Mapping[int, Any]:
        """The scalars of each place, which the hooks have, too, for the numbers that follow."""
        made, dtype = self.hooks._made, launch.dtype
        if self._is_torchs:
            return made
        if self._in_call:
            pairs = self._in_call[k]
            found = {own.place: each.made(*own.numbers(self.columns, dtype)) for own, each in pairs}
            if not have_more and not any(found.values()):
                return {}  # the call makes all
            return {place: each or launch.unset for place, each in found.items()}
        own = {each.place: each.made(self.columns, dtype) for each in self._scalars}
        made.update({(dtype, place): found for place, found in own.items()})
        return own

    def _following(self) -> list[Any] | None:
        """What the numbers of parameters become; None if groups differ in one."""
        first, *places = self._places
        found: list[Any] = []
        for column in self.columns:
            value = self.hooks._next(column, first)
            if column.name != STEP:
                for place in places:
                    if self.hooks._next(column, place) != value:
                        return None
            found.append(value)
        return found

    def wrote(self, values: Sequence[Any]) -> None:
        """Those were written."""
        for column, value in zip(self.columns, values, strict=True):
            column.wrote([value])


def _owners_of(planned: Any) -> list[Tensor]:
    """The parameters that have the gradients of a step: what it updates, or what follows that."""
    request = planned.request
    copies = request.copies or [None] * len(request.variables)
    pairs = zip(request.variables, copies, strict=True)
    return [var if copy is None else copy for var, copy in pairs]


def _is_common(column: Any) -> bool:
    """Whether a number is the same for all parameters, which lie in a block in their order."""
    is_usual = type(column) is Column and column.dtype in KINDS
    return is_usual and column._places is None and column.common is not None
