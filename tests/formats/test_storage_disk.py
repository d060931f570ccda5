"""Files are replaced completely, or not at all, and no temporary file is left."""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import without_torch
from thalweg._formats import atomic_write, syscalls
from thalweg.errors import CheckpointWriteError, InvalidArgumentError, MissingFileError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX")

OLD, NEW = b"old" * 100, [b"new", b"", bytearray(b"er" * 5000), memoryview(b"!")]
NEW_CONTENT = b"".join(NEW)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "ckpt"
    target.write_bytes(OLD)
    return target


def replaced(path: Any) -> None:
    atomic_write.replace(path, NEW, len(NEW_CONTENT))


def test_replace_writes_the_new_content(path: Path) -> None:
    replaced(path)
    assert path.read_bytes() == NEW_CONTENT
    assert os.listdir(path.parent) == ["ckpt"]


def test_replace_accepts_any_path_type(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    for number, path_form in enumerate((path, str(path), os.fsencode(path), "ckpt", "./ckpt")):
        atomic_write.replace(path_form, [b"%d" % number], 1)
        assert path.read_bytes() == b"%d" % number


def test_file_beginning_is_written_last(path: Path) -> None:
    order: list[str] = []

    def parts() -> Iterator[bytes]:
        for part in (b"one", b"two"):
            order.append(part.decode())
            yield part

    def head() -> bytes:
        order.append("head")
        return b"head"

    atomic_write.replace(path, parts(), 10, reserved=4, make_head=head)
    assert path.read_bytes() == b"headonetwo"
    assert order == ["one", "two", "head"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027])
def test_only_new_files_follow_the_umask(umask: int, path: Path) -> None:
    path.chmod(0o640)
    old_umask = os.umask(umask)
    try:
        replaced(path)
        replaced(path.with_name("other"))
    finally:
        os.umask(old_umask)
    modes = [stat.S_IMODE(path.with_name(name).stat().st_mode) for name in ("ckpt", "other")]
    assert modes == [0o640, 0o666 & ~umask]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604, 0o660, 0o666, 0o750])
def test_file_keeps_its_mode(mode: int, path: Path) -> None:
    path.chmod(mode)
    modes: list[int] = []

    def parts() -> Iterator[bytes]:
        (temporary,) = set(path.parent.iterdir()) - {path}
        modes.append(stat.S_IMODE(temporary.stat().st_mode))
        yield NEW_CONTENT

    atomic_write.replace(path, parts(), len(NEW_CONTENT))
    assert path.read_bytes() == NEW_CONTENT
    assert [*modes, stat.S_IMODE(path.stat().st_mode)] == [mode] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_file_keeps_its_owner(path: Path) -> None:
    os.chown(path, 1234, 4321)
    path.chmod(0o640)
    replaced(path)
    status = path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 4321, 0o640)


def test_mode_drops_group_bits_if_group_cannot_be_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refused)
    path.chmod(0o640)
    old = list(path.stat())
    old[stat.ST_GID] += 1
    monkeypatch.setattr(syscalls, "status", lambda _: os.stat_result(old))
    replaced(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_symbolic_links_are_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_bytes(OLD)
    (tmp_path / "link").symlink_to("real/a")
    (tmp_path / "new").symlink_to("real/b")
    (tmp_path / "folder").symlink_to("real")
    for link, target in (("link", "a"), ("new", "b"), ("folder/c", "c")):
        replaced(tmp_path / link)
        assert (tmp_path / "real" / target).read_bytes() == NEW_CONTENT
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["ckpt", "folder", "link", "new", "real"]
    assert sorted(os.listdir(tmp_path / "real")) == ["a", "b", "c"]


def test_hard_links_keep_the_old_content(path: Path) -> None:
    link = path.with_name("other")
    os.link(path, link)
    replaced(path)
    assert link.read_bytes() == OLD


def test_folders_and_pipes_are_not_replaced(path: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for target, kind in ((tmp_path, "a folder"), (tmp_path / "pipe", "a device or a pipe")):
        with pytest.raises(InvalidArgumentError, match=f"This is {kind}, not a file"):
            replaced(target)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["ckpt", "pipe"]
    with pytest.raises(InvalidArgumentError, match="null"):
        replaced("a\0b")


ERRORS: dict[str, tuple[str, int]] = {
    "missing/ckpt": (r"missing/ckpt: No such file or directory after 0.0 of 0.0 MB", errno.ENOENT),
    "ckpt/x": (r"ckpt/x: Not a directory", errno.ENOTDIR),
    "circle": (r"circle: Too many levels of symbolic links", errno.ELOOP),
    "x" * 300: (r"xxx: File name too long", errno.ENAMETOOLONG),
}


@pytest.mark.parametrize("name", ERRORS, ids=lambda name: name[:9])
def test_unwritable_paths_raise(name: str, path: Path) -> None:
    path.with_name("circle").symlink_to("circle")
    message, number = ERRORS[name]
    with pytest.raises(CheckpointWriteError, match=message) as error:
        replaced(path.parent / name)
    assert error.value.errno == number
    assert str(error.value).endswith("; nothing was saved.")
    assert path.read_bytes() == OLD
    assert sorted(os.listdir(path.parent)) == ["circle", "ckpt"]


class Stopped(Exception):
    """Error of a caller's data."""


@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt, OSError, MemoryError])
@pytest.mark.parametrize("place", ["parts", "head", "progress"])
def test_errors_of_the_caller_leave_nothing(
    place: str, error: type[BaseException], path: Path
) -> None:
    def stop(*_: Any) -> Any:
        raise error("by the caller")

    def parts() -> Iterator[bytes]:
        yield b"new"
        if place == "parts":
            stop()

    with pytest.raises(error, match="by the caller") as raised:
        atomic_write.replace(
            path,
            parts(),
            3,
            stop if place == "progress" else None,
            make_head=stop if place == "head" else None,
        )
    assert type(raised.value) is error
    assert path.read_bytes() == OLD
    assert os.listdir(path.parent) == ["ckpt"]


@pytest.mark.parametrize("total", [0, len(NEW_CONTENT) - 1, len(NEW_CONTENT) + 1])
def test_announced_sizes_must_match(total: int, path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{total} bytes were promised"):
        atomic_write.replace(path, NEW, total)
    assert path.read_bytes() == OLD
    assert os.listdir(path.parent) == ["ckpt"]


def test_full_disk_error_has_sizes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, free = os.write, [12_000_000]

    def limited(file: int, data: Any) -> int:
        if not free[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = write(file, data[: free[0]])
        free[0] -= count
        return count

    monkeypatch.setattr(atomic_write.os, "write", limited)
    with pytest.raises(CheckpointWriteError) as error:
        atomic_write.replace(path, [bytes(16_000_000)] * 3, 48_000_000)
    assert str(error.value) == (
        f"{path}: No space left on device after 12.0 of 48.0 MB; the previous checkpoint is intact."
    )
    assert error.value.errno == errno.ENOSPC
    assert isinstance(error.value, OSError)
    assert path.read_bytes() == OLD
    assert os.listdir(path.parent) == ["ckpt"]


@pytest.mark.parametrize("limit", [1, 7, 4096])
def test_short_writes_are_continued(
    limit: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(atomic_write.os, "write", lambda file, data: write(file, data[:limit]))
    replaced(path)
    assert path.read_bytes() == NEW_CONTENT


def test_zero_byte_write_terminates(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_write.os, "write", lambda file, data: 0)
    with pytest.raises(CheckpointWriteError, match="Input/output error"):
        replaced(path)


def test_handled_signals_do_not_interrupt_a_write(path: Path) -> None:
    signals: list[int] = []
    old_handler = signal.signal(signal.SIGALRM, lambda *_: signals.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        while len(signals) < 20:
            atomic_write.replace(path, [bytes(1 << 16)] * 32, 1 << 21)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler)
    assert path.stat().st_size == 1 << 21
    assert os.listdir(path.parent) == ["ckpt"]


# What crashed writers leave.


def left(path: Path, process: int) -> Path:
    leftover = path.with_name(f".{path.name}.{process}-{os.urandom(8).hex()}.tmp")
    leftover.write_bytes(b"half")
    return leftover


def dead() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_leftovers_of_crashed_writers_are_deleted(path: Path) -> None:
    deleted = [left(path, dead()), left(path, os.getpid())]
    stay = [left(path, 1), left(path.with_name("other"), dead()), path.with_name(".ckpt.1.tmp")]
    stay[2].write_bytes(b"not ours")
    replaced(path)
    assert not any(file.exists() for file in deleted)
    assert all(file.exists() for file in stay)


def test_locked_temporary_files_are_kept(path: Path) -> None:
    import fcntl

    foreign = left(path, os.getpid())
    with foreign.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        replaced(path)
        assert foreign.exists()
    replaced(path)
    assert not foreign.exists()


def test_links_in_place_of_temporary_files_are_not_followed(path: Path) -> None:
    victim = path.with_name("victim")
    victim.write_bytes(OLD)
    link = path.with_name(f".ckpt.{dead()}-{'0' * 16}.tmp")
    link.symlink_to(victim)
    replaced(path)
    assert victim.read_bytes() == OLD


def test_file_names_may_have_any_characters(tmp_path: Path) -> None:
    for name in (".hidden", "a b", "a\nb", "*", "ckpt.(1)[2]", "-", "ü"):
        target = tmp_path / name
        deleted = left(target, dead())
        replaced(target)
        assert target.read_bytes() == NEW_CONTENT
        assert not deleted.exists()


def test_concurrent_threads_write_complete_files(path: Path) -> None:
    contents = [bytes([number]) * 300_000 for number in range(4)]
    errors: list[BaseException] = []

    def write(content: bytes) -> None:
        try:
            for _ in range(15):
                atomic_write.replace(path, [content[:1000], content[1000:]], len(content))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert path.read_bytes() in (OLD, *contents)
    assert not errors
    assert os.listdir(path.parent) == ["ckpt"]


def test_concurrent_processes_write_complete_files(path: Path) -> None:
    program = (
        "from thalweg._formats import atomic_write as disk\n"
        "for _ in range(40): disk.replace(sys.argv[1], [sys.argv[2].encode() * 200000], 200000)"
    )
    writers = [
        subprocess.Popen(without_torch.command(program, str(path), letter)) for letter in "ab"
    ]
    while any(writer.poll() is None for writer in writers):
        assert path.read_bytes() in (OLD, b"a" * 200_000, b"b" * 200_000)
        time.sleep(0.001)
    assert [writer.wait() for writer in writers] == [0, 0]
    assert os.listdir(path.parent) == ["ckpt"]


# Folders, and files that are read.


def test_folders_are_made(tmp_path: Path) -> None:
    atomic_write.make_folder(tmp_path / "a" / "b" / "c")
    atomic_write.make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointWriteError, match=re.escape(f"{tmp_path / 'file'}")):
        atomic_write.make_folder(tmp_path / "file" / "b")


def test_parent_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = os.fsync

    def note(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        sync(file)

    monkeypatch.setattr(atomic_write.os, "fsync", note)
    atomic_write.make_folder(tmp_path / "a" / "b")
    assert synced == [str(tmp_path), str(tmp_path / "a")]


def test_open_for_reading_accepts_only_regular_files(path: Path) -> None:
    with atomic_write.open_for_reading(path) as file:
        assert file.read() == OLD
    path.with_name("link").symlink_to(path)
    with atomic_write.open_for_reading(path.with_name("link")) as file:
        assert not os.get_inheritable(file.fileno())
    path.with_name("circle").symlink_to("circle")
    for missing in ("missing", "ckpt/x", "a\0b", "circle", "circle/x", "x" * 300):
        with pytest.raises(MissingFileError, match=missing.replace("\0", r"\\x00")):
            atomic_write.open_for_reading(path.parent / missing)
    with pytest.raises(InvalidArgumentError, match="a folder"):
        atomic_write.open_for_reading(path.parent)
    with pytest.raises(InvalidArgumentError, match="a device"):
        atomic_write.open_for_reading("/dev/zero")


def test_replace_leaves_no_descriptor_open(path: Path) -> None:
    initial = os.listdir("/proc/self/fd")
    replaced(path)
    for bad in (path.parent, path / "x"):
        with pytest.raises((InvalidArgumentError, CheckpointWriteError)):
            replaced(bad)
    with pytest.raises(InvalidArgumentError):
        atomic_write.replace(path, NEW, 1)
    with pytest.raises(InvalidArgumentError):
        atomic_write.open_for_reading(path.parent)
    assert os.listdir("/proc/self/fd") == initial


def test_module_needs_only_the_standard_library() -> None:
    program = (
        "import thalweg._formats.container\n"
        "found = {name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "sys.exit(repr(found) if found != {'thalweg', '__main__'} else 0)"
    )
    process = subprocess.run(
        without_torch.command(program), capture_output=True, text=True, check=False
    )
    assert not process.returncode, process.stderr
