"""Saves in a background thread, from a copy of the training."""

from __future__ import annotations

import atexit
import os
import threading

import torch

from thalweg._formats.atomic_write import Path, Progress
from thalweg.checkpoint.named_state import Variables
from thalweg.checkpoint.save_restore import Snapshot, take_snapshot
from thalweg.errors import CheckpointWarning, FailedPreconditionError, warn


class Saving:
    """A file that a thread is writing, returned by `save_async`."""

    def __init__(self, snapshot: Snapshot, path: Path, progress: Progress | None) -> None:
        self.path = path
        self._process = os.getpid()
        self._error: BaseException | None = None
        self._is_finished = False
        # Not a daemon thread: the interpreter waits for the file when it exits.
        self._thread = threading.Thread(
            target=self._write_snapshot, args=(snapshot, progress), name=f"saving {path}"
        )
        self._thread.start()

    def _write_snapshot(self, snapshot: Snapshot, progress: Progress | None) -> None:
        try:
            snapshot.write(self.path, progress, waits=False)
        except BaseException as error:
            self._error = error
        finally:
            self._is_finished = True

    def done(self) -> bool:
        """Return True if the file has been written, or writing has failed.

        Raises:
            FailedPreconditionError: This process was forked during the save.
        """
        self._check_process()
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the file is complete.

        Raises:
            CheckpointWriteError: The file could not be written. Later calls return without an
                error.
            FailedPreconditionError: This process was forked during the save.
        """
        self._check_process()
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def is_there(self) -> bool:
        """Return True if writing has ended, and `wait` has no error to raise."""
        return self._is_finished and self._error is None

    def is_elsewhere(self) -> bool:
        """Return True if the parent process was still writing when it forked this process."""
        return self._process != os.getpid() and not self._is_finished

    def _check_process(self) -> None:
        """Raise FailedPreconditionError in a child process that was forked during the save."""
        if self.is_elsewhere():
            raise FailedPreconditionError(
                f"{self.path} was being written when process {self._process} forked this one: only"
                " that one knows whether it is there."
            )

    def __del__(self) -> None:
        if getattr(self, "_error", None) is not None:
            warn(f"{self.path} was not saved: {self._error}", CheckpointWarning)


_active_saves: dict[str, Saving] = {}
# Deleting a failed save warns of its error.
atexit.register(_active_saves.clear)


def save_async(
    path: Path,
    *,
    optimizer: object = None,
    variables: Variables | None = None,
    module: torch.nn.Module | None = None,
    extra: object = None,
    progress: Progress | None = None,
) -> Saving:
    """Copy a training as `save` does, and write the copy to a file in a thread.

    Arguments and errors are as for `save`. If slots are sharded over ranks, only rank 0 writes. An
    incomplete save to this path is completed first.

    Returns:
        The save in progress. Call `wait()` of the result before you read the file. If writing
        fails, `wait()` raises the error; without `wait()`, the next save to this path raises.
    """
    for other in [other for other, saving in _active_saves.items() if saving.is_there()]:
        _active_saves.pop(other, None)
    target_path = os.path.abspath(path)
    # Removed before `wait`, so that its error is raised once.
    previous_saving = _active_saves.pop(target_path, None)
    if previous_saving is not None and not previous_saving.is_elsewhere():
        previous_saving.wait()
    # The copy is made in this thread: the caller may take a step as soon as this returns.
    snapshot = take_snapshot(optimizer=optimizer, variables=variables, module=module, extra=extra)
    _active_saves[target_path] = saving = Saving(snapshot, path, progress)
    return saving
