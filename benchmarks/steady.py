"""What a steady step of `thalweg.optim.Adam` costs beside `torch.optim.Adam(fused=True)`.

    python benchmarks/steady.py [--repeats N]

Processor time of one thread, interleaved, the lowest fifth of the repeats: warm, with new gradients
at each step, and cold, with 64 MB written between two steps, as between two backward passes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter

from thalweg import optim

SIZES = ((1, 64), (10, 64), (100, 64), (2000, 64), (2000, 1000))
MODES = ("warm", "new", "cold")
COLD = 16 << 20  # floats


def made(count: int, size: int, make: Callable[[list[Parameter]], Any]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    params = [Parameter(torch.randn(size)) for _ in range(count)]
    opt = make(params)
    for _ in range(4):
        for param in params:
            param.grad = torch.randn(size)
        opt.step()
    return params, opt


def step_time(params: list[Parameter], opt: Any, mode: str, between: torch.Tensor) -> float:
    """Microseconds of this thread in one step."""
    if mode == "new":
        for param in params:
            param.grad = torch.empty_like(param).copy_(param.grad)
    if mode == "cold":
        between.add_(1)
    begin = time.thread_time_ns()
    opt.step()
    return (time.thread_time_ns() - begin) / 1e3


def lowest(times: list[float]) -> float:
    return sorted(times)[len(times) // 5]


def main() -> None:
    parser = argparse.ArgumentParser(description="A steady step beside torch's fused Adam.")
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    between = torch.zeros(COLD)
    print(f"{'tensors':>16} {'mode':>5} {'thalweg us':>11} {'torch us':>9} {'ratio':>6}   once")
    for count, size in SIZES:
        pairs = {
            "thalweg": made(count, size, optim.Adam),
            "torch": made(count, size, lambda own: torch.optim.Adam(own, fused=True)),
        }
        for mode in MODES:
            times: dict[str, list[float]] = {name: [] for name in pairs}
            own = pairs["thalweg"][1]._own
            before = own.quick.taken if own.quick else 0
            rounds = max(10, repeats if count < 2000 else repeats // 8)
            for _ in range(rounds):
                for name, (params, opt) in pairs.items():
                    times[name].append(step_time(params, opt, mode, between))
            quick = (own.quick.taken if own.quick else 0) - before
            ours, theirs = (lowest(times[name]) for name in ("thalweg", "torch"))
            print(
                f"{f'{count} of {size}':>16} {mode:>5} {ours:11.1f} {theirs:9.1f}"
                f" {ours / theirs:6.2f} {quick / rounds:6.0%}"
            )


if __name__ == "__main__":
    main()
