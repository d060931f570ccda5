"""Gradient descent, as TensorFlow's ApplyGradientDescent kernel computes it."""

from thalweg.formula import Hyper, Rule, moved


def update(var, grad, *, learning_rate):
    """Return the updated variable; entries of one row are added in turn, as in ScatterAdd."""
    return (moved(var, -(grad * learning_rate)),)


SGD = Rule(
    name="SGD",
    update=update,
    hypers=(Hyper("learning_rate", 0.01, "step size"),),
    duplicates="successive",
    linear=True,
    source="tf.keras.optimizers.SGD without momentum; kernels ApplyGradientDescent, ScatterAdd",
    differs="The numbers of torch.optim.SGD; a row that a sparse gradient names twice moves twice.",
)
