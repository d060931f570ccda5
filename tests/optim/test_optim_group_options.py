"""An option of a group counts for its parameters alone: two groups are two optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rulebook import assert_same
from thalweg import optim

SHAPES = ((6, 5), (6, 5), (7, 4, 3, 3), (5,))  # two are alike, in both groups
HOW_STEPS_ARE_TAKEN = {"capturable", "differentiable", "foreach", "fused"}
# Groups of Prodigy have all in common. SOAP makes steps of noise where a matrix has no gradient.
OTHERS = {"LBFGS", "SparseAdam", "RuleOptimizer", "Mixed", "Prodigy", "SOAP", "KLSOAP"}
# Read by the constructor alone, as in torch and in timm, whose `betas` are vectors' too.
READ_ONCE = {("Adagrad", "initial_accumulator_value"), ("MARS", "betas")}


def classes() -> Iterator[str]:
    for name, kind in inspect.getmembers(optim, inspect.isclass):
        if issubclass(kind, torch.optim.Optimizer) and name not in {*OTHERS, "Optimizer"}:
            yield name


def params_of(name: str, seed: int) -> list[Tensor]:
    dice = torch.Generator().manual_seed(seed)
    shapes = [each for each in SHAPES if "Muon" not in name or len(each) == 2]
    return [torch.randn(shape, generator=dice).requires_grad_() for shape in shapes]


def other_value(default: Any) -> Any:
    """Another value of an option, or None if it is none that groups could have."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, float | int):
        return 0.01 if default == 0 else 1.5 * default if default >= 1 else 0.7 * default
    if isinstance(default, tuple) and all(isinstance(each, float) for each in default):
        return tuple(0.8 * each for each in default)
    return None


def steps(made: Any, params: list[list[Tensor]]) -> list[Tensor]:
    for step in range(3):
        for seed, several in enumerate(params):
            dice = torch.Generator().manual_seed(100 * step + seed)
            for param in several:
                param.grad = 0.1 * torch.randn(param.shape, generator=dice)
        for each in made:
            each.step()
    return [param.detach() for several in params for param in several]


def changed(name: str) -> Iterator[dict[str, Any]]:
    """Each option of a class with another value that it takes."""
    kind = getattr(optim, name)
    for option, default in kind(params_of(name, 0)).defaults.items():
        value = other_value(default)
        if value is None or option in HOW_STEPS_ARE_TAKEN or (name, option) in READ_ONCE:
            continue
        try:
            kind(params_of(name, 0), **{option: value})
        except (TypeError, ValueError, NotImplementedError):
            continue  # an option of groups alone, or one that takes few values
        yield {option: value}


@pytest.mark.parametrize("name", [*classes()])
def test_two_groups_are_two_optimizers(name: str) -> None:
    kind, tried = getattr(optim, name), 0
    for options in changed(name):
        both = [[params_of(name, seed) for seed in range(2)] for _ in range(2)]
        first, second = both[0]
        found = steps([kind([{"params": first}, {"params": second, **options}])], both[0])
        first, second = both[1]
        wanted = steps([kind(first), kind(second, **options)], both[1])
        assert_same(found, wanted, f"{options}:")
        tried += 1
    assert tried >= 2
