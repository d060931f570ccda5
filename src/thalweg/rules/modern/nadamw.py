"""NAdamW: AdamW whose step looks one gradient ahead (Dozat 2016), as AlgoPerf's baseline has it."""

from dataclasses import replace

from thalweg.formula import Rule
from thalweg.rules.modern.arithmetic import (
    BETA1,
    BETA2,
    EPSILON,
    LEARNING_RATE,
    MEAN,
    SQUARE,
    WEIGHT_DECAY,
    corrections,
    lerp,
    mean_square,
    root_of,
)


def update(
    var, grad, exp_avg, exp_avg_sq, *, learning_rate, beta1, beta2, epsilon, weight_decay,
    mean_correction, root_correction,
):  # fmt: skip
    """Once per element."""
    var = var * (1 - learning_rate * weight_decay)
    exp_avg = lerp(exp_avg, grad, 1 - beta1)
    exp_avg_sq = mean_square(exp_avg_sq, grad, beta2)
    ahead = lerp(exp_avg, grad, 1 - beta1)
    root = root_of(exp_avg_sq, root_correction, epsilon)
    return var - learning_rate / mean_correction * ahead / root, exp_avg, exp_avg_sq


NADAMW = Rule(
    name="NAdamW",
    update=update,
    prepare=corrections,
    hypers=(LEARNING_RATE, BETA1, BETA2, EPSILON, replace(WEIGHT_DECAY, default=0.01)),
    slots=(MEAN, SQUARE),
    source="Dozat 2016; Dahl et al. 2023, https://arxiv.org/abs/2306.07179; timm.optim.NAdamW",
    differs="torch.optim.NAdam has a schedule of the momentum; here it is beta1.",
)
