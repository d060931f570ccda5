"""Variables and gradients of a measurement, and thalweg's step over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg._cli.bench.registry import BenchmarkedRule
from thalweg._cli.bench.shapes import ShapeSet
from thalweg._cli.registry import applied
from thalweg.keras.optimizers import RuleOptimizer

RATE = 1e-4


@dataclass(frozen=True)
class Workload:
    """Variables with their gradients, shared by all contenders."""

    variables: list[Tensor]
    gradients: list[Tensor]


def _draw(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return normally distributed float32 numbers on the CPU."""
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32, device="cpu")


def make_tensors(shapes: ShapeSet, seed: int = 0) -> Workload:
    """Return random variables and gradients; each gradient is also the variable's `.grad`."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    variables: list[Tensor] = []
    gradients: list[Tensor] = []
    for shape, dtype in zip(shapes.shapes, shapes.dtypes, strict=True):
        variable = _draw(shape, generator).mul_(0.02).to(dtype)
        variables.append(variable.requires_grad_())
        gradients.append(_draw(shape, generator).mul_(1e-3).to(dtype))
        variables[-1].grad = gradients[-1]
    return Workload(variables, gradients)


def make_optimizer(entry: BenchmarkedRule, options: Mapping[str, Any] | None = None) -> Any:
    """Return the rule's optimizer from `thalweg.keras.optimizers` or from `thalweg.v1`."""
    arguments: dict[str, Any] = {"learning_rate": RATE, **(options or {})}
    if entry.registry_entry is None:
        return RuleOptimizer(entry.rule, **arguments)
    return entry.registry_entry.make(**arguments)


def try_options(
    entry: BenchmarkedRule, options: Mapping[str, object], dtypes: Iterable[torch.dtype]
) -> None:
    """Take two steps on small tensors, so that invalid options raise the optimizer's errors."""
    if options.get("in_backward"):
        raise ValueError(
            "in_backward updates in the backward pass, and step(), which is timed, idles."
        )
    small_tensors = tuple((shape, dtype) for dtype in set(dtypes) for shape in ((4, 4), (4,)))
    problem = make_tensors(ShapeSet("few", *zip(*small_tensors, strict=True)))
    step = thalweg_step(entry, problem, options)
    for _ in range(2):
        step()


def thalweg_step(
    entry: BenchmarkedRule, problem: Workload, options: Mapping[str, object] | None = None
) -> Callable[[], object]:
    """Return a function that takes a step of a new thalweg optimizer through its public API."""
    return step_of(make_optimizer(entry, options), problem)


def step_of(optimizer: object, problem: Workload) -> Callable[[], object]:
    """Return a function that takes a step of a thalweg optimizer through its public API."""
    apply = applied(optimizer)
    variables, gradients = problem.variables, problem.gradients
    return lambda: apply(zip(gradients, variables))
