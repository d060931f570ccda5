"""`SummarySaverHook`: summaries in the course of a training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from thalweg.errors import InvalidArgumentError
from thalweg.v1.summary import FileWriterCache, message
from thalweg.v1.train.monitored.basic_session_run_hooks import GlobalStepHook
from thalweg.v1.train.monitored.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunValues,
)
from thalweg.v1.train.monitored.step_timer import SecondOrStepTimer


class SummarySaverHook(GlobalStepHook):
    """Writes summaries in the first run, and then every so many steps or seconds.

    Args:
        save_steps: The steps; or
        save_secs: the seconds.
        output_dir: Optional. The folder to write to.
        summary_writer: Optional. A `tf.summary.FileWriter` in place of a folder. Without either
            nothing is written.
        scaffold: A scaffold, whose `summary_op` is written; or
        summary_op: what is written: a summary operation, or a list of them.

    Raises:
        ValueError: A scaffold and an operation are given, or none; or both intervals, or none.

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
        self._goal: int | None = None  # the step that the next run is expected to end with
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
        """Write summaries with the given writer, or with that of the folder; do nothing without
        either.

        The first call also writes the start of the session.
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
