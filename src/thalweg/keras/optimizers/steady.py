"""A step of `apply_gradients` in one call; see `core/steady.py`."""

from __future__ import annotations

from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor

from thalweg.core.columns import derived
from thalweg.core.hooks import Dtype
from thalweg.core.outcome import add_taken
from thalweg.core.plan_cache import PlanCache, Planned
from thalweg.core.repeated_pairs import RepeatedPairs
from thalweg.core.steady import is_repeatable, is_traced, look
from thalweg.ground.running import executing_eagerly
from thalweg.keras.optimizers.hooks import RuleHooks
from thalweg.variable import Variable


class SteadyApply:
    """A step that may be taken again.

    Args:
        optimizer: The optimizer.
        planned: Its last step.
        found: How that was found.
    """

    def __init__(self, optimizer: Any, planned: Planned, found: RepeatedPairs) -> None:
        self._planned, self._found = planned, found
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
        ):
            return None
        count = optimizer.iterations
        hypers = [each for each in optimizer._hyper.values() if isinstance(each, Tensor)]
        own = (planned, given, [count], [count, *hypers], [optimizer._hyper._values])
        found = RepeatedPairs.of(*own)
        return None if found is None else SteadyApply(optimizer, planned, found)

    @property
    def taken(self) -> int:
        """How many steps it has taken."""
        return self._found.taken

    def take(self, optimizer: Any, kept: PlanCache, given: Any) -> bool:
        """Take it, if everything is as it was.

        Returns:
            Whether it was taken; if not, nothing has changed.
        """
        before = self.taken
        try:
            return self._take(optimizer, kept, given)
        except BaseException as error:
            if self.taken != before:
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
        other = self._take_as_known(optimizer, given)
        if other == look.WRITTEN_BY_OTHERS:  # to a rate, say
            self._read(optimizer)
            self._found.snapshot.watch()
            other = self._take_as_known(optimizer, given)
        if other != 0:
            kept.quick = None
            return False
        self._step += 1
        self._found.snapshot.watched[0, 2] += 1  # last: until then somebody else has counted
        return True

    def _take_as_known(self, optimizer: Any, given: Any) -> int | None:
        """0 if the step was taken with numbers that are known; else what is not as it was."""
        try:
            return self._found.take(given, partial(self._scalars, optimizer), [self._step + 1])
        except Exception:  # the careful way says it
            return None

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
