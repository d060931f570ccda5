"""Adafactor with the formula of transformers and fairseq (Shazeer & Stern 2018)."""

from functools import lru_cache

from thalweg.formula import (
    FusedStage,
    Hyper,
    Measure,
    Rule,
    Slot,
    gradient_squares,
    like_update,
    maximum,
    mean_over_rows,
    moved,
    narrow,
    sqrt,
    variable_squares,
    where,
    wide,
)
from thalweg.rules.modern.common import ones
from thalweg.rules.torch.common import as_read, lesser, value_if

EPS = (1e-30, 1e-3)


def relative_rate(*, warmup_init, decay_rate, t):
    """Return the scalars of a step whose rate depends on its number."""
    count = as_read(t)
    largest = value_if(as_read(warmup_init) > 0, lambda: 1e-6 * count, 1e-2)
    return {"rate": lesser(largest, 1 / count**0.5), **square_shares(count, decay_rate)}


def given_rate(*, learning_rate, decay_rate, t):
    """Return the scalars of a step whose rate is `lr`."""
    return {"rate": as_read(learning_rate), **square_shares(as_read(t), decay_rate)}


def square_shares(count, decay_rate):
    """Return the shares of the mean square and of the newest square in the next mean square."""
    weight = count ** as_read(decay_rate)
    return {"square_share": 1 - weight, "square_weight": weight}


@like_update
def factor(
    *, row, column, exp_avg_sq_row, exp_avg_sq_col, row_count, column_count, square_share,
    square_weight, eps1,
):  # fmt: skip
    """Return the new mean squares of rows and columns, and the factors of rows and columns.

    `row` and `column` are sums of squared gradients per row and column. A step, before its rate, is
    the gradient times the factors of its row and column.
    """
    row = (row / column_count + eps1) * square_weight
    column = (column / row_count + eps1) * square_weight
    exp_avg_sq_row = exp_avg_sq_row * square_share + row
    exp_avg_sq_col = exp_avg_sq_col * square_share + column
    row = 1 / sqrt(exp_avg_sq_row / mean_over_rows(exp_avg_sq_row))
    return exp_avg_sq_row, exp_avg_sq_col, row, 1 / sqrt(exp_avg_sq_col)


@like_update
def factored_squares(var, grad, *, row, column):
    """Return a term of the sum of squares of a matrix's step before clipping."""
    step = wide(row * column * grad)
    return step * step


def scale(*, variable, length, count, rate, eps2, clip_threshold, scale_parameter, weight_decay):
    """Return {"step_scale": step's factor, "decay": rate times decay, "RMS": variable's RMS}.

    `variable` and `length` are the sums of squares of the variable's and the step's elements;
    `count` is the number of elements.
    """
    count = maximum(count, 1.0)
    rms, step_rms = sqrt(variable / count), sqrt(length / count)
    # A root that is NaN is passed over, as Python's `max` does.
    own_rate = rate * where(scale_parameter != 0, where(rms > eps2, rms, eps2), 1.0)
    step_scale = own_rate / maximum(step_rms / clip_threshold, 1.0)
    return {
        "step_scale": narrow(step_scale, like=rate),
        "decay": narrow(own_rate * weight_decay, like=rate),
        "RMS": narrow(rms, like=rate),
    }


def update(var, grad, *, row, column, step_scale, decay):
    """Return the updated matrix."""
    return moved(var - decay * var, -(step_scale * (row * column * grad)))


def update_mean(var, grad, exp_avg, *, row, column, step_scale, decay, beta1, mean_weight):
    """Return the matrix after a step along a mean of steps, and the mean."""
    exp_avg = exp_avg * beta1 + mean_weight * (step_scale * (row * column * grad))
    return moved(var - decay * var, -exp_avg), exp_avg


def whitened(grad, exp_avg_sq, square_share, square_weight, eps1):
    """Return the step of a vector before clipping, and the new mean squares."""
    square = exp_avg_sq * square_share + square_weight * (grad * grad + eps1)
    return grad / sqrt(square), square


@like_update
def vector_squares(var, grad, exp_avg_sq, *, square_share, square_weight, eps1):
    """Return a term of the sum of squares of a vector's step before clipping."""
    step, _ = whitened(grad, exp_avg_sq, square_share, square_weight, eps1)
    return wide(step) * wide(step)


def update_vector(var, grad, exp_avg_sq, *, step_scale, decay, square_share, square_weight, eps1):
    """Return the updated vector and its mean squares."""
    step, square = whitened(grad, exp_avg_sq, square_share, square_weight, eps1)
    return moved(var - decay * var, -(step_scale * step)), square


def update_vector_mean(
    var, grad, exp_avg_sq, exp_avg, *, step_scale, decay, square_share, square_weight, eps1, beta1,
    mean_weight,
):  # fmt: skip
    """Return the new var, exp_avg_sq and exp_avg of a vector; exp_avg is a mean of steps."""
    step, square = whitened(grad, exp_avg_sq, square_share, square_weight, eps1)
    exp_avg = exp_avg * beta1 + mean_weight * (step_scale * step)
    return moved(var - decay * var, -exp_avg), square, exp_avg


_PASSES = (
    Measure(gradient_squares, makes="row", over="row"),
    Measure(gradient_squares, makes="column", over="column"),
    FusedStage(factor, makes=("exp_avg_sq_row", "exp_avg_sq_col", "row", "column")),
)
_UPDATES = {
    (False, False): update, (True, False): update_mean,
    (False, True): update_vector, (True, True): update_vector_mean,
}  # fmt: skip


def _hypers(beta1, is_relative, eps1, eps2):
    """Return the `Hyper`s for these arguments of `adafactor_hf`.

    Unless `beta1` is None, they include `mean_weight`: 1 - beta1, before beta1 is rounded.
    """
    if is_relative:
        rate = Hyper("warmup_init", 0.0, "whether the rate begins at 1e-6 and grows linearly")
    else:
        rate = Hyper("learning_rate", 1e-3, "step size; torch's lr")
    mean = () if beta1 is None else (
        Hyper("beta1", beta1, "share of the mean of steps that is kept"),
        Hyper("mean_weight", 1 - beta1, "1 - beta1"),
    )  # fmt: skip
    return (
        rate, Hyper("eps1", eps1, "added to squares"),
        Hyper("eps2", eps2, "the least root of a mean square of a variable"),
        Hyper("clip_threshold", 1.0, "the largest root of a mean square of a step before its rate"),
        Hyper("decay_rate", -0.8, "the number of the step to this power is a square's weight"),
        *mean, Hyper("weight_decay", 0.0, "share of the variable that it loses, times the rate"),
        Hyper("scale_parameter", 1.0, "whether rates are relative to variables"),
    )  # fmt: skip


@lru_cache(256, typed=True)
def adafactor_hf(
    is_vector=False, beta1=None, is_relative=True, eps1=EPS[0], eps2=EPS[1], dtype=None
):  # fmt: skip
    """Return Adafactor's rule for these options.

    Args:
        is_vector: True keeps a mean square per element, for variables of fewer than two dimensions.
        beta1: Optional. The decay of the running mean of steps. None keeps no mean.
        is_relative: True derives the rate from the step's number; False uses `learning_rate`.
        eps1: Added to squares of gradients.
        eps2: Lower bound of a variable's RMS. With `scale_parameter`, the RMS multiplies the rate.
        dtype: The dtype of slots (state tensors). None means the variable's dtype.
    """
    has_mean = beta1 is not None
    squares = (Slot("exp_avg_sq", positive=True, dtype=dtype),) if is_vector else (
        Slot("exp_avg_sq_row", per="row", squeezed=True, dtype=dtype),
        Slot("exp_avg_sq_col", per="column", squeezed=True, dtype=dtype),
    )  # fmt: skip
    step_squares = vector_squares if is_vector else factored_squares
    return Rule(
        name=f"AdafactorHF{'Mean' * has_mean}{'Vector' * is_vector}",
        prepare=relative_rate if is_relative else given_rate,
        passes=() if is_vector else _PASSES,
        update=_UPDATES[has_mean, is_vector],
        measures={"variable": variable_squares, "length": step_squares, "count": ones},
        per_variable=scale,
        hypers=_hypers(beta1, is_relative, eps1, eps2),
        slots=(*squares, *((Slot("exp_avg", dtype=dtype),) * has_mean), Slot("RMS", scalar=True)),
        source="Shazeer & Stern 2018; https://arxiv.org/abs/1804.04235;"
        " transformers.optimization.Adafactor",
        differs="torch.optim.Adafactor scales by the smaller one of lr and the root of the step's"
        " number, and adds its epsilon to roots.",
    )


ADAFACTOR_HF = adafactor_hf()
