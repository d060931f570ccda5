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
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, ParamSpec, TypeVar

from thalweg.errors import CheckpointWriteError, InvalidArgumentError, MissingFileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

Buffer = bytes | bytearray | memoryview
Progress = Callable[[int, int], None]
P = ParamSpec("P")
T = TypeVar("T")

_PIECE = 1 << 22  # bytes written at once, between two calls of `progress`
_BURST = 1 << 23  # bytes after which the disk is told to begin
_LINKS = 40  # as many as Linux follows
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

_under_way: set[str] = set()  # the temporary files that this process writes now


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

    A link is followed: the file that it leads to is replaced. Temporary files of this path that
    crashed processes left are deleted.

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
    with commit.told():
        folder = _folder(os.path.dirname(commit.target))
    try:
        _remove_abandoned(commit.target)
        commit.write(parts, head)
        with commit.told():
            _sync_folder(folder)
    finally:
        _leave(folder)


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """A file, open for reading.

    Raises:
        MissingFileError: There is none.
        InvalidArgumentError: It is a folder, a device, or something else that is no file.
        OSError: It cannot be read.
    """
    given = os.fsdecode(path)
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        # A pipe in its place must not make us wait.
        found = os.open(given, flags | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingFileError(f"{given}: {os.strerror(errno.ENOENT)}.") from error
    except ValueError as error:  # a NUL in the name
        raise MissingFileError(f"{given!r}: {error}.") from error
    try:
        _check_regular(given, os.fstat(found).st_mode)
        return open(found, "rb")
    except BaseException:
        os.close(found)
        raise


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
        folder = _folder(above)
        try:
            _sync_folder(folder)
        finally:
            _leave(folder)
    except OSError as error:
        raise CheckpointWriteError(error.errno, f"{given}: {error.strerror}.") from error


class _Commit:
    """One replacement.

    Attributes:
        target: The file that is replaced, without links.
    """

    def __init__(self, path: str, total: int, progress: Progress | None, room: int) -> None:
        self._path, self._total, self._progress, self._room = path, total, progress, room
        self._done = self._begun = 0
        self._had_one = self._is_there = False
        with self.told():
            try:
                self.target = _without_links(path)
                found = _status(self.target)
            except ValueError as error:  # a NUL in the name
                raise InvalidArgumentError(f"{path!r}: {error}.") from error
        if found is not None:
            _check_regular(path, found.st_mode)
            self._had_one = True

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Say of a failed system call how far it all had come."""
        try:
            yield
        except OSError as error:
            number = error.errno or errno.EIO
            done, total = self._done / 1e6, self._total / 1e6
            raise CheckpointWriteError(
                number,
                f"{self._path}: {os.strerror(number)} after {done:.1f} of {total:.1f} MB;"
                f" {self._left()}",
            ) from error

    def _left(self) -> str:
        if self._is_there:
            return "the new checkpoint is in its place, but may not survive a power loss."
        return "the previous checkpoint is intact." if self._had_one else "nothing was saved."

    def write(self, parts: Iterable[Buffer], head: Callable[[], Buffer] | None) -> None:
        """Write the temporary file, and give it the name."""
        with self.told():
            temporary = _temporary(self.target)
        _under_way.add(temporary)
        try:
            with self.told():
                file = _retried(os.open, temporary, _NEW | _SAFELY, 0o666)
            try:
                try:
                    self._fill(file, parts, head)
                finally:
                    with self.told():
                        _close(file)
                with self.told():
                    _retried(os.replace, temporary, self.target)
                    self._is_there = True
            except BaseException:
                with contextlib.suppress(OSError):
                    _retried(os.unlink, temporary)
                raise
        finally:
            _under_way.discard(temporary)

    def _fill(self, file: int, parts: Iterable[Buffer], head: Callable[[], Buffer] | None) -> None:
        with contextlib.suppress(OSError):  # some file systems have no locks
            _lock(file)
        if self._room:
            with self.told():
                _retried(os.lseek, file, self._room, os.SEEK_SET)
        for part in parts:
            self._put(file, part)
        if head is not None:
            first = head()
            with self.told():
                _retried(os.lseek, file, 0, os.SEEK_SET)
            self._put(file, first)
        if self._done != self._total:
            raise InvalidArgumentError(f"{self._total} bytes were promised, not {self._done}.")
        with self.told():
            _sync(file)

    def _put(self, file: int, part: Buffer) -> None:
        left = memoryview(part)
        left = left.cast("B") if left.nbytes else memoryview(b"")
        while left:
            with self.told():
                count = _retried(os.write, file, left[:_PIECE])
                if not count:
                    raise OSError(errno.EIO, "nothing was written")
            left = left[count:]
            self._done += count
            if self._done - self._begun >= _BURST:
                _begin(file, self._room + self._begun, self._done - self._begun)
                self._begun = self._done
            if self._progress is not None:
                self._progress(self._done, self._total)


def _retried(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call again what a signal has interrupted; Python does that for most calls, not for all."""
    while True:
        try:
            return call(*args, **options)
        except InterruptedError:
            continue


def _without_links(path: str) -> str:
    """The file that a path leads to, which may not be there."""
    for _ in range(_LINKS):
        folder, name = os.path.split(path)
        if name in ("", ".", ".."):
            return _retried(os.path.realpath, path, strict=True)
        path = os.path.join(_retried(os.path.realpath, folder, strict=True), name)
        found = _status(path)
        if found is None or not stat.S_ISLNK(found.st_mode):
            return path
        path = os.path.join(os.path.dirname(path), _retried(os.readlink, path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _status(path: str) -> os.stat_result | None:
    try:
        return _retried(os.lstat, path)
    except FileNotFoundError:
        return None


def _check_regular(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise InvalidArgumentError(f"{path}: This is {kind}, not a file.")


def _close(file: int) -> None:
    with contextlib.suppress(InterruptedError):  # Linux has closed it then
        os.close(file)


def _begin(file: int, begin: int, size: int) -> None:
    """Have the disk begin with what it would otherwise only be given by `fsync`."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None:
        with contextlib.suppress(OSError):
            # Linux begins to write what it is told to forget, and forgets only what is written.
            advise(file, begin, size, os.POSIX_FADV_DONTNEED)


def _sync(file: int) -> None:
    full: Any = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: `fsync` leaves it in the disk's cache
    if full is not None and fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(file, full)
            return
    _retried(os.fsync, file)


def _folder(path: str) -> int | None:
    """A folder's descriptor; None on systems that have none."""
    if not hasattr(os, "O_DIRECTORY"):
        return None
    flags = os.O_RDONLY | os.O_DIRECTORY | getattr(os, "O_CLOEXEC", 0)
    return _retried(os.open, path, flags)


def _leave(folder: int | None) -> None:
    if folder is not None:
        with contextlib.suppress(OSError):
            os.close(folder)


def _sync_folder(folder: int | None) -> None:
    if folder is None:
        return
    try:
        _sync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system keeps names without being asked
            raise


# Temporary files that are left: their names tell of whom.


def _temporary(target: str) -> str:
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.{os.getpid()}-{os.urandom(8).hex()}.tmp")


def _remove_abandoned(target: str) -> None:
    """Delete the temporary files of this path that nobody writes any more."""
    if os.name != "posix":
        return
    folder, name = os.path.split(target)
    pattern = re.compile(rf"\.{re.escape(name)}\.([0-9]{{1,9}})-[0-9a-f]{{16}}\.tmp")
    with contextlib.suppress(OSError):
        for each in os.listdir(folder):
            found, full = pattern.fullmatch(each), os.path.join(folder, each)
            if found and _is_abandoned(full, int(found[1])):
                with contextlib.suppress(OSError):
                    os.unlink(full)


def _is_abandoned(path: str, process: int) -> bool:
    if path in _under_way:
        return False
    # An own number that we know nothing of is that of a process before us: in a container all of
    # them have the same.
    if process != os.getpid() and _is_alive(process):
        return False
    return not _is_locked(path)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _lock(file: int) -> None:
    """Hold a lock until the file is closed. Processes of other containers see it, too."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_locked(path: str) -> bool:
    try:
        file = os.open(path, os.O_RDWR | os.O_NONBLOCK | _SAFELY)
    except OSError:
        return True
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return True
        _lock(file)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return False
    finally:
        os.close(file)
    return False
