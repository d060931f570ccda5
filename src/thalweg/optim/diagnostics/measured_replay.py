"""Replay of steps that diagnostics do not measure."""

from __future__ import annotations

from typing import Any

from thalweg.optim.replay import ReplayedStep


class UnmeasuredStep(ReplayedStep):
    """Replayed step whose `take` returns False for steps that diagnostics measure."""

    def take(self, optimizer: Any, has_sums: bool = False, unrecorded: bool = False) -> bool:
        """Return False for a step to be measured, else as `ReplayedStep.take`."""
        is_measured_step = optimizer.step_cache.diagnosing.is_due()
        return not is_measured_step and super().take(optimizer, has_sums, unrecorded)
