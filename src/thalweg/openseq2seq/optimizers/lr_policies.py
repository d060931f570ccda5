"""OpenSeq2Seq's learning-rate policies.

The first argument of a policy is the global step, the variable that counts updates. In eager mode,
a policy returns a callable without arguments, for the learning rate of an optimizer. A call reads
the global step. In graph mode, a policy returns a tensor. `fixed_lr` always returns the number.
Arithmetic is in the dtype of the learning rate: float32 for a Python float, float64 for
`numpy.float64`. The last bits are equal to a session's, by the `folded` formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.device_counters import number_of
from thalweg._base.scalars import Scalar, ScalarType, as_scalar, is_floating, scalar_type
from thalweg._base.showing import show_value
from thalweg._graph import is_symbolic
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.schedules import formulas
from thalweg.v1 import train
from thalweg.v1.train.callable_rate import remember_source
from thalweg.v1.train.decay import follow_rate
from thalweg.variable import as_dtype, check_held, dtype_name

__all__ = [
    "cosine_decay", "exp_decay", "fixed_lr", "inv_poly_decay", "piecewise_constant", "poly_decay",
    "transformer_policy",
]  # fmt: skip

__dir__ = __all__.copy

_DTYPES = {"float16": np.float16, "float32": np.float32, "float64": np.float64}


@remember_source
def fixed_lr(global_step: object, learning_rate: object) -> Any:
    """Return `learning_rate` unchanged, at every step.

    Args:
        global_step: Ignored.
        learning_rate: Any learning rate that an optimizer accepts.
    """
    return learning_rate


@remember_source
def piecewise_constant(
    global_step: object,
    learning_rate: float,
    boundaries: Sequence[int],
    decay_rates: list[float],
    steps_per_epoch: int | None = None,
) -> Any:
    """Return `learning_rate` times `decay_rates[i]` after step `boundaries[i]`, until the next one.

    Decay rates are not multiplied with each other. At a boundary the previous rate still applies.

    Args:
        global_step: The variable that counts updates, or an integer.
        learning_rate: The first learning rate.
        boundaries: Ascending integers, at least one.
        decay_rates: A list, as long as `boundaries`.
        steps_per_epoch: Optional. Boundaries are then epochs of `steps_per_epoch` steps.

    Returns:
        A callable without arguments (eager) or a tensor (graph).

    Raises:
        TypeError: `decay_rates` is not a list.
        ValueError: The lengths differ, a boundary is not an integer, or boundaries descend.
        IndexError: There are no boundaries.

    Differs from:
        OpenSeq2Seq raises for descending boundaries only in a run.
    """
    if not isinstance(decay_rates, list):
        raise InvalidTypeError(f"decay_rates must be a list, not {show_value(decay_rates)}.")
    if not len(boundaries):
        raise InvalidArgumentError("boundaries is empty; fixed_lr does not change.")
    if steps_per_epoch is not None:
        boundaries = [steps_per_epoch * epoch for epoch in boundaries]
    if isinstance(learning_rate, Tensor):
        check_held(learning_rate, "learning_rate")
    values = [learning_rate * rate for rate in (1.0, *decay_rates)]
    return train.piecewise_constant(global_step, boundaries, values)


@remember_source
def exp_decay(
    global_step: object,
    learning_rate: float,
    decay_steps: int,
    decay_rate: float,
    use_staircase_decay: bool,
    begin_decay_at: int = 0,
    min_lr: float = 0.0,
) -> Any:
    """Decay a learning rate exponentially after `begin_decay_at`, but not below `min_lr`.

        learning_rate decay_rate^((global_step - begin_decay_at) / decay_steps)

    Args:
        global_step: The variable that counts updates, or an integer.
        learning_rate: The first learning rate.
        decay_steps: Steps for one factor of `decay_rate`.
        decay_rate: The factor.
        use_staircase_decay: True to round the exponent down to an integer.
        begin_decay_at: The last step with the first learning rate.
        min_lr: The lowest learning rate, also before `begin_decay_at`.

    Returns:
        A callable without arguments (eager) or a tensor (graph).

    Raises:
        TypeError: `learning_rate` is not a float.

    Example:
        >>> exp_decay(15, 1.0, 10, 0.5, use_staircase_decay=True)()
        tensor(0.5000)
    """

    def decay(rate: Scalar, step: Scalar, dtype: ScalarType) -> Scalar:
        terms = (dtype(decay_steps), as_scalar(decay_rate, dtype), use_staircase_decay)
        return formulas.exponential(rate, step, *terms, folded=True)

    rate_at = _build_warm_up(learning_rate, decay, begin_decay_at, lowest=min_lr)
    return _follow_formula("exp_decay", global_step, rate_at, _find_rate_dtype(learning_rate))


@remember_source
def poly_decay(
    global_step: object,
    learning_rate: float,
    decay_steps: int,
    power: float = 1.0,
    begin_decay_at: int = 0,
    min_lr: float = 0.0,
    warmup_steps: int = 0,
) -> Any:
    """Decay a learning rate to `min_lr` along a polynomial, after a linear warm-up.

        base = learning_rate global_step / warmup_steps, learning_rate from warmup_steps on
        p = min(global_step - begin_decay_at, decay_steps) / decay_steps
        base up to begin_decay_at, then (base - min_lr) (1 - p)^power + min_lr

    The warm-up starts at 0. If it ends after `begin_decay_at`, the decay begins while `base` rises.

    Args:
        global_step: The variable that counts updates, or an integer.
        learning_rate: The learning rate after the warm-up.
        decay_steps: Steps, from `begin_decay_at` on, until `min_lr` is reached and kept.
        power: The exponent; 1 decays linearly.
        begin_decay_at: The last step without decay.
        min_lr: The last learning rate; it may exceed `learning_rate`.
        warmup_steps: Steps of the warm-up; 0 for none.

    Returns:
        A callable without arguments (eager) or a tensor (graph).

    Raises:
        TypeError: `learning_rate` is not a float.

    Example:
        >>> rate = [poly_decay(s, 1.0, 10, begin_decay_at=4, warmup_steps=4) for s in (1, 4, 9)]
        >>> rate[0](), rate[1](), rate[2]()
        (tensor(0.2500), tensor(1.), tensor(0.5000))
    """

    def decay(rate: Scalar, step: Scalar, dtype: ScalarType) -> Scalar:
        return formulas.polynomial(
            rate,
            step,
            dtype(decay_steps),
            as_scalar(min_lr, dtype),
            power,
            folded=True,
            has_constant_rate=warmup_steps <= 0,
        )

    rate_at = _build_warm_up(learning_rate, decay, begin_decay_at, warmup_steps)
    return _follow_formula("poly_decay", global_step, rate_at, _find_rate_dtype(learning_rate))


@remember_source
def cosine_decay(
    global_step: object,
    learning_rate: float,
    decay_steps: int,
    power: float = 1.0,
    begin_decay_at: int = 0,
    min_lr: float = 0.0,
    warmup_steps: int = 0,
) -> Any:
    """Decay a rate to `min_lr * learning_rate` along half a cosine, after a linear warm-up.

        base and p as in `poly_decay`
        base up to begin_decay_at, then base ((1 - min_lr) (1 + cos(pi p)) / 2 + min_lr)

    Args:
        global_step, learning_rate, decay_steps, begin_decay_at, warmup_steps: As in `poly_decay`.
        power: Ignored.
        min_lr: The last learning rate divided by `learning_rate`, unlike in `poly_decay`.

    Returns:
        A callable without arguments (eager) or a tensor (graph).

    Raises:
        TypeError: `learning_rate` is not a float.
    """

    def decay(rate: Scalar, step: Scalar, dtype: ScalarType) -> Scalar:
        return formulas.cosine(rate, step, dtype(decay_steps), min_lr, folded=True)

    rate_at = _build_warm_up(learning_rate, decay, begin_decay_at, warmup_steps)
    return _follow_formula("cosine_decay", global_step, rate_at, _find_rate_dtype(learning_rate))


@remember_source
def transformer_policy(
    global_step: object,
    learning_rate: float,
    d_model: int,
    warmup_steps: int,
    max_lr: float | None = None,
    coefficient: float = 1.0,
    dtype: object = torch.float32,
) -> Any:
    """Return the Transformer's rate ("noam"): a linear warm-up, then an inverse square root.

        t = global_step + 1
        learning_rate coefficient d_model^-0.5 min(t warmup_steps^-1.5, t^-0.5), at most max_lr

    Args:
        global_step: The variable that counts updates, or an integer.
        learning_rate: A factor of the rate.
        d_model: The width of the model.
        warmup_steps: Steps of the warm-up; 0 for none.
        max_lr: Optional. The highest learning rate.
        coefficient: A further factor; OpenSeq2Seq recommends 0.002 with Adam.
        dtype: The dtype of the computation: float16, float32 or float64.

    Returns:
        A callable without arguments (eager) or a tensor (graph).

    Raises:
        TypeError: `dtype` has another value.

    Reference: https://arxiv.org/abs/1706.03762
    """
    name = dtype_name(as_dtype(dtype))
    if name not in _DTYPES:
        raise InvalidTypeError(f"dtype must be one of {', '.join(_DTYPES)}, not {name}.")
    kind = _DTYPES[name]

    def at(step: object) -> Any:
        terms = (kind(learning_rate), kind(step), kind(warmup_steps), d_model, coefficient)
        rate = formulas.transformer(*terms)
        return rate if max_lr is None else np.minimum(kind(max_lr), rate)

    return _follow_formula("transformer_policy", global_step, at, kind)


@remember_source
def inv_poly_decay(
    global_step: object,
    learning_rate: float,
    decay_steps: int,
    min_lr: float,
    power: float = 1.0,
    begin_decay_at: int = 0,
    warmup_steps: int = 0,
    name: str = "learning_rate",
    *,
    as_shipped: bool = False,
) -> Any:
    """Decay a learning rate by an inverse polynomial, to `min_lr` after `decay_steps` steps.

        t = max(global_step - begin_decay_at, 0)
        learning_rate / (1 + c t)^power, with c such that t = decay_steps gives min_lr

    After that the rate falls below `min_lr`.

    Args:
        global_step: The variable that counts updates, or an integer.
        learning_rate: The first learning rate.
        decay_steps: Steps, from `begin_decay_at` on, until `min_lr` is reached.
        min_lr: The rate after `decay_steps` steps, clamped to the range from 1e-8 to
            `learning_rate`.
        power: The exponent, above 0.
        begin_decay_at: The last step without decay.
        warmup_steps: Ignored.
        name: Name of the tensor in graph mode.
        as_shipped: True to ignore `begin_decay_at`, too, as in OpenSeq2Seq.

    Returns:
        A callable without arguments (eager) or a tensor (graph).

    Raises:
        ValueError: `power` is not above 0, or there is no global step.
        TypeError: `learning_rate` is not a float.
        ZeroDivisionError: `decay_steps` or `learning_rate` is 0.
        OverflowError: `power` is so small that c is infinite.
    """
    dtype = _find_rate_dtype(learning_rate)
    if not power > 0:
        raise InvalidArgumentError(f"inv_poly_decay requires a power above 0, not {power}.")
    slope = formulas.inverse_polynomial_slope(float(learning_rate), min_lr, decay_steps, power)
    begin = 0 if as_shipped else begin_decay_at

    def at(step: Any) -> Any:
        count = as_scalar(step - begin if step > begin else 0, dtype)
        rate = as_scalar(learning_rate, dtype)
        return formulas.inverse_polynomial(rate, count, dtype(slope), power)

    return _follow_formula(name, global_step, at, dtype)


def _build_warm_up(
    learning_rate: Any,
    decay: Callable[[Any, Any, ScalarType], Any],
    begin_decay_at: int,
    warmup_steps: int = 0,
    lowest: float = -math.inf,
) -> Callable[[Any], Any]:
    """Return a function `rate(step)`: a linear warm-up to `learning_rate`, and a decay.

    From `begin_decay_at` on, `rate` returns `decay(rate, step - begin_decay_at, dtype)` in place of
    the constant or still rising rate. It returns NumPy scalars of at least `lowest`.
    """
    dtype = _find_rate_dtype(learning_rate)

    def at(step: Any) -> Any:
        rate = as_scalar(learning_rate, dtype)
        if warmup_steps > 0 and step < warmup_steps:
            count = as_scalar(step, dtype)
            rate = formulas.warm_up(rate, count, dtype(warmup_steps), folded=True)
        if not step < begin_decay_at:
            rate = decay(rate, as_scalar(step - begin_decay_at, dtype), dtype)
        return np.maximum(as_scalar(lowest, dtype), rate)

    return at


def _follow_formula(
    name: str, global_step: object, formula: Callable[[Any], object], dtype: type[np.floating[Any]]
) -> object:
    """Return the result of a policy: a callable without arguments; in graph mode a tensor.

    `formula(step)` returns the rate as a NumPy scalar of type `dtype`. `name` is the policy's name.
    """
    rate_dtype = as_dtype(dtype)

    def rate(step: object) -> Tensor:
        count = number_of(step) if isinstance(step, Tensor) else step
        with np.errstate(all="ignore"):
            return torch.tensor(formula(count), dtype=rate_dtype, device="cpu")

    return follow_rate(rate, (global_step,), rate_dtype, name, formula)


def _find_rate_dtype(learning_rate: object) -> ScalarType:
    if is_symbolic(learning_rate) or not is_floating(learning_rate):
        raise InvalidTypeError(
            "learning_rate must be a float, or a float32 or float64 scalar, not"
            f" {show_value(learning_rate)}. The policy computes in its dtype."
        )
    return scalar_type(learning_rate)
