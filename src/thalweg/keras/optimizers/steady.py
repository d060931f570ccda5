"""A step of `apply_gradients` in one call; see `core/steady.py`."""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from torch import Tensor

from thalweg.core.columns import derived
from thalweg.core.hooks import Dtype
from thalweg.core.outcome import add_taken
from thalweg.core.plan_cache import PlanCache, Planned
from thalweg.core.steady import (
    Launches,
    hold_tensors,
    is_repeatable,
    is_traced,
    look,
    plan_of,
    snapshot,
    stands,
)
from thalweg.ground.running import executing_eagerly
from thalweg.keras.optimizers.hooks import RuleHooks
from thalweg.variable import Variable, variable_constraint

FAILED = -1  # to make scalars
_PLAIN = (Tensor, torch.nn.Parameter, Variable)


class SteadyApply:
    """A step that may be taken again.

    Args:
        optimizer: The optimizer.
        planned: Its last step.
    """

    def __init__(self, optimizer: Any, planned: Planned) -> None:
        self._planned = planned
        self._rule = planned.request.rule
        self._selection = optimizer._selection()
        self._asked = _asked(optimizer)
        self._exact = optimizer._exact_values()
        self._read(optimizer)

    def _read(self, optimizer: Any) -> None:
        """Read what others may have written to."""
        self._step = int(optimizer.iterations.item())
        self._hypers: dict[Dtype, dict[str, Any]] = {}
        if optimizer._are_scalars_known():
            dtypes = self._planned.ready.dtypes
            self._hypers = {each: optimizer._hyper_scalars(each) for each in dtypes}

    @staticmethod
    def of(optimizer: Any, kept: PlanCache, given: Any) -> SteadyApply | None:
        """The step that was repeated last, if everything stands and it could be taken so."""
        planned, hooks = kept.last, optimizer._hooks(True)
        if (
            planned is None
            or not (is_repeatable(planned, hooks) and hooks.repeats and type(hooks) is RuleHooks)
            or not _is_plain(optimizer)
            or not _are_pairs(given, planned)
            or not stands(planned, [grad for grad, _ in given])
        ):
            return None
        made = SteadyApply(optimizer, planned)
        return made if made._plan(optimizer, given) else None

    def _plan(self, optimizer: Any, given: list[tuple[Tensor, Tensor]]) -> bool:
        found, ready = snapshot(), plan_of(self._planned)
        if found is None:
            return False
        count = optimizer.iterations
        hypers = [each for each in optimizer._hyper.values() if isinstance(each, Tensor)]
        variables = self._planned.request.variables
        slots = [slot for each in self._planned.request.slots for slot in each]
        written = [*ready.written, count]
        if not hold_tensors(found, [*variables, *slots, *written, *hypers]):
            return False
        if not all(each.numel() == 1 and each.element_size() in (4, 8) for each in hypers):
            return False
        found.hold_dict(optimizer._hyper._values)
        for var in variables:
            found.hold_dict(vars(var))  # where it may be given a constraint
        self._launches = launches = Launches(self._planned, [0] * len(given))
        found.finish(
            [(var, grad, cell) for (grad, var), cell in zip(given, launches.cells, strict=True)],
            launches.records(),
            [(count.data_ptr(), 1, look.INT64)],
            written,
            ready.bounds,
            [count, *hypers],
        )
        self._snapshot = found
        return True

    @property
    def taken(self) -> int:
        """How many steps it has taken."""
        return self._snapshot.taken

    def take(self, optimizer: Any, kept: PlanCache, given: Any) -> bool:
        """Take it, if everything is as it was.

        Returns:
            Whether it was taken; if not, nothing has changed.
        """
        before = self._snapshot.taken
        try:
            return self._take(optimizer, kept, given)
        except BaseException as error:
            if self._snapshot.taken != before:
                add_taken(error)
            raise

    def _take(self, optimizer: Any, kept: PlanCache, given: Any) -> bool:
        if (
            type(given) is not list
            or kept.last is not self._planned
            or is_traced()
            or not executing_eagerly()
            or optimizer._selection() != self._selection
            or not all(map(is_, _asked(optimizer), self._asked))
            or optimizer._transformers
            or not all(map(is_, optimizer._exact_values(), self._exact))
        ):
            return False
        other = self._look_and_write(optimizer, given)
        if other == look.WRITTEN_BY_OTHERS:  # to a rate, say
            self._read(optimizer)
            self._snapshot.watch()
            other = self._look_and_write(optimizer, given)
        if other:
            kept.quick = None
            return False
        self._step += 1
        self._snapshot.watched[0, 2] += 1  # last: until then somebody else has counted
        return True

    def _look_and_write(self, optimizer: Any, given: Any) -> int:
        """What is not as it was; if that is nothing, the step is taken."""
        found = self._snapshot
        try:
            for launch in self._launches.all:
                launch.set_scalars({0: self._scalars(optimizer, launch.dtype)})
        except Exception:  # the careful way says it
            return FAILED
        found.columns[0, 3] = self._step + 1
        self._launches.set_threads(found.launches)
        return found.take(given)

    def _scalars(self, optimizer: Any, dtype: Dtype) -> dict[str, Any]:
        if dtype in self._hypers:
            return derived(self._rule, {**self._hypers[dtype]}, dtype, self._step + 1)
        return optimizer._rule_scalars(dtype)


def _asked(optimizer: Any) -> tuple[Any, ...]:
    """What decides on a step beside hyperparameters."""
    return (
        optimizer._clipping,
        optimizer._aggregator,
        optimizer._initial_decay,
        optimizer._slots,
        optimizer._slots.parts,
        optimizer._hyper,
        optimizer.iterations,
    )


def _is_plain(optimizer: Any) -> bool:
    """Whether a step is the update of a rule, and a count."""
    count = optimizer.iterations
    return (
        not optimizer._counts_more()
        and not optimizer._clipping
        and optimizer._slots.parts is None
        and type(count) is Variable
        and count.dtype == torch.int64
        and not count.dim()
    )


def _are_pairs(given: Any, planned: Planned) -> bool:
    """Whether these are plain gradients of the variables of a step, in their order."""
    variables = planned.request.variables
    return (
        type(given) is list
        and len(given) == len(variables)
        and all(type(pair) is tuple and len(pair) == 2 for pair in given)
        and all(type(grad) is Tensor for grad, _ in given)
        and all(own is var for (_, own), var in zip(given, variables, strict=True))
        and all(type(var) in _PLAIN and variable_constraint(var) is None for var in variables)
    )
