"""Adagrad with an epsilon beside the square root: TensorFlow's ApplyAdagradV2 kernel."""

from thalweg.formula import Hyper, Rule, Slot, moved, sqrt


def update(var, grad, accumulator, *, learning_rate, epsilon):
    """Return the updated variable and slots; ApplyAdagradV2 and SparseApplyAdagradV2."""
    accumulator = accumulator + grad * grad
    var = moved(var, -(grad * learning_rate / (sqrt(accumulator) + epsilon)))
    return var, accumulator


ADAGRAD = Rule(
    name="Adagrad",
    update=update,
    hypers=(
        Hyper("learning_rate", 0.001, "step size"),
        Hyper("epsilon", 1e-7, "added to the root; exact in the variable's dtype"),
    ),
    slots=(Slot("accumulator", 0.1, positive=True, exact=True),),
    source="Duchi et al. 2011; tf.keras.optimizers.Adagrad; kernel ApplyAdagradV2",
    differs="torch.optim.Adagrad starts the accumulator at 0 and has learning rate 0.01.",
)
