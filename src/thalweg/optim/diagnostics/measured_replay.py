"""A step in one call, unless it is to be measured."""

from __future__ import annotations

from typing import Any

from thalweg.optim.replay import ReplayedStep


class StepBetween(ReplayedStep):
    """A step that is taken again in one call, unless it is to be measured."""

    def take(self, optimizer: Any, has_sums: bool = False, unrecorded: bool = False) -> bool:
        """See `ReplayedStep`."""
        is_measured_step = optimizer._cache.diagnosing.is_due()
        return not is_measured_step and super().take(optimizer, has_sums, unrecorded)
