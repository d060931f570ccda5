"""AdEMAMix: Adam with a second, slow mean of gradients (Pagliardini et al. 2024)."""

from thalweg.formula import Hyper, Rule, Slot, exp, log, moved
from thalweg.rules.modern.common import SLOTS, corrections, hypers, lerp, mean_square, root_of
from thalweg.rules.modern.schedule_free import larger
from thalweg.rules.torch.common import as_read, value_if


def slow_weight(beta1, last_beta, share):
    """Return the weight of a gradient in the slow mean, while its beta rises from beta1: 1 /
    log(beta) is linear.
    """
    ends = [log(larger(as_read(beta), 1e-300)) for beta in (beta1, last_beta)]
    return larger(1 - exp(1 / ((1 - share) / ends[0] + share / ends[1])), 1 - as_read(last_beta))


def prepare(*, beta1, beta2, last_beta, alpha, alpha_warmup, beta3_warmup, t):
    """Return {name: scalar of step t} for `update`."""
    step, alpha_steps, steps = as_read(t), as_read(alpha_warmup), larger(as_read(beta3_warmup), 1.0)
    return {
        **corrections(beta1=beta1, beta2=beta2, t=t),
        "gain": value_if(step < alpha_steps, lambda: step / alpha_steps, 1.0) * as_read(alpha),
        "slow_weight": value_if(
            step < steps,
            lambda: slow_weight(beta1, last_beta, step / steps),
            1 - as_read(last_beta),
        ),
    }


def update(
    var, grad, exp_avg, exp_avg_sq, exp_avg_slow, *, learning_rate, beta2, gain, epsilon,
    weight_decay, mean_weight, square_weight, slow_weight, mean_correction, root_correction,
):  # fmt: skip
    """Return the new var, exp_avg, exp_avg_sq and exp_avg_slow. exp_avg_slow stays biased."""
    var = var * (1 - learning_rate * weight_decay)
    exp_avg = lerp(exp_avg, grad, mean_weight)
    exp_avg_sq = mean_square(exp_avg_sq, grad, beta2, square_weight)
    exp_avg_slow = lerp(exp_avg_slow, grad, slow_weight)
    mixed = exp_avg / mean_correction + gain * exp_avg_slow
    root = root_of(exp_avg_sq, root_correction, epsilon)
    return moved(var, -(learning_rate * mixed / root)), exp_avg, exp_avg_sq, exp_avg_slow


SLOW = Hyper("last_beta", 0.9999, "share of the slow mean that is kept; betas[2]")
ALPHA = Hyper("alpha", 5.0, "weight of the slow mean")
WARMUP = Hyper("alpha_warmup", 0.0, "steps in which alpha rises from 0")
SLOW_WARMUP = Hyper("beta3_warmup", 0.0, "steps in which betas[2] rises from betas[0]")
ADEMAMIX = Rule(
    name="AdEMAMix",
    update=update,
    prepare=prepare,
    hypers=(*hypers(), SLOW, ALPHA, WARMUP, SLOW_WARMUP),
    slots=(*SLOTS, Slot("exp_avg_slow")),
    source="Pagliardini et al. 2024; https://arxiv.org/abs/2409.03137",
    differs="torch.optim has none. Decay is decoupled, and times the rate. alpha of the authors'"
    " class is 2. They warm alpha and betas[2] up over the whole training: give its steps.",
)
