"""Files are replaced as a whole, or not at all, and nothing is left beside them."""

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
WHOLE = b"".join(NEW)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "ckpt"
    found.write_bytes(OLD)
    return found


def replaced(path: Any) -> None:
    atomic_write.replace(path, NEW, len(WHOLE))


def test_the_new_content_is_there(path: Path) -> None:
    replaced(path)
    assert path.read_bytes() == WHOLE
    assert os.listdir(path.parent) == ["ckpt"]


def test_any_kind_of_path_will_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    for number, given in enumerate((path, str(path), os.fsencode(path), "ckpt", "./ckpt")):
        atomic_write.replace(given, [b"%d" % number], 1)
        assert path.read_bytes() == b"%d" % number


def test_the_beginning_is_written_last(path: Path) -> None:
    seen: list[str] = []

    def parts() -> Iterator[bytes]:
        for each in (b"one", b"two"):
            seen.append(each.decode())
            yield each

    def head() -> bytes:
        seen.append("head")
        return b"head"

    atomic_write.replace(path, parts(), 10, reserved=4, make_head=head)
    assert path.read_bytes() == b"headonetwo"
    assert seen == ["one", "two", "head"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027])
def test_permissions_are_those_of_new_files(umask: int, path: Path) -> None:
    before = os.umask(umask)
    try:
        replaced(path)
        replaced(path.with_name("other"))
    finally:
        os.umask(before)
    for each in (path, path.with_name("other")):
        assert stat.S_IMODE(each.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604, 0o660])
def test_a_private_file_stays_private(mode: int, path: Path) -> None:
    path.chmod(mode)
    seen: list[int] = []

    def parts() -> Iterator[bytes]:
        (made,) = set(path.parent.iterdir()) - {path}
        seen.append(stat.S_IMODE(made.stat().st_mode))
        yield WHOLE

    atomic_write.replace(path, parts(), len(WHOLE))
    assert path.read_bytes() == WHOLE
    assert [*seen, stat.S_IMODE(path.stat().st_mode)] == [mode & 0o644] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_stays_its_owners(path: Path) -> None:
    os.chown(path, 1234, 4321)
    path.chmod(0o640)
    replaced(path)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 4321, 0o640)


def test_a_group_that_may_not_have_the_file_does_not_see_it(
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


def test_links_are_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_bytes(OLD)
    (tmp_path / "link").symlink_to("real/a")
    (tmp_path / "new").symlink_to("real/b")
    (tmp_path / "folder").symlink_to("real")
    for link, target in (("link", "a"), ("new", "b"), ("folder/c", "c")):
        replaced(tmp_path / link)
        assert (tmp_path / "real" / target).read_bytes() == WHOLE
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["ckpt", "folder", "link", "new", "real"]
    assert sorted(os.listdir(tmp_path / "real")) == ["a", "b", "c"]


def test_other_names_of_a_file_keep_the_old_content(path: Path) -> None:
    other = path.with_name("other")
    os.link(path, other)
    replaced(path)
    assert other.read_bytes() == OLD


def test_what_is_no_file_is_left_alone(path: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for given, kind in ((tmp_path, "a folder"), (tmp_path / "pipe", "a device or a pipe")):
        with pytest.raises(InvalidArgumentError, match=f"This is {kind}, not a file"):
            replaced(given)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["ckpt", "pipe"]
    with pytest.raises(InvalidArgumentError, match="null"):
        replaced("a\0b")


REFUSED: dict[str, tuple[str, int]] = {
    "missing/ckpt": (r"missing/ckpt: No such file or directory after 0.0 of 0.0 MB", errno.ENOENT),
    "ckpt/x": (r"ckpt/x: Not a directory", errno.ENOTDIR),
    "circle": (r"circle: Too many levels of symbolic links", errno.ELOOP),
    "x" * 300: (r"xxx: File name too long", errno.ENAMETOOLONG),
}


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: name[:9])
def test_where_nothing_can_be_written(name: str, path: Path) -> None:
    path.with_name("circle").symlink_to("circle")
    message, number = REFUSED[name]
    with pytest.raises(CheckpointWriteError, match=message) as caught:
        replaced(path.parent / name)
    assert caught.value.errno == number
    assert str(caught.value).endswith("; nothing was saved.")
    assert path.read_bytes() == OLD
    assert sorted(os.listdir(path.parent)) == ["circle", "ckpt"]


class Stopped(Exception):
    """Raised by what a caller gives."""


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

    with pytest.raises(error, match="by the caller") as caught:
        atomic_write.replace(
            path,
            parts(),
            3,
            stop if place == "progress" else None,
            make_head=stop if place == "head" else None,
        )
    assert type(caught.value) is error
    assert path.read_bytes() == OLD
    assert os.listdir(path.parent) == ["ckpt"]


@pytest.mark.parametrize("total", [0, len(WHOLE) - 1, len(WHOLE) + 1])
def test_what_was_promised_must_come(total: int, path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{total} bytes were promised"):
        atomic_write.replace(path, NEW, total)
    assert path.read_bytes() == OLD
    assert os.listdir(path.parent) == ["ckpt"]


def test_a_disk_that_is_full_is_told_with_figures(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = os.write, [12_000_000]

    def limited(file: int, data: Any) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = write(file, data[: left[0]])
        left[0] -= count
        return count

    monkeypatch.setattr(atomic_write.os, "write", limited)
    with pytest.raises(CheckpointWriteError) as caught:
        atomic_write.replace(path, [bytes(16_000_000)] * 3, 48_000_000)
    assert str(caught.value) == (
        f"{path}: No space left on device after 12.0 of 48.0 MB; the previous checkpoint is intact."
    )
    assert caught.value.errno == errno.ENOSPC
    assert isinstance(caught.value, OSError)
    assert path.read_bytes() == OLD
    assert os.listdir(path.parent) == ["ckpt"]


@pytest.mark.parametrize("most", [1, 7, 4096])
def test_writes_that_are_cut_short_go_on(
    most: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(atomic_write.os, "write", lambda file, data: write(file, data[:most]))
    replaced(path)
    assert path.read_bytes() == WHOLE


def test_a_write_of_nothing_does_not_go_on_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_write.os, "write", lambda file, data: 0)
    with pytest.raises(CheckpointWriteError, match="Input/output error"):
        replaced(path)


def test_signals_that_are_handled_do_not_end_it(path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        while len(seen) < 20:
            atomic_write.replace(path, [bytes(1 << 16)] * 32, 1 << 21)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert path.stat().st_size == 1 << 21
    assert os.listdir(path.parent) == ["ckpt"]


# What crashed writers leave.


def left(path: Path, process: int) -> Path:
    found = path.with_name(f".{path.name}.{process}-{os.urandom(8).hex()}.tmp")
    found.write_bytes(b"half")
    return found


def dead() -> int:
    """The number of a process that is no more."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_what_crashed_writers_left_is_deleted(path: Path) -> None:
    gone = [left(path, dead()), left(path, os.getpid())]
    stay = [left(path, 1), left(path.with_name("other"), dead()), path.with_name(".ckpt.1.tmp")]
    stay[2].write_bytes(b"not ours")
    replaced(path)
    assert not any(each.exists() for each in gone)
    assert all(each.exists() for each in stay)


def test_what_is_locked_is_of_another_machine(path: Path) -> None:
    import fcntl

    theirs = left(path, os.getpid())
    with theirs.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        replaced(path)
        assert theirs.exists()
    replaced(path)
    assert not theirs.exists()


def test_links_in_place_of_temporary_files_are_not_followed(path: Path) -> None:
    victim = path.with_name("victim")
    victim.write_bytes(OLD)
    link = path.with_name(f".ckpt.{dead()}-{'0' * 16}.tmp")
    link.symlink_to(victim)
    replaced(path)
    assert victim.read_bytes() == OLD


def test_names_may_hold_anything(tmp_path: Path) -> None:
    for name in (".hidden", "a b", "a\nb", "*", "ckpt.(1)[2]", "-", "ü"):
        target = tmp_path / name
        gone = left(target, dead())
        replaced(target)
        assert target.read_bytes() == WHOLE
        assert not gone.exists()


def test_writers_at_the_same_time_make_whole_files(path: Path) -> None:
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


def test_processes_at_the_same_time_make_whole_files(path: Path) -> None:
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


def test_folders_above_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = os.fsync

    def note(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        sync(file)

    monkeypatch.setattr(atomic_write.os, "fsync", note)
    atomic_write.make_folder(tmp_path / "a" / "b")
    assert synced == [str(tmp_path), str(tmp_path / "a")]


def test_files_are_opened(path: Path) -> None:
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


def test_no_descriptors_are_left_open(path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    replaced(path)
    for bad in (path.parent, path / "x"):
        with pytest.raises((InvalidArgumentError, CheckpointWriteError)):
            replaced(bad)
    with pytest.raises(InvalidArgumentError):
        atomic_write.replace(path, NEW, 1)
    with pytest.raises(InvalidArgumentError):
        atomic_write.open_for_reading(path.parent)
    assert os.listdir("/proc/self/fd") == before


def test_the_standard_library_is_enough() -> None:
    program = (
        "import thalweg._formats.container\n"
        "found = {name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "sys.exit(repr(found) if found != {'thalweg', '__main__'} else 0)"
    )
    done = subprocess.run(
        without_torch.command(program), capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
