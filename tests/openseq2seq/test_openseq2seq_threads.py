"""Threads that share a step of `optimize_loss`: no run of it is lost."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
import torch

from openseq2seq_replay import Writer
from parallel_workers import run_together
from thalweg import Variable, _graph
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.v1 import train

SIZE, RUNS = 70_001, 100
RATE = 2.0**-10  # sums of it are exact in float16


def options(**overrides: Any) -> dict[str, Any]:
    return {
        "optimizer": "SGD",
        "optimizer_params": {},
        "learning_rate_decay_fn": lambda step: RATE,
        "dtype": "mixed",
        "loss_scaling": "Backoff",
        "loss_scaling_params": {"scale_max": 16.0},
        **overrides,
    }


@pytest.mark.parametrize("iter_size", [1, 2])
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_calling_one_step_lose_no_update(threads: int, iter_size: int) -> None:
    w = Variable(torch.zeros(SIZE, dtype=torch.float16), name="w")
    numbers, writer = itertools.count(), Writer()
    step = optimize_loss(
        lambda: -w.float().sum(),
        **options(),
        iter_size=iter_size,
        skip_update_ph=lambda: next(numbers) % iter_size != iter_size - 1,
        summary_writer=writer,
    )

    def work() -> None:
        for _ in range(RUNS // threads):
            step()

    run_together(*[work] * threads)
    updates = RUNS // iter_size
    assert (w == RATE * updates).all()
    assert (step.optimizer.get_master(w) == RATE * updates).all()
    assert step.global_step == updates
    assert step.loss_scaler.variables["iteration"] == updates
    if iter_size == 1:
        assert sorted(set(writer.steps)) == list(range(RUNS))


def test_state_under_concurrent_steps_is_consistent() -> None:
    w = Variable(torch.zeros(SIZE, dtype=torch.float16), name="w")
    step = optimize_loss(lambda: -w.float().sum(), **options(), var_list=[w])
    step()
    end = threading.Event()

    def work() -> None:
        for _ in range(RUNS):
            step()
        end.set()

    worker = threading.Thread(target=work)
    worker.start()
    states = [step.state_dict()]
    while not end.is_set():
        states.append(step.state_dict())
    worker.join()
    for state in states:
        assert (state["w/master"] == RATE * state["global_step"].item()).all()
        assert state["loss_scale/iteration"] == state["global_step"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_thread_whose_run_fails_leaves_the_step_to_others(error: type[BaseException]) -> None:
    w = Variable(torch.zeros(3, dtype=torch.float16), name="w")
    numbers = itertools.count()

    def loss() -> Any:
        if next(numbers) % 3 == 0:
            raise error("burnt")
        return -w.float().sum()

    step, failures = optimize_loss(loss, **options()), []

    def work() -> None:
        for _ in range(RUNS):
            try:
                step()
            except BaseException as failure:
                failures.append(type(failure))

    run_together(*[work] * 2)
    update_count = 2 * RUNS - len(failures)
    assert failures == [error] * (2 * RUNS // 3 + 1)
    assert (w == RATE * update_count).all()
    assert step.global_step == update_count


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_sharing_a_wrapped_optimizer_lose_no_update(threads: int) -> None:
    w = Variable(torch.zeros(SIZE, dtype=torch.float16), name="w")
    step = Variable(np.int64(0), name="global_step", trainable=False)
    scaler = AutomaticLossScaler("Backoff", {"scale_max": 16.0})
    opt = MixedPrecisionOptimizerWrapper(train.GradientDescentOptimizer(RATE), scaler)
    barrier = threading.Barrier(threads)

    def work() -> None:
        barrier.wait()
        for _ in range(RUNS // threads):
            opt.minimize(lambda: -w.float().sum(), step, [w])

    run_together(*[work] * threads)
    assert (opt.get_master(w) == RATE * RUNS).all()
    assert (w == RATE * RUNS).all()
    assert (step.item(), scaler.variables["iteration"].item()) == (RUNS, RUNS)


def test_threads_running_one_operation_lose_no_update() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable(torch.zeros(SIZE).half(), name="w")
        op = optimize_loss(-w.float().sum(), **options())
        session.run(_graph.global_variables_initializer())

        def work() -> None:
            for _ in range(RUNS // 2):
                session.run(op)

        run_together(*[work] * 2)
        assert session.run(train.get_global_step()) == RUNS
        assert np.all(session.run(w) == np.float16(RATE * RUNS))
