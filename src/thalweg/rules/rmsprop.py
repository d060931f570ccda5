"""RMSprop without momentum, as in the Python code of Keras: epsilon is added outside the root."""

from dataclasses import replace

from thalweg.formula import Hyper, Rule, Slot, moved, sqrt


def update(var, grad, rms, *, learning_rate, rho, epsilon):
    """Return the updated variable and slots; as RMSprop._resource_apply_dense."""
    rms = rho * rms + (1 - rho) * (grad * grad)
    return moved(var, -(learning_rate * grad / (sqrt(rms) + epsilon))), rms


def update_untouched(var, rms, *, rho):
    """Return the unchanged variable and the decayed average of untouched rows."""
    return var, rms * rho


def update_centered(var, grad, rms, mg, *, learning_rate, rho, epsilon):
    """Return the updated variable and slots; a variance below 0 gives NaN, as in TensorFlow."""
    rms = rho * rms + (1 - rho) * (grad * grad)
    mg = rho * mg + (1 - rho) * grad
    return moved(var, -(learning_rate * grad / (sqrt(rms - mg * mg) + epsilon))), rms, mg


def update_centered_untouched(var, rms, mg, *, rho):
    """Return the unchanged variable and the decayed averages of untouched rows."""
    return var, rms * rho, mg * rho


RMSPROP = Rule(
    name="RMSprop",
    update=update,
    update_untouched=update_untouched,
    hypers=(
        Hyper("learning_rate", 0.001, "step size"),
        Hyper("rho", 0.9, "share of the running averages that is kept"),
        Hyper("epsilon", 1e-7, "added to the root; exact in the variable's dtype"),
    ),
    slots=(Slot("rms", positive=True),),
    source="tf.keras.optimizers.RMSprop",
    differs="torch.optim.RMSprop has alpha 0.99 and learning rate 0.01.",
)

CENTERED_RMSPROP = replace(
    RMSPROP,
    name="CenteredRMSprop",
    update=update_centered,
    update_untouched=update_centered_untouched,
    slots=(*RMSPROP.slots, Slot("mg", momentum=1)),
    source="tf.keras.optimizers.RMSprop(centered=True)",
    differs="As RMSprop: torch.optim.RMSprop has alpha 0.99 and learning rate 0.01.",
)
