"""Session hooks that log values, feed runs, stop or delay a training, or evaluate at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from thalweg._graph import get_default_graph
from thalweg.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    ThalwegError,
)
from thalweg.v1.argument_checks import check_seconds, wait_seconds
from thalweg.v1.train.global_step import _get_or_create_global_step_read
from thalweg.v1.train.monitored.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from thalweg.variable import to_tensor


class SecondOrStepTimer:
    """Timer for hooks: due at the first step, and then every `every_steps` or `every_secs`.

    The hook asks `should_trigger_for_step`, acts, and calls `update_last_triggered_step`.

    Args:
        every_secs: Seconds between two triggers.
        every_steps: Steps between two triggers. Exactly one argument must be given.

    Raises:
        ValueError: Neither argument or both are given, or `every_secs` is NaN.
        TypeError: `every_secs` is not a number.

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
        """Forget the last trigger: the timer is due at the next step."""
        self._last_trigger = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Return True if the timer is due at `step`.

        A timer without a recorded trigger is due. Later it is due when `every_steps` or
        `every_secs` have passed since the last trigger, but never at the last trigger's step.
        """
        if self._last_trigger is None:
            return True
        last_step, last_time = self._last_trigger
        # A run need not raise the step: with seconds, one step could trigger repeatedly.
        if step == last_step:
            return False
        if self._every_steps is not None:
            return step >= last_step + self._every_steps
        return time.time() >= last_time + wait_seconds(self._every_secs or 0.0)

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Record a trigger at `step` and at the present time.

        Returns:
            (seconds, steps) since the previous trigger; (None, None) at the first trigger.
        """
        previous_trigger, self._last_trigger = self._last_trigger, (step, time.time())
        if previous_trigger is None:
            return None, None
        return self._last_trigger[1] - previous_trigger[1], step - previous_trigger[0]

    def last_triggered_step(self) -> int | None:
        """Return the step of the last trigger, or None before the first."""
        return None if self._last_trigger is None else self._last_trigger[0]


__all__ = [
    "FeedFnHook", "FinalOpsHook", "GlobalStepWaiterHook", "LoggingTensorHook",
    "NanLossDuringTrainingError", "NanTensorHook", "StopAtStepHook",
]  # fmt: skip

_LOG = logging.getLogger(__name__)
# Seconds between two looks at the global step.
_PAUSE = 0.5
# In steps.
_LOG_INTERVAL = 1000


class NanLossDuringTrainingError(ThalwegError, RuntimeError):
    """The loss is NaN."""

    def __str__(self) -> str:
        return "NaN loss during training."


class GlobalStepHook(SessionRunHook):
    """Base class of hooks that fetch the global step's value before each run."""

    # The tensor of the global step, once `begin` was called.
    _step: object = None
    _steps_per_run = 1

    def _set_steps_per_run(self, steps_per_run: int) -> None:
        """Set the number of steps that one run takes; 1 by default."""
        self._steps_per_run = steps_per_run

    def begin(self) -> None:
        """Store a tensor that reads the default graph's global step.

        Raises:
            RuntimeError: The graph has no global step.
        """
        self._step = _get_or_create_global_step_read()
        if self._step is None:
            name = type(self).__name__
            raise FailedPreconditionError(f"Global step should be created to use {name}.")

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Fetch the global step."""
        return SessionRunArgs(self._step)

    def _find_due_step(
        self, timer: SecondOrStepTimer, run_context: SessionRunContext, step_before_run: Any
    ) -> int | None:
        """Return the present global step if a timer is due at it, else None."""
        if not timer.should_trigger_for_step(int(step_before_run) + self._steps_per_run):
            return None
        # Other threads may have raised the step since it was fetched.
        step = int(run_context.session.run(self._step))
        return step if timer.should_trigger_for_step(step) else None


class LoggingTensorHook(SessionRunHook):
    """Hook that logs tensors at intervals or at the end, by the logger "thalweg" at level INFO.

    Args:
        tensors: A list of tensors or names of tensors, or a dict {label: tensor or name}.
        every_n_iter: Optional. Runs between two logs; the first run is logged.
        every_n_secs: Optional. Seconds between two logs.
        at_end: True to log at the end, too.
        formatter: Optional. `formatter({label: value})` returns the text.

    Raises:
        ValueError: Both intervals are given, no interval and no `at_end` is given, or
            `every_n_iter` is not positive.

    Reference: tf.train.LoggingTensorHook
    """

    def __init__(
        self,
        tensors: Mapping[str, object] | Sequence[object],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[Any, Any]], str] | None = None,
    ) -> None:
        intervals = [interval for interval in (every_n_iter, every_n_secs) if interval is not None]
        if len(intervals) > 1 or not (intervals or at_end):
            raise InvalidArgumentError(
                "either at_end and/or exactly one of every_n_iter and every_n_secs must be"
                " provided."
            )
        if every_n_iter is not None and every_n_iter <= 0:
            raise InvalidArgumentError(f"invalid every_n_iter={every_n_iter}.")
        has_names = isinstance(tensors, Mapping)
        self._tensors = (
            dict(sorted(tensors.items())) if has_names else {tag: tag for tag in tensors}
        )
        self._timer = SecondOrStepTimer(every_n_secs, every_n_iter) if intervals else None
        self._at_end = at_end
        self._formatter = formatter
        self._current: dict[object, object] = {}
        self._count = 0
        self._is_log_step = False

    def begin(self) -> None:
        """Find the tensors in the default graph."""
        self._count = 0
        if self._timer is not None:
            self._timer.reset()
        graph = get_default_graph()
        self._current = {tag: graph.as_graph_element(x) for tag, x in self._tensors.items()}

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Fetch the values if this run is to be logged."""
        timer = self._timer
        self._is_log_step = timer is not None and timer.should_trigger_for_step(self._count)
        return SessionRunArgs(self._current) if self._is_log_step else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log the values."""
        if self._is_log_step:
            self._log_values(run_values.results)
        self._count += 1

    def end(self, session: Any) -> None:
        """Log the values if `at_end` is set."""
        if self._at_end:
            self._log_values(session.run(self._current))

    def _log_values(self, values: dict[object, object]) -> None:
        """Log {tag: value} at level INFO, and record a trigger of the timer, if there is a timer.

        The text is `formatter(values)`; by default tags, values and seconds since the last log.
        """
        seconds = None
        if self._timer is not None:
            seconds, _ = self._timer.update_last_triggered_step(self._count)
        with np.printoptions(suppress=True):
            if self._formatter is not None:
                _LOG.info("%s", self._formatter(values))
                return
            text = ", ".join(f"{_get_tag_name(tag)} = {value}" for tag, value in values.items())
            _LOG.info("%s%s", text, "" if seconds is None else f" ({seconds:.3f} sec)")


class StopAtStepHook(GlobalStepHook):
    """Hook that requests a stop at a global step.

    Args:
        num_steps: Number of steps from the start of the session.
        last_step: Global step of the stop. Exactly one argument must be given.

    Raises:
        ValueError: Neither argument or both are given.

    Reference: tf.train.StopAtStepHook
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if num_steps is None and last_step is None:
            raise InvalidArgumentError("One of num_steps or last_step must be specified.")
        if num_steps is not None and last_step is not None:
            raise InvalidArgumentError("Only one of num_steps or last_step can be specified.")
        self._num_steps = num_steps or 0
        self._last_step = last_step

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Set the last step to the present global step plus `num_steps`, if that was given."""
        if self._last_step is None:
            self._last_step = int(session.run(self._step)) + self._num_steps

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Request a stop if the step has been reached."""
        last_step = self._last_step or 0
        # The step was read before the run, which may have raised it: read it again if that matters.
        if run_values.results + 1 >= last_step and run_context.session.run(self._step) >= last_step:
            run_context.request_stop()


class NanTensorHook(SessionRunHook):
    """Hook that stops when the loss is NaN.

    Args:
        loss_tensor: The loss, a scalar.
        fail_on_nan_loss: True to raise an error; False to request a stop.

    Reference: tf.train.NanTensorHook
    """

    def __init__(self, loss_tensor: object, fail_on_nan_loss: bool = True) -> None:
        self._loss_tensor = loss_tensor
        self._fail_on_nan_loss = fail_on_nan_loss

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the loss."""
        return SessionRunArgs(self._loss_tensor)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """If the loss is NaN, raise an error or request a stop, as `fail_on_nan_loss` selects.

        Raises:
            NanLossDuringTrainingError: The loss is NaN and `fail_on_nan_loss` is True.
        """
        if not to_tensor(run_values.results).isnan().any():
            return
        if self._fail_on_nan_loss:
            _LOG.error("Model diverged with loss = NaN.")
            raise NanLossDuringTrainingError
        _LOG.warning("Model diverged with loss = NaN.")
        run_context.request_stop()


class FinalOpsHook(SessionRunHook):
    """Hook that runs operations or evaluates tensors at the end of a session.

    Args:
        final_ops: Operations or tensors, as in `Session.run`.
        final_ops_feed_dict: Optional. {placeholder: value}.

    Reference: tf.train.FinalOpsHook
    """

    def __init__(self, final_ops: object, final_ops_feed_dict: object = None) -> None:
        self._final_ops = final_ops
        self._final_ops_feed_dict = final_ops_feed_dict
        self._final_ops_values: object = None

    @property
    def final_ops_values(self) -> Any:
        """The values that the run at the end has given; None before."""
        return self._final_ops_values

    def end(self, session: Any) -> None:
        """Run `final_ops` and store the fetched values in `final_ops_values`.

        If an input queue has ended, log a warning and raise the queue's error.
        """
        if self._final_ops is None:
            return
        try:
            self._final_ops_values = session.run(self._final_ops, self._final_ops_feed_dict)
        except (OutOfRangeError, StopIteration):
            _LOG.warning(
                "final_ops have a dependency back to some input source, which has ended. Let them"
                " read variables only."
            )
            raise


class GlobalStepWaiterHook(GlobalStepHook):
    """Hook that waits in the first run until the global step reaches `wait_until_step`.

    Other threads increment the global step.

    Args:
        wait_until_step: The global step to wait for.

    Reference: tf.train.GlobalStepWaiterHook
    """

    def __init__(self, wait_until_step: int) -> None:
        self._wait_until_step = wait_until_step
        self._finished_waiting = False

    def begin(self) -> None:
        """Find the global step, and wait again in the next run."""
        self._finished_waiting = False
        super().begin()

    def before_run(self, run_context: SessionRunContext) -> None:
        """Before the first run, wait until the global step is at least `wait_until_step`."""
        if self._finished_waiting or self._wait_until_step <= 0:
            return
        _LOG.info("Waiting for global step %d before starting training.", self._wait_until_step)
        logged_step = 0
        while (step := int(run_context.session.run(self._step))) < self._wait_until_step:
            if step - logged_step > _LOG_INTERVAL:
                _LOG.info("Current global step is %d.", step)
                logged_step = step
            time.sleep(_PAUSE)
        self._finished_waiting = True


class FeedFnHook(SessionRunHook):
    """Hook that feeds each run with the result of a function.

    Args:
        feed_fn: `feed_fn()` returns a feed dict {placeholder: value}.

    Reference: tf.train.FeedFnHook
    """

    def __init__(self, feed_fn: Callable[[], object]) -> None:
        self.feed_fn = feed_fn

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Feed the run."""
        return SessionRunArgs(fetches=None, feed_dict=self.feed_fn())


def _get_tag_name(tag: object) -> str:
    return tag if isinstance(tag, str) else getattr(tag, "name", str(tag))
