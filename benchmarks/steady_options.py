"""What options add to a steady step of AdamW.

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
    """A step that a scaler leaves the unscaling to."""

    found, scale = torch.zeros(()), torch.tensor(1024.0)

    def step(self) -> None:
        self.optimizer.found_inf, self.optimizer.grad_scale = self.found, self.scale
        self.optimizer.step()


class Recipe(OfTorch):
    """A step of a training with mixed precision, with a scaler of its own."""

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
    """What an option costs: microseconds here and of what it is compared with."""

    name: str
    count: int
    own: float
    other: float
    once: float
    target: float


def _made(kind: type[OfTorch], make: Make, count: int, dtype: torch.dtype) -> OfTorch:
    made = kind([Parameter(torch.randn(SIZE).to(dtype)) for _ in range(count)], make)
    made.give([torch.randn(SIZE).to(dtype) for _ in range(count)])
    for _ in range(4):
        made.step()
    return made


def rows(count: int, repeats: int) -> Iterator[Row]:
    """All options, over so many tensors."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, make in OPTIONS.items():
        dtype = torch.bfloat16 if name == "masters" else torch.float32
        own = _made(Scaled if name == "scaler" else OfTorch, make, count, dtype)
        plain = _made(OfTorch, optim.AdamW, count, dtype)
        yield _row(name, count, own, plain, repeats, TARGET)
    own = _made(Recipe, lambda p: optim.AdamW(p, fused_unscale=True, clip_grad_norm=0.5), count,
                torch.float32)  # fmt: skip
    theirs = _made(Recipe, lambda p: torch.optim.AdamW(p, fused=True), count, torch.float32)
    yield _row("recipe", count, own, theirs, repeats, RECIPE)


def _row(name: str, count: int, own: OfTorch, other: OfTorch, repeats: int, target: float) -> Row:
    ours, theirs, once = compared(own, other, repeats, lambda each: None)
    return Row(name, count, ours.processor, theirs.processor, once, target)


def figures(repeats: int = 200) -> list[Figure]:
    """Processor time of one thread, in units of the plain step's, or of torch's recipe."""
    found: list[Figure] = []
    for count in COUNTS:
        with watched(found):
            found += [_figure(row) for row in rows(count, repeats)]
    return found


def _figure(row: Row) -> Figure:
    note = f"{row.own:.3g} us of the processor, {row.other:.3g} without; {row.once:.0%} in one call"
    return Figure(f"steady_{row.name}_{row.count}", row.own / row.other, row.target, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description="What options add to a steady step of AdamW.")
    parser.add_argument("--tensors", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--repeats", type=int, default=200)
    asked = parser.parse_args()
    print(f"{'option':>12} {'tensors':>8} {'us':>8} {'beside':>8} {'ratio':>6}   once  target")
    for count in asked.tensors:
        for row in rows(count, asked.repeats):
            print(
                f"{row.name:>12} {count:>8} {row.own:8.1f} {row.other:8.1f}"
                f" {row.own / row.other:6.2f} {row.once:6.0%} <= {row.target:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
