"""Folder that only the user and root can change, and the files in it.

The files are executed. Therefore every folder from / on must belong to the user or root, and must
not be writable by other users. Folders are opened by the parent's descriptor, and checks read open
descriptors, not names. The system follows no links: this module reads links of the user or root,
and checks the folders of the target.

An ancestor with the sticky bit, such as /tmp, may be writable: other users cannot rename or replace
files and folders of the user or root in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial

from thalweg.errors import PerformanceWarning, warn

# False on Windows, for example, where this module cannot check who may write to a file.
AVAILABLE = os.open in os.supports_dir_fd and hasattr(os, "geteuid")

_LINKS = 40  # as many as Linux follows
_FRESH = 9  # names that are tried: the folder, folder-2, ...


class _Unsafe(PermissionError):
    """Raised for a file or folder that other users may have written, or can write."""


def open_folder(stack: ExitStack, path: str) -> int:
    """Return the descriptor of a folder that only the user and root can change.

    A missing folder is created. If another user owns `path` or can write to it, `path-2`, `path-3`
    and so on are tried. If one of these is created, a warning names the folder.

    Args:
        stack: Closes all descriptors when it exits.
        path: The absolute path of the folder.

    Raises:
        OSError: An ancestor or every tried folder is not safe, or a folder cannot be created.
    """
    parent, base = os.path.split(path)
    parent_descriptor, parent_path = _walk_down(stack, parent)
    reasons: list[_Unsafe] = []
    for attempt in range(1, _FRESH + 1):
        name = base if attempt == 1 else f"{base}-{attempt}"
        full = os.path.join(parent_path, name)
        try:
            descriptor, is_new = _enter_folder(stack, name, parent_descriptor, full)
        except _Unsafe as error:
            reasons.append(error)
            continue
        if reasons and is_new:
            warn(
                f"{path} is left alone, as kernels in it may be another user's ({reasons[0]});"
                f" new ones are kept in {full}. The old folder can be deleted.",
                PerformanceWarning,
            )
        return descriptor
    raise reasons[0]


def read_file(directory: int, name: str) -> bytes | None:
    """Return a file's content; None for a file that is missing, unreadable or not private."""
    try:
        # Opening a pipe of this name must not block.
        with _open_descriptor(name, os.O_RDONLY | os.O_NONBLOCK, directory) as descriptor:
            status = os.fstat(descriptor)
            _check_private(status, name)
            # Others may have made a hard link to a file of the user.
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                return None
            with open(descriptor, "rb", closefd=False) as file:
                return file.read()
    except OSError:
        return None


def write_file(directory: int, name: str, content: bytes) -> None:
    """Write a file atomically, by a rename, into the folder with the descriptor `directory`.

    Raises:
        OSError: The file cannot be written.
    """
    temporary = f"{name}.{os.urandom(8).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with (
            _open_descriptor(temporary, flags, directory) as descriptor,
            open(descriptor, "wb", closefd=False) as file,
        ):
            file.write(content)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def _walk_down(stack: ExitStack, path: str) -> tuple[int, str]:
    """Open or create each folder of a path; return (last descriptor, path without links).

    Raises:
        OSError: The path is relative, has too many links, or an ancestor is not safe.
    """
    # The working directory may belong to another user.
    if not os.path.isabs(path):
        raise PermissionError(f"{path} is not absolute")
    root_descriptor = descriptor = stack.enter_context(_open_descriptor("/", _get_passing_flags()))
    current_path, names, link_count = "/", _split_path(path), 0
    _check_private(os.fstat(root_descriptor), current_path, is_ancestor=True)
    while names:
        name = names.pop()
        full = os.path.join(current_path, name)
        target = _read_link_target(name, descriptor, full)
        if target is None:
            descriptor, _ = _enter_folder(stack, name, descriptor, full, is_ancestor=True)
            current_path = full
            continue
        link_count += 1
        if link_count > _LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        names += _split_path(target)
        if os.path.isabs(target):
            descriptor, current_path = root_descriptor, "/"
    return descriptor, current_path


def _split_path(path: str) -> list[str]:
    """Return the names in a path, the last one first."""
    return [component for component in reversed(path.split("/")) if component not in ("", ".")]


def _read_link_target(name: str, directory: int, full: str) -> str | None:
    """Return the target of a link; None for no link. Raise if another user owns the link."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(status.st_mode):
        return None
    _check_owner(status, full)
    return os.readlink(name, dir_fd=directory)


def _enter_folder(
    stack: ExitStack, name: str, directory: int, full: str, is_ancestor: bool = False
) -> tuple[int, bool]:
    """Open or create a folder; return (descriptor, True if the folder was created).

    Raises:
        OSError: The path is not a folder, cannot be opened, or is not safe; see `_check_private`.
    """
    is_new, opening = False, partial(_open_descriptor, name, _get_passing_flags(), directory)
    try:
        try:
            descriptor = stack.enter_context(opening())
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=directory)
                is_new = True
            descriptor = stack.enter_context(opening())
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK):  # EMLINK: a link, on FreeBSD
            raise _Unsafe(f"{full} is no folder") from error
        raise
    _check_private(os.fstat(descriptor), full, is_ancestor)
    return descriptor, is_new


def _get_passing_flags() -> int:
    """Return the flags that open a folder to enter it."""
    # O_PATH opens folders that the user can enter but not list, too.
    return os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)


@contextmanager
def _open_descriptor(name: str, flags: int, directory: int | None = None) -> Generator[int]:
    """Yield the descriptor of a file or folder, opened without following links; then close it."""
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check_private(status: os.stat_result, full: str, is_ancestor: bool = False) -> None:
    """Raise PermissionError if another user owns a file or folder, or can write to it.

    With `is_ancestor`, a folder with the sticky bit may be writable.
    """
    _check_owner(status, full)
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if is_shared and not (is_ancestor and status.st_mode & stat.S_ISVTX):
        advice = f"; `chmod go-w {full}` if it is yours" if is_ancestor else ""
        raise _Unsafe(f"others may write to {full}{advice}")


def _check_owner(status: os.stat_result, full: str) -> None:
    """Raise unless a file or folder belongs to the user or root."""
    if status.st_uid not in (0, os.geteuid()):
        raise _Unsafe(f"{full} belongs to user {status.st_uid}")
