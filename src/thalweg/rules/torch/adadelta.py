"""Adadelta of torch: epsilon is added inside of both roots."""

from thalweg.formula import Hyper, Rule, Slot, moved, sqrt
from thalweg.rules.torch.common import decayed, direction_of, make_hypers


def prepare(*, learning_rate, rho, maximize):
    """Return the scalars of a parameter group."""
    return {
        "direction": direction_of(maximize),
        "square_weight": 1 - rho,
        "step_size": -learning_rate,
    }


def update(
    var,
    grad,
    square_avg,
    acc_delta,
    *,
    direction,
    weight_decay,
    rho,
    square_weight,
    epsilon,
    step_size,
):
    """Return the new var, square_avg and acc_delta. `step_size` is the negative learning rate."""
    grad = decayed(grad * direction, var, weight_decay)
    square_avg = square_avg * rho + square_weight * grad * grad
    delta = sqrt(acc_delta + epsilon) / sqrt(square_avg + epsilon) * grad
    acc_delta = acc_delta * rho + square_weight * delta * delta
    return moved(var, step_size * delta), square_avg, acc_delta


TORCH_ADADELTA = Rule(
    name="TorchAdadelta",
    update=update,
    prepare=prepare,
    hypers=make_hypers(
        1.0,
        Hyper("rho", 0.9, "share of both means that is kept"),
        Hyper("epsilon", 1e-6, "added inside of both roots; torch's eps"),
    ),
    slots=(Slot("square_avg", positive=True), Slot("acc_delta", positive=True)),
    source="Zeiler 2012; torch.optim.Adadelta",
    differs="The formula of torch.optim.Adadelta.",
)
