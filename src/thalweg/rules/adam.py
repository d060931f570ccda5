"""Adam: TensorFlow's ApplyAdam kernel, and for sparse gradients the Python of Keras."""

from thalweg.formula import Hyper, Rule, Slot, moved, sqrt


def prepare(*, learning_rate, beta1_power, beta2_power):
    """Return the scalars of a step; kernel and Python code order the same factors differently."""
    root = sqrt(1 - beta2_power)
    return {
        "alpha": learning_rate * root / (1 - beta1_power),
        "alpha_sparse": learning_rate * (root / (1 - beta1_power)),
    }


def update(var, grad, m, v, *, alpha, beta1, beta2, epsilon):
    """Return the updated variable and slots; ApplyAdam."""
    m = m + (grad - m) * (1 - beta1)
    v = v + (grad * grad - v) * (1 - beta2)
    return moved(var, -((m * alpha) / (sqrt(v) + epsilon))), m, v


def update_sparse(var, grad, m, v, *, alpha_sparse, beta1, beta2, epsilon):
    """Return the updated variable and slots of a touched row; Adam._resource_apply_sparse."""
    m = m * beta1 + grad * (1 - beta1)
    v = v * beta2 + (grad * grad) * (1 - beta2)
    return var - (alpha_sparse * m) / (sqrt(v) + epsilon), m, v


def update_untouched(var, m, v, *, alpha_sparse, beta1, beta2, epsilon):
    """Return the updated variable and slots of untouched rows (sparse Adam is not lazy)."""
    m = m * beta1
    v = v * beta2
    return var - (alpha_sparse * m) / (sqrt(v) + epsilon), m, v


ADAM = Rule(
    name="Adam",
    update=update,
    update_sparse=update_sparse,
    update_untouched=update_untouched,
    prepare=prepare,
    hypers=(
        Hyper("learning_rate", 0.001, "step size"),
        Hyper("beta1", 0.9, "share of the mean that is kept"),
        Hyper("beta2", 0.999, "share of the mean square that is kept"),
        Hyper("epsilon", 1e-7, "added to the root before bias correction; exact in its dtype"),
    ),
    slots=(Slot("m", momentum=1), Slot("v", positive=True)),
    powers={"beta1_power": "beta1", "beta2_power": "beta2"},
    source='Kingma & Ba 2015, "epsilon hat"; tf.keras.optimizers.Adam; kernel ApplyAdam',
    differs="torch.optim.Adam adds epsilon after bias correction; torch's sparse Adam is lazy.",
)
