"""Adafactor of torch: a matrix has a mean square per row and per column, not per element."""

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import Any

from thalweg._base.divisors import as_divisor
from thalweg.formula import (
    FusedStage,
    Hyper,
    Measure,
    Rule,
    Slot,
    Stage,
    gradient_squares,
    like_update,
    maximum,
    mean_over_rows,
    minimum,
    moved,
    narrow,
    sqrt,
    variable_squares,
    where,
    wide,
)  # fmt: skip
from thalweg.rules.modern.common import ones
from thalweg.rules.torch.common import (
    MAXIMIZE,
    as_read,
    direction_of,
    lerp,
    lesser,
    value_if,
)  # fmt: skip

BETA2_DECAY = Hyper(
    "beta2_decay", -0.8, "the number of the step to this power is a square's weight"
)
LONGEST = Hyper("d", 1.0, "how long the mean step may be, where the rate is 1")


def prepare(*, learning_rate, beta2_decay, eps1, weight_decay, maximize, t):
    """Return {name: scalar of step t} for a parameter group."""
    rate, t = as_read(learning_rate), as_read(t)
    return {
        "direction": direction_of(maximize),
        "weight": t ** as_read(beta2_decay),
        "share": lesser(rate, 1 / t**0.5),  # of a parameter's length, for a step
        "shrink": 1 - rate * as_read(weight_decay),
        "least": as_read(eps1) ** 2,
        "most": value_if(as_read(eps1) > 0, lambda: 1 / as_read(eps1), inf),
    }


def divided(grad, square, direction, least):
    """Return the gradient divided by the root of a mean square of at least `least`."""
    return grad * direction / sqrt(maximum(square, least))


def rate_of(variable, step, count, share, d, eps2):
    """Return the factor of a variable's steps, from sums of squared elements and steps."""
    count = maximum(count, 1.0)
    length, mean = sqrt(variable / count), sqrt(step / count) / d
    # Lengths that are NaN are passed over, as Python's `max` in torch does.
    return where(length > eps2, length, eps2) * share / where(mean > 1, mean, 1.0)


@like_update
def factor(*, row, column, row_var, col_var, row_count, column_count, weight, eps1):
    """Return row and column means of squares, and the vectors whose product is the inverse root."""
    row_share = 1 / row_count
    column_share = 1 / column_count
    row_var = row_var + (row * column_share - row_var) * weight
    col_var = col_var + (column * row_share - col_var) * weight
    mean = maximum(mean_over_rows(row_var), eps1)
    return row_var, col_var, sqrt(mean / row_var), sqrt(1 / col_var)


def scaled(grad, row, column, direction, most):
    """Return the gradient times a factor of its row and column, which is at most `most`."""
    return grad * direction * minimum(row * column, most)


@like_update
def factored_squares(var, grad, *, row, column, direction, most):
    """Return a term of the sum of squares of the step."""
    step = wide(scaled(grad, row, column, direction, most))
    return step * step


def limit(*, variable, step, element_count, share, d, eps2):
    """Return the rate of each variable."""
    count, longest = (as_divisor(divisor, step) for divisor in (element_count, d))
    return {"step": rate_of(variable, step, count, share, longest, eps2)}


def update(var, grad, *, row, column, step, shrink, direction, most):
    """Return the updated variable."""
    return moved(var * shrink, -(step * scaled(grad, row, column, direction, most)))


@like_update
def vector_squares(var, grad, variance, *, weight, direction, least):
    """Return a term of the sum of squares of a vector's step."""
    step = wide(divided(grad, lerp(variance, grad * grad, weight), direction, least))
    return step * step


def per_variable(*, variable, length, count, share, d, eps2):
    """Return the rate of each vector."""
    return {"step": narrow(rate_of(variable, length, count, share, d, eps2), like=share)}


def update_vector(var, grad, variance, *, step, weight, shrink, direction, least):
    """Return the updated variable and slots of a vector, with a mean square per element."""
    variance = lerp(variance, grad * grad, weight)
    return moved(var * shrink, -(step * divided(grad, variance, direction, least))), variance


def square_of_one(row_var, col_var, grad, weight, most):
    """Return (mean square, row_var, col_var), all new, of a matrix of one element."""
    row_var = lerp(row_var, grad * grad, weight)
    col_var = lerp(col_var, grad * grad, weight)
    return minimum(row_var * most, 1.0) * col_var, row_var, col_var


@like_update
def one_squares(var, grad, row_var, col_var, *, weight, direction, least, most):
    """Return a term of the sum of squares of the step of a one-element matrix."""
    square, _, _ = square_of_one(row_var, col_var, grad, weight, most)
    step = wide(divided(grad, square, direction, least))
    return step * step


def update_one(var, grad, row_var, col_var, *, step, weight, shrink, direction, least, most):
    """Return the updated variable and slots of one-element matrices (1 x 1 convolutions)."""
    square, row_var, col_var = square_of_one(row_var, col_var, grad, weight, most)
    moves = moved(var * shrink, -(step * divided(grad, square, direction, least)))
    return moves, row_var, col_var


def _hypers(eps1, eps2):
    return (
        Hyper("learning_rate", 1e-2, "the largest share of a parameter's length; torch's lr"),
        BETA2_DECAY, Hyper("eps1", eps1, "the least root of a mean square"),
        Hyper("eps2", eps2, "the least root of a mean square of a variable"), LONGEST,
        Hyper("weight_decay", 0.0, "share of the variable, times the rate, that is taken off it"),
        MAXIMIZE,
    )  # fmt: skip


_PASSES = (
    Measure(gradient_squares, makes="row", over="row"),
    Measure(gradient_squares, makes="column", over="column"),
    Measure(variable_squares, makes="variable"),
    FusedStage(factor, makes=("row_var", "col_var", "row", "column")),
    Measure(factored_squares, makes="step"),
    Stage(limit),
)
_SLOTS = Slot("row_var", per="row"), Slot("col_var", per="column")
_MEASURES = {"variable": variable_squares, "count": ones}
# For what has fewer than two dimensions, and for matrices of one element.
_ELEMENTWISE = {
    "Vector": (update_vector, vector_squares, (Slot("variance"),)),
    "One": (update_one, one_squares, (Slot("row_var"), Slot("col_var"))),
}


def kind_of(shape: Sequence[int]) -> str:
    """Return the `kind` of `adafactor` for a parameter of this shape; "" for matrices."""
    if len(shape) < 2:
        return "Vector"
    return "One" if tuple(shape[-2:]) == (1, 1) else ""


@lru_cache(256, typed=True)
def adafactor(eps1=1.1920928955078125e-07, eps2=1e-3, kind=""):
    """Return Adafactor's rule. `kind` is "" for matrices, "Vector", or "One" for 1 x 1 matrices."""
    fields: dict[str, Any] = {"update": update, "slots": _SLOTS, "passes": _PASSES}
    if kind:
        formula, length, slots = _ELEMENTWISE[kind]
        fields = {"update": formula, "slots": slots, "per_variable": per_variable,
               "measures": {**_MEASURES, "length": length}}  # fmt: skip
    return Rule(
        name=f"TorchAdafactor{kind}",
        prepare=prepare,
        hypers=_hypers(eps1, eps2),
        source="Shazeer & Stern 2018; https://arxiv.org/abs/1804.04235; torch.optim.Adafactor",
        differs="The formula of torch.optim.Adafactor; timm's and pytorch-optimizer's are others.",
        **fields,
    )


TORCH_ADAFACTOR = adafactor()
