"""Adagrad with dual averaging: TensorFlow's ApplyAdagradDA kernels.

The variable is computed anew from sums of gradients. Therefore the first step loses the variable's
initial value. `t` is the number of the step, from 1. TensorFlow's callers count a global step.
"""

from thalweg.formula import Rule, Slot, absolute, maximum, narrow, sign, sqrt, where, wide
from thalweg.rules.proximal_gradient_descent import PROXIMAL_GRADIENT_DESCENT


def update(var, grad, total, squares, *, learning_rate, l1, l2, t):
    """Return the new var, total and squares, as the kernel ApplyAdagradDA does."""
    total = total + grad
    squares = squares + grad * grad
    sparse = learning_rate * -1 * sign(total) * maximum(absolute(total) - t * l1, 0)
    without_l1 = learning_rate * total * -1
    return (
        where(l1 > 0, sparse, without_l1) / (l2 * (t * learning_rate) + sqrt(squares)),
        total,
        squares,
    )


def update_sparse(var, grad, total, squares, *, learning_rate, l1, l2, t):
    """Return var, total and squares of a touched row; SparseApplyAdagradDA divides total by t."""
    total = total + grad
    squares = squares + grad * grad
    sparse = -1 * sign(total) * maximum(absolute(total) / t - l1, 0)
    without_l1 = -1 * (total / t)
    var = where(l1 > 0, sparse, without_l1) / (l2 + sqrt(squares) / (t * learning_rate))
    return var, total, squares


def update_single(var, grad, total, squares, *, learning_rate, l1, l2, t):
    """Return var, total and squares of a one-element row; float64 as in SparseApplyAdagradDA."""
    total = total + grad
    squares = narrow(wide(squares) + wide(grad) * wide(grad), squares)
    size = wide(learning_rate) * maximum(wide(absolute(total)) - wide(t) * l1, 0)
    sparse = where(total > 0, -size, size)
    without_l1 = -total * wide(learning_rate)
    var = where(l1 > 0, sparse, without_l1) / (wide(t) * l2 * learning_rate + sqrt(squares))
    return narrow(var, total), total, squares


ADAGRAD_DA = Rule(
    name="AdagradDA",
    update=update,
    update_sparse=update_sparse,
    update_single=update_single,
    hypers=PROXIMAL_GRADIENT_DESCENT.hypers,
    slots=(
        Slot("gradient_accumulator", exact=True),
        Slot("gradient_squared_accumulator", 0.1, positive=True, exact=True),
    ),
    source="Duchi et al. 2011; tf.train.AdagradDAOptimizer; kernel ApplyAdagradDA",
    differs="Not in torch.optim.",
)
