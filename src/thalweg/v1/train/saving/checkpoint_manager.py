"""`CheckpointManager`: the newest checkpoints of a folder, and which older ones are kept."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from thalweg.errors import InvalidArgumentError
from thalweg.graph import get_default_session, is_symbolic
from thalweg.tracing import untraced
from thalweg.v1.train.saving.checkpoint import Checkpoint, Path
from thalweg.v1.train.saving.checkpoint_management import (
    get_checkpoint_state,
    remove_checkpoint,
    update_checkpoint_state,
)

_HOUR = 3600.0


class CheckpointManager:
    """Saves a `Checkpoint` to a folder and deletes old ones; another process goes on with it.

    Args:
        checkpoint: The `Checkpoint`.
        directory: The folder; made by the first save.
        max_to_keep: How many of the newest are kept; None for all.
        keep_checkpoint_every_n_hours: Optional. One that would be deleted is kept for good if the
            last of that kind is so many hours older.
        checkpoint_name: What the files' names begin with.
        step_counter: Optional. A variable that counts steps.
        checkpoint_interval: Optional. `save` does nothing before so many steps have been counted
            since the last time.
        init_fn: Optional. Called by `restore_or_initialize` where there is nothing to restore.

    Raises:
        ValueError: max_to_keep is not positive, or there is an interval without a counter.

    Example:
        >>> import tempfile
        >>> from thalweg import Variable
        >>> w, folder = Variable(1.0), tempfile.mkdtemp()
        >>> manager = CheckpointManager(Checkpoint(w=w), folder, max_to_keep=2)
        >>> paths = [manager.save() for _ in range(3)]
        >>> [path.rpartition("/")[2] for path in manager.checkpoints]
        ['ckpt-2', 'ckpt-3']

    Reference: tf.train.CheckpointManager
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: Path,
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
    ) -> None:
        if max_to_keep is not None and max_to_keep <= 0:
            raise InvalidArgumentError(
                f"Expected a positive integer or `None` for `max_to_keep`, got {max_to_keep}."
            )
        if step_counter is None and checkpoint_interval is not None:
            raise InvalidArgumentError(
                "`step_counter` should be passed if `checkpoint_interval` is not None."
            )
        self._checkpoint, self._directory = checkpoint, os.fspath(directory)
        self._max_to_keep, self._hours = max_to_keep, keep_checkpoint_every_n_hours
        self._prefix = os.path.join(self._directory, checkpoint_name)
        self._step_counter, self._interval = step_counter, checkpoint_interval
        self._init_fn = init_fn
        self._saved_step: int | None = None
        self._latest: str | None = None
        self._times: dict[str, float] = {}  # of those that may be deleted, the oldest first
        self._preserved = time.time()  # when the last one was saved that is kept for good
        self._recover()

    def _recover(self) -> None:
        """Go on with what another process left in the folder."""
        state = get_checkpoint_state(self._directory)
        if state is None:
            return
        paths = state.all_model_checkpoint_paths
        times = state.all_model_checkpoint_timestamps
        if len(times) != len(paths):
            times = (time.time(),) * len(paths)
        self._latest = state.model_checkpoint_path
        self._times = dict(zip(paths, times, strict=True))
        if state.last_preserved_timestamp is not None:
            self._preserved = state.last_preserved_timestamp

    @property
    def checkpoint(self) -> Checkpoint:
        """The `Checkpoint`."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """The folder."""
        return self._directory

    @property
    def checkpoint_interval(self) -> int | None:
        """How many steps come between two saves, or None."""
        return self._interval

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest, for `restore`; None if there is none."""
        return self._latest

    @property
    def checkpoints(self) -> list[str]:
        """The paths of those that are there and may be deleted, the oldest first."""
        return list(self._times)

    @untraced
    def save(
        self, checkpoint_number: Any = None, check_interval: bool = True, options: Any = None
    ) -> str | None:
        """Save, name the new checkpoint as the newest, and delete old ones.

        Args:
            checkpoint_number: Optional. A number or an integer variable that gives the name its
                number; by default the Checkpoint's `save_counter`, which is raised either way.
            check_interval: Whether `checkpoint_interval` counts.
            options: Accepted for compatibility.

        Returns:
            The path, or None if it was too early.

        Raises:
            As `Checkpoint.write`.
        """
        step = None if self._step_counter is None else _value(self._step_counter)
        if check_interval and self._is_early(step):
            return None
        counter = self._checkpoint.save_counter
        counter.assign_add(1)
        try:
            number = int(counter) if checkpoint_number is None else _value(checkpoint_number)
            path = self._checkpoint.write(f"{self._prefix}-{number}")
        except BaseException:
            counter.assign_sub(1)
            raise
        self._saved_step = step
        self._latest = path
        self._times.pop(path, None)
        self._times[path] = time.time()
        # The new one is named before old ones are deleted: a crash in between loses nothing.
        self._note()
        if self._sweep():
            self._note()
        return path

    def _is_early(self, step: int | None) -> bool:
        if step is None or self._interval is None or self._saved_step is None:
            return False
        return step - self._saved_step < self._interval

    def _note(self) -> None:
        paths = list(self._times)
        if self._latest is not None:
            update_checkpoint_state(
                self._directory,
                self._latest,
                paths,
                all_model_checkpoint_timestamps=[self._times[path] for path in paths],
                last_preserved_timestamp=self._preserved,
            )

    def _sweep(self) -> bool:
        """Delete what is too old; whether anything has changed."""
        surplus = len(self._times) - (self._max_to_keep or len(self._times))
        for path in list(self._times)[: max(surplus, 0)]:
            saved = self._times.pop(path)
            if self._hours is not None and saved - self._hours * _HOUR >= self._preserved:
                self._preserved = saved
            else:
                remove_checkpoint(path)
        return surplus > 0

    @untraced
    def restore_or_initialize(self) -> str | None:
        """Restore the newest checkpoint, or call `init_fn` if there is none.

        Returns:
            The path of what was restored, or None.

        Raises:
            As `Checkpoint.restore`.
        """
        if self._latest is not None:
            self._checkpoint.restore(self._latest)
            if self._step_counter is not None:
                self._saved_step = _value(self._step_counter)
            return self._latest
        if self._init_fn is not None:
            self._init_fn()
        return None


def _value(counter: Any) -> int:
    """The number that a variable has, or a number."""
    if not is_symbolic(counter):
        return int(counter)
    session = get_default_session()
    if session is None:
        raise InvalidArgumentError(
            f"'{counter.name}' has a value in sessions only: call this inside of `with session:`."
        )
    return int(session.run(counter))
