"""Options of groups: two groups are equal to two optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rulebook import assert_same, slow_unless
from thalweg import optim

SHAPES = ((6, 5), (6, 5), (7, 4, 3, 3), (5,))  # two are alike, in both groups
HOW_STEPS_ARE_TAKEN = {"capturable", "differentiable", "foreach", "fused"}
# Groups of Prodigy have all in common. SOAP makes steps of noise where a matrix has no gradient.
EXCLUDED = {"LBFGS", "SparseAdam", "RuleOptimizer", "Mixed", "Prodigy", "SOAP", "KLSOAP"}
# Read by the constructor alone, as in torch and in timm, whose `betas` are vectors' too.
READ_ONCE = {("Adagrad", "initial_accumulator_value"), ("MARS", "betas")}


def classes() -> Iterator[str]:
    for name, kind in inspect.getmembers(optim, inspect.isclass):
        if issubclass(kind, torch.optim.Optimizer) and name not in {*EXCLUDED, "Optimizer"}:
            yield name


def params_of(name: str, seed: int) -> list[Tensor]:
    dice = torch.Generator().manual_seed(seed)
    shapes = [shape for shape in SHAPES if "Muon" not in name or len(shape) == 2]
    return [torch.randn(shape, generator=dice).requires_grad_() for shape in shapes]


def other_value(default: Any) -> Any:
    """Return another value of an option, or None if groups cannot have the option."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, float | int):
        return 0.01 if default == 0 else 1.5 * default if default >= 1 else 0.7 * default
    if isinstance(default, tuple) and all(isinstance(tensor, float) for tensor in default):
        return tuple(0.8 * tensor for tensor in default)
    return None


def run_steps(optimizers: Any, params: list[list[Tensor]]) -> list[Tensor]:
    for step in range(3):
        for seed, group_params in enumerate(params):
            dice = torch.Generator().manual_seed(100 * step + seed)
            for param in group_params:
                param.grad = 0.1 * torch.randn(param.shape, generator=dice)
        for opt in optimizers:
            opt.step()
    return [param.detach() for group_params in params for param in group_params]


def changed(name: str) -> Iterator[dict[str, Any]]:
    """Yield each option of a class with another valid value."""
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


@pytest.mark.parametrize(
    ("name", "half"),
    [slow_unless(half == len(n) % 2, n, half) for n in classes() for half in (0, 1)],
)
@pytest.mark.one_in(7)
def test_two_groups_are_two_optimizers(name: str, half: int) -> None:
    """Change every other option of a class, from the first or from the second one on."""
    kind, option_count = getattr(optim, name), 0
    for options in [*changed(name)][half::2]:
        lists = [[params_of(name, seed) for seed in range(2)] for _ in range(2)]
        first, second = lists[0]
        actual = run_steps([kind([{"params": first}, {"params": second, **options}])], lists[0])
        first, second = lists[1]
        expected = run_steps([kind(first), kind(second, **options)], lists[1])
        assert_same(actual, expected, f"{options}:")
        option_count += 1
    assert option_count
