"""`CheckpointSaverHook`: saves checkpoints during training."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from thalweg._formats import atomic_write
from thalweg._graph import GraphKeys
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.v1.train.monitored.basic_session_run_hooks import GlobalStepHook, SecondOrStepTimer
from thalweg.v1.train.monitored.session_run_hook import SessionRunContext, SessionRunValues

_LOG = logging.getLogger(__name__)


class CheckpointSaverListener:
    """Base class of callbacks before and after each save of a `CheckpointSaverHook`.

    Reference: tf.train.CheckpointSaverListener
    """

    def begin(self) -> None:
        """Prepare the listener: the graph is built, but may still be added to."""

    def before_save(self, session: Any, global_step_value: int) -> None:
        """Handle a checkpoint that is about to be written."""

    def after_save(self, session: Any, global_step_value: int) -> Any:
        """Handle a checkpoint that has been written; a true result requests a stop."""

    def end(self, session: Any, global_step_value: int) -> None:
        """Handle the end of the session, which is about to be closed, after the last checkpoint."""


class CheckpointSaverHook(GlobalStepHook):
    """Hook that saves checkpoints at the start, at intervals, and at the end.

    Args:
        checkpoint_dir: The folder.
        save_secs: Seconds between two checkpoints.
        save_steps: Steps between two checkpoints. Exactly one interval must be given.
        saver: Optional. The saver.
        checkpoint_basename: Prefix of the files' names.
        scaffold: Optional. A scaffold, whose saver is used. Without `saver` and `scaffold`, the
            saver of the collection SAVERS is used.
        listeners: Optional. Objects whose methods are called around each save.
        save_graph_def: Ignored.

    Raises:
        ValueError: Both a saver and a scaffold are given, or the number of intervals is not 1.

    Reference: tf.train.CheckpointSaverHook
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: object = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Any = None,
        listeners: Sequence[CheckpointSaverListener] | None = None,
        save_graph_def: bool = True,
    ) -> None:
        if saver is not None and scaffold is not None:
            raise InvalidArgumentError("You cannot provide both saver and scaffold.")
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._saver = saver
        self._scaffold = scaffold
        self._directory = os.fspath(checkpoint_dir)
        self._path = os.path.join(self._directory, checkpoint_basename)
        self._listeners = list(listeners or ())

    def begin(self) -> None:
        """Find the global step, and create the folder; RuntimeError if there is no step."""
        super().begin()
        atomic_write.make_folder(self._directory)
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Save a checkpoint of the initial values."""
        step = int(session.run(self._step))
        self._save_checkpoint(session, step)
        self._timer.update_last_triggered_step(step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Save a checkpoint if the timer is due; request a stop if a listener returns True."""
        step = self._find_due_step(self._timer, run_context, run_values.results)
        if step is not None:
            self._timer.update_last_triggered_step(step)
            if self._save_checkpoint(run_context.session, step):
                run_context.request_stop()

    def end(self, session: Any) -> None:
        """Save a checkpoint, unless this step has a checkpoint; call `end` of the listeners."""
        step = int(session.run(self._step))
        if step != self._timer.last_triggered_step():
            self._save_checkpoint(session, step)
        for listener in self._listeners:
            listener.end(session, step)

    def _save_checkpoint(self, session: Any, step: int) -> bool:
        """Save a checkpoint; return True if a listener requests a stop."""
        saver = self._saver_for(session)
        for listener in self._listeners:
            listener.before_save(session, step)
        _LOG.info("Saving checkpoints for %d into %s.", step, self._path)
        saver.save(session, self._path, global_step=step)
        # A list, so that a listener's True does not end the calls of the others.
        answers = [listener.after_save(session, step) for listener in self._listeners]
        return any(answers)

    def _saver_for(self, session: Any) -> Any:
        """Return the saver passed to the constructor, or else the scaffold's saver.

        Without both, return the saver in the graph's collection SAVERS. Raise
        FailedPreconditionError if the collection does not have exactly one saver.
        """
        # The scaffold creates its saver in `finalize`, after the hook's construction.
        if self._saver is None and self._scaffold is not None:
            return self._scaffold.saver
        if self._saver is None:
            self._saver = the_saver(session.graph)
        if self._saver is None:
            raise FailedPreconditionError(
                f"No items in collection {GraphKeys.SAVERS}. Please add a saver to the collection"
                " or provide a saver or scaffold."
            )
        return self._saver


def the_saver(graph: Any) -> Any:
    """Return the only saver in a graph's collection SAVERS, or None if the collection is empty.

    Raises:
        RuntimeError: The collection has several savers.
    """
    savers = graph.get_collection(GraphKeys.SAVERS)
    if len(savers) > 1:
        raise FailedPreconditionError(
            f"More than one item in collection {GraphKeys.SAVERS}. Please indicate which one to"
            " use by passing it to the constructor."
        )
    return savers[0] if savers else None
