"""A contestant's optimizer and schedule, made with one point of its search space."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from thalweg import optim
from thalweg._cli.race.problems import Problem
from thalweg._cli.race.target.search_spaces import Point, Space


def make_optimizer(
    space: Space, point: Point, model: nn.Module, problem: Problem, steps: int
) -> Any:
    """Return the optimizer of a trial, as a user makes it.

    Args:
        space: The contestant's.
        point: Of that space.
        model: Whose parameters it updates. A class for matrices has the hidden ones, and AdamW the
            rest, at the share `adamw_share` of the rate.
        problem: The model's.
        steps: How many there are.
    """
    arguments = {**space.fixed, **point}
    if not space.falls:
        arguments["warmup_steps"] = int(space.warmup * steps)
    clip = arguments.pop("clip_grad_norm", None)
    kind = getattr(optim, space.rule)
    if not getattr(kind, "_of_matrices", False):
        return kind(model.parameters(), clip_grad_norm=clip, **_with_betas(arguments))
    momentum = {name: arguments.pop(name) for name in ("momentum",) if name in arguments}
    share = arguments.pop("adamw_share", 1.0)
    common = _with_betas(arguments)
    rest = {name: common[name] for name in ("betas", "weight_decay") if name in common}
    matrices = {**common, **momentum}
    if momentum:  # what has a momentum has no betas
        del matrices["betas"]
    hidden = optim.hidden_matrices(model, output=problem.output)
    groups = optim.groups(
        model,
        rules={
            # Problems have kernels of Conv1d, and no stacks of matrices.
            hidden: {"rule": space.rule, "heads": 1, **matrices},
            ...: {"rule": "AdamW", "lr": share * common["lr"], **rest},
        },
    )
    return optim.Mixed(groups, clip_grad_norm=clip)


def _with_betas(arguments: dict[str, float]) -> dict[str, Any]:
    """Arguments as classes have them: `betas` are one."""
    found: dict[str, Any] = dict(arguments)
    if "one_minus_beta1" in found:
        found["beta1"] = 1 - found.pop("one_minus_beta1")
    if "beta1" in found:
        found["betas"] = (found.pop("beta1"), found.pop("beta2"))
    return found


def make_schedule(space: Space, optimizer: Any, steps: int) -> Any:
    """Return the schedule of its rate; None if it has none."""
    if not space.falls:
        return None
    factor = partial(rate_factor, warmup=round(space.warmup * steps), steps=steps)
    return optim.lr_scheduler.LambdaLR(optimizer, factor)


def rate_factor(step: int, *, warmup: int, steps: int) -> float:
    """Return the factor of the rate in a step, counted from 0: it rises, and falls as a cosine."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / (steps - warmup))


@contextmanager
def evaluated(space: Space, optimizer: Any) -> Iterator[None]:
    """Have parameters be what they are evaluated with: their means, if it is schedule-free."""
    if space.falls:
        yield
        return
    with optimizer.swapped():
        yield
