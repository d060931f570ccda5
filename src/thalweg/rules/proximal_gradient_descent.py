"""Gradient descent and a proximal step: TensorFlow's ApplyProximalGradientDescent kernel."""

from thalweg.formula import Hyper, Rule, absolute, maximum, narrow, where, wide


def shrunk(value, width):
    """Return the value moved toward 0 by `width`, but not beyond 0; -0 becomes 0."""
    size = maximum(absolute(value) - width, 0)
    return where(value < 0, -size, size)


def update(var, grad, *, learning_rate, l1, l2):
    """Return the updated variable; ApplyProximalGradientDescent, also for sparse rows."""
    var = var - grad * learning_rate
    var = where(l1 > 0, shrunk(var, learning_rate * l1), var)
    return (var / (1 + l2 * learning_rate),)


def update_single(var, grad, *, learning_rate, l1, l2):
    """Return the new var of a row of one element under a sparse gradient; divides in float64."""
    var = var - grad * learning_rate
    var = where(l1 > 0, shrunk(var, learning_rate * l1), var)
    return (narrow(var / (1 + wide(l2 * learning_rate)), var),)


PROXIMAL_GRADIENT_DESCENT = Rule(
    name="ProximalGradientDescent",
    update=update,
    update_single=update_single,
    hypers=(
        Hyper("learning_rate", 0.01, "step size"),
        Hyper("l1", 0.0, "pulls to exactly 0"),
        Hyper("l2", 0.0, "pulls toward 0"),
    ),
    source=(
        "Duchi & Singer 2009; tf.train.ProximalGradientDescentOptimizer;"
        " kernel ApplyProximalGradientDescent"
    ),
    differs="Not in torch.optim.",
)
