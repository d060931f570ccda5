"""Timer of hooks that act every so many steps or seconds."""

from __future__ import annotations

import time

from thalweg.errors import InvalidArgumentError
from thalweg.v1.time_arguments import check_seconds, wait_seconds


class SecondOrStepTimer:
    """Triggers at the first step, and then every so many steps or seconds.

    Args:
        every_secs: The seconds.
        every_steps: The steps; exactly one of the two.

    Raises:
        ValueError: None is given, or both are, or the seconds are NaN.
        TypeError: The seconds are no number.

    Reference: tf.train.SecondOrStepTimer
    """

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        if every_secs is None and every_steps is None:
            raise InvalidArgumentError("Either every_secs or every_steps should be provided.")
        if every_secs is not None and every_steps is not None:
            raise InvalidArgumentError("Can not provide both every_secs and every_steps.")
        if every_secs is not None:
            check_seconds("every_secs", every_secs)
        self._every_secs = every_secs
        self._every_steps = every_steps
        self._last_trigger: tuple[int, float] | None = None

    def reset(self) -> None:
        """Forget when it triggered last."""
        self._last_trigger = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Return True if the hook is due at `step`.

        It is due at the first call, and again `every_steps` or `every_secs` after the last trigger,
        but never twice at the same step.
        """
        if self._last_trigger is None:
            return True
        last_step, last_time = self._last_trigger
        if step == last_step:
            return False
        if self._every_steps is not None:
            return step >= last_step + self._every_steps
        return time.time() >= last_time + wait_seconds(self._every_secs or 0.0)

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Record a trigger at `step` and at the present time.

        Returns:
            (seconds, steps) since the previous trigger; (None, None) for the first one.
        """
        previous_trigger, self._last_trigger = self._last_trigger, (step, time.time())
        if previous_trigger is None:
            return None, None
        return self._last_trigger[1] - previous_trigger[1], step - previous_trigger[0]

    def last_triggered_step(self) -> int | None:
        """Return the step at which it triggered last."""
        return None if self._last_trigger is None else self._last_trigger[0]
