"""Replay of steps that are not measured."""

from __future__ import annotations

from typing import Any

from thalweg.optim.replay import ReplayedStep


class StepBetween(ReplayedStep):
    """Replayed step that leaves measured steps to the slow path."""

    def take(self, optimizer: Any, has_sums: bool = False, unrecorded: bool = False) -> bool:
        """See `ReplayedStep`."""
        is_measured_step = optimizer.step_cache.diagnosing.is_due()
        return not is_measured_step and super().take(optimizer, has_sums, unrecorded)
