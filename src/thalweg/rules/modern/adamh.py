"""AdamH: Adam on a sphere, whose variables keep their norms (Hyperball, 2026)."""

from thalweg.formula import Rule, variable_squares
from thalweg.rules.modern.arithmetic import SLOTS, corrections, hypers, lerp, mean_square, root_of
from thalweg.rules.modern.sphere import per_variable


def _step(grad, mean, square, beta2, epsilon, mean_weight, square_weight, mean_correction, root):
    mean = lerp(mean, grad, mean_weight)
    square = mean_square(square, grad, beta2, square_weight)
    return mean / mean_correction / root_of(square, root, epsilon)


def step_squares(
    var, grad, exp_avg, exp_avg_sq, *, beta2, epsilon, mean_weight, square_weight, mean_correction,
    root_correction,
):  # fmt: skip
    step = _step(grad, exp_avg, exp_avg_sq, beta2, epsilon, mean_weight, square_weight,
                 mean_correction, root_correction)  # fmt: skip
    return step * step


def step_products(
    var, grad, exp_avg, exp_avg_sq, *, beta2, epsilon, mean_weight, square_weight, mean_correction,
    root_correction,
):  # fmt: skip
    return var * _step(grad, exp_avg, exp_avg_sq, beta2, epsilon, mean_weight, square_weight,
                       mean_correction, root_correction)  # fmt: skip


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
    slots=SLOTS,
    source="Hyperball, 2026; https://arxiv.org/abs/2606.16899",
    differs="torch.optim.Adam lets norms grow; here the rate is an angle, and there is no decay.",
)
