"""Steps taken at the same time: with locks no update is lost, without them none is torn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from parallel_workers import run_together
from thalweg import IndexedSlices, Variable, v1
from thalweg.v1 import train

SIZE, UPDATES = 1_000_000, 400
STEP = 2.0**-12  # sums of it are exact in float32
each_size = pytest.mark.parametrize(
    "size", [SIZE // 10, pytest.param(SIZE, marks=pytest.mark.slow)], ids=["replay", "long"]
)


@pytest.mark.one_in(3)
@each_size
@pytest.mark.parametrize("threads", [2, 4, 8])
@pytest.mark.parametrize("shared", [True, False], ids=["one optimizer", "an optimizer each"])
@pytest.mark.parametrize("locking", [True, False], ids=["locking", "free"])
def test_concurrent_updates_lose_no_step(
    threads: int, shared: bool, locking: bool, size: int
) -> None:
    w = Variable(np.zeros(size, np.float32))
    grad = torch.full((size,), -1.0)
    common = train.GradientDescentOptimizer(STEP, use_locking=locking)

    def work() -> None:
        own_opt = train.GradientDescentOptimizer(STEP, use_locking=locking)
        for _ in range(UPDATES // threads):
            (common if shared else own_opt).apply_gradients([(grad, w)])

    run_together(*[work] * threads)
    values, expected = w.numpy(), UPDATES * STEP
    if locking or shared:
        assert (values == expected).all()
    else:
        assert (values <= expected).all()
        assert (values > 0).all()
        assert (values % STEP == 0).all()


WIDTH = 10
SPARSE: dict[str, Callable[[bool], Any]] = {
    "gradient descent": lambda locking: train.GradientDescentOptimizer(STEP, locking),
    "momentum 0": lambda locking: train.MomentumOptimizer(STEP, 0.0, locking),
}


@pytest.mark.one_in(3)
@each_size
@pytest.mark.parametrize("threads", [2, 4, 8])
@pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE)
@pytest.mark.parametrize("locking", [True, False], ids=["locking", "free"])
def test_concurrent_sparse_updates_lose_no_step(
    threads: int, make: Any, locking: bool, size: int
) -> None:
    """Every third row is named, and one of them twice; the others belong to nobody."""
    count = size // WIDTH
    table = Variable(np.zeros((count, WIDTH), np.float32))
    rows = torch.cat([torch.arange(0, count, 3), torch.zeros(1, dtype=torch.int64)])
    grad = IndexedSlices(torch.full((len(rows), WIDTH), -1.0), rows, (count, WIDTH))
    runs = UPDATES // 4 // threads

    def work() -> None:
        own_opt = make(locking)
        for _ in range(runs):
            own_opt.apply_gradients([(grad, table)])

    run_together(*[work] * threads)
    values, expected = table.numpy(), np.zeros((count, 1))
    expected[::3] = runs * threads * STEP
    expected[0] *= 2
    if locking:
        assert (values == expected).all()
    assert (values <= expected).all()
    assert (values % STEP == 0).all()
    assert ((values > 0) == (expected > 0)).all()


@each_size
@pytest.mark.parametrize("threads", [2, 4, 8])
def test_concurrent_updates_with_a_lock_share_slots(threads: int, size: int) -> None:
    """Sums of gradients and of their squares: a lost or torn step would show in one of them."""
    w, grad = Variable(np.zeros(size, np.float32)), torch.full((size,), -1.0)
    common = train.AdagradOptimizer(STEP, 1.0, use_locking=True)
    momentum = train.MomentumOptimizer(STEP, 1.0, use_locking=True)
    runs = UPDATES // 4 // threads

    def work() -> None:
        for _ in range(runs):
            common.apply_gradients([(grad, w)])
            momentum.apply_gradients([(grad, w)])

    run_together(*[work] * threads)
    run_count = runs * threads
    assert (common.get_slot(w, "accumulator") == 1 + run_count).all()
    assert (momentum.get_slot(w, "momentum") == -run_count).all()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("threads", [2, 4, 8])
@pytest.mark.parametrize("shared", [True, False], ids=["one operation", "an operation each"])
@pytest.mark.parametrize("locking", [True, False], ids=["locking", "free"])
def test_concurrent_runs_of_a_session_lose_no_step(
    threads: int, shared: bool, locking: bool
) -> None:
    """Updates of a session run alone: none is lost, with locks or without."""
    with v1.Graph().as_default():
        w, grad = v1.Variable(np.zeros(SIZE, np.float32)), torch.full((SIZE,), -1.0)
        step = train.get_or_create_global_step()

        def built() -> Any:
            opt = train.GradientDescentOptimizer(STEP, use_locking=locking)
            return opt.apply_gradients([(grad, w)], step)

        ops = [built()] * threads if shared else [built() for _ in range(threads)]
        session = v1.Session()
        session.run(v1.global_variables_initializer())
    pending_ops = list(ops)

    def work() -> None:
        op = pending_ops.pop()
        for _ in range(UPDATES // threads):
            session.run(op)

    run_together(*[work] * threads)
    value, count = session.run([w, step])
    assert count == UPDATES
    assert (value == count * STEP).all()


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("locking", [True, False], ids=["locking", "free"])
def test_concurrent_sessions_of_one_optimizer_are_separate(threads: int, locking: bool) -> None:
    """Each session has values of its own; a plan made for one must not reach another's."""
    with v1.Graph().as_default():
        w, grad = v1.Variable(np.zeros(SIZE, np.float32)), torch.full((SIZE,), -1.0)
        rate = v1.placeholder("float32", [])
        op = train.MomentumOptimizer(rate, 0.0, use_locking=locking).apply_gradients([(grad, w)])
        sessions = [v1.Session() for _ in range(threads)]
        for session in sessions:
            session.run(v1.global_variables_initializer())
    pending_sessions = list(enumerate(sessions, 1))

    def work() -> None:
        number, session = pending_sessions.pop()
        for _ in range(UPDATES // threads):
            session.run(op, {rate: number * STEP})

    run_together(*[work] * threads)
    for number, session in enumerate(sessions, 1):
        assert (session.run(w) == UPDATES // threads * number * STEP).all()


def test_readers_beside_a_session_that_trains_see_whole_steps() -> None:
    with v1.Graph().as_default():
        w, grad = v1.Variable(np.zeros(SIZE, np.float32)), torch.full((SIZE,), -1.0)
        op = train.GradientDescentOptimizer(STEP).apply_gradients([(grad, w)])
        ends = [w.min(), w.max()]
        session = v1.Session()
        session.run(v1.global_variables_initializer())
    works = [lambda: session.run(op), lambda: sums.append(session.run(ends))]
    sums: list[Any] = []

    def work() -> None:
        turn = works.pop()
        for _ in range(UPDATES // 4):
            turn()

    run_together(*[work] * 2)
    assert all(low == high and low % STEP == 0 for low, high in sums)
    assert session.run(ends) == [UPDATES // 4 * STEP] * 2
