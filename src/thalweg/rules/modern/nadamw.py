"""NAdamW: AdamW with Nesterov's look-ahead (Dozat 2016), as in AlgoPerf's baseline."""

from thalweg.formula import Rule, moved
from thalweg.rules.modern.common import SLOTS, corrections, hypers, lerp, mean_square, root_of


def update(
    var, grad, exp_avg, exp_avg_sq, *, learning_rate, beta2, epsilon, weight_decay, mean_weight,
    square_weight, mean_correction, root_correction,
):  # fmt: skip
    """Return the new var, exp_avg and exp_avg_sq."""
    var = var * (1 - learning_rate * weight_decay)
    exp_avg = lerp(exp_avg, grad, mean_weight)
    exp_avg_sq = mean_square(exp_avg_sq, grad, beta2, square_weight)
    ahead = lerp(exp_avg, grad, mean_weight)
    root = root_of(exp_avg_sq, root_correction, epsilon)
    return moved(var, -(learning_rate / mean_correction * ahead / root)), exp_avg, exp_avg_sq


NADAMW = Rule(
    name="NAdamW",
    update=update,
    prepare=corrections,
    hypers=hypers(weight_decay=0.01),
    slots=SLOTS,
    source="Dozat 2016; Dahl et al. 2023, https://arxiv.org/abs/2306.07179; timm.optim.NAdamW",
    differs="torch.optim.NAdam has a schedule of the momentum; here it is beta1.",
)
