"""MARS: AdamW of gradients whose variance the gradients before reduce (Yuan et al. 2024)."""

from thalweg.formula import Rule, Slot, maximum, narrow, sqrt, where
from thalweg.rules.modern.common import SLOTS, lerp, mean_square, root_of
from thalweg.rules.modern.mars_scalars import HYPERS, prepare


def corrected(grad, last_grad, gain, steps_before):
    """Return a gradient, and how it has changed since the one before."""
    return where((gain != 0) & (steps_before != 0), (grad - last_grad) * gain + grad, grad)


def squares(var, grad, last_grad, *, gain, steps_before):
    """Return the squares of the corrected gradients."""
    own = corrected(grad, last_grad, gain, steps_before)
    return own * own


def per_variable(*, squares, corrects, rate):
    """Once a step for each variable: the norm of its corrected gradient, if that is above 1."""
    return {"clip": narrow(maximum(where(corrects != 0, sqrt(squares), 1.0), 1.0), like=rate)}


def update(
    var, grad, last_grad, exp_avg, exp_avg_sq, *, clip, gain, steps_before, rate, epsilon,
    weight_decay, mean_weight, square_share, square_weight, mean_correction, root_correction,
):  # fmt: skip
    """Once per element."""
    own = corrected(grad, last_grad, gain, steps_before) / clip
    exp_avg = lerp(exp_avg, own, mean_weight)
    exp_avg_sq = mean_square(exp_avg_sq, own, square_share, square_weight)
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
