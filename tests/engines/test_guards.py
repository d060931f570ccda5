"""Guards of the look: functions of torch that tell what else happens to operations."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from thalweg import Variable, optim
from thalweg._engines import guards, torch_layout_probe
from thalweg.keras import optimizers
from thalweg.v1 import train

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str),
    reason="torch's objects cannot be read here",
)


def _is_on(guard: guards.Guard) -> bool:
    state = ctypes.PYFUNCTYPE(ctypes.c_uint64)(guard.address)()
    if guard.is_pointer:
        state = ctypes.c_uint64.from_address(state).value
    return bool(state & (guard.mask % 2**64))


def test_torch_has_the_functions_of_all_guards() -> None:
    """Without one of them each step asks Python's functions, which is slower."""
    assert len(guards.find_guards()) == 5


class _Functions(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


BLOCKS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "profiler": torch.profiler.profile,
    "dispatch mode": _Dispatch,
    "function mode": _Functions,
    "inference mode": torch.inference_mode,
}


def _states() -> list[bool]:
    return list(map(_is_on, guards.find_guards()))


@pytest.mark.parametrize("name", BLOCKS)
def test_guard_is_active_only_in_its_block(name: str) -> None:
    assert not any(_states())
    with BLOCKS[name]():
        states = _states()
    assert states == [*(block == name for block in BLOCKS), False]
    assert not any(_states())


@pytest.mark.filterwarnings("ignore")  # of torch, whose tracer is deprecated
def test_tracing_guard_is_active_while_torch_traces() -> None:
    history: list[list[bool]] = []

    def function(x: Tensor) -> Tensor:
        history.append(_states())
        return x + 1

    torch.jit.trace(function, torch.ones(2), check_trace=False)
    assert history[0] == [False, False, False, False, True]


def _torchs(var: Any) -> Callable[[Any], object]:
    optimizer = optim.SGD([var], lr=0.1)

    def step(grad: Any) -> None:
        var.grad = grad
        optimizer.step()

    step.taken = lambda: getattr(optimizer.step_cache.replay, "taken", 0)  # pyright: ignore
    return step


def _of_pairs(optimizer: Any) -> Callable[[Any], Callable[[Any], object]]:
    def make(var: Any) -> Callable[[Any], object]:
        def step(grad: Any) -> None:
            optimizer.apply_gradients([(grad, var)])

        step.taken = lambda: getattr(optimizer._plans.now().replay, "taken", 0)  # pyright: ignore
        return step

    return make


STEPS: dict[str, Callable[[], Callable[[Any], Callable[[Any], object]]]] = {
    "optim": lambda: _torchs,
    "keras": lambda: _of_pairs(optimizers.SGD(0.1)),
    "v1": lambda: _of_pairs(train.GradientDescentOptimizer(0.1)),
}


@pytest.mark.parametrize("name", [block for block in BLOCKS if block != "profiler"])
@pytest.mark.parametrize("front_end", STEPS)
def test_guarded_blocks_prevent_replay(front_end: str, name: str) -> None:
    var = Parameter(torch.ones(3)) if front_end == "optim" else Variable(torch.ones(3))
    step: Any = STEPS[front_end]()(var)
    for _ in range(4):
        step(torch.ones(3))
    steps_before = step.taken()
    assert steps_before == 2
    grad = torch.ones(3)
    with BLOCKS[name]():
        step(grad)
    assert step.taken() <= steps_before
    step(torch.ones(3))
    assert torch.allclose(var.detach(), torch.full((3,), 0.4))
