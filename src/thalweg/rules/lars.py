"""LARS: momentum with a rate for each variable, as tf.contrib.opt of TensorFlow 1.15 computes it.

For a variable without scaling, `adaptive` and `weight_decay` are 0. Steps of sparse gradients use
neither ratio nor decay.

The velocity of dense gradients contains the learning rate; the velocity of sparse gradients does
not. Therefore the gradients of a variable should all be dense, or all sparse.
"""

from dataclasses import replace

from thalweg.formula import (
    Hyper,
    Rule,
    Slot,
    gradient_squares,
    narrow,
    sqrt,
    variable_squares,
    where,
)
from thalweg.rules.heavy_ball import update_nesterov_sparse


def per_variable(*, variable_squares, gradient_squares, eeta, weight_decay, epsilon, adaptive):
    """Return a variable's factor of the learning rate; 1 where a norm is 0 or NaN."""
    variable_norm = narrow(sqrt(variable_squares), like=eeta)
    gradient_norm = narrow(sqrt(gradient_squares), like=eeta)
    divisor = gradient_norm + weight_decay * variable_norm + epsilon
    ratio = eeta * variable_norm / divisor
    has_norms = (variable_norm > 0) & (gradient_norm > 0) & (adaptive > 0)
    return {"trust_ratio": where(has_norms, ratio, 1.0)}


def scaled(var, grad, learning_rate, weight_decay, trust_ratio):
    """Return the gradient with the decay of the variable, times the variable's own rate."""
    decaying = where(weight_decay > 0, grad + weight_decay * var, grad)
    return decaying * (learning_rate * trust_ratio)


def update(var, grad, velocity, *, learning_rate, momentum, weight_decay, trust_ratio):
    """Return the updated variable and slots; ApplyMomentum with a learning rate of 1."""
    velocity = velocity * momentum + scaled(var, grad, learning_rate, weight_decay, trust_ratio)
    return var - velocity, velocity


def update_nesterov(var, grad, velocity, *, learning_rate, momentum, weight_decay, trust_ratio):
    """Return the updated variable and slots; with use_nesterov."""
    step = scaled(var, grad, learning_rate, weight_decay, trust_ratio)
    velocity = velocity * momentum + step
    return var - (step + velocity * momentum), velocity


def update_sparse(var, grad, velocity, *, learning_rate, momentum):
    """Return the updated variable and slots of a touched row; SparseApplyMomentum."""
    velocity = velocity * momentum + grad
    return var - velocity * learning_rate, velocity


LARS = Rule(
    name="LARS",
    update=update,
    update_sparse=update_sparse,
    hypers=(
        Hyper("learning_rate", 0.1, "step size"),
        Hyper("momentum", 0.9, "share of the velocity that is kept"),
        Hyper("weight_decay", 1e-4, "decay, as a part of the gradient"),
        Hyper("eeta", 0.001, "largest part of the variable's norm that a step may have"),
        Hyper("epsilon", 0.0, "added to the divisor of the ratio"),
        Hyper("adaptive", 1.0, "0 leaves the variable's rate alone"),
    ),
    measures={"variable_squares": variable_squares, "gradient_squares": gradient_squares},
    per_variable=per_variable,
    slots=(Slot("momentum", momentum=1),),
    source="You et al. 2017; tf.contrib.opt.LARSOptimizer of TensorFlow 1.15; kernel ApplyMomentum",
    differs="Not in torch.optim.",
)

NESTEROV_LARS = replace(
    LARS,
    name="NesterovLARS",
    update=update_nesterov,
    update_sparse=update_nesterov_sparse,
    source="tf.contrib.opt.LARSOptimizer(use_nesterov=True) of TensorFlow 1.15",
)
