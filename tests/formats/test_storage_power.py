"""After a power failure, at any time and with any part on the disk, old or new is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attack import power
from attack.power import Content, Op
from storage_files import DOCUMENT, counting_tensor
from thalweg._formats import atomic_write, container

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX")


def saved(path: Path) -> None:
    tensors = {f"w{i}": counting_tensor("U8", (600 * (i + 1),), i) for i in range(3)}
    container.write(path, tensors, DOCUMENT)


def log_of(path: Path, old: Content) -> list[Op]:
    """Return the operations that a save requests of the system."""
    if old is not None:
        path.write_bytes(old)
    return power.recorded(lambda: saved(path))


def broken(log: list[Op], path: Path, old: Content) -> tuple[int, int]:
    """Count the states of the disk, and those in which the file is neither old nor new.

    After all operations only the new file is right.
    """
    new, count, bad = path.read_bytes(), 0, 0
    for is_finished, content in power.contents(log, path, old):
        count += 1
        bad += content != new and (is_finished or content != old)
    return count, bad


@pytest.mark.parametrize("old", [b"old" * 1000, None], ids=["old", "none"])
def test_power_loss_leaves_a_complete_file(old: Content, tmp_path: Path) -> None:
    log = log_of(tmp_path / "ckpt", old)
    count, bad = broken(log, tmp_path / "ckpt", old)
    assert [op.kind for op in log] == ["make", *["write"] * 4, "sync", "rename", "sync"]
    assert count > 10
    assert not bad


def without(*places: int) -> Callable[[list[Op]], list[Op]]:
    return lambda log: [op for place, op in enumerate(log) if place - len(log) not in places]


def in_place(log: list[Op]) -> list[Op]:
    """Return the writes of a log, redirected to the file itself."""
    new = log[-2].to
    return [Op(op.kind, new, "", op.begin, op.data) for op in log if op.kind in ("write", "sync")]


def renamed_first(log: list[Op]) -> list[Op]:
    make, *writes, sync, rename, folder = log
    direct_writes = [Op(op.kind, rename.to, "", op.begin, op.data) for op in (*writes, sync)]
    return [make, rename, *direct_writes, folder]


# The same model finds what is wrong with other ways.
WORSE = {
    "the file is not forced to the disk": without(-3),
    "the folder is not forced to the disk": without(-1),
    "nothing is forced to the disk": without(-3, -1),
    "the file is written in place": in_place,
    "the name is given first": renamed_first,
}


@pytest.mark.parametrize("change", WORSE.values(), ids=WORSE)
def test_reordered_writes_are_detected_as_broken(
    change: Callable[..., Any], tmp_path: Path
) -> None:
    log = change(log_of(tmp_path / "ckpt", b"old" * 1000))
    assert broken(log, tmp_path / "ckpt", b"old" * 1000)[1] > 0


def test_leftovers_of_other_processes_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    leftover = path.with_name(f".ckpt.{os.getpid()}-{'0' * 16}.tmp")
    leftover.write_bytes(b"half")
    log = log_of(path, b"old")
    assert Op("unlink", str(leftover)) in log
    assert not broken(log, path, b"old")[1]


def test_folders_are_synced_before_files(tmp_path: Path) -> None:
    log = power.recorded(lambda: atomic_write.make_folder(tmp_path / "a" / "b"))
    assert log == [Op("sync", str(tmp_path)), Op("sync", str(tmp_path / "a"))]
