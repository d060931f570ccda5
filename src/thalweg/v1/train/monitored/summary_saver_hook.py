"""Session hooks that write summaries or the step rate at intervals."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from thalweg.errors import InvalidArgumentError
from thalweg.v1.summary import message
from thalweg.v1.summary.protos import is_installed
from thalweg.v1.summary.writer import FileWriterCache, add_scalar
from thalweg.v1.train.global_step import get_global_step
from thalweg.v1.train.monitored.basic_session_run_hooks import GlobalStepHook, SecondOrStepTimer
from thalweg.v1.train.monitored.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunValues,
)

_LOG = logging.getLogger(__name__)
# Runs without a step before each warning.
_WARNING_INTERVAL = 20


class StepCounterHook(GlobalStepHook):
    """Hook that logs the steps per second, by the logger "thalweg" at level INFO.

    Args:
        every_n_steps: Steps between two logs.
        every_n_secs: Seconds between two logs. Exactly one interval must be given.
        output_dir: Optional. A folder for summaries "global_step/sec"; needs TensorBoard.
        summary_writer: Optional. A `tf.summary.FileWriter` or a writer of
            `torch.utils.tensorboard`, used instead of `output_dir`.

    Raises:
        ValueError: Both intervals are given, or neither.

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
        # Runs that have not raised the step.
        self._stuck_runs = 0

    def begin(self) -> None:
        """Find the global step; RuntimeError if there is none."""
        super().begin()
        self._tag = f"{get_global_step().op.name}/sec"
        if self._summary_writer is None and self._output_dir is not None and is_installed():
            self._summary_writer = FileWriterCache.get(self._output_dir)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log the step rate if the timer is due; warn if the global step does not change."""
        step = self._find_due_step(self._timer, run_context, run_values.results)
        if step is not None:
            seconds, steps = self._timer.update_last_triggered_step(step)
            if seconds and steps is not None:
                if self._summary_writer is not None:
                    add_scalar(self._summary_writer, self._tag, steps / seconds, step)
                _LOG.info("%s: %g", self._tag, steps / seconds)
        self._warn_if_stuck(int(run_values.results))

    def _warn_if_stuck(self, step: int) -> None:
        """Log a warning after each 20 successive runs without a change of the global step."""
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


class SummarySaverHook(GlobalStepHook):
    """Hook that writes summaries in the first run and then at intervals.

    Args:
        save_steps: Steps between two summaries.
        save_secs: Seconds between two summaries. Exactly one interval must be given.
        output_dir: Optional. Folder of the summaries.
        summary_writer: Optional. A `tf.summary.FileWriter` instead of a folder. Without folder and
            writer, nothing is written.
        scaffold: A scaffold, whose `summary_op` is run.
        summary_op: A summary operation or a list of operations, instead of `scaffold`.

    Raises:
        ValueError: Both or none of `scaffold` and `summary_op`, or of the intervals, are given.

    Reference: tf.train.SummarySaverHook
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        summary_writer: Any = None,
        scaffold: Any = None,
        summary_op: object = None,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise InvalidArgumentError("Exactly one of scaffold or summary_op must be provided.")
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._output_dir = output_dir
        self._writer = summary_writer
        self._scaffold = scaffold
        self._summary_op = summary_op
        # The step that the next run is expected to end with.
        self._goal: int | None = None
        self._writes = False

    def begin(self) -> None:
        """Find the global step; RuntimeError if there is none."""
        self._goal = None
        super().begin()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step, and the summaries if the timer is due."""
        self._writes = self._goal is None or self._timer.should_trigger_for_step(self._goal)
        return SessionRunArgs((self._step, self._summary_operations() if self._writes else []))

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Write the fetched summaries, if any, and set the timer."""
        start_step, summaries = run_values.results
        step = int(run_context.session.run(self._step)) if self._writes else int(start_step) + 1
        if self._writes:
            self._timer.update_last_triggered_step(step)
        if summaries:
            self._write_summaries(summaries, step)
        self._goal = step + 1

    def end(self, session: Any) -> None:
        """Flush the writer."""
        if self._writer is not None:
            self._writer.flush()

    def _summary_operations(self) -> Sequence[object]:
        summary_op = self._scaffold.summary_op if self._summary_op is None else self._summary_op
        if summary_op is None:
            return []
        return summary_op if isinstance(summary_op, list | tuple) else [summary_op]

    def _write_summaries(self, summaries: Sequence[bytes], step: int) -> None:
        """Write serialized summaries of a step to the writer, or else to the folder.

        Do nothing if neither is given. The first call also writes an event that marks the start of
        the session.
        """
        if self._writer is None and self._output_dir is not None:
            self._writer = FileWriterCache.get(self._output_dir)
        if self._writer is None:
            return
        if self._goal is None:
            log = message("SessionLog")
            self._writer.add_session_log(log(status=log.START), step)
        for summary in summaries:
            self._writer.add_summary(summary, step)
