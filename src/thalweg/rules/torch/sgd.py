"""Gradient descent of torch; the first velocity is the gradient, whatever the dampening."""

from thalweg.formula import Hyper, Rule, Slot, where
from thalweg.formula import moved as moved_by
from thalweg.rules.torch.common import decayed, direction_of, make_hypers


def prepare(*, learning_rate, maximize):
    """Return the scalars of a parameter group."""
    return {"direction": direction_of(maximize), "step_size": -learning_rate}


def prepare_momentum(*, learning_rate, dampening, maximize, is_first):
    """Return the scalars of a parameter group; `is_first` is True for a first velocity."""
    return {
        **prepare(learning_rate=learning_rate, maximize=maximize),
        "gradient_share": 1 - dampening,
        "is_first": float(is_first),
    }


def update(var, grad, *, direction, weight_decay, step_size):
    """Return the updated variable."""
    return (moved_by(var, step_size * decayed(grad * direction, var, weight_decay)),)


def update_momentum(
    var,
    grad,
    momentum_buffer,
    *,
    direction,
    weight_decay,
    is_first,
    momentum,
    gradient_share,
    nesterov,
    step_size,
):
    """Return the new var and momentum_buffer. If `is_first`, the buffer becomes the gradient."""
    grad = decayed(grad * direction, var, weight_decay)
    velocity = momentum_buffer * momentum + gradient_share * grad
    momentum_buffer = where(is_first != 0, grad, velocity)
    step = where(nesterov != 0, grad + momentum * momentum_buffer, momentum_buffer)
    return moved_by(var, step_size * step), momentum_buffer


TORCH_SGD = Rule(
    name="TorchSGD",
    update=update,
    prepare=prepare,
    hypers=make_hypers(0.001),
    duplicates="successive",
    source="torch.optim.SGD",
    differs="The formula of torch.optim.SGD without momentum.",
)

TORCH_MOMENTUM = Rule(
    name="TorchMomentum",
    update=update_momentum,
    prepare=prepare_momentum,
    hypers=(
        *make_hypers(
            0.001,
            Hyper("momentum", 0.9, "share of the velocity that is kept"),
            Hyper("dampening", 0.0, "share of the gradient that the velocity does not get"),
            Hyper("nesterov", 0.0, "whether a step looks one step ahead"),
        ),
        Hyper("is_first", 0.0, "whether there was no velocity before this step"),
    ),
    slots=(Slot("momentum_buffer", momentum=1),),
    source="Sutskever et al. 2013; torch.optim.SGD(momentum=...)",
    differs="The formula of torch.optim.SGD with momentum.",
)
