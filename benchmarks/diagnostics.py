"""Cost of diagnostics per step, on ResNet-50's shapes and over many small tensors.

    PYTHONPATH=src python benchmarks/diagnostics.py

Each line is the median of a step with diagnostics in units of one without, of the same optimizer in
the same round, and the two in milliseconds. Of the last lines each leaves out some of what is
measured. The two steps are taken in turn, so that a machine that is not quiet disturbs both alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from thalweg import optim
from thalweg._cli.bench.shapes import ShapeSet, resnet50
from thalweg._cli.bench.workload import make_tensors
from thalweg._engines.cpu import codegen_diagnostics as kernels
from thalweg._engines.cpu import diagnostics as updates

RULES: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {}),
    ("SGD", {"momentum": 0.9}),
    ("Lion", {}),
    ("AdamW", {"masters": True}),
    ("AdamW", {"clip_grad_norm": 1.0}),
]
VALUES = ("gradient", "update", "weight", "momentum")
# Lines of the kernel by what they are for, as they begin: those of an element, and of a block.
PARTS = {
    "sums": ("kept_", "sum_", "lanes_"),
    "largest magnitudes": (*(f"{name}_peak =" for name in VALUES), "most =", "least ="),
    "counts": ("unchanged =", "agreement ="),
}
SMALL = ShapeSet("small", ((1000,),) * 160, (torch.float32,) * 160)


def params_of(dtype: torch.dtype, shapes: ShapeSet) -> list[torch.nn.Parameter]:
    problem = make_tensors(shapes)
    params: list[torch.nn.Parameter] = []
    for var, grad in zip(problem.variables, problem.gradients, strict=True):
        params.append(torch.nn.Parameter(var.detach().to(dtype)))
        params[-1].grad = grad.to(dtype)
    return params


def timed(step: Callable[[], object]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def compare(title: str, name: str, options: dict[str, Any], rounds: int, shapes: ShapeSet) -> None:
    """Print the median ratio of a measured step, and the median milliseconds of both."""
    dtype = torch.bfloat16 if options.get("masters") else torch.float32
    optimizers = [
        getattr(optim, name)(params_of(dtype, shapes), lr=1e-4, diagnostics=interval, **options)
        for interval in (1, None)
    ]
    for optimizer in optimizers:
        for _ in range(4):
            optimizer.step()
    pairs = [tuple(timed(optimizer.step) for optimizer in optimizers) for _ in range(rounds)]
    ratio = statistics.median(diagnosed / plain for diagnosed, plain in pairs)
    diagnosed, plain = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"{title:30} {ratio:5.2f}   {diagnosed:6.2f} ms, {plain:6.2f} ms", flush=True)


@contextmanager
def without(part: str) -> Generator[None]:
    """Patch kernels to omit the lines of a part, which makes their results wrong."""

    def cut(make_lines: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def lines(*args: Any) -> list[str]:
            lines_ = [line for line in make_lines(*args) if not line.startswith(PARTS[part])]
            return lines_ or ["pass"]

        return lines

    with ExitStack() as stack:
        for name in ("_update_element", "_add_columns"):
            stack.enter_context(patch.object(kernels, name, cut(getattr(kernels, name))))
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    for name, options in RULES:
        title = f"{name} {', '.join(f'{k}={v}' for k, v in options.items())}"
        compare(title, name, options, rounds, resnet50())
    compare("AdamW, 160 of 1,000", "AdamW", {}, rounds, SMALL)
    for part in PARTS:
        updates.diagnosed_kernel.cache_clear()
        with without(part):
            compare(f"AdamW without {part}", "AdamW", {}, rounds, resnet50())


if __name__ == "__main__":
    main()
