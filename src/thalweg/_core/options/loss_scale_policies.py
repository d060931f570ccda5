"""Policies that adapt the loss scale to the gradients of each step.

A policy is a formula of its state, the largest gradient magnitude, and the overflow flag (a
gradient is infinite or NaN). All are NumPy scalars, or tensors of shape () on a device, for which
the host does not wait.
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

# Scalars by name.
State = dict[str, Any]
# Function from state, largest magnitude and overflow flag to the changed scalars.
Policy = Callable[[State, Any, Any], State]

_SHIPPED_CEILING = 16.0


def answer(
    policy: Policy,
    variables: Mapping[str, Tensor],
    has_nan: Any,
    amax: Any,
    in_float32: bool = False,
) -> Decision:
    """Decide whether to apply a step. The `Decision` has calls that write the policy's new state.

    The step is applied unless a gradient is infinite or NaN.

    Args:
        policy: `policy(state, amax, overflow)` returns the changed scalars by name.
        variables: State of the policy by name; the calls write to these tensors.
        has_nan: True if a gradient contains NaN; a bool or a tensor of shape ().
        amax: Largest gradient magnitude: a number, or a tensor of shape () whose device evaluates
            the policy.
        in_float32: True if the policy gets `amax` rounded to float32. The policy may then see an
            overflow in a step that is applied.
    """
    is_on_device = isinstance(amax, Tensor)
    with np.errstate(all="ignore"):
        if is_on_device:
            state_tensors = state = {
                name: at(amax.device, tensor) for name, tensor in variables.items()
            }
            policy_amax = amax.float() if in_float32 else amax
        else:
            state_tensors = {name: tensor.detach() for name, tensor in variables.items()}
            state = {name: tensor.cpu().numpy()[()] for name, tensor in state_tensors.items()}
            policy_amax = np.float32(amax) if in_float32 else amax
        changes = policy(state, policy_amax, _has_overflowed(has_nan, policy_amax)).items()
        is_finite = ~_has_overflowed(has_nan, amax)
    # `fill_` with a tensor of shape () does not wait for the device.
    calls: list[Call] = [
        partial(state_tensors[name].fill_, new_value if is_on_device else new_value.item())
        for name, new_value in changes
    ]
    return Decision(is_finite if is_on_device else bool(is_finite), calls)


def _has_overflowed(has_nan: object, amax: object) -> Any:
    """Return whether the gradients contain NaN or infinity, as a bool or a tensor."""
    return has_nan | ~vectors.functions_of(amax).isfinite(amax)


def _clamp_scale(scale: object, params: Mapping[str, Tensor]) -> object:
    """Return the scale, limited to [scale_min, scale_max] in float32."""
    lowest, highest = (float(np.float32(params[name])) for name in ("scale_min", "scale_max"))
    return vectors.at_least(vectors.at_most(scale, highest), lowest)


def dynamic(
    state: State, _: object, overflow: object, *, multiplier: float, increment_period: int
) -> State:
    """Return the new scale and count of `tf.train.experimental.DynamicLossScale`, by name.

    Overflow divides the scale by `multiplier`, but not below 1. `increment_period` steps without
    overflow multiply the scale, unless the product is infinite. In both cases the count becomes 0.
    """
    scale, steps = state["current_loss_scale"], state["good_steps"]
    xp = vectors.functions_of(scale)
    # Division by a Python number would be a multiplication by its reciprocal on a GPU.
    factor = vectors.number(np.float32(multiplier), vectors.place_of(scale))
    count, higher = steps + 1, scale * factor
    is_growth_step = count >= increment_period
    grown_scale = xp.where(is_growth_step & xp.isfinite(higher), higher, scale)
    return {
        "current_loss_scale": xp.where(
            overflow, vectors.at_least(scale / factor, 1.0), grown_scale
        ),
        "good_steps": xp.where(overflow | is_growth_step, 0, count),
    }


def backoff(state: State, _: object, overflow: object, **params: Any) -> State:
    """Return the new scalars of OpenSeq2Seq's "Backoff", by name; see `BackoffScaler`."""
    scale, iteration = state["scale"], state["iteration"]
    last_overflow = state["last_overflow_iteration"]
    select, factor = vectors.functions_of(scale).where, np.float32(params["step_factor"])
    lower = _clamp_scale(scale * float(reciprocal(factor)), params)
    higher = _clamp_scale(scale * float(factor), params)
    is_window_end = (iteration - last_overflow) % params["step_window"] == 0
    return {
        "scale": select(overflow, lower, select(is_window_end, higher, scale)),
        "last_overflow_iteration": select(overflow, iteration, last_overflow),
        "iteration": iteration + 1,
    }


def log_max(state: State, amax: object, overflow: Any, *, as_shipped: bool, **params: Any) -> State:
    """Return the new scalars of OpenSeq2Seq's "LogMax", by name; see `LogMaxScaler`.

    `as_shipped` reproduces three defects of OpenSeq2Seq. The logarithm's limit is 16, not
    `log_max`. An overflow is averaged as 2**log_max. Gradients of 0 change the averages.
    """
    # The order of operations is that of a session, whose graph optimizer moves constants.
    xp, highest = vectors.functions_of(amax), np.float32(params["log_max"])
    ceiling = _SHIPPED_CEILING if as_shipped else float(highest)
    if as_shipped:
        highest = power(np.float32(2), highest)
    x = vectors.log(amax) * float(reciprocal(log(np.float32(2))))
    x = xp.where(overflow, float(highest), x)
    beta1, beta2 = (float(np.float32(params[name])) for name in ("beta1", "beta2"))
    one_minus_beta1, one_minus_beta2 = (
        float(np.float32(1 - params[name])) for name in ("beta1", "beta2")
    )
    new_state = {
        "x_hat": beta1 * state["x_hat"] + one_minus_beta1 * x,
        "slow_x_hat": beta2 * state["slow_x_hat"] + one_minus_beta2 * x,
        "xsquared_hat": beta2 * state["xsquared_hat"] + one_minus_beta2 * x * x,
        "b1_correction": state["b1_correction"] * beta1,
        "b2_correction": state["b2_correction"] * beta2,
    }
    mean = new_state["x_hat"] / (1 - new_state["b1_correction"])
    slow_mean = new_state["slow_x_hat"] / (1 - new_state["b2_correction"])
    square = new_state["xsquared_hat"] / (1 - new_state["b2_correction"])
    deviation = xp.sqrt(vectors.at_least(square - slow_mean * slow_mean, 0.0))
    headroom = ceiling - mean - deviation * float(np.float32(params["overflow_std_dev"]))
    new_state["scale"] = _clamp_scale(vectors.power(2.0, headroom), params)
    if not as_shipped:
        is_idle = (amax == 0) & ~overflow
        new_state = {
            name: xp.where(is_idle, state[name], new_value) for name, new_value in new_state.items()
        }
    return {**new_state, "iteration": state["iteration"] + 1}
