"""MARS with Lion's steps: the sign of a mean of corrected gradients (Yuan et al. 2024)."""

from dataclasses import replace

from thalweg.formula import sign, where
from thalweg.rules.modern.common import lerp, mean_square, root_of
from thalweg.rules.modern.mars import MARS, corrected


def update(
    var, grad, last_grad, exp_avg, exp_avg_sq, *, clip, gain, steps_before, rate, epsilon,
    weight_decay, mean_weight, square_share, square_weight, mean_correction, root_correction,
    corrects,
):  # fmt: skip
    """Return the new (var, last_grad, exp_avg, exp_avg_sq), by Lion's or AdamW's step.

    Both steps use the corrected gradient divided by `clip`. A `corrects` of 0 selects AdamW's step,
    another number Lion's step, which leaves `exp_avg_sq` unchanged.
    """
    corrected_grad = corrected(grad, last_grad, gain, steps_before) / clip
    exp_avg = lerp(exp_avg, corrected_grad, mean_weight)
    square = mean_square(exp_avg_sq, corrected_grad, square_share, square_weight)
    exp_avg_sq = where(corrects != 0, exp_avg_sq, square)
    step = exp_avg / mean_correction / root_of(exp_avg_sq, root_correction, epsilon)
    step = where(corrects != 0, sign(exp_avg), step)
    return var - rate * (weight_decay * var + step), grad, exp_avg, exp_avg_sq


MARS_LION = replace(MARS, name="MARSLion", update=update)
