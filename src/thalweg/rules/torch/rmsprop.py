"""RMSprop of torch: epsilon is outside of the root, the learning rate outside of the velocity."""

from dataclasses import replace

from thalweg.formula import Hyper, Rule, Slot, moved, sqrt
from thalweg.rules.torch.common import EPSILON, decayed, direction_of, lerp, make_hypers


def prepare(*, learning_rate, alpha, maximize):
    """Return the scalars of a parameter group."""
    return {
        "direction": direction_of(maximize),
        "square_weight": 1 - alpha,
        "step_size": -learning_rate,
    }


def update(
    var, grad, square_avg, *, direction, weight_decay, alpha, square_weight, epsilon, step_size
):
    """Return the updated variable and slots."""
    grad = decayed(grad * direction, var, weight_decay)
    square_avg = square_avg * alpha + square_weight * grad * grad
    return moved(var, step_size * grad / (sqrt(square_avg) + epsilon)), square_avg


def update_momentum(
    var,
    grad,
    square_avg,
    momentum_buffer,
    *,
    direction,
    weight_decay,
    alpha,
    square_weight,
    epsilon,
    momentum,
    step_size,
):
    """Return the new var, square_avg and momentum_buffer of one element.

    `step_size` is -learning_rate: step_size * momentum_buffer is added to var.
    """
    grad = decayed(grad * direction, var, weight_decay)
    square_avg = square_avg * alpha + square_weight * grad * grad
    momentum_buffer = momentum_buffer * momentum + grad / (sqrt(square_avg) + epsilon)
    return moved(var, step_size * momentum_buffer), square_avg, momentum_buffer


def update_centered(
    var,
    grad,
    square_avg,
    grad_avg,
    *,
    direction,
    weight_decay,
    alpha,
    square_weight,
    epsilon,
    step_size,
):
    """Return the new var, square_avg and grad_avg of one element."""
    grad = decayed(grad * direction, var, weight_decay)
    square_avg = square_avg * alpha + square_weight * grad * grad
    grad_avg = lerp(grad_avg, grad, square_weight)
    root = sqrt(square_avg - grad_avg * grad_avg) + epsilon
    return moved(var, step_size * grad / root), square_avg, grad_avg


def update_centered_momentum(
    var,
    grad,
    square_avg,
    momentum_buffer,
    grad_avg,
    *,
    direction,
    weight_decay,
    alpha,
    square_weight,
    epsilon,
    momentum,
    step_size,
):
    """Return the new var, square_avg, momentum_buffer and grad_avg of one element."""
    grad = decayed(grad * direction, var, weight_decay)
    square_avg = square_avg * alpha + square_weight * grad * grad
    grad_avg = lerp(grad_avg, grad, square_weight)
    root = sqrt(square_avg - grad_avg * grad_avg) + epsilon
    momentum_buffer = momentum_buffer * momentum + grad / root
    return moved(var, step_size * momentum_buffer), square_avg, momentum_buffer, grad_avg


_MOMENTUM = Hyper("momentum", 0.9, "share of the velocity that is kept")
_SQUARE, _VELOCITY, _MEAN = (
    Slot("square_avg", positive=True),
    Slot("momentum_buffer"),
    Slot("grad_avg", momentum=1),
)

TORCH_RMSPROP = Rule(
    name="TorchRMSprop",
    update=update,
    prepare=prepare,
    hypers=make_hypers(
        0.01, Hyper("alpha", 0.99, "share of the mean square that is kept"), EPSILON
    ),
    slots=(_SQUARE,),
    source="Hinton's lecture 6; torch.optim.RMSprop",
    differs="The formula of torch.optim.RMSprop.",
)

TORCH_CENTERED_RMSPROP = replace(
    TORCH_RMSPROP,
    name="TorchCenteredRMSprop",
    update=update_centered,
    slots=(_SQUARE, _MEAN),
    source="Graves 2013; torch.optim.RMSprop(centered=True)",
    differs="The formula of torch.optim.RMSprop(centered=True).",
)

TORCH_MOMENTUM_RMSPROP = replace(
    TORCH_RMSPROP,
    name="TorchMomentumRMSprop",
    update=update_momentum,
    hypers=(*TORCH_RMSPROP.hypers, _MOMENTUM),
    slots=(_SQUARE, _VELOCITY),
    source="torch.optim.RMSprop(momentum=...)",
    differs="The formula of torch.optim.RMSprop(momentum=...).",
)

TORCH_CENTERED_MOMENTUM_RMSPROP = replace(
    TORCH_MOMENTUM_RMSPROP,
    name="TorchCenteredMomentumRMSprop",
    update=update_centered_momentum,
    slots=(_SQUARE, _VELOCITY, _MEAN),
    source="torch.optim.RMSprop(momentum=..., centered=True)",
    differs="The formula of torch.optim.RMSprop(momentum=..., centered=True).",
)
