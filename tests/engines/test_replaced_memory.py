"""Another thread gives tensors of a step other memory: kernels never access what was freed."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from interruptions import outcome
from thalweg import IndexedSlices, optim
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


def check_cut(name: str, steps: int, place: int) -> None:
    """Cut the memory of a tensor at a line: the step raises, unless it has written before."""
    make, shape = MAKERS[name]
    training = Training(make, shape, steps, Resizable())
    first, second = training.params
    initial, have_changed = second.detach().clone(), list[bool]()

    def cut() -> None:
        have_changed.append(not torch.equal(second, initial))
        (first if place % 2 else first.grad).untyped_storage().resize_(0)

    try:
        outcome(place, training.step, handler=cut)
    except (ValueError, RuntimeError):
        assert torch.equal(second, initial)
    else:
        assert have_changed != [False]


@pytest.mark.parametrize(("name", "steps"), [("dense", 0), ("dense", 1), ("rows", 1)])
def test_cut_memory_is_not_written(name: str, steps: int) -> None:
    for place in places(*MAKERS[name], steps, FEW):
        check_cut(name, steps, place)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("name", ["dense", "norm", "matrices", "codes", "rows"])
def test_memory_cut_anywhere_is_not_written(name: str, steps: int) -> None:
    for place in places(*MAKERS[name], steps, 60):
        check_cut(name, steps, place)
