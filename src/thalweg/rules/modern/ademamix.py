"""AdEMAMix: Adam with a second, slow mean of gradients (Pagliardini et al. 2024)."""

from thalweg.formula import Hyper, Rule, Slot
from thalweg.rules.modern.arithmetic import SLOTS, corrections, hypers, lerp, mean_square, root_of
from thalweg.rules.torch.arithmetic import as_read


def prepare(*, beta1, beta2, last_beta, t):
    """Once a step."""
    own = corrections(beta1=beta1, beta2=beta2, t=t)
    return {**own, "slow_weight": 1 - as_read(last_beta)}


def update(
    var, grad, exp_avg, exp_avg_sq, exp_avg_slow, *, learning_rate, beta2, alpha, epsilon,
    weight_decay, mean_weight, square_weight, slow_weight, mean_correction, root_correction,
):  # fmt: skip
    """Once per element; the slow mean has no bias correction."""
    var = var * (1 - learning_rate * weight_decay)
    exp_avg = lerp(exp_avg, grad, mean_weight)
    exp_avg_sq = mean_square(exp_avg_sq, grad, beta2, square_weight)
    exp_avg_slow = lerp(exp_avg_slow, grad, slow_weight)
    mixed = exp_avg / mean_correction + alpha * exp_avg_slow
    root = root_of(exp_avg_sq, root_correction, epsilon)
    return var - learning_rate * mixed / root, exp_avg, exp_avg_sq, exp_avg_slow


SLOW = Hyper("last_beta", 0.9999, "share of the slow mean that is kept; betas[2]")
ALPHA = Hyper("alpha", 5.0, "weight of the slow mean")
ADEMAMIX = Rule(
    name="AdEMAMix",
    update=update,
    prepare=prepare,
    hypers=(*hypers(), SLOW, ALPHA),
    slots=(*SLOTS, Slot("exp_avg_slow")),
    source="Pagliardini et al. 2024; https://arxiv.org/abs/2409.03137",
    differs="torch.optim has none. alpha and betas[2] have no schedule of their own: set those of"
    " the group where you warm them up. Decay is decoupled, and times the rate.",
)
