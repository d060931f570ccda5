"""Several threads with one optimizer: steps, and looks at its state, come one after the other."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import thalweg
from bit_comparison import assert_same
from keras_table import pair, train
from parallel_workers import run_together
from thalweg.keras.optimizers import SGD, Adam, Optimizer

STEPS = 150
pytestmark = pytest.mark.usefixtures("threads_change_often")


class Summing(Optimizer):
    """A user's optimizer, whose update takes several operations."""

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self.add_slot(var, "m")

    def _resource_apply_dense(self, grad: Any, var: Any) -> None:
        total = self.get_slot(var, "m")
        total.copy_(total + grad)
        var.copy_(var - grad)


@pytest.mark.parametrize("make", [lambda: Summing("Summing"), lambda: SGD(1.0)])
def test_concurrent_updates_are_not_lost(make: Any) -> None:
    w, opt = torch.nn.Parameter(torch.zeros(100)), make()

    def work() -> None:
        for _ in range(STEPS):
            opt.apply_gradients([(torch.ones(100), w)])

    run_together(work, work, work)
    assert opt.iterations.item() == 3 * STEPS
    assert_same([w.detach()], [torch.full((100,), -3.0 * STEPS)])


@pytest.mark.parametrize("make", [lambda: Summing("Summing"), lambda: Adam(beta_1=0.0)])
def test_state_under_concurrent_steps_is_consistent(make: Any) -> None:
    w, opt = thalweg.Variable([0.0], "w"), make()
    opt.apply_gradients([([1.0], w)])
    states: list[Any] = []

    def work() -> None:
        for step in range(2, STEPS):
            opt.apply_gradients([([step if isinstance(opt, Adam) else 1.0], w)])

    def look() -> None:
        for _ in range(STEPS):
            states.append(opt.state_dict())

    run_together(work, look)
    for state in states:
        assert state["slots"]["w:0"]["m"].item() == state["iterations"].item()


@pytest.mark.parametrize("make", [lambda: Summing("Summing"), Adam])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda opt: pickle.loads(pickle.dumps(opt))])
def test_copies_have_separate_locks(make: Any, duplicate: Any) -> None:
    opt, variables = make(), pair()
    train(opt, variables, 1)
    duplicate_opt = duplicate(opt)
    with opt._lock:
        run_together(lambda: duplicate_opt.apply_gradients([([1.0], thalweg.Variable([1.0], "c"))]))
    assert duplicate_opt.iterations.item() == 2


def test_copy_made_within_a_step_calls_its_callables_again() -> None:
    rates, copies = [0.5], []
    opt = SGD(lambda: copies.append(copy.deepcopy(opt)) or rates[0] if not copies else rates[0])
    train(opt, pair(), 1)
    rates[0] = 0.25
    assert copies[0]._decayed_lr(torch.float32).item() == 0.25


@pytest.mark.parametrize(
    ("size", "updates", "threads"),
    [
        (200_000, 120, 3),
        *(pytest.param(1_000_000, 400, count, marks=pytest.mark.slow) for count in (2, 4, 8)),
    ],
)
def test_threads_step_one_at_a_time(size: int, updates: int, threads: int) -> None:
    w, opt = torch.nn.Parameter(torch.zeros(size)), SGD(1.0, clipnorm=1e9)
    opt.apply_gradients([(torch.zeros(size), w)])

    def work() -> None:
        for _ in range(updates // threads):
            opt.apply_gradients([(torch.ones(size), w)])

    run_together(*[work] * threads)
    assert_same([w.detach()], [torch.full((size,), -float(updates))])
