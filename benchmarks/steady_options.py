"""Cost of options in a steady step of AdamW.

Processor time of one thread, interleaved, the lowest fifth of the repeats, beside the step without
options; and for what a training with mixed precision does (unscale, check, clip, update) beside
torch's recipe for it, whose `GradScaler.unscale_` and `clip_grad_norm_` are passes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from figure import Figure, watched
from steady import REPEATS, Make, TorchLoop, compare_loops, fused_adamw, make_params, warm_up
from torch.nn import Parameter

from thalweg import optim
from thalweg.optim import tensorflow

SIZE = 64
COUNTS = (10, 100)
TARGET = 1.5  # of the step without options
RECIPE = 0.55  # of torch's


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


class Scaled(TorchLoop):
    """Loop whose optimizer unscales gradients for a scaler."""

    found_inf, scale = torch.zeros(()), torch.tensor(1024.0)

    def step(self) -> None:
        self.optimizer.found_inf, self.optimizer.grad_scale = self.found_inf, self.scale
        self.optimizer.step()


class Recipe(TorchLoop):
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


def _make_loop(
    kind: type[TorchLoop], make: Make, count: int, dtype: torch.dtype = torch.float32
) -> TorchLoop:
    loop = kind(make_params(count, SIZE, dtype), make)
    warm_up([loop], count, SIZE, dtype)
    return loop


def _measure(count: int, repeats: int) -> Iterator[Figure]:
    """Yield figures of all options over `count` tensors."""
    for name, make in OPTIONS.items():
        dtype = torch.bfloat16 if name == "masters" else torch.float32
        loop = _make_loop(Scaled if name == "scaler" else TorchLoop, make, count, dtype)
        plain_loop = _make_loop(TorchLoop, optim.AdamW, count, dtype)
        comparison = compare_loops(loop, plain_loop, repeats, lambda loop: None)
        yield comparison.as_figure(f"steady_{name}_{count}", TARGET, "without")

    def make_recipe(params: list[Parameter]) -> Any:
        return optim.AdamW(params, fused_unscale=True, clip_grad_norm=0.5)

    loops = _make_loop(Recipe, make_recipe, count), _make_loop(Recipe, fused_adamw, count)
    comparison = compare_loops(*loops, repeats, lambda loop: None)
    yield comparison.as_figure(f"steady_recipe_{count}", RECIPE)


def figures(repeats: int = REPEATS) -> list[Figure]:
    """Measure processor time of one thread in units of the plain step or of torch's recipe."""
    torch.set_num_threads(1)
    figures_: list[Figure] = []
    for count in COUNTS:
        torch.manual_seed(0)
        with watched(figures_):
            figures_ += _measure(count, repeats)
    return figures_
