"""Loss scales that answer to the gradients of each step: three policies, moved by one function.

A policy is a formula of the state, the largest magnitude in the gradients, and whether one of them
is infinite or NaN: scalars of NumPy, or tensors of shape () of a device, which nobody waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from thalweg._base.device_counters import at
from thalweg._base.scalars import log, power, reciprocal
from thalweg._core import vectors
from thalweg._core.atomic_section import Call
from thalweg._core.gradient_transforms import Decision

State = dict[str, Any]  # scalars by name
Policy = Callable[[State, Any, Any], State]  # gives what changes

_SHIPPED_CEILING = 16.0


def answer(
    policy: Policy, variables: Mapping[str, Tensor], has_nan: Any, amax: Any, narrow: bool = False
) -> Decision:
    """Whether a step with these gradients is taken, and what writes the state in either case.

    Args:
        policy: The policy.
        variables: The state. A device that gives `amax` keeps it from now on.
        has_nan: Whether a gradient holds a NaN, a bool or a tensor of one.
        amax: The largest magnitude, a number or a tensor of one.
        narrow: Whether the policy sees it in float32, where it may be infinite in a step that is
            taken.
    """
    is_there = isinstance(amax, Tensor)
    with np.errstate(all="ignore"):
        if is_there:
            own = state = {name: at(amax.device, each) for name, each in variables.items()}
            seen = amax.float() if narrow else amax
        else:
            own = {name: each.detach() for name, each in variables.items()}
            state = {name: each.cpu().numpy()[()] for name, each in own.items()}
            seen = np.float32(amax) if narrow else amax
        moved = policy(state, seen, _overflows(has_nan, seen)).items()
        taken = ~_overflows(has_nan, amax)
    calls: list[Call] = [
        partial(own[name].fill_, value if is_there else value.item()) for name, value in moved
    ]
    return Decision(taken if is_there else bool(taken), calls)


def _overflows(has_nan: object, amax: object) -> Any:
    return has_nan | ~vectors.functions_of(amax).isfinite(amax)


def _clamp_scale(scale: object, params: Mapping[str, Tensor]) -> object:
    lowest, highest = (float(np.float32(params[name])) for name in ("scale_min", "scale_max"))
    return vectors.at_least(vectors.at_most(scale, highest), lowest)


def dynamic(
    state: State, _: object, overflow: object, *, multiplier: float, increment_period: int
) -> State:
    """`tf.train.experimental.DynamicLossScale`: at least 1, and finite.

    The scale is divided on overflow, and multiplied after `increment_period` steps without.
    """
    scale, steps = state["current_loss_scale"], state["good_steps"]
    of = vectors.functions_of(scale)
    # A GPU would multiply by the reciprocal of a number.
    factor = vectors.number(np.float32(multiplier), vectors.place_of(scale))
    count, higher = steps + 1, scale * factor
    is_due = count >= increment_period
    grown = of.where(is_due & of.isfinite(higher), higher, scale)
    return {
        "current_loss_scale": of.where(overflow, vectors.at_least(scale / factor, 1.0), grown),
        "good_steps": of.where(overflow | is_due, 0, count),
    }


def backoff(state: State, _: object, overflow: object, **params: Any) -> State:
    """OpenSeq2Seq's "Backoff": see `BackoffScaler` there, also for the parameters."""
    scale, iteration = state["scale"], state["iteration"]
    last = state["last_overflow_iteration"]
    where, factor = vectors.functions_of(scale).where, np.float32(params["step_factor"])
    lower = _clamp_scale(scale * float(reciprocal(factor)), params)
    higher = _clamp_scale(scale * float(factor), params)
    is_due = (iteration - last) % params["step_window"] == 0
    return {
        "scale": where(overflow, lower, where(is_due, higher, scale)),
        "last_overflow_iteration": where(overflow, iteration, last),
        "iteration": iteration + 1,
    }


def log_max(state: State, amax: object, overflow: Any, *, as_shipped: bool, **params: Any) -> State:
    """OpenSeq2Seq's "LogMax": see `LogMaxScaler` there, also for the parameters.

    The order of operations is that of a session, whose optimizer of graphs moves constants.
    """
    of, highest = vectors.functions_of(amax), np.float32(params["log_max"])
    ceiling = _SHIPPED_CEILING if as_shipped else float(highest)
    if as_shipped:
        highest = power(np.float32(2), highest)
    x = vectors.log(amax) * float(reciprocal(log(np.float32(2))))
    x = of.where(overflow, float(highest), x)
    beta1, beta2 = (float(np.float32(params[name])) for name in ("beta1", "beta2"))
    rest1, rest2 = (float(np.float32(1 - params[name])) for name in ("beta1", "beta2"))
    found = {
        "x_hat": beta1 * state["x_hat"] + rest1 * x,
        "slow_x_hat": beta2 * state["slow_x_hat"] + rest2 * x,
        "xsquared_hat": beta2 * state["xsquared_hat"] + rest2 * x * x,
        "b1_correction": state["b1_correction"] * beta1,
        "b2_correction": state["b2_correction"] * beta2,
    }
    mean = found["x_hat"] / (1 - found["b1_correction"])
    slow_mean = found["slow_x_hat"] / (1 - found["b2_correction"])
    square = found["xsquared_hat"] / (1 - found["b2_correction"])
    deviation = of.sqrt(vectors.at_least(square - slow_mean * slow_mean, 0.0))
    room = ceiling - mean - deviation * float(np.float32(params["overflow_std_dev"]))
    found["scale"] = _clamp_scale(vectors.power(2.0, room), params)
    if not as_shipped:
        is_idle = (amax == 0) & ~overflow
        found = {name: of.where(is_idle, state[name], each) for name, each in found.items()}
    return {**found, "iteration": state["iteration"] + 1}
