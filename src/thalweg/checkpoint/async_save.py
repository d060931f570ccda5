"""Saving beside the training: the copy is made at once, and a thread writes it."""

from __future__ import annotations

import atexit
import os
import threading

import torch

from thalweg.checkpoint.named_state import Variables
from thalweg.checkpoint.save_restore import Path, Progress, Snapshot, take_snapshot
from thalweg.errors import CheckpointWarning, FailedPreconditionError, warn


class Saving:
    """A file that is being written.

    Made by `save_async`.
    """

    def __init__(self, taken: Snapshot, path: Path, progress: Progress | None) -> None:
        self.path = path
        self._process = os.getpid()
        self._error: BaseException | None = None
        self._has_ended = False
        # No daemon: the interpreter waits for the file at its end.
        self._thread = threading.Thread(
            target=self._write_snapshot, args=(taken, progress), name=f"saving {path}"
        )
        self._thread.start()

    def _write_snapshot(self, taken: Snapshot, progress: Progress | None) -> None:
        try:
            taken.write(self.path, progress, together=False)
        except BaseException as error:
            self._error = error
        finally:
            self._has_ended = True

    def done(self) -> bool:
        """Return True if the file has been written, or writing it has failed.

        Raises:
            FailedPreconditionError: The process that forked this one writes the file.
        """
        self._check_process()
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Return when the file is there.

        Raises:
            CheckpointWriteError: It cannot be written.
            FailedPreconditionError: As `done`.
        """
        self._check_process()
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def is_there(self) -> bool:
        """Return True if writing the file has ended without an error, in any process."""
        return self._has_ended and self._error is None

    def is_elsewhere(self) -> bool:
        """Return True if the process that forked this one still writes the file."""
        return self._process != os.getpid() and not self._has_ended

    def _check_process(self) -> None:
        if self.is_elsewhere():
            raise FailedPreconditionError(
                f"{self.path} was being written when process {self._process} forked this one: only"
                " that one knows whether it is there."
            )

    def __del__(self) -> None:
        if getattr(self, "_error", None) is not None:
            warn(f"{self.path} was not saved: {self._error}", CheckpointWarning)


_under_way: dict[str, Saving] = {}
atexit.register(_under_way.clear)  # failures that nobody heard of are warned of


def save_async(
    path: Path,
    *,
    optimizer: object = None,
    variables: Variables | None = None,
    module: torch.nn.Module | None = None,
    extra: object = None,
    progress: Progress | None = None,
) -> Saving:
    """Copy a training as `save` does and return; a thread writes the copy to the file.

    Where slots are shared out over ranks, a thread of rank 0 writes. Arguments and errors are those
    of `save`; an error of writing is raised by `wait`, or else by the next save to the same path,
    which waits for this one.

    Returns:
        The save in progress: call its `wait()` before the file is read.
    """
    for other in [place for place, each in _under_way.items() if each.is_there()]:
        _under_way.pop(other, None)
    place = os.path.abspath(path)
    before = _under_way.pop(place, None)
    if before is not None and not before.is_elsewhere():
        before.wait()
    taken = take_snapshot(optimizer=optimizer, variables=variables, module=module, extra=extra)
    _under_way[place] = made = Saving(taken, path, progress)
    return made
