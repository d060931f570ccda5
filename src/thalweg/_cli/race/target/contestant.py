"""Optimizer and schedule of a trial, from one point of a search space."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import nn

from thalweg import optim
from thalweg._cli.race.problems import Problem
from thalweg._cli.race.target.search_spaces import Point, Space


def make_optimizer(
    space: Space, point: Point, model: nn.Module, problem: Problem, steps: int
) -> Any:
    """Build the optimizer of a trial.

    Args:
        space: The contestant's search space.
        point: A point of `space`.
        model: The model to optimize. A matrix rule such as Muon updates only hidden matrices. AdamW
            then updates all other parameters, with the rate times `adamw_share`.
        steps: The number of steps of the trial.
    """
    arguments = {**space.fixed, **point}
    if not space.falls:
        arguments["warmup_steps"] = int(space.warmup * steps)
    clip = arguments.pop("clip_grad_norm", None)
    optimizer_class = getattr(optim, space.rule)
    if not getattr(optimizer_class, "_of_matrices", False):
        return optimizer_class(model.parameters(), clip_grad_norm=clip, **_with_betas(arguments))
    momentum = {name: arguments.pop(name) for name in ("momentum",) if name in arguments}
    factor = arguments.pop("adamw_share", 1.0)
    shared_options = _with_betas(arguments)
    adamw_options = {
        name: shared_options[name] for name in ("betas", "weight_decay") if name in shared_options
    }
    matrix_options = {**shared_options, **momentum}
    # A class with a momentum accepts no betas.
    if momentum:
        del matrix_options["betas"]
    matrix_params = optim.hidden_matrices(model, output=problem.output)
    groups = optim.groups(
        model,
        rules={
            # Three-dimensional parameters are kernels of Conv1d, not stacks of matrices.
            matrix_params: {"rule": space.rule, "heads": 1, **matrix_options},
            ...: {"rule": "AdamW", "lr": factor * shared_options["lr"], **adamw_options},
        },
    )
    return optim.Mixed(groups, clip_grad_norm=clip)


def _with_betas(arguments: dict[str, float]) -> dict[str, Any]:
    """Return arguments with beta1 and beta2 joined into `betas`."""
    converted: dict[str, Any] = dict(arguments)
    if "one_minus_beta1" in converted:
        converted["beta1"] = 1 - converted.pop("one_minus_beta1")
    if "beta1" in converted:
        converted["betas"] = (converted.pop("beta1"), converted.pop("beta2"))
    return converted


def make_schedule(space: Space, optimizer: Any, steps: int) -> Any:
    """Return the learning rate schedule of a trial; None for schedule-free optimizers."""
    if not space.falls:
        return None
    factor = partial(rate_factor, warmup=round(space.warmup * steps), steps=steps)
    return optim.lr_scheduler.LambdaLR(optimizer, factor)


def rate_factor(step: int, *, warmup: int, steps: int) -> float:
    """Return the factor of the rate at a step from 0: linear warmup, then cosine decay to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / (steps - warmup))
