"""A training as a user types it: type checkers find nothing wrong here (`test_typed.py`)."""

from collections.abc import Iterable
from typing import Any, assert_type

import torch
from torch import Tensor, nn

import thalweg.optim.lr_scheduler as schedules
from thalweg import optim
from thalweg.optim import LBFGS, Adafactor, Optimizer
from thalweg.optim.adamw import AdamW, adamw
from thalweg.optim.lr_scheduler import LRScheduler, StepLR
from thalweg.optim.optimizer import ParamsT
from thalweg.optim.swa_utils import AveragedModel

MODEL = nn.Linear(2, 2)
FUNCTION = adamw


def made(params: ParamsT) -> Optimizer:
    """Return one of several optimizers, by torch's type."""
    return optim.NAdam(params, lr=torch.tensor(0.1), betas=(0.9, 0.99), decoupled_weight_decay=True)


def every_option(params: Iterable[Tensor]) -> optim.AdamW:
    """Pass every option of a constructor beside torch's."""
    return AdamW(
        params,
        1e-3,
        (0.9, 0.95),
        weight_decay=0.1,
        fused=True,
        clip_grad_norm=1.0,
        clip_grad_value=0.5,
        fused_unscale=False,
        cautious_decay=False,
        cautious=True,
        trust_ratio=False,
        sphere=False,
        lookahead=5,
        lookahead_alpha=0.5,
        ema_decay=0.999,
        masters=True,
        state_dtype=torch.bfloat16,
        accumulate=2,
        wide_sums=True,
        in_backward=False,
        gradients="flat",
        state_device="cpu",
    )


def groups() -> list[torch.optim.Optimizer]:
    """Pass groups, names and other classes."""
    param_groups: list[dict[str, Any]] = [{"params": MODEL.parameters(), "lr": 0.1}]
    return [
        optim.SGD(param_groups, momentum=0.9, nesterov=True),
        optim.Lion(MODEL.named_parameters(), ema_decay=0.9),
        optim.Muon([MODEL.weight], ns_steps=5, ns_coefficients="quintic", heads=2),
        optim.ScheduleFreeAdamW(MODEL.parameters(), warmup_steps=10),
        optim.tensorflow.Ftrl(MODEL.parameters(), lr=0.1, l1=0.01, clip_grad_norm=1.0),
        optim.Mixed([{"params": [MODEL.bias], "rule": "AdamW", "lr": 0.1}], clip_grad_norm=1.0),
        Adafactor(MODEL.parameters()),
        LBFGS(MODEL.parameters()),
    ]


def train(optimizer: optim.AdamW) -> None:
    """Use the methods that a training loop calls."""
    schedule: LRScheduler = StepLR(optimizer, 3)
    warmup = schedules.LinearLR(optimizer)
    averaged = AveragedModel(MODEL)
    optimizer.zero_grad(set_to_none=True)
    optimizer.step()
    optimizer.step(lambda: MODEL(torch.ones(2)).sum())
    schedule.step()
    warmup.step()
    averaged.update_parameters(MODEL)
    assert_type(optimizer.param_groups, list[dict[str, Any]])
    assert_type(optimizer.state_dict(), dict[str, Any])
    if optimizer.last_step is not None:
        assert_type(optimizer.last_step.count, int)
        assert_type(optimizer.last_step.grad_norm, float | None)
    with optimizer.swapped():
        MODEL(torch.ones(2))
    optimizer.load_state_dict(optimizer.state_dict())
