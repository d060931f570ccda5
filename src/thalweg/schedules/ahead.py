"""Learning rates of coming steps, computed several at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

_LONGEST = 32  # steps that are computed at a time, at most
# Of a step that may never come: the step itself raises what there is to raise.
_ERRORS = (TypeError, ValueError, ArithmeticError)


class RatesAhead:
    """A learning rate that depends on the step alone, computed for several steps at a time.

    During training, other data fill the processor's caches, and a single evaluation of a formula is
    slow. While steps are consecutive, each evaluation computes twice as many rates as the last one.

    Args:
        rate_at: `rate_at(step)` returns the learning rate, which must depend on `step` alone.
    """

    def __init__(self, rate_at: Callable[[int], Any]) -> None:
        self._rate_at = rate_at
        # One attribute: threads that share a rate replace it as a whole.
        self._cached_rates: tuple[int, list[Any]] = (0, [])

    def at(self, step_count: int) -> Any:
        """Return the learning rate of a step; pass on an error of `rate_at` for this step only."""
        first, rates = self._cached_rates
        offset = step_count - first
        if 0 <= offset < len(rates):
            return rates[offset]
        count = min(2 * len(rates), _LONGEST) if rates and offset == len(rates) else 1
        with np.errstate(all="ignore"):
            rates = [self._rate_at(step_count)]
            with suppress(*_ERRORS):
                rates += [self._rate_at(step_count + offset) for offset in range(1, count)]
        self._cached_rates = step_count, rates
        return rates[0]

    def alone(self, step_count: int) -> Any:
        """Return the learning rate of a step, computed now and for no other step."""
        with np.errstate(all="ignore"):
            return self._rate_at(step_count)
