"""Formulas of schedules on NumPy scalars; `folded` selects a TensorFlow session's arithmetic.

Keras' schedules, TensorFlow 1's decays and OpenSeq2Seq's policies are names, defaults and
conversions over this table. `span` is the `decay_steps` of all three. The order of operations is
the contract. A session folds constants before it runs: see `reciprocal` and `raised`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg._base.scalars import Scalar, as_operand, cos, exp, log, power, raised, reciprocal

_SMALLEST = 1e-8  # below this no end of `inverse_polynomial` is reached


def exponential(
    rate: Scalar,
    step: Scalar,
    span: Scalar,
    decay_rate: Scalar,
    staircase: bool = False,
    folded: bool = False,
) -> Scalar:
    """Return rate * decay_rate^(step / span); `staircase` rounds the quotient down."""
    return rate * power(decay_rate, _periods(step, span, staircase, folded))


def natural_base(decay_rate: Scalar) -> Scalar:
    """Return e^-decay_rate, which is the `decay_rate` of `exponential` for a natural decay."""
    return exp(-decay_rate)


def inverse_time(
    rate: Scalar, step: Scalar, span: Scalar | int, decay_rate: Scalar, staircase: bool
) -> Scalar:
    """Return rate / (1 + decay_rate * step / span); a staircase rounds the quotient down."""
    return rate / (1 + decay_rate * _periods(step, span, staircase))


def polynomial(
    rate: Scalar,
    step: Scalar,
    span: Scalar,
    end: Scalar,
    degree: Any,
    cycle: Any = None,
    folded: bool = False,
    has_constant_rate: bool = False,
) -> Scalar:
    """Return (rate - end) * (1 - step / span)^degree + end.

    Args:
        cycle: None replaces a `step` above `span` by `span`. A number replaces `span` by its
            smallest multiple that is at least `step`. The number is `span`, rounded as TensorFlow
            rounds it for this search.
        has_constant_rate: True if `rate` is a constant of the graph; read only if `folded`.
    """
    if cycle is None:
        step = min(step, span)
    # At step 0 the multiple would be 0.
    elif step != 0:
        span = span * np.ceil(step / cycle)
    remaining = 1 - _share(step, span, folded=folded)
    if folded and has_constant_rate and degree == 3:
        # A session multiplies the constant by one of the factors of the cube.
        return (rate - end) * remaining * (remaining * remaining) + end
    return (rate - end) * (raised if folded else power)(remaining, degree) + end


def inverse_polynomial(rate: Scalar, step: Scalar, slope: Scalar, degree: float) -> Scalar:
    """Return rate / (1 + slope step)^degree, folded."""
    growth = 1 + slope * step
    # A session replaces the division by a square root with a product.
    return rate * raised(growth, -0.5) if degree == 0.5 else rate / raised(growth, degree)


def inverse_polynomial_slope(rate: float, end: float, span: float, degree: float) -> float:
    """Return the slope, a float, with which `inverse_polynomial` reaches `end` at `span`."""
    end = min(max(end, _SMALLEST), rate)
    return (math.pow(rate / end, 1.0 / degree) - 1.0) / span


def piecewise_constant(step: Scalar, boundaries: Sequence[Any], values: Sequence[Any]) -> Scalar:
    """Return the value after the last boundary below the step; the first value for NaN."""
    return values[bisect_left(boundaries, step)]


def cosine(
    rate: Scalar,
    step: Scalar,
    span: Scalar,
    alpha: Any,
    warmup: Sequence[Any] = (),
    folded: bool = False,
) -> Scalar:
    """Return rate * ((1 - alpha) * (1 + cos(pi * s)) / 2 + alpha), with s = min(step / span, 1).

    With a `warmup` of (target, steps), the rate first goes to `target` along a line, and the cosine
    starts there. Pass `alpha` unrounded, because TensorFlow rounds 1 - alpha once.
    """
    target, warmup_steps = warmup or (rate, 0)
    step = min(step, span + warmup_steps)
    if warmup and step < warmup_steps:
        return warm_up(target - rate, step, warmup_steps) + rate
    wave = 0.5 * (1 + cos(_share(step - warmup_steps, span, math.pi, folded)))
    return target * (as_operand(1 - alpha, type(rate)) * wave + as_operand(alpha, type(rate)))


def cosine_restarts(
    rate: Scalar, step: Scalar, span: Scalar, t_mul: Scalar, m_mul: Scalar, alpha: Any
) -> Scalar:
    """Return rate * ((1 - alpha) * m_mul^i * (1 + cos(pi * x)) / 2 + alpha).

    x is the finished fraction of period i, which has span * t_mul^i steps.
    """
    progress = step / span
    if t_mul == 1:
        period = np.floor(progress)
        progress = progress - period
    else:
        period = np.floor(log(1 - progress * (1 - t_mul)) / log(t_mul))
        length = power(t_mul, period)
        progress = (progress - (1 - length) / (1 - t_mul)) / length
    wave = 0.5 * power(m_mul, period) * (1 + cos(math.pi * progress))
    return rate * ((1 - alpha) * wave + alpha)


def linear_cosine(
    rate: Scalar,
    step: Scalar,
    span: Scalar,
    num_periods: Any,
    alpha: object,
    beta: object,
    noise: Any = 0,
) -> Scalar:
    """Return rate * ((alpha + 1 - s + noise) * (1 + cos(2 * pi * num_periods * s)) / 2 + beta).

    s is step / span, at most 1.
    """
    step = min(step, span)
    line = (span - step) / span + noise
    wave = 0.5 * (1 + cos(math.pi * (2 * num_periods * (step / span))))
    return rate * ((alpha + line) * wave + beta)


def noise(
    draw: Scalar, step: Scalar, span: Scalar, initial_variance: Scalar, variance_decay: Scalar
) -> Scalar:
    """Return draw * sqrt(initial_variance / (1 + step)^variance_decay), with step at most span."""
    return draw * np.sqrt(initial_variance / power(1 + min(step, span), variance_decay))


def warm_up(rate: Scalar, step: Scalar, warmup_steps: Scalar | int, folded: bool = False) -> Scalar:
    """Return rate * step / warmup_steps."""
    return _share(step, warmup_steps, rate, folded)


def transformer(
    rate: Scalar, step: Scalar, warmup_steps: Any, width: Any, coefficient: Any
) -> Scalar:
    """Return rate * coefficient * width^-0.5 * min(t * warmup_steps^-1.5, t^-0.5), t = step + 1.

    The order of operations is that of a TensorFlow session after constant folding.
    """
    # Python computes this product in float64; it is rounded once.
    scale = rate.dtype.type(coefficient * width**-0.5)
    rising = (step + 1) * raised(warmup_steps, -1.5)
    lower = np.minimum(rising, raised(step + 1, -0.5))
    if rate.dtype == np.float16:
        return scale * lower * rate
    # A session multiplies the two constants first, except in float16.
    return scale * rate * lower


def _share(step: Scalar, span: Scalar | int, factor: Any = 1, folded: bool = False) -> Scalar:
    return step * (factor * reciprocal(span)) if folded else factor * (step / span)


def _periods(step: Scalar, span: Scalar | int, staircase: bool, folded: bool = False) -> Scalar:
    periods = _share(step, span, folded=folded)
    return np.floor(periods) if staircase else periods
