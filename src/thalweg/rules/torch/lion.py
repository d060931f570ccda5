"""Lion: the sign of an interpolated momentum (Chen et al. 2023, algorithm 2).

The order of operations is that of lucidrains' lion-pytorch.
"""

from dataclasses import replace

from thalweg.formula import Hyper, Rule, Slot, moved, where
from thalweg.rules.torch.common import BETA1, LEARNING_RATE


def prepare(*, learning_rate, beta1, beta2, weight_decay):
    """Return the scalars of a parameter group."""
    return {
        "shrink": 1 - learning_rate * weight_decay,
        "share": 1 - beta1,
        "kept_share": 1 - beta2,
        "step_size": -learning_rate,
    }


def update(var, grad, exp_avg, *, shrink, beta1, share, beta2, kept_share, step_size):
    """Return the updated variable and slots; the sign of NaN is 0, as torch's."""
    step = exp_avg * beta1 + grad * share
    sign = where(step > 0, 1.0, where(step < 0, -1.0, 0.0))
    return moved(var * shrink, step_size * sign), exp_avg * beta2 + kept_share * grad


TORCH_LION = Rule(
    name="TorchLion",
    update=update,
    prepare=prepare,
    hypers=(
        replace(LEARNING_RATE, default=1e-4),
        replace(BETA1, doc="share of the mean in a step; torch's betas[0]"),
        Hyper("beta2", 0.99, "share of the mean that is kept; torch's betas[1]"),
        Hyper("weight_decay", 0.0, "share of the variable that it loses, times the rate"),
    ),
    slots=(Slot("exp_avg", momentum=1),),
    source="Chen et al. 2023, algorithm 2; https://arxiv.org/abs/2302.06675",
    differs="torch.optim has no Lion; the formula is that of lucidrains' lion-pytorch.",
)
