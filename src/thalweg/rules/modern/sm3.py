"""SM3: Adagrad with sums per row and column; an element uses the smaller of two sums."""

from functools import lru_cache

from thalweg.formula import (
    FusedStage,
    Hyper,
    Measure,
    Rule,
    Slot,
    like_update,
    maximum,
    minimum,
    moved,
    sqrt,
)  # fmt: skip
from thalweg.rules.modern.common import lerp
from thalweg.rules.torch.common import as_read, value_if

HYPERS = (
    Hyper("learning_rate", 0.1, "step size"),
    Hyper("beta", 0.0, "share of sums that is kept; all of it if 0"),
    Hyper("epsilon", 1e-30, "added to sums"),
    Hyper("momentum", 0.0, "share of the mean of steps that is kept"),
)


def prepare(*, beta, momentum):
    """Return the scalars of a step."""
    beta = as_read(beta)
    return {
        "kept": value_if(beta > 0, lambda: beta, 1.0),
        "square_weight": 1 - beta,
        "floor": as_read(beta > 0),
        "mean_weight": 1 - as_read(momentum),
    }


def summed(total, grad, kept, square_weight):
    """Return a sum of squares with the gradient's square added."""
    return total * kept + square_weight * grad * grad


@like_update
def cover(var, grad, *, accumulator_0, accumulator_1, kept, square_weight):
    """Return the smaller of the sums of row and column, with the gradient's square added."""
    return summed(minimum(accumulator_0, accumulator_1), grad, kept, square_weight)


def keep(*, rows, columns, accumulator_0, accumulator_1, floor):
    """Return the new sums of rows and columns."""
    return maximum(rows, accumulator_0 * floor), maximum(columns, accumulator_1 * floor)


def divided(grad, total, epsilon):
    """Return the gradient divided by the root of its sum of squares."""
    return grad / sqrt(total + epsilon)


def update(
    var, grad, *, accumulator_0, accumulator_1, kept, square_weight, learning_rate, epsilon,
):  # fmt: skip
    """Return the updated variable."""
    total = summed(minimum(accumulator_0, accumulator_1), grad, kept, square_weight)
    return moved(var, -(learning_rate * divided(grad, total, epsilon)))


def update_mean(
    var, grad, momentum_buffer, *, accumulator_0, accumulator_1, kept, square_weight, mean_weight,
    learning_rate, epsilon,
):  # fmt: skip
    """Return the variable after a step along a mean of steps, and the mean."""
    total = summed(minimum(accumulator_0, accumulator_1), grad, kept, square_weight)
    momentum_buffer = lerp(momentum_buffer, divided(grad, total, epsilon), mean_weight)
    return moved(var, -(learning_rate * momentum_buffer)), momentum_buffer


def update_vector(var, grad, accumulator_0, *, kept, square_weight, floor, learning_rate, epsilon):
    """Return the updated variable and slots of a vector, with one sum per element."""
    total = summed(accumulator_0, grad, kept, square_weight)
    step = learning_rate * divided(grad, total, epsilon)
    return moved(var, -step), maximum(total, accumulator_0 * floor)


def update_vector_mean(
    var, grad, accumulator_0, momentum_buffer, *, kept, square_weight, floor, mean_weight,
    learning_rate, epsilon,
):  # fmt: skip
    """Return the new var, accumulator_0 and momentum_buffer of a vector."""
    total = summed(accumulator_0, grad, kept, square_weight)
    momentum_buffer = lerp(momentum_buffer, divided(grad, total, epsilon), mean_weight)
    moves = moved(var, -(learning_rate * momentum_buffer))
    return moves, maximum(total, accumulator_0 * floor), momentum_buffer


_LINES = Slot("accumulator_0", per="row"), Slot("accumulator_1", per="column")
_PASSES = (
    Measure(cover, makes="rows", over="row", reduce="largest"),
    Measure(cover, makes="columns", over="column", reduce="largest"),
    FusedStage(keep, makes=("accumulator_0", "accumulator_1")),
)


@lru_cache(None)
def sm3(has_mean=False, is_vector=False):
    """Return SM3's rule. `has_mean` adds momentum; `is_vector` is True for 0 or 1 dimensions."""
    updates = {
        (False, False): update, (True, False): update_mean,
        (False, True): update_vector, (True, True): update_vector_mean,
    }  # fmt: skip
    return Rule(
        name=f"SM3{'Momentum' * has_mean}{'Vector' * is_vector}",
        passes=() if is_vector else _PASSES,
        update=updates[has_mean, is_vector],
        prepare=prepare,
        hypers=HYPERS,
        slots=(
            *((Slot("accumulator_0", positive=True, exact=True),) if is_vector else _LINES),
            *((Slot("momentum_buffer"),) if has_mean else ()),
        ),
        source="Anil et al. 2019; https://arxiv.org/abs/1901.11150; pytorch_optimizer.SM3",
        differs="torch.optim has none. pytorch-optimizer keeps sums of each dimension, ours of rows"
        " and columns of the last two: the same for matrices.",
    )


SM3 = sm3()
