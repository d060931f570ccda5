"""Adagrad without an epsilon: TensorFlow's ApplyAdagrad kernel, older than that of Keras."""

from thalweg.formula import Hyper, Rule, Slot, moved, sqrt


def update(var, grad, accumulator, *, learning_rate):
    """Return the updated variable and slots; computes the kernel's rsqrt(x) as 1 / sqrt(x)."""
    accumulator = accumulator + grad * grad
    return moved(var, -(grad * learning_rate * (1 / sqrt(accumulator)))), accumulator


def update_single(var, grad, accumulator, *, learning_rate):
    """Return the updated variable and slots of a one-element row; the kernel divides."""
    accumulator = accumulator + grad * grad
    return var - grad * learning_rate / sqrt(accumulator), accumulator


ADAGRAD_V1 = Rule(
    name="AdagradV1",
    update=update,
    update_single=update_single,
    hypers=(Hyper("learning_rate", 0.01, "step size"),),
    slots=(Slot("accumulator", 0.1, positive=True, exact=True),),
    source="Duchi et al. 2011; tf.train.AdagradOptimizer; kernel ApplyAdagrad",
    differs="torch.optim.Adagrad starts the accumulator at 0 and adds 1e-10 to the root.",
)
