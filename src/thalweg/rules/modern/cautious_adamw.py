"""Cautious AdamW: elements that would move uphill stay; all others move further (Liang 2024)."""

from thalweg.formula import Rule, like_update, maximum, moved, narrow, where
from thalweg.rules.modern.common import (
    SLOTS,
    corrections,
    hypers,
    lerp,
    mean_square,
    ones,
    root_of,
)


@like_update
def kept(var, grad, exp_avg, exp_avg_sq, *, mean_weight):
    """Return 1 where the mean and the gradient have equal signs, else 0."""
    return where(lerp(exp_avg, grad, mean_weight) * grad > 0, 1.0, 0.0)


def per_variable(*, kept, count, learning_rate):
    """Return the scalars of a variable in a step."""
    share = maximum(kept / maximum(count, 1.0), 1e-3)
    return {"gain": narrow(1 / share, like=learning_rate)}


def update(
    var, grad, exp_avg, exp_avg_sq, *, learning_rate, beta2, epsilon, weight_decay, mean_weight,
    square_weight, mean_correction, root_correction, gain,
):  # fmt: skip
    """Return the new var, exp_avg and exp_avg_sq."""
    var = var * (1 - learning_rate * weight_decay)
    exp_avg = lerp(exp_avg, grad, mean_weight)
    exp_avg_sq = mean_square(exp_avg_sq, grad, beta2, square_weight)
    step = where(exp_avg * grad > 0, exp_avg * gain, 0.0)
    root = root_of(exp_avg_sq, root_correction, epsilon)
    return moved(var, -(learning_rate / mean_correction * step / root)), exp_avg, exp_avg_sq


CAUTIOUS_ADAMW = Rule(
    name="CautiousAdamW",
    update=update,
    prepare=corrections,
    measures={"kept": kept, "count": ones},
    per_variable=per_variable,
    hypers=hypers(weight_decay=0.01),
    slots=SLOTS,
    source="Liang et al. 2024; https://arxiv.org/abs/2411.16085; timm.optim.AdamWLegacy",
    differs="torch.optim.AdamW moves all elements.",
)
