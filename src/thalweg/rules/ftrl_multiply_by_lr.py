"""FTRL-proximal whose linear slot is multiplied by the learning rate, which may then be 0.

TensorFlow's ApplyFtrl kernels with multiply_linear_by_lr=True.
"""

from dataclasses import replace

from thalweg.formula import power, sqrt
from thalweg.rules.ftrl import clipped, shrink, thresholded
from thalweg.rules.ftrl_v1 import FTRL_POWER_V1, FTRL_V1


def update(var, grad, accum, linear, *, learning_rate, l1, l2_adjusted, l2_shrinkage):
    """Return the updated variable and slots; learning_rate_power -0.5."""
    new = accum + grad * grad
    shrunk_grad = shrink(grad, var, l2_shrinkage)
    linear = linear + (shrunk_grad * learning_rate - (sqrt(new) - sqrt(accum)) * var)
    quadratic = sqrt(new) + 2 * l2_adjusted * learning_rate
    return thresholded(linear, quadratic, l1 * learning_rate), new, linear


def update_sparse(var, grad, accum, linear, *, learning_rate, l1, l2_adjusted, l2_shrinkage):
    """Return the updated variable and slots of a row with sparse entries."""
    new = accum + grad * grad
    shrunk_grad = shrink(grad, var, l2_shrinkage)
    linear = linear + (shrunk_grad * learning_rate - (sqrt(new) - sqrt(accum)) * var)
    quadratic = sqrt(new) + 2 * l2_adjusted * learning_rate
    return clipped(linear, quadratic, l1 * learning_rate), new, linear


def update_by_power(
    var, grad, accum, linear, *, learning_rate, learning_rate_power, l1, l2_adjusted, l2_shrinkage
):
    """Return the new var, accum and linear."""
    new = accum + grad * grad
    root = power(new, -learning_rate_power)
    change = root - power(accum, -learning_rate_power)
    shrunk_grad = shrink(grad, var, l2_shrinkage)
    linear = linear + (shrunk_grad * learning_rate - change * var)
    quadratic = root + 2 * l2_adjusted * learning_rate
    return thresholded(linear, quadratic, l1 * learning_rate), new, linear


def update_sparse_by_power(
    var, grad, accum, linear, *, learning_rate, learning_rate_power, l1, l2_adjusted, l2_shrinkage
):
    """Return the new var, accum and linear of a row of a sparse gradient."""
    new = accum + grad * grad
    root = power(new, -learning_rate_power)
    change = root - power(accum, -learning_rate_power)
    shrunk_grad = shrink(grad, var, l2_shrinkage)
    linear = linear + (shrunk_grad * learning_rate - change * var)
    quadratic = root + 2 * l2_adjusted * learning_rate
    return clipped(linear, quadratic, l1 * learning_rate), new, linear


FTRL_BY_RATE = replace(
    FTRL_V1,
    name="FtrlByRate",
    update=update,
    update_sparse=update_sparse,
    update_single=update_sparse,
    source="kernels ApplyFtrl, ApplyFtrlV2 with multiply_linear_by_lr",
)

FTRL_POWER_BY_RATE = replace(
    FTRL_POWER_V1,
    name="FtrlPowerByRate",
    update=update_by_power,
    update_sparse=update_sparse_by_power,
    update_single=update_sparse_by_power,
    source="kernels ApplyFtrl, ApplyFtrlV2 with multiply_linear_by_lr",
)
