"""`StepCounterHook`: how many steps a second a training takes."""

from __future__ import annotations

import logging
import os

from thalweg.errors import InvalidArgumentError
from thalweg.v1.summary.protos import is_installed
from thalweg.v1.summary.writer import FileWriterCache, add_scalar
from thalweg.v1.train.global_step import get_global_step
from thalweg.v1.train.monitored.basic_session_run_hooks import GlobalStepHook
from thalweg.v1.train.monitored.session_run_hook import SessionRunContext, SessionRunValues
from thalweg.v1.train.monitored.step_timer import SecondOrStepTimer

_LOG = logging.getLogger(__name__)
_WARNING_INTERVAL = 20  # runs without a step before each warning


class StepCounterHook(GlobalStepHook):
    """Logs the steps per second, at level INFO of the logger "thalweg".

    Args:
        every_n_steps: After how many steps; or
        every_n_secs: after how many seconds.
        output_dir: Optional. A folder to which "global_step/sec" is written, if TensorBoard is
            installed.
        summary_writer: Optional. A `tf.summary.FileWriter`, or one of `torch.utils.tensorboard`, to
            which it is written in place of the folder.

    Raises:
        ValueError: Both intervals are given, or none.

    Reference: tf.train.StepCounterHook
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        summary_writer: object = None,
    ) -> None:
        if (every_n_steps is None) == (every_n_secs is None):
            raise InvalidArgumentError(
                "exactly one of every_n_steps and every_n_secs should be provided."
            )
        self._timer = SecondOrStepTimer(every_n_secs, every_n_steps)
        self._output_dir = output_dir
        self._summary_writer = summary_writer
        self._tag = ""
        self._previous_step: int | None = None
        self._stuck_runs = 0  # runs that have not raised the step

    def begin(self) -> None:
        """Find the global step; RuntimeError if there is none."""
        super().begin()
        self._tag = f"{get_global_step().op.name}/sec"
        if self._summary_writer is None and self._output_dir is not None and is_installed():
            self._summary_writer = FileWriterCache.get(self._output_dir)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log the rate if it is time."""
        step_before_run = int(run_values.results)
        if self._timer.should_trigger_for_step(step_before_run + self._steps_per_run):
            step = int(run_context.session.run(self._step))
            if self._timer.should_trigger_for_step(step):
                seconds, steps = self._timer.update_last_triggered_step(step)
                if seconds and steps is not None:
                    self._report_rate(steps / seconds, step)
        self._warn_if_stuck(step_before_run)

    def _report_rate(self, rate: float, step: int) -> None:
        tag = self._tag
        if self._summary_writer is not None:
            add_scalar(self._summary_writer, tag, rate, step)
        _LOG.info("%s: %g", tag, rate)

    def _warn_if_stuck(self, step: int) -> None:
        """Log a warning each time the global step has not changed for another 20 runs."""
        self._stuck_runs = self._stuck_runs + 1 if step == self._previous_step else 0
        self._previous_step = step
        if self._stuck_runs and self._stuck_runs % _WARNING_INTERVAL == 0:
            _LOG.warning(
                "It seems that global step (tf.train.get_global_step) has not been increased: it"
                " was %d before each of the last %d runs. Pass it to Optimizer.apply_gradients or"
                " Optimizer.minimize.",
                step,
                self._stuck_runs + 1,
            )
