"""Adafactor of torch: mean squares of a matrix kept as those of its rows and its columns."""

from functools import lru_cache
from typing import Any

from thalweg.formula import (
    Hyper,
    Measure,
    Rule,
    Slot,
    Stage,
    gradient_squares,
    like_update,
    maximum,
    moved,
    narrow,
    sqrt,
    variable_squares,
    where,
    wide,
)  # fmt: skip
from thalweg.rules.modern.arithmetic import ones
from thalweg.rules.torch.arithmetic import (
    MAXIMIZE,
    as_read,
    direction_of,
    lerp,
    lesser,
)  # fmt: skip

BETA2_DECAY = Hyper(
    "beta2_decay", -0.8, "the number of the step to this power is a square's weight"
)
_PIECE = 1 << 14  # rows or columns that are computed at once
_FEW = 3  # of which torch adds up one after the other
LONGEST = Hyper("d", 1.0, "how long the mean step may be, where the rate is 1")


def prepare(*, learning_rate, beta2_decay, eps1, weight_decay, maximize, t):
    """Once for each group of parameters and number of a step."""
    rate, t = as_read(learning_rate), as_read(t)
    return {
        "direction": direction_of(maximize),
        "weight": t ** as_read(beta2_decay),
        "share": lesser(rate, 1 / t**0.5),  # of a parameter's length, for a step
        "shrink": 1 - rate * as_read(weight_decay),
        "least": as_read(eps1) ** 2,
    }


def divided(grad, square, direction, least):
    """What a step is made of."""
    return grad * direction / sqrt(maximum(square, least))


def rate_of(variable, step, count, share, d, eps2):
    """What steps of so long a variable are multiplied by; in NumPy's or torch's functions."""
    count = maximum(count, 1.0)
    own, mean = (variable / count) ** 0.5, (step / count) ** 0.5 / d
    # Lengths that are NaN are passed over, as Python's `max` in torch does.
    return where(own > eps2, own, eps2) * share / where(mean > 1, mean, 1.0)


def factor(*, row, column, row_var, col_var, weight, eps1):
    """Means of squares, and what their product is the mean square of an element of."""
    # Of small matrices there are as many rows as elements: a cache holds those of a piece, and sums
    # become means where they are, as new memory costs more than arithmetic.
    share = row.new_empty(row.shape)
    size = max(1, _PIECE // max(row.shape[-2], column.shape[-1]))
    for first in range(0, row.shape[1], size):
        sums, shares, before, sums_down, before_down = (
            each[:, first : first + size] for each in (row, share, row_var, column, col_var)
        )
        sums.div_(column.shape[-1]).sub_(before).mul_(weight).add_(before)
        shares.copy_(sums).div_(mean_of_rows(sums).clamp_(min=eps1))
        sums_down.div_(row.shape[-2]).sub_(before_down).mul_(weight).add_(before_down)
    return {"row_var": row, "col_var": column, "row": share, "column": column}


def mean_of_rows(values):
    """`values.mean(dim=-2, keepdim=True)`, which takes long over a few numbers of many matrices."""
    count = values.shape[-2]
    if count > _FEW or values.device.type != "cpu":
        return values.mean(dim=-2, keepdim=True)
    first, *others = values.split(1, dim=-2)
    total = first.clone()
    for each in others:
        total += each
    return total.div_(count)


@like_update
def factored_squares(var, grad, *, row, column, direction, least):
    """The step's length."""
    step = wide(divided(grad, row * column, direction, least))
    return step * step


def limit(*, row, column, variable, step, share, d, eps2):
    """The rate of each variable."""
    count = float(row.shape[1] * row.shape[2] * column.shape[3])
    return {"step": rate_of(variable, step, count, share, d, eps2)}


def update(var, grad, *, row, column, step, shrink, direction, least):
    """Once per element."""
    return moved(var * shrink, -(step * divided(grad, row * column, direction, least)))


@like_update
def vector_squares(var, grad, variance, *, weight, direction, least):
    """The step's length, of a vector."""
    step = wide(divided(grad, lerp(variance, grad * grad, weight), direction, least))
    return step * step


def per_variable(*, variable, length, count, share, d, eps2):
    """The rate of each vector."""
    return {"step": narrow(rate_of(variable, length, count, share, d, eps2), like=share)}


def update_vector(var, grad, variance, *, step, weight, shrink, direction, least):
    """Once per element of a vector, which has a mean square of its own."""
    variance = lerp(variance, grad * grad, weight)
    return moved(var * shrink, -(step * divided(grad, variance, direction, least))), variance


def square_of_one(row_var, col_var, grad, weight, eps1):
    """The mean square of a matrix of one element, and those of its row and column."""
    row_var = lerp(row_var, grad * grad, weight)
    col_var = lerp(col_var, grad * grad, weight)
    return row_var / maximum(row_var, eps1) * col_var, row_var, col_var


@like_update
def one_squares(var, grad, row_var, col_var, *, weight, direction, least, eps1):
    """The step's length, of matrices of one element."""
    square, _, _ = square_of_one(row_var, col_var, grad, weight, eps1)
    step = wide(divided(grad, square, direction, least))
    return step * step


def update_one(var, grad, row_var, col_var, *, step, weight, shrink, direction, least, eps1):
    """Once per element of matrices that have one, such as those of 1 x 1 convolutions."""
    square, row_var, col_var = square_of_one(row_var, col_var, grad, weight, eps1)
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
    Stage(factor),
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


def kind_of(shape):
    """Which rule is for a parameter of this shape: that of matrices is ""."""
    if len(shape) < 2:
        return "Vector"
    return "One" if tuple(shape[-2:]) == (1, 1) else ""


@lru_cache(256, typed=True)
def adafactor(eps1=1.1920928955078125e-07, eps2=1e-3, kind=""):
    """The rule with these least roots, for matrices, or for parameters of another kind."""
    own: dict[str, Any] = {"update": update, "slots": _SLOTS, "passes": _PASSES}
    if kind:
        formula, length, slots = _ELEMENTWISE[kind]
        own = {"update": formula, "slots": slots, "per_variable": per_variable,
               "measures": {**_MEASURES, "length": length}}  # fmt: skip
    return Rule(
        name=f"TorchAdafactor{kind}",
        prepare=prepare,
        hypers=_hypers(eps1, eps2),
        source="Shazeer & Stern 2018; https://arxiv.org/abs/1804.04235; torch.optim.Adafactor",
        differs="The formula of torch.optim.Adafactor; timm's and pytorch-optimizer's are others.",
        **own,
    )


TORCH_ADAFACTOR = adafactor()
