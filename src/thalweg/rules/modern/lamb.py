"""LAMB: Adam's step, scaled to the variable's norm times the rate (You et al. 2019)."""

from thalweg.formula import (
    Hyper,
    Rule,
    like_update,
    minimum,
    narrow,
    sqrt,
    variable_squares,
    where,
    wide,
)
from thalweg.rules.modern.common import (
    SLOTS,
    corrections,
    hypers,
    lerp,
    mean_square,
    measured_step,
    root_of,
)
from thalweg.rules.torch.common import decayed


@like_update
def step_squares(
    var, grad, exp_avg, exp_avg_sq, *, beta2, epsilon, weight_decay, mean_weight, square_weight,
    mean_correction, root_correction,
):  # fmt: skip
    """Return the squared step of an element, before learning rate and trust ratio, in float64."""
    mean = lerp(exp_avg, grad, mean_weight)
    square = mean_square(exp_avg_sq, grad, beta2, square_weight)
    step = measured_step(mean, square, mean_correction, root_correction, epsilon)
    step = wide(decayed(step, var, weight_decay))
    return step * step


def per_variable(*, variable, step, learning_rate, weight_decay, always_adapt, trust_clip):
    """Return a variable's rate; the trust ratio is 1 without decay, unless `always_adapt`."""
    adapts = (variable > 0) & (step > 0) & ((weight_decay != 0) | (always_adapt != 0))
    ratio = where(adapts, sqrt(variable) / sqrt(where(step > 0, step, 1.0)), 1.0)
    ratio = where(trust_clip != 0, minimum(ratio, 1.0), ratio)
    return {"own_rate": learning_rate * narrow(ratio, like=learning_rate)}


def update(
    var, grad, exp_avg, exp_avg_sq, *, own_rate, beta2, epsilon, weight_decay, mean_weight,
    square_weight, mean_correction, root_correction,
):  # fmt: skip
    """Return the updated variable and slots."""
    exp_avg = lerp(exp_avg, grad, mean_weight)
    exp_avg_sq = mean_square(exp_avg_sq, grad, beta2, square_weight)
    step = exp_avg / mean_correction / root_of(exp_avg_sq, root_correction, epsilon)
    return var - own_rate * decayed(step, var, weight_decay), exp_avg, exp_avg_sq


ALWAYS = Hyper("always_adapt", 0.0, "whether variables without decay have their length, too")
CLIP = Hyper("trust_clip", 0.0, "whether a step is at most Adam's")
LAMB = Rule(
    name="LAMB",
    update=update,
    prepare=corrections,
    measures={"variable": variable_squares, "step": step_squares},
    per_variable=per_variable,
    hypers=(*hypers(epsilon=1e-6, weight_decay=0.01), ALWAYS, CLIP),
    slots=SLOTS,
    source="You et al. 2019; https://arxiv.org/abs/1904.00962; timm.optim.Lamb",
    differs="torch.optim has none. timm and apex clip the norm of all gradients to 1 beforehand.",
)
