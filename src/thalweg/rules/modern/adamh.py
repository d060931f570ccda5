"""AdamH: Adam on a sphere; each variable keeps the initial norm (Hyperball, 2026)."""

from thalweg.formula import Rule, like_update, variable_squares, wide
from thalweg.rules.modern.common import (
    SLOTS,
    corrections,
    hypers,
    lerp,
    mean_square,
    measured_step,
    root_of,
)
from thalweg.rules.modern.sphere import RADIUS, per_variable


def _step(grad, mean, square, beta2, epsilon, mean_weight, square_weight, mean_correction, root):
    square = mean_square(square, grad, beta2, square_weight)
    return measured_step(lerp(mean, grad, mean_weight), square, mean_correction, root, epsilon)


@like_update
def step_squares(
    var, grad, exp_avg, exp_avg_sq, *, beta2, epsilon, mean_weight, square_weight, mean_correction,
    root_correction,
):  # fmt: skip
    step = wide(_step(grad, exp_avg, exp_avg_sq, beta2, epsilon, mean_weight, square_weight,
                      mean_correction, root_correction))  # fmt: skip
    return step * step


@like_update
def step_products(
    var, grad, exp_avg, exp_avg_sq, *, beta2, epsilon, mean_weight, square_weight, mean_correction,
    root_correction,
):  # fmt: skip
    step = _step(grad, exp_avg, exp_avg_sq, beta2, epsilon, mean_weight, square_weight,
                 mean_correction, root_correction)  # fmt: skip
    return wide(var) * wide(step)


def update(
    var, grad, exp_avg, exp_avg_sq, *, along, back, beta2, epsilon, mean_weight, square_weight,
    mean_correction, root_correction,
):  # fmt: skip
    exp_avg = lerp(exp_avg, grad, mean_weight)
    exp_avg_sq = mean_square(exp_avg_sq, grad, beta2, square_weight)
    step = exp_avg / mean_correction / root_of(exp_avg_sq, root_correction, epsilon)
    return var * back - along * step, exp_avg, exp_avg_sq


ADAMH = Rule(
    name="AdamH",
    update=update,
    prepare=corrections,
    measures={"variable": variable_squares, "step": step_squares, "product": step_products},
    per_variable=per_variable,
    hypers=hypers()[:-1],
    slots=(RADIUS, *SLOTS),
    source="Hyperball, 2026; https://arxiv.org/abs/2606.16899",
    differs="Adam's norms grow; here the rate is an angle. What begins at 0 takes Adam's steps.",
)
