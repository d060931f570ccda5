"""Momentum whose velocity is a sum of gradients: TensorFlow's ApplyMomentum kernel.

The learning rate stands outside of the velocity, as in torch.optim.SGD; in Keras (`momentum.py`)
it stands inside. The two part as soon as the learning rate changes.
"""

from dataclasses import replace

from thalweg.formula import Rule, Slot, moved
from thalweg.rules.momentum import MOMENTUM


def update(var, grad, velocity, *, learning_rate, momentum):
    """Return the updated variable and slots; ApplyMomentum and SparseApplyMomentum."""
    velocity = velocity * momentum + grad
    return moved(var, -(velocity * learning_rate)), velocity


def update_nesterov(var, grad, velocity, *, learning_rate, momentum):
    """Return the updated variable and slots; ApplyMomentum with use_nesterov."""
    velocity = velocity * momentum + grad
    return moved(var, -(grad * learning_rate + velocity * momentum * learning_rate)), velocity


def update_nesterov_sparse(var, grad, velocity, *, learning_rate, momentum):
    """Return the updated variable and slots of a touched row; scalars are multiplied first."""
    velocity = velocity * momentum + grad
    return var - (grad * learning_rate + learning_rate * momentum * velocity), velocity


HEAVY_BALL = Rule(
    name="HeavyBall",
    update=update,
    hypers=MOMENTUM.hypers,
    slots=(Slot("momentum", momentum=1),),
    source="Polyak 1964; tf.train.MomentumOptimizer; kernel ApplyMomentum",
    differs="The formula of torch.optim.SGD with dampening 0, in another order of operations.",
)

NESTEROV_BALL = replace(
    HEAVY_BALL,
    name="NesterovBall",
    update=update_nesterov,
    update_sparse=update_nesterov_sparse,
    source="tf.train.MomentumOptimizer(use_nesterov=True); kernel ApplyMomentum",
)
