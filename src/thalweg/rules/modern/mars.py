"""MARS: AdamW of gradients whose variance the previous gradient reduces (Yuan et al. 2024)."""

from thalweg.formula import Rule, Slot, maximum, narrow, sqrt, where
from thalweg.rules.modern.common import SLOTS, lerp, mean_square, root_of
from thalweg.rules.modern.mars_scalars import HYPERS, prepare


def corrected(grad, last_grad, gain, steps_before):
    """Return the gradient plus `gain` times the gradient's change since the last step."""
    return where((gain != 0) & (steps_before != 0), (grad - last_grad) * gain + grad, grad)


def squares(var, grad, last_grad, *, gain, steps_before):
    """Return the squares of the corrected gradients."""
    corrected_grad = corrected(grad, last_grad, gain, steps_before)
    return corrected_grad * corrected_grad


def per_variable(*, squares, corrects, rate):
    """Return {"clip": divisor}: the norm of a variable's corrected gradient, at least 1."""
    return {"clip": narrow(maximum(where(corrects != 0, sqrt(squares), 1.0), 1.0), like=rate)}


def update(
    var, grad, last_grad, exp_avg, exp_avg_sq, *, clip, gain, steps_before, rate, epsilon,
    weight_decay, mean_weight, square_share, square_weight, mean_correction, root_correction,
):  # fmt: skip
    """Return the new var, last_grad, exp_avg and exp_avg_sq."""
    corrected_grad = corrected(grad, last_grad, gain, steps_before) / clip
    exp_avg = lerp(exp_avg, corrected_grad, mean_weight)
    exp_avg_sq = mean_square(exp_avg_sq, corrected_grad, square_share, square_weight)
    step = exp_avg / mean_correction / root_of(exp_avg_sq, root_correction, epsilon)
    return var - rate * (weight_decay * var + step), grad, exp_avg, exp_avg_sq


MARS = Rule(
    name="MARS",
    update=update,
    prepare=prepare,
    measures={"squares": squares},
    per_variable=per_variable,
    hypers=HYPERS,
    slots=(Slot("is_vector", scalar=True), Slot("last_grad"), *SLOTS),
    source="Yuan et al. 2024; https://arxiv.org/abs/2411.10438; timm.optim.Mars",
    differs="torch.optim has none. Vectors and numbers take AdamW's steps, unless optimize_1d.",
)
