"""Adam and AdamW of torch: epsilon is added to the root after bias correction."""

from dataclasses import replace

from thalweg.formula import Hyper, Rule, Slot, maximum, moved, sqrt
from thalweg.rules.torch.common import (
    BETA1,
    BETA2,
    EPSILON,
    LEARNING_RATE,
    MAXIMIZE,
    decayed,
    direction_of,
    lerp,
)

# Decay of the rules that have both kinds.
EITHER_DECAY = Hyper(
    "weight_decay",
    0.0,
    "share of the variable that is added to its gradient or, if decoupled, that it loses, times"
    " the rate",
)
DECOUPLED = Hyper("decoupled_weight_decay", 0.0, "whether the variable shrinks by it instead")


def decay(learning_rate, weight_decay, decoupled):
    """Return (the variable's factor, the share of the variable to add to its gradient)."""
    if decoupled:
        return 1 - learning_rate * weight_decay if weight_decay != 0 else 1.0, 0.0
    return 1.0, weight_decay


def prepare_adam(learning_rate, beta1, beta2, weight_decay, decoupled, maximize):
    """Return {name: scalar}: the scalars of a step that Adam, NAdam and RAdam have in common."""
    shrink, grad_decay = decay(learning_rate, weight_decay, decoupled)
    return {
        "direction": direction_of(maximize),
        "shrink": shrink,
        "added_decay": grad_decay,
        "mean_weight": 1 - beta1,
        "square_weight": 1 - beta2,
    }


def prepare(*, learning_rate, beta1, beta2, weight_decay, decoupled_weight_decay, maximize, t):
    """Return {name: scalar of step t} for a parameter group, in Python's numbers as in torch."""
    return {
        **prepare_adam(learning_rate, beta1, beta2, weight_decay, decoupled_weight_decay, maximize),
        "step_size": -(learning_rate / (1 - beta1**t)),
        "root_correction": (1 - beta2**t) ** 0.5,
    }


def update(
    var,
    grad,
    exp_avg,
    exp_avg_sq,
    *,
    direction,
    shrink,
    added_decay,
    beta2,
    mean_weight,
    square_weight,
    step_size,
    root_correction,
    epsilon,
):
    """Return the new var, exp_avg and exp_avg_sq."""
    grad = decayed(grad * direction, var, added_decay)
    exp_avg = lerp(exp_avg, grad, mean_weight)
    exp_avg_sq = exp_avg_sq * beta2 + square_weight * grad * grad
    root = sqrt(exp_avg_sq) / root_correction + epsilon
    return moved(var * shrink, step_size * exp_avg / root), exp_avg, exp_avg_sq


def update_amsgrad(
    var,
    grad,
    exp_avg,
    exp_avg_sq,
    max_exp_avg_sq,
    *,
    direction,
    shrink,
    added_decay,
    beta2,
    mean_weight,
    square_weight,
    step_size,
    root_correction,
    epsilon,
):
    """Return the new var, exp_avg, exp_avg_sq and max_exp_avg_sq, whose root is the divisor."""
    grad = decayed(grad * direction, var, added_decay)
    exp_avg = lerp(exp_avg, grad, mean_weight)
    exp_avg_sq = exp_avg_sq * beta2 + square_weight * grad * grad
    max_exp_avg_sq = maximum(max_exp_avg_sq, exp_avg_sq)
    root = sqrt(max_exp_avg_sq) / root_correction + epsilon
    return moved(var * shrink, step_size * exp_avg / root), exp_avg, exp_avg_sq, max_exp_avg_sq


TORCH_ADAM = Rule(
    name="TorchAdam",
    update=update,
    prepare=prepare,
    hypers=(LEARNING_RATE, BETA1, BETA2, EPSILON, EITHER_DECAY, DECOUPLED, MAXIMIZE),
    slots=(Slot("exp_avg", momentum=1), Slot("exp_avg_sq", positive=True)),
    source="Kingma & Ba 2015, algorithm 1; Loshchilov & Hutter 2019; torch.optim.Adam and AdamW",
    differs="The formula of torch.optim.Adam and, with decoupled decay, of torch.optim.AdamW.",
)

TORCH_AMSGRAD = replace(
    TORCH_ADAM,
    name="TorchAMSGrad",
    update=update_amsgrad,
    slots=(*TORCH_ADAM.slots, Slot("max_exp_avg_sq", positive=True)),
    source="Reddi et al. 2018; torch.optim.Adam(amsgrad=True)",
    differs="The formula of torch.optim.Adam(amsgrad=True).",
)
