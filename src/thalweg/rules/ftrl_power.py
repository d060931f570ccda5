"""FTRL-proximal with any learning_rate_power: the pow branch of the ApplyFtrl kernels.

Rows of one element have a separate sparse formula, as in `rules/ftrl.py`.
"""

from dataclasses import replace

from thalweg.formula import Hyper, power
from thalweg.rules.ftrl import FTRL, clipped, shrink, thresholded


def update(
    var,
    grad,
    accumulator,
    linear,
    *,
    learning_rate,
    learning_rate_power,
    l1,
    l2_adjusted,
    l2_shrinkage,
):
    """Return the new var, accumulator and linear. TensorFlow's pow may differ in the last bit."""
    new = accumulator + grad * grad
    root = power(new, -learning_rate_power)
    change = root - power(accumulator, -learning_rate_power)
    shrunk_grad = shrink(grad, var, l2_shrinkage)
    linear = linear + (shrunk_grad - change / learning_rate * var)
    quadratic = root / learning_rate + 2 * l2_adjusted
    return thresholded(linear, quadratic, l1), new, linear


def update_sparse(
    var,
    grad,
    accumulator,
    linear,
    *,
    learning_rate,
    learning_rate_power,
    l1,
    l2_adjusted,
    l2_shrinkage,
):
    """Return the new var, accumulator and linear of a row of a sparse gradient."""
    new = accumulator + grad * grad
    root = power(new, -learning_rate_power)
    change = root - power(accumulator, -learning_rate_power)
    shrunk_grad = shrink(grad, var, l2_shrinkage)
    linear = linear + (shrunk_grad - change / learning_rate * var)
    quadratic = root / learning_rate + 2 * l2_adjusted
    return clipped(linear, quadratic, l1), new, linear


def update_single(
    var,
    grad,
    accumulator,
    linear,
    *,
    learning_rate,
    learning_rate_power,
    l1,
    l2_adjusted,
    l2_shrinkage,
):
    """Return the new var, accumulator and linear of a row of one element; sparse gradients only."""
    new = accumulator + grad * grad
    root = power(new, -learning_rate_power)
    change = root - power(accumulator, -learning_rate_power)
    shrunk_grad = shrink(grad, var, l2_shrinkage)
    linear = (linear + shrunk_grad) - change / learning_rate * var
    quadratic = root / learning_rate + 2 * l2_adjusted
    return clipped(linear, quadratic, l1), new, linear


FTRL_POWER = replace(
    FTRL,
    name="FtrlPower",
    update=update,
    update_sparse=update_sparse,
    update_single=update_single,
    hypers=(
        *FTRL.hypers,
        Hyper("learning_rate_power", -0.5, "power of the accumulator, 0 or negative"),
    ),
    source="tf.keras.optimizers.Ftrl(learning_rate_power=...); kernels ApplyFtrl, ApplyFtrlV2",
)
