"""Adadelta, as TensorFlow's ApplyAdadelta kernel computes it."""

from thalweg.formula import Hyper, Rule, Slot, moved, sqrt


def update(var, grad, accum_grad, accum_var, *, learning_rate, rho, epsilon):
    """Return the updated variable and slots; computes the kernel's rsqrt(x) as 1 / sqrt(x)."""
    accum_grad = accum_grad * rho + grad * grad * (1 - rho)
    step = sqrt(accum_var + epsilon) * (1 / sqrt(accum_grad + epsilon)) * grad
    var = moved(var, -(step * learning_rate))
    accum_var = accum_var * rho + step * step * (1 - rho)
    return var, accum_grad, accum_var


ADADELTA = Rule(
    name="Adadelta",
    update=update,
    hypers=(
        Hyper("learning_rate", 0.001, "step size"),
        Hyper("rho", 0.95, "share of the running averages that is kept"),
        Hyper("epsilon", 1e-7, "added inside the roots; exact in the variable's dtype"),
    ),
    slots=(Slot("accum_grad", positive=True), Slot("accum_var", positive=True)),
    source="Zeiler 2012; tf.keras.optimizers.Adadelta; kernel ApplyAdadelta",
    differs="torch.optim.Adadelta has learning rate 1, rho 0.9 and epsilon 1e-6.",
)
