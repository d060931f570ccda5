"""`CheckpointManager`: numbered checkpoints in a folder, and deletion of old checkpoints."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from thalweg._base.tracing import untraced
from thalweg._formats.bundle import CheckpointState
from thalweg._formats.retention import Keeper
from thalweg._graph import get_default_session, is_symbolic
from thalweg.errors import InvalidArgumentError
from thalweg.v1.train.saving.checkpoint import Checkpoint, Path, count_save
from thalweg.v1.train.saving.checkpoint_management import (
    get_checkpoint_state,
    remove_checkpoint,
    update_checkpoint_state,
)

_LOG = logging.getLogger(__name__)
_CLOCK_WARNING = (
    "The clock is %g s behind the last preserved checkpoint timestamp in %s. The checkpoints there"
    " are not deleted."
)


class CheckpointManager:
    """Manager that saves a `Checkpoint` repeatedly to a folder and deletes old files.

    A later process continues with the folder's list of checkpoints.

    Args:
        checkpoint: The `Checkpoint`.
        directory: The folder; created by the first save.
        max_to_keep: Number of newest checkpoints to keep; None keeps all.
        keep_checkpoint_every_n_hours: Optional. A period in hours; one checkpoint of
            each period is never deleted.
        checkpoint_name: Beginning of the files' names.
        step_counter: Optional. A variable that counts steps.
        checkpoint_interval: Optional. Minimum number of steps between two saves; `save` does
            nothing before.
        init_fn: Optional. `restore_or_initialize` calls `init_fn()` if the folder has no
            checkpoint.

    Raises:
        ValueError: `max_to_keep` is not positive, or `checkpoint_interval` is given without
            `step_counter`.

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
        step_counter: object = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], object] | None = None,
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
        self._prefix = os.path.join(self._directory, checkpoint_name)
        self._step_counter, self._interval = step_counter, checkpoint_interval
        self._init_fn = init_fn
        self._saved_step: int | None = None
        # A checkpoint without a time is not one of a manager, and no manager deletes it.
        state, start = get_checkpoint_state(self._directory) or CheckpointState(""), time.time()
        paths, times = state.all_model_checkpoint_paths, state.all_model_checkpoint_timestamps
        mark, hours = state.last_preserved_timestamp, keep_checkpoint_every_n_hours
        if mark is not None and mark > start:
            # It is unknown which of the checkpoints are to be retained, so all of them are.
            _LOG.warning(_CLOCK_WARNING, mark - start, self._directory)
            mark, paths = start, []
        self._latest = state.model_checkpoint_path or None
        self._keeper = Keeper(
            max_to_keep,
            hours and hours * 3600.0,
            start if mark is None else mark,
            dict(zip(paths, times)).items() if len(times) == len(paths) else (),
        )

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
        """Number of steps between two saves, or None."""
        return self._interval

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint, for `restore`; None without checkpoints."""
        return self._latest

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the existing checkpoints that may be deleted later, oldest first."""
        return self._keeper.paths

    @untraced
    def save(
        self, checkpoint_number: object = None, check_interval: bool = True, options: object = None
    ) -> str | None:
        """Save a checkpoint, record it as the newest, and delete checkpoints beyond `max_to_keep`.

        Args:
            checkpoint_number: Optional. An integer or integer variable for the file's name; by
                default the `Checkpoint`'s `save_counter`. Each save raises `save_counter` by 1.
            check_interval: True to save nothing before `checkpoint_interval` steps have passed.
            options: Accepted for compatibility.

        Returns:
            The path of the checkpoint; None if the interval has not passed.

        Raises:
            The errors of `Checkpoint.write`.
        """
        step = None if self._step_counter is None else _read_count(self._step_counter)
        if check_interval and self._is_early(step):
            return None
        with count_save(self._checkpoint) as counter:
            suffix = int(counter) if checkpoint_number is None else _read_count(checkpoint_number)
            path = self._checkpoint.write(f"{self._prefix}-{suffix}")
        self._saved_step = step
        self._latest = path
        self._keeper = self._keeper.after_saving(path)
        # Listed before old checkpoints are deleted, so that the list always has a checkpoint.
        self._note_latest(path)
        listed_paths = self._keeper.paths
        for old in self._keeper.too_old():
            remove_checkpoint(old)
        if self._keeper.paths != listed_paths:
            self._note_latest(path)
        return path

    def _is_early(self, step: int | None) -> bool:
        if step is None or self._interval is None or self._saved_step is None:
            return False
        return step - self._saved_step < self._interval

    def _note_latest(self, latest: str) -> None:
        update_checkpoint_state(
            self._directory,
            latest,
            self._keeper.paths,
            all_model_checkpoint_timestamps=[timestamp for _, timestamp in self._keeper.newest],
            last_preserved_timestamp=self._keeper.mark,
        )

    @untraced
    def restore_or_initialize(self) -> str | None:
        """Restore the newest checkpoint, or call `init_fn` if there is none.

        Returns:
            The path of the restored checkpoint, or None.

        Raises:
            The errors of `Checkpoint.restore`.
        """
        if self._latest is not None:
            self._checkpoint.restore(self._latest)
            if self._step_counter is not None:
                self._saved_step = _read_count(self._step_counter)
            return self._latest
        if self._init_fn is not None:
            self._init_fn()
        return None


def _read_count(counter: Any) -> int:
    """Return an integer or the value of a variable as an int."""
    if not is_symbolic(counter):
        return int(counter)
    session = get_default_session()
    if session is None:
        raise InvalidArgumentError(
            f"'{counter.name}' has a value in sessions only: call this inside of `with session:`."
        )
    return int(session.run(counter))
