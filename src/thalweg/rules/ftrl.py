"""FTRL-proximal: TensorFlow's ApplyFtrl and ApplyFtrlV2 kernels (V2 is the one with shrinkage).

Where a row is one element, the sparse kernels add in another order: `update_single`.
"""

from thalweg.formula import Hyper, Rule, Slot, absolute, maximum, minimum, sign, sqrt, where


def prepare(*, learning_rate, l2, beta):
    """Return the scalars of a step; Keras has no guard, so learning rate 0 gives NaN."""
    return {"l2_adjusted": l2 + beta / (2 * learning_rate)}


def shrink(grad, var, l2_shrinkage):
    """Return the gradient with the decay that the accumulator does not see."""
    return where(l2_shrinkage > 0, grad + 2 * l2_shrinkage * var, grad)


def thresholded(linear, quadratic, l1):
    """Return the variable of the dense kernels, in which NaN becomes 0."""
    return where(absolute(linear) > l1, (sign(linear) * l1 - linear) / quadratic, 0.0)


def clipped(linear, quadratic, l1):
    """Return the variable of the sparse kernels, in which NaN stays NaN."""
    return (minimum(maximum(linear, -l1), l1) - linear) / quadratic


def update(var, grad, accumulator, linear, *, learning_rate, l1, l2_adjusted, l2_shrinkage):
    """Return the updated variable and slots; learning_rate_power -0.5; drops initial weights."""
    new = accumulator + grad * grad
    shrunk_grad = shrink(grad, var, l2_shrinkage)
    linear = linear + (shrunk_grad - (sqrt(new) - sqrt(accumulator)) / learning_rate * var)
    quadratic = sqrt(new) / learning_rate + 2 * l2_adjusted
    return thresholded(linear, quadratic, l1), new, linear


def update_sparse(var, grad, accumulator, linear, *, learning_rate, l1, l2_adjusted, l2_shrinkage):
    """Return the updated variable and slots of a row with sparse entries."""
    new = accumulator + grad * grad
    shrunk_grad = shrink(grad, var, l2_shrinkage)
    linear = linear + (shrunk_grad - (sqrt(new) - sqrt(accumulator)) / learning_rate * var)
    quadratic = sqrt(new) / learning_rate + 2 * l2_adjusted
    return clipped(linear, quadratic, l1), new, linear


def update_single(var, grad, accumulator, linear, *, learning_rate, l1, l2_adjusted, l2_shrinkage):
    """Return the updated variable and slots of a one-element row; adds `linear + grad` first."""
    new = accumulator + grad * grad
    shrunk_grad = shrink(grad, var, l2_shrinkage)
    linear = (linear + shrunk_grad) - (sqrt(new) - sqrt(accumulator)) / learning_rate * var
    quadratic = sqrt(new) / learning_rate + 2 * l2_adjusted
    return clipped(linear, quadratic, l1), new, linear


FTRL = Rule(
    name="Ftrl",
    update=update,
    update_sparse=update_sparse,
    update_single=update_single,
    prepare=prepare,
    hypers=(
        Hyper("learning_rate", 0.001, "step size"),
        Hyper("l1", 0.0, "pulls to exactly 0"),
        Hyper("l2", 0.0, "pulls toward 0"),
        Hyper("beta", 0.0, "adds beta / (2 learning_rate) to l2"),
        Hyper("l2_shrinkage", 0.0, "weight decay in the gradient, not in the accumulator"),
    ),
    slots=(Slot("accumulator", 0.1, positive=True, exact=True), Slot("linear", exact=True)),
    source="McMahan et al. 2013; tf.keras.optimizers.Ftrl; kernels ApplyFtrl, ApplyFtrlV2",
    differs="Not in torch.optim.",
)
