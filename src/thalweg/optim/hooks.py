"""What an optimizer of torch has to say about a step: its groups, its state, its words."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.core.checks import check_pairs
from thalweg.core.complexes import as_real
from thalweg.core.hooks import Dtype, Hooks, Shared
from thalweg.core.pairs import Pair
from thalweg.core.section import Call
from thalweg.engines import Selection, current
from thalweg.engines.given import given_to
from thalweg.indexed_slices import IndexedSlices
from thalweg.optim.columns import STEP
from thalweg.optim.groups import number
from thalweg.optim.part import Part
from thalweg.variable import titles_of

_KEEP = Selection(denormals="keep")  # as torch does


class TorchHooks(Hooks):
    """A step over the parameters of one part.

    Args:
        optimizer: The optimizer.
        part: The part.
        params: Its parameters that have a gradient.
        places: For each the index of its group.
    """

    def __init__(
        self, optimizer: Any, part: Part, params: Sequence[Tensor], places: Sequence[int]
    ) -> None:
        super().__init__()
        self.selection = current(_KEEP)
        self._optimizer = optimizer
        self._part = part
        self._params = params
        self._places = places
        self._keys: list[Hashable] | None = None
        self._made: dict[Hashable, dict[str, Any]] = {}
        self._written: list[tuple[Any, list[Any]]] = []
        self._real: dict[int, Tensor] = {}
        self.repeats = part.stands(optimizer.state, params)

    def rule(self) -> Any:
        return self._part.rule

    def titles(self, variables: Sequence[Tensor]) -> list[str]:
        own = [self._real.get(id(var), var) for var in variables]
        names = {
            id(param): name
            for group in self._optimizer.param_groups
            for param, name in zip(group["params"], group.get("param_names", ()))
        }
        found = titles_of(own)
        return [names.get(id(var), title) for var, title in zip(own, found, strict=True)]

    def convert(self, given: Sequence[tuple[Any, Any]]) -> list[Pair]:
        return [self._converted(grad, param) for grad, param in given]

    def _converted(self, grad: Tensor, param: Tensor) -> Pair:
        if grad.layout == torch.sparse_coo:
            return IndexedSlices.from_sparse(grad), param
        if not param.is_complex():
            return grad, param
        real = as_real(param)
        self._real[id(real)] = param
        return as_real(grad), real

    def check(self, pairs: Sequence[Pair], narrow: bool) -> None:
        check_pairs(pairs, self.titles([var for _, var in pairs]), scatter=True, narrow=narrow)

    def rehearse(self, given: Sequence[tuple[Any, Any]]) -> None:
        """Raise what a step would before it writes, and change nothing."""
        if not self.repeats:
            pairs = self.convert(given)
            self.check(pairs, False)
            self.create([var for _, var in pairs])
        self.prepare(self._params)
        for key in [None] if self._keys is None else dict.fromkeys(self._keys):
            self.scalars(np.float32, key)

    def create(self, variables: Sequence[Tensor]) -> None:
        optimizer = self._optimizer
        starts = [optimizer._starts(group) for group in optimizer.param_groups]
        own = {
            id(param): starts[place]
            for param, place in zip(self._params, self._places, strict=True)
        }
        self._part.make(optimizer.state, self._params, own)

    def slots(self, var: Tensor) -> list[Tensor]:
        param = self._real.get(id(var))
        if param is None:
            return self._part.slots(var)
        slots = self._part.slots(param)
        return [as_real(slot) if slot.is_complex() else slot for slot in slots]

    def prepare(self, variables: Sequence[Tensor]) -> None:
        part, places = self._part, self._places
        for column in part.columns:
            column.read()
        differing = [column.values for column in part.columns if column.common is None]
        if any(part.lacked) and not all(part.lacked):
            differing.append(part.lacked)
        if differing:
            self._keys = list(zip(places, *differing, strict=True))
        elif places and places[0] != places[-1]:
            self._keys = list(places)

    def groups(self, variables: Sequence[Tensor], gradients: Sequence[Any]) -> Any:
        return self._keys

    def scalars(self, dtype: Dtype, group: Hashable) -> dict[str, Any]:
        if group not in self._made:
            self._made[group] = self._prepared(group)
        return self._made[group]

    def _prepared(self, key: Any) -> dict[str, Any]:
        """The scalars of parameters that have a group and numbers in common."""
        part = self._part
        place, *numbers = (
            key if isinstance(key, tuple) else (self._places[0] if key is None else key,)
        )
        own = iter(numbers)
        options = part.options(place, self._optimizer.param_groups[place], self._optimizer._fixed)
        values = options.given()
        for column in part.columns:
            value = next(own) if column.common is None else column.common
            if column.name == STEP:
                values["t"] = value + 1
            else:
                values[column.name] = value
        values["is_first"] = next(own, part.lacked[0])
        made = part.rule.prepare(**given_to(part.rule, "prepare", values))
        return {
            **options.numbers(),
            **{name: each if type(each) is float else number(each) for name, each in made.items()},
            "t": values.get("t"),
        }

    def counts(self, shared: Shared) -> list[Call]:
        calls = self._part.publishing()
        for column in self._part.columns:
            name = "t" if column.name == STEP else column.name
            keys = [None] if self._keys is None else self._keys
            values = [self._made[key][name] for key in keys]
            values = values[:1] if values.count(values[0]) == len(values) else values
            calls += column.writing(values)
            self._written.append((column, values))
        return calls

    def settle(self) -> None:
        """The step was written."""
        for column, values in self._written:
            column.wrote(values)
        self._part.settle(self._optimizer.state)
