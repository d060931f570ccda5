"""Rules of matrices: Muon beside `torch.optim.Muon`, and beside its own matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from figure import Figure, compared
from torch import Tensor

from thalweg import optim
from thalweg._cli.bench.timing import Contender, measure
from thalweg._cli.race.run import set_threads
from thalweg.rules.modern.newton_schulz import triples

SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    "64": ((64, 64),) * 48,
    "256x64": ((256, 64),) * 8,
    "512": ((512, 512),) * 2,
    "1024x512": ((1024, 512),),
}
OF_PRODUCTS, OF_TORCH, OF_TORCH_SMALL, OF_TORCH_MANY = 1.15, 0.10, 0.25, 0.15
OF_UNITS = 1.0  # where the processor multiplies bfloat16 itself, as torch has it do
MANY_MATRICES = 48  # from which on the work of a step beside the products is shared by many
LARGE = 512  # from which on the products are what torch's step takes


def matrices() -> list[Figure]:
    """Measure Muon on matrices of several sizes, on one thread."""
    with set_threads(1):
        return [figure for name, sizes in SHAPES.items() for figure in _figures(name, sizes)]


def _figures(name: str, sizes: Sequence[tuple[int, int]]) -> list[Figure]:
    dtypes = ["bfloat16", "float32"] if has_units() else ["float32"]
    contenders = [Contender("torch", torch.optim.Muon(_parameters(sizes)).step)]
    for dtype in dtypes:
        step = optim.Muon(_parameters(sizes), ns_dtype=dtype).step
        products = _products(sizes, getattr(torch, dtype))
        contenders += [Contender(dtype, step), Contender(f"{dtype} products", products)]
    timings = measure(contenders, rounds=7, block=0.2)
    target = OF_TORCH if min(sizes[0]) >= LARGE else OF_TORCH_SMALL
    target = OF_TORCH_MANY if len(sizes) >= MANY_MATRICES else target
    target = OF_UNITS if dtypes[0] == "bfloat16" else target
    return [
        compared(f"muon_{name}", timings, dtypes[0], "torch", target),
        *(
            compared(
                f"muon_{dtype}_products_{name}", timings, dtype, f"{dtype} products", OF_PRODUCTS
            )
            for dtype in dtypes
        ),
    ]


def has_units() -> bool:
    """Return whether the processor has bfloat16 matrix or dot-product instructions."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _parameters(sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    torch.manual_seed(0)
    params = [torch.randn(size).requires_grad_() for size in sizes]
    for param in params:
        param.grad = torch.randn(param.shape) * 1e-3
    return params


def _products(sizes: Sequence[tuple[int, int]], dtype: torch.dtype) -> Callable[[], None]:
    """Return a function that computes only the matrix products of a step."""
    rows, columns = sorted(sizes[0])
    batch = (torch.randn(len(sizes), rows, columns) / columns).to(dtype)
    steps = triples("original", 5)

    def multiply() -> None:
        for first, second, third in steps:
            square = batch @ batch.mT
            mixed = torch.baddbmm(square, square, square, beta=second, alpha=third)
            torch.baddbmm(batch, mixed, batch, beta=first)

    return multiply
