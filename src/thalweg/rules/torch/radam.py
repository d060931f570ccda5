"""RAdam of torch: momentum at first; later steps are also divided by the root of mean squares."""

from thalweg.formula import Rule, moved, sqrt, where
from thalweg.rules.torch.adam import TORCH_ADAM, prepare_adam
from thalweg.rules.torch.common import as_read, decayed, lerp, value_if


def prepare(*, learning_rate, beta1, beta2, weight_decay, decoupled_weight_decay, maximize, t):
    """Return {name: scalar of step t} for `update` of a parameter group."""
    correction = 1 - beta2**t
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * t * (beta2**t) / correction
    is_rectified = length > 5.0

    def root():
        share = (length - 4) * (length - 2) * longest
        return (share / ((longest - 4) * (longest - 2) * length)) ** 0.5

    return {
        **prepare_adam(learning_rate, beta1, beta2, weight_decay, decoupled_weight_decay, maximize),
        "mean_correction": 1 - beta1**t,
        "root_correction": value_if(is_rectified, lambda: correction**0.5, 1.0),
        "is_rectified": as_read(is_rectified),
        "rectification": value_if(is_rectified, root, 1.0),
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
    mean_correction,
    learning_rate,
    is_rectified,
    root_correction,
    rectification,
    epsilon,
):
    """Return the new var, exp_avg and exp_avg_sq."""
    grad = decayed(grad * direction, var, added_decay)
    exp_avg = lerp(exp_avg, grad, mean_weight)
    exp_avg_sq = exp_avg_sq * beta2 + square_weight * grad * grad
    step = exp_avg / mean_correction * learning_rate
    adapted = step * (1 / (sqrt(exp_avg_sq) + epsilon) * root_correction) * rectification
    return moved(var * shrink, -where(is_rectified != 0, adapted, step)), exp_avg, exp_avg_sq


TORCH_RADAM = Rule(
    name="TorchRAdam",
    update=update,
    prepare=prepare,
    hypers=TORCH_ADAM.hypers,
    slots=TORCH_ADAM.slots,
    source="Liu et al. 2020, algorithm 2; torch.optim.RAdam",
    differs="The formula of torch.optim.RAdam.",
)
