"""Inputs for comparing modern rules with their authors' packages: cases, values, rates.

`tools/record_modern.py` gives it to those packages, and tests to the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

STEPS = 40
SHAPES = ((), (7,), (24, 16), (16, 24), (6, 8, 3, 3), (300, 5))
DECAYS = (0.0, 0.1)
# What lies around a step, one at a time: the same numbers on every engine.
BESIDE: tuple[dict[str, Any], ...] = (
    {},
    {"clip_grad_norm": 0.5},
    {"clip_grad_value": 0.125},
    {"masters": True},
    {"ema_decay": 0.9},
    {"lookahead": 2},
    {"accumulate": 2},
    {"state_dtype": torch.float64},
)


@dataclass(frozen=True)
class Case:
    """A class of `thalweg.optim`, and what its authors call it.

    Attributes:
        cls: The class of `thalweg.optim`.
        package: Package and class; "formula" has the formula of the recorder, in float64.
        lr: The largest rate of the schedule.
        ours: Arguments of our class beside rate and decay.
        theirs: Likewise of theirs, where these are others.
        decays: Those it is tried with; one alone where it has none.
        apart: The dimensions of parameters of which theirs is another rule.
    """

    cls: str
    package: str
    lr: float = 0.01
    ours: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] | None = None
    decays: tuple[float, ...] = DECAYS
    apart: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        suffix = "-".join(f"{key}={value}" for key, value in self.ours.items())
        return f"{self.cls}-{suffix}" if suffix else self.cls

    def arguments(self, decay: float, for_own_class: bool) -> dict[str, Any]:
        """Return the constructor arguments of our class, or of the peer's."""
        arguments = self.ours if for_own_class or self.theirs is None else self.theirs
        own_decay = {"weight_decay": decay} if len(self.decays) > 1 else {}
        return {"lr": self.lr, **own_decay, **arguments}


CASES = (
    Case("Lion", "lion_pytorch:Lion"),
    Case("AdamWCoupled", "torch.optim:Adam"),
    Case("AdamWDecoupled", "torch.optim:AdamW"),
    Case("AdamWIndependent", "formula:AdamWIndependent"),
    Case("AdamWCautiousDecay", "formula:AdamWCautiousDecay"),
    Case("NAdamW", "timm.optim:NAdamW"),
    Case("LaProp", "timm.optim:LaProp"),
    Case("AdEMAMix", "pytorch_optimizer:AdEMAMix", theirs={"weight_decouple": True}),
    Case(
        "AdEMAMix",
        "pytorch_optimizer:AdEMAMix",
        ours={"alpha_warmup": 30, "beta3_warmup": 30},
        theirs={"weight_decouple": True, "t_alpha_beta3": 30},
    ),
    Case("ADOPT", "timm.optim:Adopt", theirs={"clip_exp": 0.25}),
    Case("ADOPT", "timm.optim:Adopt", ours={"clip_exp": 0.333, "decoupled": True}),
    Case("Adan", "timm.optim:Adan"),
    Case("Adan", "timm.optim:Adan", ours={"no_prox": True}),
    Case("CautiousAdamW", "timm.optim:AdamWLegacy", theirs={"caution": True}),
    Case("StableAdamW", "pytorch_optimizer:StableAdamW"),
    Case("LAMB", "timm.optim:Lamb", theirs={"max_grad_norm": None}),
    Case(
        "LAMB",
        "timm.optim:Lamb",
        ours={"always_adapt": True, "trust_clip": True},
        theirs={"always_adapt": True, "trust_clip": True, "max_grad_norm": None},
    ),
    Case("MARS", "timm.optim:Mars"),
    Case(
        "MARS",
        "timm.optim:Mars",
        ours={"optimize_1d": True, "gamma": 0.1, "mars_type": "lion"},
    ),
    Case(
        "MARS",
        "timm.optim:Mars",
        ours={"betas": (0.95, 0.98), "betas_1d": (0.8, 0.9), "lr_1d_factor": 0.5},
    ),
    Case("MARS", "timm.optim:Mars", ours={"mars_type": "lion"}),
    Case("Prodigy", "prodigyopt:Prodigy", lr=1.0),
    Case(
        "Prodigy",
        "prodigyopt:Prodigy",
        lr=0.5,
        ours={"decouple": False, "use_bias_correction": True, "d0": 1e-4, "growth_rate": 1.1},
    ),
    Case(
        "Prodigy",
        "prodigyopt:Prodigy",
        lr=1.0,
        ours={"betas": (0.0, 0.9), "beta3": 0.9, "safeguard_warmup": True, "d_coef": 2.0},
    ),
    Case("ScheduleFreeAdamW", "schedulefree:AdamWScheduleFree"),
    Case(
        "ScheduleFreeAdamW",
        "schedulefree:AdamWScheduleFree",
        ours={"warmup_steps": 10, "r": 0.5, "weight_lr_power": 1.0},
    ),
    Case("ScheduleFreeSGD", "schedulefree:SGDScheduleFree", lr=0.5),
    Case("AdamH", "formula:AdamH", decays=(0.0,)),
    Case("AdafactorHF", "transformers.optimization:Adafactor", ours={"lr": None}),
    Case(
        "AdafactorHF",
        "transformers.optimization:Adafactor",
        ours={"relative_step": False, "beta1": 0.9, "clip_threshold": 0.5, "decay_rate": -0.5},
    ),
    Case("SM3", "pytorch_optimizer:SM3", lr=0.1, decays=(0.0,), apart=(4,)),
    Case(
        "SM3",
        "pytorch_optimizer:SM3",
        lr=0.1,
        ours={"momentum": 0.9, "beta": 0.95},
        decays=(0.0,),
        apart=(0, 4),  # whose sum of a single number may fall
    ),
)
TABLE = {f"{case.name}-{decay}": (case, decay) for case in CASES for decay in case.decays}


def params_of(dtype: torch.dtype) -> list[Tensor]:
    """Return parameters of each shape, whole numbers over 64 in [-2, 2]."""
    return [_values(shape, 1000 + place, 64.0).to(dtype).requires_grad_()
            for place, shape in enumerate(SHAPES)]  # fmt: skip


def gradients_of(step: int, dtype: torch.dtype) -> list[Tensor]:
    """Return gradients of each shape; every third step has larger ones."""
    scale = 32.0 if step % 3 == 0 else 256.0
    return [_values(shape, 17 * step + place, scale).to(dtype)
            for place, shape in enumerate(SHAPES)]  # fmt: skip


def rate(step: int, lr: float) -> float:
    """Return the rate of a step, from 0: it rises for five steps and falls from there."""
    return lr * min(1.0, (step + 1) / 5) * (1 - step / (2 * STEPS))


def train(
    optimizer: Any, params: list[Tensor], lr: float, gradients: Callable[..., Any] = gradients_of
) -> list[Tensor]:
    """Return the parameters after all steps."""
    begin = getattr(optimizer, "train", None)
    if begin is not None:  # schedulefree wants to be told
        begin()
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, lr)
        grads = gradients(step, params[0].dtype)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.step()
    return [param.detach() for param in params]


IN_GROUPS: dict[str, Any] = {"d0": 1e-4, "d_coef": 2.0}  # of Prodigy


def groups_of(params: list[Tensor]) -> list[dict[str, Any]]:
    """Groups that differ, one of which has the rate 0 at first."""
    return [
        {"params": params[:2], "weight_decay": 0.1, "lr": 0.5},
        {"params": params[2:4], "lr": 0.0},
        {"params": params[4:], "eps": 1e-3, "lr": 0.5},
    ]


def train_in_groups(
    optimizer: Any, params: list[Tensor], loss: Callable[[], float], steps: range = range(STEPS)
) -> Iterator[float]:
    """Yield the loss after each step; in some steps parameters have no gradient."""
    for step in steps:
        optimizer.param_groups[1]["lr"] = 0.5 if step >= 10 else 0.0
        for place, param in enumerate(params):
            is_late, is_skipped = place == 5 and step < 7, (place + step) % 5 == 0
            grad = gradients_of(step, params[0].dtype)[place]
            param.grad = None if is_late or is_skipped else grad
        optimizer.step()
        yield loss()


def _values(shape: tuple[int, ...], seed: int, scale: float) -> Tensor:
    return _computed_values(shape, seed, scale).clone()


@cache
def _computed_values(shape: tuple[int, ...], seed: int, scale: float) -> Tensor:
    # Whole numbers of a linear congruence, the same with every version of every package.
    count = int(np.prod(shape, dtype=np.int64))
    mixed = (np.arange(count, dtype=np.uint64) + np.uint64(1000003 * (seed + 1))) * np.uint64(
        6364136223846793005
    )
    integers = (mixed >> np.uint64(40)) % np.uint64(257)
    return torch.from_numpy((integers.astype(np.float32) - 128) / scale).reshape(shape)
