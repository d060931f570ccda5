"""Adamax: TensorFlow's ApplyAdaMax kernel, and for sparse gradients the Python of Keras."""

from thalweg.formula import Hyper, Rule, Slot, absolute, moved, where


def prepare(*, learning_rate, beta1_power):
    """Return the scalars of a step."""
    return {"alpha": learning_rate / (1 - beta1_power)}


def update(var, grad, m, v, *, alpha, beta1, beta2, epsilon):
    """Return the updated variable and slots; ApplyAdaMax; the maximum ignores a NaN gradient."""
    m = m + (grad - m) * (1 - beta1)
    size = absolute(grad)
    decayed_max = beta2 * v
    v = where(size > decayed_max, size, decayed_max)
    return moved(var, -(alpha * (m / (v + epsilon)))), m, v


def update_sparse(var, grad, m, v, *, alpha, beta1, beta2, epsilon):
    """Return variable and slots of a touched row; Adamax._resource_apply_sparse (lazy)."""
    m = m * beta1 + grad * (1 - beta1)
    size = absolute(grad)
    decayed_max = v * beta2
    v = where((size > decayed_max) | (size != size), size, decayed_max)
    return var - alpha * (m / (v + epsilon)), m, v


ADAMAX = Rule(
    name="Adamax",
    update=update,
    update_sparse=update_sparse,
    prepare=prepare,
    hypers=(
        Hyper("learning_rate", 0.001, "step size"),
        Hyper("beta1", 0.9, "share of the mean that is kept"),
        Hyper("beta2", 0.999, "share of the largest gradient that is kept"),
        Hyper("epsilon", 1e-7, "added to the divisor; exact in the variable's dtype"),
    ),
    slots=(Slot("m", momentum=1), Slot("v", positive=True)),
    powers={"beta1_power": "beta1"},
    source="Kingma & Ba 2015, section 7.1; tf.keras.optimizers.Adamax; kernel ApplyAdaMax",
    differs="torch.optim.Adamax adds epsilon to |g| inside the maximum and has lr 0.002.",
)
