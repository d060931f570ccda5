"""Atomic replacement of files: after a crash, the old file or the new one exists.

The bytes go to a new file beside the old one and from there to the disk; then the new file takes
the old one's name, and the directory goes to the disk, too. A crash between any two of these steps
leaves the old file or the new one, and after the last step the new one survives a power loss.

This module imports the standard library only, so that tests can make each of its system calls fail.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable
from typing import BinaryIO

from thalweg._formats import syscalls
from thalweg._formats.checksum import Buffer, flat_bytes
from thalweg._formats.syscalls import P, T
from thalweg.errors import CheckpointWriteError, InvalidArgumentError, MissingFileError

Path = str | os.PathLike[str]
Progress = Callable[[int, int], None]

_CHUNK = 1 << 22  # bytes written at once, between two calls of `progress`
_BURST = 1 << 23  # bytes between two calls of `start_writeback`
# Errors for paths without a file; ELOOP: links that form a cycle.
NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def replace(
    path: str | os.PathLike[str],
    chunks: Iterable[Buffer],
    total: int,
    progress: Progress | None = None,
    *,
    reserved: int = 0,
    make_head: Callable[[], Buffer] | None = None,
) -> None:
    """Replace the content of a file atomically. On return, the content survives a power loss.

    A link's target is replaced, not the link. The new file has the old file's permissions; its
    owner can always read and write. Temporary files that crashed processes left are deleted.

    Args:
        path: The file; its directory must exist.
        chunks: The bytes. Each chunk is written before the next one is requested.
        total: The number of bytes, `reserved` included.
        progress: `progress(bytes_written, total)` is called during writing.
        reserved: The number of bytes at the beginning that `make_head` fills.
        make_head: `make_head()` returns these bytes. It is called after all chunks are written.

    Raises:
        CheckpointWriteError: A system call failed; the old file is unchanged.
        InvalidArgumentError: The path is not a file, or there are not `total` bytes.
    """
    files = [(os.fsdecode(path), chunks, total)]
    replace_together(files, progress, reserved=reserved, make_head=make_head)


def replace_together(
    files: Iterable[tuple[str, Iterable[Buffer], int]],
    progress: Progress | None = None,
    *,
    reserved: int = 0,
    make_head: Callable[[], Buffer] | None = None,
) -> None:
    """Replace several files. No file is renamed before the content of all files is on the disk.

    A full disk leaves all old files unchanged. Only a crash between the renames can mix old and new
    files.

    Args:
        files: (path, chunks, number of bytes) of each file. A tuple is requested after the previous
            file is written.
        progress: `progress(bytes_written, total)` is called for the first file.
        reserved, make_head: As for `replace`; only with a single file.

    Raises:
        CheckpointWriteError: A system call failed; the message describes the state of the files.
        InvalidArgumentError: A path is not a file, or the number of bytes is wrong.
    """
    commits: list[_Commit] = []
    with contextlib.ExitStack() as exit_stack:
        for path, chunks, total in files:
            reports = None if commits else progress
            commit = _Commit(path, total, reports, reserved, tuple(commits))
            with commit.report_write_errors():
                directory = syscalls.opened_folder(os.path.dirname(commit.target))
                commit.directory = exit_stack.enter_context(directory)
            syscalls.remove_abandoned(commit.target)
            exit_stack.enter_context(commit.write_temporary(chunks, make_head))
            commits.append(commit)
        for commit in commits:
            commit.rename_into_place()
        for commit in commits:
            with commit.report_write_errors():
                syscalls.sync_folder(commit.directory)


def open_for_reading(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading, and return it.

    Raises:
        MissingFileError: The file does not exist, or links form a cycle.
        InvalidArgumentError: The path is a directory, a device or a pipe.
        OSError: The file cannot be read.
    """
    full_path = os.fsdecode(path)
    try:
        # One object owns the descriptor, so that an interruption cannot leak it.
        stream = open(full_path, "rb", opener=_for_reading)  # noqa: SIM115
    except IsADirectoryError as error:
        raise InvalidArgumentError(f"{full_path}: This is a folder, not a file.") from error
    except OSError as error:
        if error.errno not in NOWHERE:
            raise
        raise MissingFileError(f"{full_path}: {error.strerror}.") from error
    except ValueError as error:  # a NUL in the name
        raise MissingFileError(f"{full_path!r}: {error}.") from error
    try:
        _check_regular(full_path, os.fstat(stream.fileno()).st_mode)
    except BaseException:
        stream.close()
        raise
    return stream


def _for_reading(path: str, flags: int) -> int:
    """Return the descriptor of a file, opened without blocking on pipes."""
    # Opening a pipe must not block.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a directory and its missing parents durably. Do nothing if the directory exists.

    Raise CheckpointWriteError if a directory cannot be made, or its path is a file.
    """
    full_path = os.path.abspath(os.fsdecode(path))
    if os.path.isdir(full_path):
        return
    parent = os.path.dirname(full_path)
    make_folder(parent)
    try:
        # Another process may make the directory meanwhile.
        with contextlib.suppress(FileExistsError):
            os.mkdir(full_path)
        if not os.path.isdir(full_path):
            raise NotADirectoryError(errno.ENOTDIR, "It is there, and is no folder")
        with syscalls.opened_folder(parent) as directory:
            syscalls.sync_folder(directory)
    except OSError as error:
        raise CheckpointWriteError(error.errno, f"{full_path}: {error.strerror}.") from error


class _Commit:
    """Replacement of one file.

    Attributes:
        target: The file that is replaced, with links resolved.
        directory: The descriptor of the target's directory, if it was opened.
    """

    def __init__(
        self,
        path: str,
        total: int,
        progress: Progress | None,
        reserved: int,
        earlier: tuple[_Commit, ...],
    ) -> None:
        self._path, self._total, self._progress, self._reserved = path, total, progress, reserved
        self._earlier = earlier
        self._temporary = ""
        self.directory: int | None = None
        self._num_done = self._flushed = 0
        self._previous: os.stat_result | None = None
        self._is_renamed = False
        with self.report_write_errors():
            try:
                self.target = syscalls.without_links(path)
                status = syscalls.status(self.target)
            except ValueError as error:  # a NUL in the name
                raise InvalidArgumentError(f"{path!r}: {error}.") from error
        if status is not None:
            _check_regular(path, status.st_mode)
            self._previous = status

    @contextlib.contextmanager
    def report_write_errors(self) -> Generator[None]:
        """Convert an OSError of the `with` block to a CheckpointWriteError.

        The message has the number of bytes written, and the state of the files.
        """
        try:
            yield
        except OSError as error:
            code = error.errno or errno.EIO
            done, total = self._num_done / 1e6, self._total / 1e6
            raise CheckpointWriteError(
                code,
                f"{self._path}: {os.strerror(code)} after {done:.1f} of {total:.1f} MB;"
                f" {self._describe_outcome()}",
            ) from error

    def _call(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Return `call(*args, **options)`, repeated after signals; report an OSError."""
        with self.report_write_errors():
            return syscalls.retry_interrupted(call, *args, **options)

    def _describe_outcome(self) -> str:
        """Return a sentence about the state of all files after a failure."""
        if self._is_renamed:
            return "the new checkpoint is in its place, but may not survive a power loss."
        for commit in self._earlier:
            if commit._is_renamed and commit._previous is not None:
                return (
                    f"{commit._path} is new already and does not go together with what is here, so"
                    " there is no checkpoint to be read. Save again."
                )
        return "the previous checkpoint is intact." if self._previous else "nothing was saved."

    @contextlib.contextmanager
    def write_temporary(
        self, chunks: Iterable[Buffer], make_head: Callable[[], Buffer] | None
    ) -> Generator[None]:
        """Write the new content to a temporary file; delete this file if the `with` block fails.

        The `with` block must call `rename_into_place`.
        """
        self._temporary = temporary = self._call(syscalls.make_temporary_name, self.target)
        syscalls.active_paths.add(temporary)
        try:
            # After a crash, `remove_abandoned` deletes the file only if it can open the file.
            mode = 0o666 if self._previous is None else 0o600
            descriptor = self._call(os.open, temporary, _NEW | syscalls.SAFELY, mode)
            try:
                try:
                    if self._previous is not None:
                        self._call(syscalls.copy_access, descriptor, self._previous)
                    self._write_content(descriptor, chunks, make_head)
                # Network file systems report some failed writes at the end only.
                finally:
                    self._call(syscalls.close, descriptor)
                yield
            except BaseException:
                with contextlib.suppress(OSError):
                    syscalls.retry_interrupted(os.unlink, temporary)
                raise
        finally:
            syscalls.active_paths.discard(temporary)

    def rename_into_place(self) -> None:
        """Rename the temporary file to the target."""
        self._call(os.replace, self._temporary, self.target)
        self._is_renamed = True

    def _write_content(
        self, descriptor: int, chunks: Iterable[Buffer], make_head: Callable[[], Buffer] | None
    ) -> None:
        """Write all chunks, then the bytes of `make_head()` at the beginning, and sync the file."""
        # Some file systems have no locks.
        with contextlib.suppress(OSError):
            syscalls.lock_file(descriptor)
        if self._reserved:
            self._call(os.lseek, descriptor, self._reserved, os.SEEK_SET)
        for chunk in chunks:
            self._write_part(descriptor, chunk)
        if make_head is not None:
            first = make_head()
            self._call(os.lseek, descriptor, 0, os.SEEK_SET)
            self._write_part(descriptor, first)
        if self._num_done != self._total:
            raise InvalidArgumentError(f"{self._total} bytes were promised, not {self._num_done}.")
        self._call(syscalls.sync, descriptor)

    def _write_part(self, descriptor: int, chunk: Buffer) -> None:
        """Write a chunk, report progress, and start writing to the disk every 8 MiB."""
        remaining = flat_bytes(chunk)
        while remaining:
            with self.report_write_errors():
                count = syscalls.retry_interrupted(os.write, descriptor, remaining[:_CHUNK])
                if not count:
                    raise OSError(errno.EIO, "nothing was written")
            remaining = remaining[count:]
            self._num_done += count
            if self._num_done - self._flushed >= _BURST:
                begin, self._flushed = self._flushed, self._num_done
                syscalls.start_writeback(descriptor, self._reserved + begin, self._num_done - begin)
            if self._progress is not None:
                self._progress(self._num_done, self._total)


def _check_regular(path: str, mode: int) -> None:
    """Raise InvalidArgumentError for directories, devices and pipes."""
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise InvalidArgumentError(f"{path}: This is {kind}, not a file.")
