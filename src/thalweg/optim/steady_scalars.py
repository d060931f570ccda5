"""The scalars of a step of torch's kind that is taken again: what of them stays is kept."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from thalweg.core.columns import derived
from thalweg.core.groups import Group
from thalweg.core.hooks import Dtype
from thalweg.core.symbols import Program
from thalweg.optim.columns import STEP, Column
from thalweg.optim.groups import Options
from thalweg.optim.tensor_rate import TensorRate
from thalweg.variable import check_number

_HIGHEST = 1e30
# Rates with which Python computes in float64; NumPy makes float32 of others.
_WIDE = (float, int, np.float64)


class GroupScalars:
    """The scalars of parameters of a group that are alike, from one step to the next.

    Args:
        hooks: Of the step.
        place: The number of the group.
        first: The position of the first of them.
    """

    def __init__(self, hooks: Any, place: int, first: int) -> None:
        self.place, self._first = place, first
        self._hooks = hooks
        self._rule = hooks.step_rule()
        self._read_options()
        # Numbers beside those of the rule, such as that of the step by which codes are rounded, or
        # that others may write to.
        has_more = bool(hooks._optimizer._around.wrapping or self._rule.codecs)
        self._is_made_anew = has_more or self._moves()

    def hold(self, group: Group) -> bool:
        """Whether a group has the options that it had, or another rate, which is read."""
        known = self.options
        if known.hold(group):
            return True
        if not hold(known, group):
            return False
        self._read_options()
        return True

    def _read_options(self) -> None:
        self.options: Options = self._hooks._part.options(self.place, self._hooks._optimizer)

    def _moves(self) -> bool:
        """Whether others may write to what is kept of the options."""
        return self.options.moves


class TorchScalars(GroupScalars):
    """The same with torch's numbers, as `TorchHooks.scalars_of` makes them."""

    def _read_options(self) -> None:
        super()._read_options()
        hooks, options = self._hooks, self.options
        _, numbers = hooks._apart(self._key())
        self._known = {**options.numbers(hooks._stays), **numbers}
        self._given = options.given_to_prepare({**numbers, "t": 1})
        self._rate = options.moving_rate

    def _moves(self) -> bool:
        return self.options.moves and self._rate is None

    def made(self, columns: Sequence[Column]) -> dict[str, Any]:
        """The scalars of the step that follows."""
        if self._is_made_anew:
            return self._hooks._prepared(self._key())
        if self._rate is None:
            return self._made(columns)
        try:
            return self._made_by(self._rate, columns)
        except (TypeError, ArithmeticError):  # torch makes them
            return self._hooks._prepared(self._key())

    @property
    def rate(self) -> float:
        """The rate, a number."""
        return self._known["learning_rate"]

    def program_for(self, dtype: Dtype) -> Program | None:
        """What makes the scalars of a kernel of the number of a step and the rate, natively.

        Args:
            dtype: That of the kernel.

        Returns:
            None where Python makes them.
        """
        known = self._known
        if self._is_made_anew or self._rate is not None or "learning_rate" not in known:
            return None
        if type(self._given.get("learning_rate", 0.0)) not in _WIDE:
            return None

        def make(symbols: Mapping[str, Any], number: Any) -> dict[str, Any]:
            moving = {"t": symbols[STEP], **symbols}
            given = {name: moving.get(name, own) for name, own in self._given.items()}
            made = {**known, **moving, **self._rule.prepare(**given)}
            kind = type(symbols[STEP])
            return {n: own if type(own) is kind else number(float(own)) for n, own in made.items()}

        try:
            return Program(np.float64, {STEP: np.float64}, ["learning_rate"], make, stored=dtype)
        except (TypeError, ValueError, ArithmeticError):  # such as what depends on a number
            return None

    def _key(self) -> Hashable:
        """What careful steps call these parameters now."""
        columns = self._hooks._part.columns
        own = [column.of(self._first) for column in columns if column.common is None]
        return (self.place, *own) if own else self.place

    def _made_by(self, tensor: Tensor, columns: Sequence[Column]) -> dict[str, Any]:
        """The same with a rate that is a tensor, as torch computes with it."""
        check_number(tensor)
        rate = self._given["learning_rate"] = TensorRate.of(tensor)
        made = self._made(columns)
        made["learning_rate"] = rate.value
        return made

    def _made(self, columns: Sequence[Column]) -> dict[str, Any]:
        given, known = self._given, self._known
        for column in columns:
            name, value = column.name, column.of(self._first)
            if name == STEP:
                known["t"] = value = value + 1
                if "t" in given:
                    given["t"] = value
            known[name] = value
            if name in given:
                given[name] = value
        made = self._rule.prepare(**given)
        if self._rate is not None:
            made = {
                name: each.value if type(each) is TensorRate else each
                for name, each in made.items()
            }
        known.update(made)
        return known


class TensorFlowScalars(GroupScalars):
    """The same with TensorFlow's numbers, as `TensorFlowHooks.scalars_of` makes them."""

    def _read_options(self) -> None:
        super()._read_options()
        self._hypers: dict[Dtype, dict[str, Any]] = {}

    def numbers(self, columns: Sequence[Column], dtype: Dtype) -> tuple[dict[str, Any], int | None]:
        """What `RuleScalars.made` takes for the step that follows, of a compute dtype."""
        if self._is_made_anew:
            return self._hooks.scalars_of(dtype, self.place), None
        if dtype not in self._hypers:
            own = self._hooks.hypers(dtype, self.place)
            self._hypers[dtype] = {**own, "is_first": dtype(0)}
        values, step = self._hypers[dtype], 0
        for column in columns:
            if column.name == STEP:
                step = column.common
            else:
                values = {**values, column.name: dtype(column.common)}
        return values, step + 1

    def made(self, columns: Sequence[Column], dtype: Dtype) -> dict[str, Any]:
        """The scalars themselves."""
        values, step = self.numbers(columns, dtype)
        return values if step is None else derived(self._rule, {**values}, dtype, step)


def hold(known: Options | None, group: Group) -> bool:
    """Whether a group has the options that it had, or another number for its rate."""
    if known is None or known.hold(group):
        return known is not None
    rate: Any = group.get("lr")
    is_usual = type(rate) in (float, int) and -_HIGHEST < rate < _HIGHEST  # else a step refuses it
    return is_usual and not known.moves and known.hold_beside_rate(group)
