"""Interrupted saves and restores release the locks of optimizers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from interruptions import interrupt, interrupted_in_contextlib
from thalweg import Variable
from thalweg._base.locks import Lock
from thalweg.v1 import train
from thalweg.v1.train.saving.objects.members import hold_steps


def is_free(lock: Lock) -> bool:
    """Return True if another thread can take a lock."""
    acquired: list[bool] = []

    def take() -> None:
        acquired.append(lock.acquire(blocking=False))
        if acquired[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return acquired[0]


@pytest.mark.parametrize("call", ["snapshot", "read"])
def test_an_interrupted_checkpoint_holds_no_lock(call: str, tmp_path: Path) -> None:
    variable = Variable(torch.ones(3), name="w")
    optimizers = [train.AdamOptimizer(0.1), train.AdamOptimizer(0.1)]
    for optimizer in optimizers:
        optimizer.apply_gradients([(torch.ones(3), variable)])
    checkpoint = train.Checkpoint(w=variable, first=optimizers[0], second=optimizers[1])
    path = checkpoint.write(str(tmp_path / "whole"))
    works: dict[str, Callable[[], Any]] = {
        # The first part of `write`.
        "snapshot": checkpoint._snapshot,
        "read": lambda: checkpoint.read(path).assert_consumed(),
    }
    number = 0
    # The interruption is not kept: its traceback would keep generators that hold locks.
    while interrupted_in_contextlib(number, works[call]) is not None:
        assert all(is_free(optimizer._lock) for optimizer in optimizers), number
        number += 1
    assert number


class Locked:
    """Object with a lock, like an optimizer."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def _locked(self) -> Lock:
        return self._lock


def test_interrupted_wait_for_locks_releases_acquired_locks() -> None:
    class Interrupted(Lock):
        def __enter__(self) -> bool:
            interrupt()
            return False

    locks = [Lock(), Interrupted(), Lock()]
    optimizers: Any = [Locked(lock) for lock in locks]
    with pytest.raises(KeyboardInterrupt) as interrupted, hold_steps(optimizers):
        pytest.fail("The block is not entered.")
    assert interrupted.traceback
    assert all(map(is_free, locks))


def test_locks_are_held_only_within_the_block() -> None:
    locks = [Lock(), Lock()]
    optimizers: Any = [Locked(lock) for lock in locks]
    # One optimizer may be met twice.
    with hold_steps([*optimizers, optimizers[0]]):
        assert not any(map(is_free, locks))
    assert all(map(is_free, locks))
