"""Steps with sparse gradients, whose cost should depend on touched rows only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from figure import Figure, measure_ratio
from torch import Tensor

from thalweg._cli.bench.timing import Contender
from thalweg.keras.optimizers import SGD, Adagrad, Adamax
from thalweg.v1.contrib.opt import LazyAdamOptimizer

WIDTH, ENTRIES, REPEATS = 64, 8192, 2048
LARGE, SMALL = 1_000_000, 100_000
BATCHES = 8  # different batches, so that the touched rows are not simply left in the cache

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adagrad": lambda: Adagrad(1e-3),
    "momentum": lambda: SGD(1e-3, momentum=0.9),
    "adamax": lambda: Adamax(1e-3),
    "lazy_adam": lambda: LazyAdamOptimizer(1e-3),
}


def gradients_of(rows: int) -> list[Tensor]:
    """Return sparse gradients of 8,192 entries, not coalesced, of which 2,048 are repeats."""
    generator = torch.Generator().manual_seed(0)
    gradients = []
    for _ in range(BATCHES):
        distinct = torch.randperm(rows, generator=generator)[: ENTRIES - REPEATS]
        repeats = distinct[torch.randint(len(distinct), (REPEATS,), generator=generator)]
        indices = torch.cat([distinct, repeats])[torch.randperm(ENTRIES, generator=generator)]
        values = torch.randn(ENTRIES, WIDTH, generator=generator)
        gradients.append(
            torch.sparse_coo_tensor(indices[None], values, (rows, WIDTH), check_invariants=False)
        )
    return gradients


def table_of(rows: int) -> Tensor:
    return torch.full((rows, WIDTH), 0.01).requires_grad_()


def step_of(optimizer: Any, table: Tensor, gradients: list[Tensor]) -> Callable[[], object]:
    supply = cycle(gradients)
    return lambda: optimizer.apply_gradients([(next(supply), table)])


def rows() -> list[Figure]:
    """Measure a step at 1,000,000 rows in units of a step at 100,000."""
    figures = []
    for name, make in OPTIMIZERS.items():
        contenders = [
            Contender(title, step_of(make(), table_of(count), gradients_of(count)))
            for title, count in (("1,000,000 rows", LARGE), ("100,000 rows", SMALL))
        ]
        figures.append(measure_ratio(f"sparse_rows_{name}", contenders, 1.2, rounds=11))
    return figures


def against_torch() -> list[Figure]:
    """Measure the speed of a step in units of torch's on the same sparse gradients."""
    adagrad, adam = table_of(LARGE), table_of(LARGE)
    torch_adagrad = torch.optim.Adagrad([adagrad], lr=1e-3, initial_accumulator_value=0.1)
    lazy = torch.optim.SparseAdam([adam], lr=1e-3)
    return [
        _against("sparse_adagrad_vs_torch", 4.0, Adagrad(1e-3), torch_adagrad, adagrad),
        _against("sparse_lazy_adam_vs_torch", 7.0, LazyAdamOptimizer(1e-3), lazy, adam),
    ]


def _against(
    title: str,
    target: float,
    own_optimizer: Any,
    torch_optimizer: torch.optim.Optimizer,
    table: Tensor,
) -> Figure:
    gradients = gradients_of(LARGE)
    supply = cycle(gradients)

    def torch_step() -> None:
        table.grad = next(supply)
        torch_optimizer.step()

    own_step = step_of(own_optimizer, table_of(LARGE), gradients)
    contenders = [Contender("torch", torch_step), Contender("thalweg", own_step)]
    return measure_ratio(title, contenders, target, ">=", rounds=11)
