"""Heavy-ball momentum with decoupled weight decay, as tf.contrib.opt computes it: decay first.

`weight_decay` may differ by variable; 0 leaves a variable out.
"""

from dataclasses import replace

from thalweg.formula import moved
from thalweg.rules.heavy_ball import HEAVY_BALL
from thalweg.rules.weight_decay import WEIGHT_DECAY_HYPER, decayed


def update(var, grad, velocity, *, learning_rate, momentum, weight_decay):
    """Return the updated variable and slots; the decay and ApplyMomentum."""
    velocity = velocity * momentum + grad
    return moved(decayed(var, weight_decay), -(velocity * learning_rate)), velocity


def update_nesterov(var, grad, velocity, *, learning_rate, momentum, weight_decay):
    """Return the updated variable and slots; the decay and ApplyMomentum with use_nesterov."""
    velocity = velocity * momentum + grad
    step = grad * learning_rate + velocity * momentum * learning_rate
    return moved(decayed(var, weight_decay), -step), velocity


def update_nesterov_sparse(var, grad, velocity, *, learning_rate, momentum, weight_decay):
    """Return variable and slots of a touched row: decay, SparseApplyMomentum (use_nesterov)."""
    velocity = velocity * momentum + grad
    step = grad * learning_rate + learning_rate * momentum * velocity
    return decayed(var, weight_decay) - step, velocity


MOMENTUM_W = replace(
    HEAVY_BALL,
    name="MomentumW",
    update=update,
    hypers=(*HEAVY_BALL.hypers, WEIGHT_DECAY_HYPER),
    source="Loshchilov & Hutter 2019 (SGDW); tf.contrib.opt.MomentumWOptimizer",
    differs="torch.optim.SGD has no decoupled decay; its weight_decay is part of the gradient.",
)

NESTEROV_W = replace(
    MOMENTUM_W,
    name="NesterovW",
    update=update_nesterov,
    update_sparse=update_nesterov_sparse,
    source="tf.contrib.opt.MomentumWOptimizer(use_nesterov=True)",
)
