"""Learning rates that decay with the global step: TensorFlow 1's `*_decay` functions.

In eager mode each function returns a callable for an optimizer's learning rate. Each call reads the
global step. In graph mode each function returns a tensor. Values equal the schedules of
`thalweg.keras.optimizers.schedules` with corresponding names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from thalweg import schedules
from thalweg._base.execution_context import is_deferred
from thalweg._base.scalars import as_scalar, scalar_type
from thalweg._graph import Output, operation
from thalweg.errors import InvalidTypeError
from thalweg.schedules.base import kind_of
from thalweg.schedules.formulas import natural_base
from thalweg.v1.train.callable_rate import CallableRate, remember_source
from thalweg.variable import as_dtype, dtype_name

__all__ = [
    "cosine_decay", "cosine_decay_restarts", "exponential_decay", "inverse_time_decay",
    "linear_cosine_decay", "natural_exp_decay", "noisy_linear_cosine_decay", "piecewise_constant",
    "piecewise_constant_decay", "polynomial_decay",
]  # fmt: skip


@remember_source
def exponential_decay(
    learning_rate: object,
    global_step: object,
    decay_steps: object,
    decay_rate: object,
    staircase: bool = False,
    name: str | None = None,
) -> Any:
    """Return the rate learning_rate decay_rate^(global_step / decay_steps).

    Args:
        learning_rate: A float or 0-d tensor; sets the dtype of the result.
        global_step: The variable that counts steps, or a number.
        decay_steps: Number of steps in which the rate is multiplied by `decay_rate`.
        decay_rate: The factor.
        staircase: True to round global_step / decay_steps down to an integer.
        name: Name of the tensor in graph mode.

    Returns:
        A callable without arguments (eager) or a tensor (graph).

    Raises:
        ValueError: `global_step` is None.

    Reference: tf.compat.v1.train.exponential_decay
    """
    inputs = (learning_rate, decay_steps, decay_rate, staircase)
    return _make_rate(schedules.ExponentialDecay, global_step, inputs, name)


@remember_source
def natural_exp_decay(
    learning_rate: object,
    global_step: object,
    decay_steps: object,
    decay_rate: object,
    staircase: bool = False,
    name: str | None = None,
) -> Any:
    """Return the rate learning_rate exp(-decay_rate)^(global_step / decay_steps).

    See `exponential_decay` for arguments, result and errors.

    Reference: tf.compat.v1.train.natural_exp_decay
    """
    inputs = (learning_rate, decay_steps, decay_rate, staircase)
    return _make_rate(_natural_exp_decay, global_step, inputs, name or "NaturalExpDecay")


@remember_source
def inverse_time_decay(
    learning_rate: object,
    global_step: object,
    decay_steps: object,
    decay_rate: object,
    staircase: bool = False,
    name: str | None = None,
) -> Any:
    """Return the rate learning_rate / (1 + decay_rate global_step / decay_steps).

    See `exponential_decay` for arguments, result and errors.

    Reference: tf.compat.v1.train.inverse_time_decay
    """
    inputs = (learning_rate, decay_steps, decay_rate, staircase)
    return _make_rate(schedules.InverseTimeDecay, global_step, inputs, name)


@remember_source
def polynomial_decay(
    learning_rate: object,
    global_step: object,
    decay_steps: object,
    end_learning_rate: object = 0.0001,
    power: object = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> Any:
    """Return a rate that falls from learning_rate to end = end_learning_rate along a polynomial.

        end + (learning_rate - end) (1 - global_step / decay_steps)^power

    Args:
        learning_rate, global_step, name: As in `exponential_decay`.
        decay_steps: Number of steps until `end_learning_rate` is reached.
        end_learning_rate: The final learning rate.
        power: The exponent; 1 is a line.
        cycle: False keeps the final rate after `decay_steps`. True replaces `decay_steps` in the
            formula by its smallest multiple that is at least `global_step`.

    Returns:
        A callable without arguments (eager) or a tensor (graph).

    Reference: tf.compat.v1.train.polynomial_decay
    """
    inputs = (learning_rate, decay_steps, end_learning_rate, power, cycle)
    return _make_rate(schedules.PolynomialDecay, global_step, inputs, name)


@remember_source
def cosine_decay(
    learning_rate: object,
    global_step: object,
    decay_steps: object,
    alpha: object = 0.0,
    name: str | None = None,
) -> Any:
    """Return a rate that falls from learning_rate to alpha learning_rate along half a cosine.

    See `exponential_decay` for other arguments, result and errors.

    Args:
        decay_steps: Number of steps until the end is reached.
        alpha: Final rate as a fraction of `learning_rate`.

    Reference: tf.compat.v1.train.cosine_decay; Loshchilov & Hutter 2017
    """
    inputs = (learning_rate, decay_steps, alpha)
    return _make_rate(schedules.CosineDecay, global_step, inputs, name)


@remember_source
def cosine_decay_restarts(
    learning_rate: object,
    global_step: object,
    first_decay_steps: object,
    t_mul: object = 2.0,
    m_mul: object = 1.0,
    alpha: object = 0.0,
    name: str | None = None,
) -> Any:
    """Return a rate that falls along half a cosine in each period and then restarts.

    See `exponential_decay` for other arguments, result and errors.

    Args:
        first_decay_steps: Length of the first period.
        t_mul: Factor of a period's length relative to the previous period.
        m_mul: Factor of a period's initial rate relative to the previous period.
        alpha: Rate at the end of each period, as a fraction of `learning_rate`.

    Reference: tf.compat.v1.train.cosine_decay_restarts; Loshchilov & Hutter 2017
    """
    inputs = (learning_rate, first_decay_steps, t_mul, m_mul, alpha)
    return _make_rate(schedules.CosineDecayRestarts, global_step, inputs, name or "SGDRDecay")


@remember_source
def linear_cosine_decay(
    learning_rate: object,
    global_step: object,
    decay_steps: object,
    num_periods: object = 0.5,
    alpha: object = 0.0,
    beta: object = 0.001,
    name: str | None = None,
) -> Any:
    """Return a rate that is the product of a linear decay and a cosine.

        s = global_step / decay_steps, at most 1
        learning_rate ((alpha + 1 - s) (1 + cos(2 pi num_periods s)) / 2 + beta)

    See `exponential_decay` for other arguments, result and errors.

    Args:
        decay_steps: Number of steps until s reaches 1.
        num_periods: Periods of the cosine.
        alpha: Added to the linear part.
        beta: Added to the product.

    Reference: tf.compat.v1.train.linear_cosine_decay; Bello et al. 2017
    """
    inputs = (learning_rate, decay_steps, num_periods, alpha, beta)
    return _make_rate(schedules.LinearCosineDecay, global_step, inputs, name)


@remember_source
def noisy_linear_cosine_decay(
    learning_rate: object,
    global_step: object,
    decay_steps: object,
    initial_variance: object = 1.0,
    variance_decay: object = 0.55,
    num_periods: object = 0.5,
    alpha: object = 0.0,
    beta: object = 0.001,
    name: str | None = None,
) -> Any:
    """Return a rate as `linear_cosine_decay` does, with noise added to the linear part.

    See `linear_cosine_decay` for other arguments, result and errors.

    Args:
        initial_variance: Variance of the noise at step 0.
        variance_decay: The variance is divided by (1 + global_step)^variance_decay.

    Each returned rate has its own random generator, and each call draws a number.
    `thalweg.checkpoint` saves the generator of an eager rate.

    Reference: tf.compat.v1.train.noisy_linear_cosine_decay; Bello et al. 2017
    """
    noise = (initial_variance, variance_decay)
    inputs = (learning_rate, decay_steps, *noise, num_periods, alpha, beta)
    # Its state is the random generator, which checkpoints save and restore.
    keeper = schedules.NoisyLinearCosineDecay(0.0, 0)

    def draw_config(*own: Any) -> Any:
        return keeper.having(schedules.NoisyLinearCosineDecay(*own).get_config())

    rate = _make_rate(draw_config, global_step, inputs, name or "NoisyLinearCosineDecay")
    if isinstance(rate, CallableRate):
        rate.state_holders = [keeper]
        # Loading a state gives `keeper` another sequence.
        config = cache(lambda: schedules.NoisyLinearCosineDecay(*inputs).get_config())  # pyright: ignore
        rate.follow(global_step, lambda step: keeper.having(config()).formula(step))
    return rate


@remember_source
def piecewise_constant(
    x: object, boundaries: Sequence[Any], values: Sequence[Any], name: str | None = None
) -> Any:
    """Return a rate that is values[0] up to x = boundaries[0], then values[1], and so on.

    Args:
        x: The variable that counts steps, or a number.
        boundaries: Ascending numbers of x's dtype; int32 is accepted for int64.
        values: Rates of one dtype; one more than boundaries.
        name: Name of the tensor in graph mode.

    Returns:
        A callable without arguments (eager) or a tensor (graph).

    Raises:
        ValueError: Dtypes of boundaries and x differ, dtypes of values differ, or the number of
            values is wrong.

    Reference: tf.compat.v1.train.piecewise_constant
    """
    schedule = schedules.PiecewiseConstantDecay(list(boundaries), list(values))
    step_kind = _name_dtype(x)
    for boundary in boundaries:
        kind = _name_dtype(boundary)
        if kind != step_kind and (kind, step_kind) != ("int32", "int64"):
            raise InvalidTypeError(
                f"Boundaries ({kind}) must have the same dtype as x ({step_kind})."
            )
    kinds = {_name_dtype(rate) for rate in values}
    if len(kinds) > 1:
        raise ValueError(f"Values must have elements all with the same dtype: {sorted(kinds)}.")
    dtype = as_dtype(kind_of(values))
    return follow_rate(schedule, (x,), dtype, name or "PiecewiseConstant", schedule.formula)


piecewise_constant_decay = piecewise_constant


def follow_rate(
    rate: Callable[..., Tensor],
    inputs: Sequence[object],
    dtype: torch.dtype,
    name: str,
    rate_at: Callable[[int], Any] | None = None,
) -> Any:
    """Return a learning rate computed by `rate(*inputs)`.

    Args:
        rate: `rate(*inputs)` returns a 0-d tensor of `dtype`.
        inputs: The global step, then further numbers or tensors, which may be symbolic.
        dtype, name: Dtype and name of the tensor in graph mode.
        rate_at: Optional. `rate_at(step)` returns the rate at an int `step` as a NumPy scalar.

    Returns:
        A `CallableRate`, which reads `inputs` at each call. If an input is symbolic, or a graph is
        built, a symbolic tensor.

    Raises:
        ValueError: `inputs[0]`, the global step, is None.
    """
    if inputs[0] is None:
        raise ValueError(f"global_step is required for {name}: the variable that counts steps.")
    if not is_deferred(*inputs):
        callable_rate = CallableRate(lambda: rate(*inputs), name)
        if rate_at is not None:
            callable_rate.follow(inputs[0], rate_at)
        return callable_rate
    return operation(rate, inputs, name, kind="pure", outputs=Output(dtype, (), ()))


def _make_rate(
    schedule: Callable[..., Any], global_step: Any, arguments: Sequence[Any], name: str | None
) -> object:
    """Return a learning rate computed by a schedule of `thalweg.schedules`.

    Raise ValueError if `global_step` is None.

    Args:
        schedule: `schedule(*arguments)` returns the schedule.
        global_step: The variable, tensor or number of the step.
        arguments: Arguments of `schedule`, the initial rate first. A float64 initial rate gives
            float64 rates; other initial rates give float32.
        name: The name of the rate or tensor; the default is the name of `schedule`.

    Returns:
        In eager mode, a `CallableRate`, which reads `global_step` at each call. In graph mode, a
        symbolic tensor.
    """
    dtype = as_dtype(kind_of(arguments[:1]))
    # Built once for the formula, which `remember_source` removes if arguments are not constants.
    build_schedule = cache(lambda: schedule(*arguments))
    return follow_rate(
        lambda step, *own: schedule(*own)(step),
        (global_step, *arguments),
        dtype,
        name or schedule.__name__,
        lambda step: build_schedule().formula(step),
    )


def _natural_exp_decay(rate: Any, steps: Any, decay_rate: Any, staircase: bool) -> object:
    base = natural_base(as_scalar(decay_rate, scalar_type(decay_rate)))
    return schedules.ExponentialDecay(rate, steps, base, staircase)


def _name_dtype(tensor: object) -> str:
    dtype = getattr(tensor, "dtype", None)
    if dtype is None:
        return "float32" if isinstance(tensor, float) else "int32"
    return dtype_name(dtype)
