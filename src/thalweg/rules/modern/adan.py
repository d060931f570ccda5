"""Adan: Nesterov's momentum with a mean of the gradient's changes (Xie et al. 2022)."""

from thalweg.formula import Hyper, Rule, Slot, where
from thalweg.rules.modern.common import SLOTS, hypers, lerp, mean_square, root_of
from thalweg.rules.torch.common import as_read


def prepare(*, learning_rate, beta1, beta2, last_beta, t):
    """Return {name: scalar of step t} for `update`, computed in float64."""
    t, rate, beta1, beta2, square_beta = map(as_read, (t, learning_rate, beta1, beta2, last_beta))
    return {
        "mean_weight": 1 - beta1,
        "change_weight": 1 - beta2,
        "square_weight": 1 - square_beta,
        "mean_rate": rate / (1 - beta1**t),
        "change_rate": rate * beta2 / (1 - beta2**t),
        "root_correction": (1 - square_beta**t) ** 0.5,
        "steps_before": t - 1,
    }


def update(
    var, grad, exp_avg, exp_avg_sq, exp_avg_diff, last_grad, *, learning_rate, beta2,
    last_beta, epsilon, weight_decay, no_prox, mean_weight, change_weight, square_weight,
    mean_rate, change_rate, root_correction, steps_before,
):  # fmt: skip
    """Return the new var, exp_avg, exp_avg_sq, exp_avg_diff and last_grad."""
    change = where(steps_before == 0, 0.0, grad - last_grad)
    exp_avg = lerp(exp_avg, grad, mean_weight)
    exp_avg_diff = exp_avg_diff * beta2 + change_weight * change
    exp_avg_sq = mean_square(exp_avg_sq, change * beta2 + grad, last_beta, square_weight)
    root = root_of(exp_avg_sq, root_correction, epsilon)
    var = where(no_prox != 0, var * (1 - learning_rate * weight_decay), var)
    var = var - mean_rate * exp_avg / root - change_rate * exp_avg_diff / root
    var = where(no_prox != 0, var, var / (1 + learning_rate * weight_decay))
    return var, exp_avg, exp_avg_sq, exp_avg_diff, grad


RATE, BETA1, _, EPSILON, DECAY = hypers(beta1=0.98)
CHANGES = Hyper("beta2", 0.92, "share of the mean difference that is kept; betas[1]")
SQUARES = Hyper("last_beta", 0.99, "share of the mean square that is kept; betas[2]")
NO_PROX = Hyper("no_prox", 0.0, "whether decay is AdamW's")
ADAN = Rule(
    name="Adan",
    update=update,
    prepare=prepare,
    hypers=(RATE, BETA1, CHANGES, SQUARES, EPSILON, DECAY, NO_PROX),
    slots=(*SLOTS, Slot("exp_avg_diff"), Slot("last_grad")),
    whole=True,
    source="Xie et al. 2022; https://arxiv.org/abs/2208.06677; timm.optim.Adan",
    differs="torch.optim has none. Decay divides the variable, by 1 + lr * decay.",
)
