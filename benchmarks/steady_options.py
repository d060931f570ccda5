"""Cost of options in a steady step of AdamW.

    python benchmarks/steady_options.py [--tensors N ...] [--repeats N]

Processor time of one thread, interleaved, the lowest fifth of the repeats, beside the step without
options; and for what a training with mixed precision does (unscale, check, clip, update) beside
torch's recipe for it, whose `GradScaler.unscale_` and `clip_grad_norm_` are passes of their own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from figure import Figure, watched
from steady import OfTorch, compared
from torch.nn import Parameter

from thalweg import optim
from thalweg.optim import tensorflow

SIZE = 64
COUNTS = (10, 100)
TARGET = 1.5  # of the step without options
RECIPE = 0.55  # of torch's
Make = Callable[[list[Parameter]], Any]


def _groups(params: list[Parameter]) -> Any:
    return optim.AdamW([{"params": params[::2]}, {"params": params[1::2], "weight_decay": 0.0}])


OPTIONS: dict[str, Make] = {
    "groups": _groups,
    "average": lambda params: optim.AdamW(params, ema_decay=0.99),
    "clip_value": lambda params: optim.AdamW(params, clip_grad_value=0.5),
    "clip_norm": lambda params: optim.AdamW(params, clip_grad_norm=0.5),
    "masters": lambda params: optim.AdamW(params, masters=True),
    "tensor_rate": lambda params: optim.AdamW(params, lr=torch.tensor(1e-3)),
    "scaler": lambda params: optim.AdamW(params, fused_unscale=True),
    "tensorflow": tensorflow.AdamW,
}


class Scaled(OfTorch):
    """Loop whose optimizer unscales gradients for a scaler."""

    found_inf, scale = torch.zeros(()), torch.tensor(1024.0)

    def step(self) -> None:
        self.optimizer.found_inf, self.optimizer.grad_scale = self.found_inf, self.scale
        self.optimizer.step()


class Recipe(OfTorch):
    """Loop of mixed-precision training with a gradient scaler."""

    def __init__(self, params: list[Parameter], make: Make) -> None:
        super().__init__(params, make)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=1 << 30)
        self.scaler.scale(torch.ones(()))
        self.is_torchs = type(self.optimizer).__module__.startswith("torch.")

    def step(self) -> None:
        if self.is_torchs:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.params, 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Row(NamedTuple):
    """Cost of an option in microseconds, with that of the baseline."""

    name: str
    count: int
    own_time: float
    baseline_time: float
    replayed: float
    target: float


def _made(kind: type[OfTorch], make: Make, count: int, dtype: torch.dtype) -> OfTorch:
    loop = kind([Parameter(torch.randn(SIZE).to(dtype)) for _ in range(count)], make)
    loop.give([torch.randn(SIZE).to(dtype) for _ in range(count)])
    for _ in range(4):
        loop.step()
    return loop


def rows(count: int, repeats: int) -> Iterator[Row]:
    """Yield rows of all options over `count` tensors."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, make in OPTIONS.items():
        dtype = torch.bfloat16 if name == "masters" else torch.float32
        own_loop = _made(Scaled if name == "scaler" else OfTorch, make, count, dtype)
        plain_loop = _made(OfTorch, optim.AdamW, count, dtype)
        yield _row(name, count, own_loop, plain_loop, repeats, TARGET)
    own_loop = _made(
        Recipe,
        lambda p: optim.AdamW(p, fused_unscale=True, clip_grad_norm=0.5),
        count,
        torch.float32,
    )
    torch_loop = _made(Recipe, lambda p: torch.optim.AdamW(p, fused=True), count, torch.float32)
    yield _row("recipe", count, own_loop, torch_loop, repeats, RECIPE)


def _row(
    name: str, count: int, loop: OfTorch, baseline: OfTorch, repeats: int, target: float
) -> Row:
    own_cost, baseline_cost, replayed = compared(loop, baseline, repeats, lambda loop: None)
    return Row(name, count, own_cost.processor, baseline_cost.processor, replayed, target)


def figures(repeats: int = 200) -> list[Figure]:
    """Measure processor time of one thread in units of the plain step or of torch's recipe."""
    figures_: list[Figure] = []
    for count in COUNTS:
        with watched(figures_):
            figures_ += [_figure(row) for row in rows(count, repeats)]
    return figures_


def _figure(row: Row) -> Figure:
    note = (
        f"{row.own_time:.3g} us of the processor, {row.baseline_time:.3g} without;"
        f" {row.replayed:.0%} in one call"
    )
    return Figure(
        f"steady_{row.name}_{row.count}", row.own_time / row.baseline_time, row.target, note=note
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What options add to a steady step of AdamW.")
    parser.add_argument("--tensors", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--repeats", type=int, default=200)
    arguments = parser.parse_args()
    print(f"{'option':>12} {'tensors':>8} {'us':>8} {'beside':>8} {'ratio':>6}   once  target")
    for count in arguments.tensors:
        for row in rows(count, arguments.repeats):
            print(
                f"{row.name:>12} {count:>8} {row.own_time:8.1f} {row.baseline_time:8.1f}"
                f" {row.own_time / row.baseline_time:6.2f} {row.replayed:6.0%} <= {row.target:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
