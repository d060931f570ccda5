"""Momentum whose velocity contains the learning rate: TensorFlow's ApplyKerasMomentum kernel."""

from dataclasses import replace

from thalweg.formula import Hyper, Rule, Slot, moved


def update(var, grad, velocity, *, learning_rate, momentum):
    """Return the updated variable and slots; ApplyKerasMomentum and SparseApplyKerasMomentum."""
    velocity = velocity * momentum - grad * learning_rate
    return moved(var, velocity), velocity


def update_nesterov(var, grad, velocity, *, learning_rate, momentum):
    """Return the updated variable and slots; the same kernels with use_nesterov."""
    velocity = velocity * momentum - grad * learning_rate
    return moved(var, velocity * momentum - grad * learning_rate), velocity


MOMENTUM = Rule(
    name="Momentum",
    update=update,
    hypers=(
        Hyper("learning_rate", 0.01, "step size"),
        Hyper("momentum", 0.9, "share of the velocity that is kept"),
    ),
    slots=(Slot("momentum", momentum=-1),),
    linear=True,
    source="tf.keras.optimizers.SGD(momentum=...); kernel ApplyKerasMomentum",
    differs="torch.optim.SGD multiplies by lr outside the buffer: another path once lr changes.",
)

NESTEROV = replace(
    MOMENTUM,
    name="Nesterov",
    update=update_nesterov,
    source="tf.keras.optimizers.SGD(momentum=..., nesterov=True); kernel ApplyKerasMomentum",
    differs="As Momentum: the learning rate is inside the velocity, in torch.optim.SGD outside.",
)
