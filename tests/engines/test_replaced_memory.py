"""Another thread gives tensors of a step other memory: kernels never access what was freed."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from interruptions import outcome
from thalweg import IndexedSlices, optim
from thalweg._engines.cpu import openmp
from thalweg.keras.optimizers import Adam

ALL_LINES = 10**9  # more lines than a step has
POISON = 7.0
FEW = 24  # places of a quick test
CHANGES = ("data", "swap", "shorter", "gradient")


class Memory:
    """Memory that is filled with `POISON` when it is freed, and stays mapped."""

    def __init__(self) -> None:
        self.freed_buffers: list[Any] = []

    def tensor(self, *shape: int) -> torch.Tensor:
        count = int(np.prod(shape))
        buffer = (ctypes.c_float * count)(*[1.0] * count)
        array = np.frombuffer(buffer, np.float32)
        weakref.finalize(array, self._free, buffer)
        return torch.from_numpy(array).view(shape)

    def _free(self, buffer: Any) -> None:
        np.frombuffer(buffer, np.float32)[:] = POISON
        self.freed_buffers.append(buffer)

    def check(self) -> None:
        for buffer in self.freed_buffers:
            assert set(buffer) == {POISON}, "a kernel wrote to freed memory"


class Resizable(Memory):
    """Memory of torch."""

    def tensor(self, *shape: int) -> torch.Tensor:
        return torch.ones(shape)


class Training:
    """Steps over parameters and gradients in watched memory."""

    def __init__(
        self,
        make: Callable[[list[Any]], Any],
        shape: tuple[int, ...],
        steps: int,
        memory: Memory | None = None,
    ) -> None:
        self.memory, self.shape = memory or Memory(), shape
        self.params: list[Any] = [torch.nn.Parameter(self.memory.tensor(*shape)) for _ in "ab"]
        self.step = make(self.params)
        for _ in range(steps):
            self.give(), self.step()
        self.give()

    def give(self) -> None:
        for param in self.params:
            param.grad = self.memory.tensor(*self.shape)

    def replace(self, change: str) -> None:
        param = self.params[0]
        if change == "data":
            param.data = self.memory.tensor(*self.shape)
        elif change == "swap":
            torch.utils.swap_tensors(param, torch.nn.Parameter(self.memory.tensor(*self.shape)))
        elif change == "shorter":
            param.data = self.memory.tensor(1)
        else:
            param.grad.data = self.memory.tensor(1)


def of_torch(name: str, **options: Any) -> Callable[[list[Any]], Any]:
    return lambda params: getattr(optim, name)(params, lr=0.1, **options).step


def of_keras(engine: str, sparse: bool = False) -> Callable[[list[Any]], Any]:
    def make(params: list[Any]) -> Any:
        opt = Adam(0.1)
        opt.engine = engine
        return lambda: opt.apply_gradients([(grad_of(param, sparse), param) for param in params])

    return make


def grad_of(param: Any, sparse: bool) -> Any:
    return IndexedSlices(param.grad, torch.arange(len(param.grad))) if sparse else param.grad


MAKERS: dict[str, tuple[Callable[[list[Any]], Any], tuple[int, ...]]] = {
    "dense": (of_torch("AdamW"), (6,)),
    "norm": (of_torch("Adam", clip_grad_norm=1.0), (6,)),
    "matrices": (of_torch("Adafactor"), (4, 6)),
    "codes": (of_torch("AdamW", state_storage="8bit"), (2, 2048)),
    "stages": (of_torch("Muon"), (4, 6)),
    "rows": (of_keras("cpu", True), (4, 6)),
    "reference": (of_keras("reference"), (6,)),
}


def places(make: Any, shape: tuple[int, ...], steps: int, count: int) -> Iterator[int]:
    Training(make, shape, steps).step()  # kernels are compiled once
    training = Training(make, shape, steps)
    lines = ALL_LINES - outcome(ALL_LINES, training.step)[1]
    yield from range(0, lines, max(1, lines // count))


def check_places(name: str, steps: int, count: int) -> None:
    make, shape = MAKERS[name]
    for number, place in enumerate(places(make, shape, steps, count)):
        for change in CHANGES if count > FEW else CHANGES[number % len(CHANGES) :][:1]:
            training = Training(make, shape, steps)
            # A step may reject what another thread has set.
            with contextlib.suppress(ValueError, TypeError, RuntimeError, LookupError):
                outcome(place, training.step, handler=partial(training.replace, change))
            training.memory.check()


@pytest.mark.filterwarnings("ignore::thalweg.errors.PerformanceWarning")
@pytest.mark.parametrize(("name", "steps"), [("dense", 0), ("dense", 1), ("rows", 0)])
def test_replaced_memory_is_not_written_after_it_was_freed(name: str, steps: int) -> None:
    check_places(name, steps, FEW)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::thalweg.errors.PerformanceWarning")
@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("name", MAKERS)
def test_memory_replaced_anywhere_is_not_written_after_it_was_freed(name: str, steps: int) -> None:
    check_places(name, steps, 20)


def check_cut(name: str, steps: int, place: int, of_gradient: bool) -> None:
    """Cut the memory of a tensor at a line: the step raises, unless it has written before."""
    make, shape = MAKERS[name]
    training = Training(make, shape, steps, Resizable())
    first, second = training.params
    initial, have_changed = second.detach().clone(), list[bool]()

    def cut() -> None:
        have_changed.append(not torch.equal(second, initial))
        (first.grad if of_gradient else first).untyped_storage().resize_(0)

    try:
        outcome(place, training.step, handler=cut)
    except (ValueError, RuntimeError):
        assert torch.equal(second, initial)
    else:
        assert have_changed != [False]


@pytest.mark.parametrize(("name", "steps"), [("dense", 0), ("dense", 1), ("rows", 1)])
def test_cut_memory_is_not_written(name: str, steps: int) -> None:
    for number, place in enumerate(places(*MAKERS[name], steps, FEW)):
        check_cut(name, steps, place, of_gradient=number % 2 == 0)


SCRIPT = """
import torch
from thalweg import IndexedSlices, optim
from thalweg._engines.cpu.sparse_plan import RowsPlan
from thalweg._engines.dense_plan import DensePlan
from thalweg.keras.optimizers import Adam

COUNT = 1 << 20  # elements whose memory the allocator unmaps when it is freed

def check(plan_class, make_step, of_gradient, is_sparse=False):
    param = torch.nn.Parameter(torch.ones(COUNT // 64, 64))
    param.grad = torch.ones(COUNT // 64, 64)
    grad = IndexedSlices(param.grad, torch.arange(COUNT // 64)) if is_sparse else param.grad
    step, reduce = make_step(param, grad), plan_class.reduce

    def cut_and_reduce(plan, reduction, columns):
        (param.grad if of_gradient else param).untyped_storage().resize_(0)
        return reduce(plan, reduction, columns)

    plan_class.reduce = cut_and_reduce
    try:
        step()
    except ValueError as error:
        print(type(error).__name__)
    plan_class.reduce = reduce

def make_keras(param, grad):
    return lambda: Adam(global_clipnorm=1.0).apply_gradients([(grad, param)])

check(DensePlan, lambda param, _: optim.Adam([param], clip_grad_norm=1.0).step, True)
check(DensePlan, lambda param, _: optim.LAMB([param]).step, True)
check(DensePlan, lambda param, _: optim.LAMB([param]).step, False)
check(DensePlan, make_keras, True)
check(RowsPlan, make_keras, True, is_sparse=True)
"""


@pytest.mark.parametrize(
    "make",
    [
        of_torch("Adam", clip_grad_norm=1.0, diagnostics=1),
        of_torch("LAMB"),
        of_torch("Adafactor"),
        of_keras("cpu", True),
    ],
)
def test_kernels_of_small_steps_hold_the_lock(
    make: Callable[[list[Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    are_locked: list[bool] = []
    call_on_team = openmp.call_on_team

    def record(address: int, argument: int, threads: int, is_locked: bool) -> Any:
        are_locked.append(is_locked)
        return call_on_team(address, argument, threads, is_locked)

    monkeypatch.setattr(openmp, "call_on_team", record)
    Training(make, (9, 12), 0).step()
    assert are_locked
    assert all(are_locked)


def test_cut_memory_is_not_read() -> None:
    output = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (output.returncode, output.stdout.split()) == (0, ["LayoutError"] * 5), output.stderr


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("name", ["dense", "norm", "matrices", "codes", "rows"])
def test_memory_cut_anywhere_is_not_written(name: str, steps: int) -> None:
    for number, place in enumerate(places(*MAKERS[name], steps, 60)):
        check_cut(name, steps, place, of_gradient=number % 2 == 0)
