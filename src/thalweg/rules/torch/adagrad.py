"""Adagrad of torch, whose learning rate may fall with the number of the step."""

from dataclasses import replace

from thalweg.formula import Hyper, Rule, Slot, moved, sqrt
from thalweg.rules.torch.common import EPSILON, decayed, direction_of, make_hypers


def prepare(*, learning_rate, lr_decay, maximize, t):
    """Return the scalars of a step for a parameter group."""
    return {
        "direction": direction_of(maximize),
        "step_size": -(learning_rate / (1 + (t - 1) * lr_decay)),
    }


def update(var, grad, sum, *, direction, weight_decay, epsilon, step_size):
    """Return the updated variable and slots."""
    grad = decayed(grad * direction, var, weight_decay)
    sum = sum + grad * grad
    return moved(var, step_size * grad / (sqrt(sum) + epsilon)), sum


def update_sparse(var, grad, sum, *, direction, epsilon, step_size):
    """Return the updated variable and slots of a sparse row; torch does not allow decay here."""
    grad = grad * direction
    sum = sum + grad * grad
    return var + step_size * (grad / (sqrt(sum) + epsilon)), sum


TORCH_ADAGRAD = Rule(
    name="TorchAdagrad",
    update=update,
    update_sparse=update_sparse,
    prepare=prepare,
    hypers=make_hypers(
        0.01,
        Hyper("lr_decay", 0.0, "by how much a step makes the divisor of the step size larger"),
        replace(EPSILON, default=1e-10),
    ),
    slots=(Slot("sum", positive=True, exact=True),),
    source="Duchi et al. 2011; torch.optim.Adagrad",
    differs="The formula of torch.optim.Adagrad.",
)
