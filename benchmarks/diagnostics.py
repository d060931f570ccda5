"""What diagnostics cost the step in which they are taken, on ResNet-50's shapes.

    PYTHONPATH=src python benchmarks/diagnostics.py

Each line is the median of a step with diagnostics in units of one without, of the same optimizer in
the same round, and the two in milliseconds. Of the last lines each leaves out some of what is told.
The three ways of a step are taken in turn, so that a machine that is not quiet disturbs all alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from thalweg import optim
from thalweg.bench.problem import make_tensors
from thalweg.bench.shapes import resnet50
from thalweg.engines.cpu import codegen_diagnostics as kernels
from thalweg.engines.cpu import diagnostics as updates

RULES: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {}),
    ("SGD", {"momentum": 0.9}),
    ("Lion", {}),
    ("AdamW", {"masters": True}),
    ("AdamW", {"clip_grad_norm": 1.0}),
]
# Lines of the kernel by what they are for, as they begin.
PARTS = {
    "sums": ("lanes_",),
    "largest magnitudes": ("gradient_max =", "update_max =", "weight_max =", "most =", "least ="),
    "counts": ("unchanged +=", "agreement +="),
}


def params_of(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    problem = make_tensors(resnet50())
    made: list[torch.nn.Parameter] = []
    for var, grad in zip(problem.variables, problem.gradients, strict=True):
        made.append(torch.nn.Parameter(var.detach().to(dtype)))
        made[-1].grad = grad.to(dtype)
    return made


def timed(step: Callable[[], object]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def compare(name: str, own: dict[str, Any], rounds: int) -> tuple[float, float, float]:
    """The median ratio of a step with diagnostics, and the median seconds of both."""
    dtype = torch.bfloat16 if own.get("masters") else torch.float32
    made = [
        getattr(optim, name)(params_of(dtype), lr=1e-4, diagnostics=every, **own)
        for every in (1, None)
    ]
    for each in made:
        for _ in range(4):
            each.step()
    pairs = [tuple(timed(each.step) for each in made) for _ in range(rounds)]
    ratio = statistics.median(told / plain for told, plain in pairs)
    told, plain = (statistics.median(each) for each in zip(*pairs, strict=True))
    return ratio, told, plain


def without(part: str) -> Any:
    """Have kernels leave out what a part is for: what they tell is wrong then."""
    own, begins = kernels._update_element, PARTS[part]

    def cut(*given: Any) -> list[str]:
        lines = own(*given)
        return [each for each in lines if not each.startswith(begins)] or ["pass"]

    return patch.object(kernels, "_update_element", cut)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    for name, own in RULES:
        ratio, told, plain = compare(name, own, rounds)
        title = f"{name} {', '.join(f'{k}={v}' for k, v in own.items())}"
        print(f"{title:30} {ratio:5.2f}   {told * 1e3:6.1f} ms, {plain * 1e3:6.1f} ms", flush=True)
    for part in PARTS:
        updates.diagnosed_kernel.cache_clear()
        with without(part):
            ratio, told, plain = compare("AdamW", {}, rounds)
        title = f"AdamW without {part}"
        print(f"{title:30} {ratio:5.2f}   {told * 1e3:6.1f} ms, {plain * 1e3:6.1f} ms", flush=True)


if __name__ == "__main__":
    main()
