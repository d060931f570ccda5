"""What a steady step of Adam costs here beside `torch.optim.Adam(fused=True)`.

    python benchmarks/steady.py [--face keras] [--repeats N]

Processor time of one thread, interleaved, the lowest fifth of the repeats: warm, with new gradients
at each step, and cold, with 64 MB written between two steps, as between two backward passes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from thalweg import Variable, optim
from thalweg.keras import optimizers

SIZES = ((1, 64), (10, 64), (100, 64), (2000, 64), (2000, 1000))
MODES = ("warm", "new", "cold")
COLD = 16 << 20  # floats


class OfTorch:
    """An optimizer over parameters.

    Args:
        make: Makes it.
    """

    def __init__(self, count: int, size: int, make: Callable[[list[Parameter]], Any]) -> None:
        self.params = [Parameter(torch.randn(size)) for _ in range(count)]
        self.optimizer = make(self.params)
        self.give([torch.randn(size) for _ in self.params])

    def give(self, gradients: list[Tensor]) -> None:
        for param, grad in zip(self.params, gradients, strict=True):
            param.grad = grad

    def gradients(self) -> list[Any]:
        return [param.grad for param in self.params]

    def step(self) -> None:
        self.optimizer.step()

    def taken(self) -> int:
        """How many steps were taken in one call."""
        return getattr(self.optimizer._own.quick, "taken", 0)


class OfKeras:
    """The same through `apply_gradients`."""

    def __init__(self, count: int, size: int) -> None:
        self.variables = [Variable(torch.randn(size)) for _ in range(count)]
        self.optimizer = optimizers.Adam()
        self.give([torch.randn(size) for _ in self.variables])

    def give(self, gradients: list[Tensor]) -> None:
        self.pairs = list(zip(gradients, self.variables, strict=True))

    def gradients(self) -> list[Any]:
        return [grad for grad, _ in self.pairs]

    def step(self) -> None:
        self.optimizer.apply_gradients(self.pairs)

    def taken(self) -> int:
        return getattr(self.optimizer._plans.now().quick, "taken", 0)


def step_time(own: Any, mode: str, between: Tensor) -> float:
    """Microseconds of this thread in one step."""
    if mode == "new":
        own.give([torch.empty_like(grad).copy_(grad) for grad in own.gradients()])
    if mode == "cold":
        between.add_(1)
    begin = time.thread_time_ns()
    own.step()
    return (time.thread_time_ns() - begin) / 1e3


def lowest(times: list[float]) -> float:
    return sorted(times)[len(times) // 5]


def main() -> None:
    parser = argparse.ArgumentParser(description="A steady step beside torch's fused Adam.")
    parser.add_argument("--face", choices=("optim", "keras"), default="optim")
    parser.add_argument("--repeats", type=int, default=200)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    between = torch.zeros(COLD)
    print(f"{'tensors':>16} {'mode':>5} {'thalweg us':>11} {'torch us':>9} {'ratio':>6}   once")
    for count, size in SIZES:
        own: Any = (
            OfKeras(count, size) if asked.face == "keras" else OfTorch(count, size, optim.Adam)
        )
        other = OfTorch(count, size, lambda params: torch.optim.Adam(params, fused=True))
        for each in (own, other) * 4:
            each.step()
        for mode in MODES:
            times: dict[Any, list[float]] = {own: [], other: []}
            before = own.taken()
            rounds = max(10, asked.repeats if count < 2000 else asked.repeats // 8)
            for _ in range(rounds):
                for each, found in times.items():
                    found.append(step_time(each, mode, between))
            ours, theirs = lowest(times[own]), lowest(times[other])
            print(
                f"{f'{count} of {size}':>16} {mode:>5} {ours:11.1f} {theirs:9.1f}"
                f" {ours / theirs:6.2f} {(own.taken() - before) / rounds:6.0%}"
            )


if __name__ == "__main__":
    main()
