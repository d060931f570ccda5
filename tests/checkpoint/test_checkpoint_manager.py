"""`CheckpointManager`: which checkpoints stay, and which one is the latest and the best."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import thalweg
from thalweg import CheckpointWarning, ThalwegError, Variable, checkpoint
from thalweg._formats import container, header
from thalweg.checkpoint import CheckpointManager
from thalweg.keras.optimizers import SGD


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def steps(manager: CheckpointManager) -> list[int]:
    return [entry.step for entry in manager.checkpoints()]


def test_manager_keeps_the_newest_checkpoints(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path / "new" / "folder", keep=3)
    assert (manager.latest(), steps(manager)) == (None, [])
    for step in (1, 2, 10, 11, 3):
        path = manager.save(step, extra=step)
        assert path.name == f"checkpoint-{step}.safetensors"
    assert steps(manager) == [10, 11, 3]  # as they were saved: the training went back to 3
    assert manager.latest() == tmp_path / "new" / "folder" / "checkpoint-3.safetensors"
    assert manager.restore().extra == 3
    assert manager.restore(11).extra == 11
    with pytest.raises(FileNotFoundError, match=r"no checkpoint 1; there are \[3, 10, 11\]"):
        manager.restore(1)


def test_saving_an_earlier_step_keeps_that_checkpoint(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=1)
    for step in (0, 1, 2, 3, 1):
        path = manager.save(step, extra=f"step {step}")
        assert path.exists()
    assert steps(manager) == [1]
    assert manager.restore().extra == "step 1"


@pytest.mark.parametrize("shift", [-50.0, 0.0])
def test_clock_set_back_deletes_no_checkpoint(shift: float, tmp_path: Path) -> None:
    clock = Clock()
    manager = CheckpointManager(tmp_path, keep=1, clock=clock)
    for step in (10, 11, 3):
        path = manager.save(step)
        clock.seconds += shift
        assert manager.latest() == path


@pytest.mark.parametrize("place", [20, 200, -1])
def test_restore_or_initialize_raises_for_a_damaged_file(place: int, tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    path = manager.save(9000, extra=[1.0] * 10, variables={"w": torch.ones(3)})
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ThalwegError):
            manager.restore_or_initialize(variables={"w": torch.ones(3)})


@pytest.mark.parametrize("place", [8, 20, 60, 200, -1])
@pytest.mark.parametrize("call", ["restore", "restore_or_initialize"])
def test_damaged_newest_file_raises_despite_older_files(
    call: str, place: int, tmp_path: Path
) -> None:
    manager, w = CheckpointManager(tmp_path), torch.zeros(3)
    manager.save(1, variables={"w": torch.ones(3)})
    path = manager.save(2, extra=[1.0] * 10, variables={"w": torch.ones(3)})
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ThalwegError, match=r"checkpoint-2\.safetensors"):
        getattr(manager, call)(variables={"w": w})
    assert w.tolist() == [0.0] * 3
    assert manager.restore(1, variables={"w": w}).step == 1
    path.unlink()
    assert getattr(manager, call)(variables={"w": w}).step == 1


@pytest.mark.parametrize("call", ["restore", "restore_or_initialize"])
def test_older_damaged_file_is_ignored(call: str, tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    old = manager.save(0)
    old.write_bytes(b"damaged")
    os.utime(old, (1, 1))
    with pytest.warns(CheckpointWarning, match="left alone"):
        manager.save(1)
    with pytest.warns(CheckpointWarning, match=r"checkpoint-0\.safetensors is left alone"):
        assert getattr(manager, call)().step == 1


@pytest.mark.parametrize("step", [0, 2])
def test_a_file_of_a_newer_version_always_raises(step: int, tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    manager.save(1)
    newer = manager.save(step)
    content = newer.read_bytes().replace(b'"version":"1"', b'"version":"2"')
    length = int.from_bytes(content[:8], "little")
    sealed = header.seal_header(content[:8], content[8 : 8 + length])
    newer.write_bytes(sealed + content[8 + length :])
    os.utime(newer, (1, 1))
    with pytest.raises(thalweg.UnsupportedCheckpointError, match="is of version 2"):
        manager.restore_or_initialize()


@pytest.mark.parametrize("fields", [{"time": "yesterday"}, {"metrics": 3}, {"time": "nan"}])
def test_invalid_files_do_not_restart_a_training(fields: dict[str, Any], tmp_path: Path) -> None:
    container.write(tmp_path / "checkpoint-1.safetensors", {}, {"kind": "training", **fields})
    with pytest.raises(thalweg.InvalidConfigError, match=r"checkpoint-1\.safetensors"):
        CheckpointManager(tmp_path).restore_or_initialize()


def test_folder_with_a_checkpoint_name_is_reported(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-1.safetensors").mkdir()
    with pytest.raises(ThalwegError, match=r"checkpoint-1\.safetensors"):
        CheckpointManager(tmp_path).restore_or_initialize()


def test_a_manager_needs_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        with pytest.raises(
            thalweg.CheckpointWriteError, match=f"{name}: It is there, and is no folder"
        ):
            CheckpointManager(tmp_path / name)


def test_files_that_cannot_be_removed_warn(tmp_path: Path, monkeypatch: Any) -> None:
    manager = CheckpointManager(tmp_path, keep=1)
    manager.save(0)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.warns(CheckpointWarning, match=r"checkpoint-0\.safetensors stays: not yours"):
        assert manager.save(1).exists()


def test_keep_every_keeps_one_checkpoint_per_interval(tmp_path: Path) -> None:
    clock = Clock()
    manager = CheckpointManager(tmp_path, keep=2, keep_every=100, clock=clock)
    for step in range(10):
        manager.save(step)
        clock.seconds += 30
    # 0 at 1000 s, 4 at 1120 s, then the last two; 8 is 120 s after 4.
    assert steps(manager) == [0, 4, 8, 9]
    new_manager = CheckpointManager(tmp_path, keep=1, keep_every=100, clock=clock)
    new_manager.save(10)
    assert steps(new_manager) == [0, 4, 8, 10]


@pytest.mark.parametrize(("mode", "expected"), [("min", [1, 4]), ("max", [2, 4])])
def test_manager_keeps_the_best_checkpoint(mode: Any, expected: list[int], tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=1, best="loss", mode=mode)
    assert manager.best() is None
    for step, loss in enumerate([0.5, 0.1, 0.9, float("nan"), 0.4]):
        manager.save(step, metrics={"loss": loss, "other": 1.0})
    assert steps(manager) == expected
    best = manager.best()
    assert best is not None
    assert best.name == f"checkpoint-{expected[0]}.safetensors"
    assert manager.restore(expected[0]).metrics["other"] == 1.0
    with pytest.raises(ValueError, match="metrics must have 'loss'"):
        manager.save(9)
    assert steps(manager) == expected


def test_keep_none_keeps_all_checkpoints(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=None)
    for step in range(7):
        manager.save(step)
    assert steps(manager) == list(range(7))


def test_manager_does_not_delete_other_files(tmp_path: Path) -> None:
    foreign = ["checkpoint-1.txt", "checkpoint-x.safetensors", "other-1.safetensors"]
    for name in foreign:
        (tmp_path / name).write_text("mine")
    manager = CheckpointManager(tmp_path, keep=1)
    for step in range(3):
        manager.save(step)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*foreign, "checkpoint-2.safetensors"]
    )


def test_damaged_file_is_reported_but_not_counted_or_removed(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=2)
    for step in range(2):
        manager.save(step)
    (tmp_path / "checkpoint-0.safetensors").write_bytes(b"damaged")
    with pytest.warns(CheckpointWarning, match=r"checkpoint-0\.safetensors is left alone"):
        assert steps(manager) == [1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(2, 5):
            manager.save(step)
        assert steps(manager) == [3, 4]
    assert (tmp_path / "checkpoint-0.safetensors").exists()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"keep": 0}, "keep must be 1 or more"),
        ({"keep_every": 0}, "keep_every must be above 0"),
        ({"mode": "best"}, "mode must be 'min' or 'max'"),
        ({"name": "a/b"}, "name must be the name of a file"),
    ],
)
def test_invalid_manager_arguments_raise(
    kwargs: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        CheckpointManager(tmp_path, **kwargs)


@pytest.mark.parametrize("step", [-1, 10**18, True, 1.0, "1", torch.tensor(1.0)])
def test_invalid_steps_raise(step: Any, tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    for call in (manager.save, manager.restore):
        with pytest.raises(ValueError, match="step must be a whole number"):
            call(step)
    assert manager.save(np.int64(3)).name == "checkpoint-3.safetensors"
    assert manager.restore(cast("int", torch.tensor(3))).step == 3


def test_check_arguments_off_restores_and_reports_progress(tmp_path: Path) -> None:
    manager, w = CheckpointManager(tmp_path), Variable([0.0], name="w")
    manager.save(1, optimizer=SGD(1.0, clipnorm=1.0), variables=[w])
    target, calls = SGD(1.0, clipnorm=2.0), list[tuple[int, int]]()
    for call in (manager.restore, manager.restore_or_initialize):
        with pytest.raises(thalweg.CheckpointMismatchError, match="clipnorm"):
            call(optimizer=target, variables=[w])
        calls.clear()
        call(
            optimizer=target,
            variables=[w],
            check_arguments=False,
            progress=lambda count, total: calls.append((count, total)),
        )
        assert calls
        assert calls[-1][0] == calls[-1][1]


def test_save_async_writes_while_training_continues(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=2, asynchronous=True)
    w, opt = Variable([0.0], name="w"), SGD(1.0)
    for step in range(5):
        manager.save(step, optimizer=opt, variables=[w])
        opt.apply_gradients([([1.0], w)])
    manager.wait()
    assert steps(manager) == [3, 4]
    manager.restore(3, optimizer=opt, variables=[w])
    assert w.item() == -3.0
    (tmp_path / "checkpoint-4.safetensors").unlink()
    assert checkpoint.latest(tmp_path) == tmp_path / "checkpoint-3.safetensors"
    assert checkpoint.latest(tmp_path / "none") is None


def test_restore_or_initialize_starts_or_resumes(tmp_path: Path) -> None:
    def run(end: int) -> tuple[int, float]:
        w, opt = Variable([0.0], name="w"), SGD(1.0)
        manager = checkpoint.CheckpointManager(tmp_path / "runs")
        loaded = manager.restore_or_initialize(optimizer=opt, variables=[w])
        first = loaded.step + 1 if loaded else 0
        for step in range(first, end):
            opt.apply_gradients([([-1.0], w)])
            manager.save(step, optimizer=opt, variables=[w])
        return first, w.item()

    assert [run(2), run(5), run(5)] == [(0, 2.0), (2, 5.0), (5, 5.0)]


def test_a_save_after_one_that_failed_is_written(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path / "runs", asynchronous=True)
    (tmp_path / "runs").rename(tmp_path / "away")
    manager.save(0, extra=0)
    assert manager._saving is not None
    manager._saving._thread.join()
    (tmp_path / "away").rename(tmp_path / "runs")
    with pytest.raises(thalweg.CheckpointWriteError) as error:
        manager.save(1, extra=1)
    assert "That was the save before" in error.value.__notes__[0]
    assert manager.restore().extra == 1
