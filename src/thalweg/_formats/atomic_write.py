"""Files that are replaced as a whole: whatever happens, the old file is there or the new one.

The bytes go to a new file beside the old one and from there to the disk; then the new file takes
the old one's name, and the folder goes to the disk, too. A crash between any two of these steps
leaves the old file or the new one, and after the last step the new one survives a power loss.

Needs the standard library alone, so that each of its system calls can be made to fail in a test.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable
from typing import BinaryIO

from thalweg._formats import syscalls, temp_files
from thalweg.errors import CheckpointWriteError, InvalidArgumentError, MissingFileError

Buffer = bytes | bytearray | memoryview
Progress = Callable[[int, int], None]

_PIECE = 1 << 22  # bytes written at once, between two calls of `progress`
_BURST = 1 << 23  # bytes after which the disk is told to begin
# What the system says of a path at which there is nothing. Links may lead to one another.
NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def replace(
    path: str | os.PathLike[str],
    parts: Iterable[Buffer],
    total: int,
    progress: Progress | None = None,
    *,
    room: int = 0,
    head: Callable[[], Buffer] | None = None,
) -> None:
    """Give a file new content. When it returns, the content survives a power loss.

    A link is followed: the file that it leads to is replaced. The new file is closed to everyone
    to whom the old one was closed, and to everyone whom the umask shuts out. Temporary files of
    this path that crashed processes left are deleted.

    Args:
        path: Where; the folder must exist.
        parts: The bytes. Each part is written before the next one is asked for.
        total: How many bytes there are altogether, `room` included.
        progress: Called with the number of bytes written so far, and with `total`.
        room: How many bytes are left free at the beginning.
        head: Gives what is written there, after all parts; at most `room` bytes.

    Raises:
        CheckpointWriteError: A system call failed; the old file is as it was.
        InvalidArgumentError: There is something else than a file, or there are not `total` bytes.
    """
    commit = _Commit(os.fsdecode(path), total, progress, room)
    with commit.report_write_errors():
        folder = syscalls.open_folder(os.path.dirname(commit.target))
    try:
        temp_files.remove_abandoned(commit.target)
        with commit.write_temporary(parts, head):
            commit.rename_into_place()
        with commit.report_write_errors():
            syscalls.sync_folder(folder)
    finally:
        syscalls.close_folder(folder)


def replace_together(
    files: Iterable[tuple[str, Iterable[Buffer], int]], progress: Progress | None = None
) -> None:
    """Give files new content that is only of use together, as `replace` does for one.

    All content is on the disk before the first file takes its name. So a full disk leaves all old
    files; what can still come between is a crash while the names are changed.

    Args:
        files: Paths, with the bytes and their number. Each is asked for after the one before it is
            written.
        progress: As in `replace`; for the first file alone.

    Raises:
        CheckpointWriteError: A system call failed; says what is left.
        InvalidArgumentError: As in `replace`.
    """
    commits: list[_Commit] = []
    with contextlib.ExitStack() as held:
        for path, parts, total in files:
            commit = _Commit(path, total, None if commits else progress, 0, tuple(commits))
            with commit.report_write_errors():
                commit.folder = syscalls.open_folder(os.path.dirname(commit.target))
            held.callback(syscalls.close_folder, commit.folder)
            temp_files.remove_abandoned(commit.target)
            held.enter_context(commit.write_temporary(parts, None))
            commits.append(commit)
        for commit in commits:
            commit.rename_into_place()
        for commit in commits:
            with commit.report_write_errors():
                syscalls.sync_folder(commit.folder)


def open_for_reading(path: str | os.PathLike[str]) -> BinaryIO:
    """Return a file, open for reading.

    Raises:
        MissingFileError: There is none, or links that lead to one another.
        InvalidArgumentError: It is a folder, a device, or something else that is no file.
        OSError: It cannot be read.
    """
    given = os.fsdecode(path)
    try:
        # One object owns the descriptor and closes it once, whatever interrupts.
        file = open(given, "rb", opener=_for_reading)  # noqa: SIM115
    except IsADirectoryError as error:
        raise InvalidArgumentError(f"{given}: This is a folder, not a file.") from error
    except OSError as error:
        if error.errno not in NOWHERE:
            raise
        raise MissingFileError(f"{given}: {error.strerror}.") from error
    except ValueError as error:  # a NUL in the name
        raise MissingFileError(f"{given!r}: {error}.") from error
    try:
        _check_regular(given, os.fstat(file.fileno()).st_mode)
    except BaseException:
        file.close()
        raise
    return file


def _for_reading(path: str, flags: int) -> int:
    # A pipe in its place must not make us wait.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder, and those above it, so that they survive a power loss.

    Raises:
        CheckpointWriteError: One of them cannot be made.
    """
    given = os.path.abspath(os.fsdecode(path))
    if os.path.isdir(given):
        return
    above = os.path.dirname(given)
    make_folder(above)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(given)
        if not os.path.isdir(given):
            raise NotADirectoryError(errno.ENOTDIR, "It is there, and is no folder")
        folder = syscalls.open_folder(above)
        try:
            syscalls.sync_folder(folder)
        finally:
            syscalls.close_folder(folder)
    except OSError as error:
        raise CheckpointWriteError(error.errno, f"{given}: {error.strerror}.") from error


class _Commit:
    """One replacement.

    Attributes:
        target: The file that is replaced, without links.
        folder: Its folder, if it was opened.
    """

    def __init__(
        self,
        path: str,
        total: int,
        progress: Progress | None,
        room: int,
        before: tuple[_Commit, ...] = (),
    ) -> None:
        self._path, self._total, self._progress, self._room = path, total, progress, room
        self._before = before
        self._made = ""
        self.folder: int | None = None
        self._done = self._begun = 0
        self._old: os.stat_result | None = None
        self._is_there = False
        with self.report_write_errors():
            try:
                self.target = syscalls.without_links(path)
                found = syscalls.status(self.target)
            except ValueError as error:  # a NUL in the name
                raise InvalidArgumentError(f"{path!r}: {error}.") from error
        if found is not None:
            _check_regular(path, found.st_mode)
            self._old = found

    @contextlib.contextmanager
    def report_write_errors(self) -> Generator[None]:
        """Raise failed system calls as errors that say how much had been written."""
        try:
            yield
        except OSError as error:
            number = error.errno or errno.EIO
            done, total = self._done / 1e6, self._total / 1e6
            raise CheckpointWriteError(
                number,
                f"{self._path}: {os.strerror(number)} after {done:.1f} of {total:.1f} MB;"
                f" {self._describe_what_is_left()}",
            ) from error

    def _describe_what_is_left(self) -> str:
        if self._is_there:
            return "the new checkpoint is in its place, but may not survive a power loss."
        for each in self._before:
            if each._is_there and each._old is not None:
                return (
                    f"{each._path} is new already and does not go together with what is here, so"
                    " there is no checkpoint to be read. Save again."
                )
        return "nothing was saved." if self._old is None else "the previous checkpoint is intact."

    @contextlib.contextmanager
    def write_temporary(
        self, parts: Iterable[Buffer], head: Callable[[], Buffer] | None
    ) -> Generator[None]:
        """Write the new content to a temporary file, which the block has to `rename_into_place`."""
        with self.report_write_errors():
            self._made = made = temp_files.name_of(self.target)
        temp_files.under_way.add(made)
        try:
            mode = 0o666 if self._old is None else self._old.st_mode & 0o666
            with self.report_write_errors():
                file = syscalls.retry_interrupted(
                    os.open, made, _NEW | temp_files.SAFELY, mode | 0o600
                )
            try:
                try:
                    if self._old is not None:
                        with self.report_write_errors():
                            syscalls.give_ownership(file, self._old)
                    self._write_content(file, parts, head)
                finally:
                    with self.report_write_errors():
                        syscalls.close(file)
                yield
            except BaseException:
                with contextlib.suppress(OSError):
                    syscalls.retry_interrupted(os.unlink, made)
                raise
        finally:
            temp_files.under_way.discard(made)

    def rename_into_place(self) -> None:
        """Give the temporary file the name."""
        with self.report_write_errors():
            syscalls.retry_interrupted(os.replace, self._made, self.target)
            self._is_there = True

    def _write_content(
        self, file: int, parts: Iterable[Buffer], head: Callable[[], Buffer] | None
    ) -> None:
        with contextlib.suppress(OSError):  # some file systems have no locks
            temp_files.lock_file(file)
        if self._room:
            with self.report_write_errors():
                syscalls.retry_interrupted(os.lseek, file, self._room, os.SEEK_SET)
        for part in parts:
            self._write_part(file, part)
        if head is not None:
            first = head()
            with self.report_write_errors():
                syscalls.retry_interrupted(os.lseek, file, 0, os.SEEK_SET)
            self._write_part(file, first)
        if self._done != self._total:
            raise InvalidArgumentError(f"{self._total} bytes were promised, not {self._done}.")
        with self.report_write_errors():
            syscalls.sync(file)

    def _write_part(self, file: int, part: Buffer) -> None:
        left = memoryview(part)
        left = left.cast("B") if left.nbytes else memoryview(b"")
        while left:
            with self.report_write_errors():
                count = syscalls.retry_interrupted(os.write, file, left[:_PIECE])
                if not count:
                    raise OSError(errno.EIO, "nothing was written")
            left = left[count:]
            self._done += count
            if self._done - self._begun >= _BURST:
                syscalls.start_writeback(file, self._room + self._begun, self._done - self._begun)
                self._begun = self._done
            if self._progress is not None:
                self._progress(self._done, self._total)


def _check_regular(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise InvalidArgumentError(f"{path}: This is {kind}, not a file.")
