"""Adagrad and a proximal step: TensorFlow's ApplyProximalAdagrad kernel."""

from thalweg.formula import Rule, Slot, narrow, sqrt, where, wide
from thalweg.rules.proximal_gradient_descent import PROXIMAL_GRADIENT_DESCENT, shrunk


def update(var, grad, accumulator, *, learning_rate, l1, l2):
    """Return the updated variable and slots; computes the kernel's rsqrt(x) as 1 / sqrt(x)."""
    accumulator = accumulator + grad * grad
    rate = learning_rate * (1 / sqrt(accumulator))
    var = var - grad * rate
    var = where(l1 > 0, shrunk(var, rate * l1), var)
    return var / (1 + l2 * rate), accumulator


def update_single(var, grad, accumulator, *, learning_rate, l1, l2):
    """Return the updated variable and slots of a one-element sparse row; divides in float64."""
    accumulator = accumulator + grad * grad
    rate = learning_rate / sqrt(accumulator)
    var = var - grad * rate
    var = where(l1 > 0, shrunk(var, rate * l1), var)
    return narrow(var / (1 + wide(l2 * rate)), var), accumulator


PROXIMAL_ADAGRAD = Rule(
    name="ProximalAdagrad",
    update=update,
    update_single=update_single,
    hypers=PROXIMAL_GRADIENT_DESCENT.hypers,
    slots=(Slot("accumulator", 0.1, positive=True, exact=True),),
    source="Duchi & Singer 2009; tf.train.ProximalAdagradOptimizer; kernel ApplyProximalAdagrad",
    differs="Not in torch.optim.",
)
