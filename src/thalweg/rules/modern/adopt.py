"""ADOPT: gradients are divided by the RMS of earlier gradients (Taniguchi et al. 2024)."""

from thalweg.formula import Hyper, Rule, maximum, minimum, sqrt, where
from thalweg.rules.modern.common import SLOTS, hypers, lerp, mean_square, weights
from thalweg.rules.torch.common import as_read


def prepare(*, beta1, beta2, clip_exp, t):
    """Return the scalars of a step, in float64; the first one only measures."""
    steps_before = as_read(t) - 1
    bound = steps_before ** as_read(clip_exp)
    return {**weights(beta1=beta1, beta2=beta2), "steps_before": steps_before, "bound": bound}


def update(
    var, grad, exp_avg, exp_avg_sq, *, learning_rate, beta2, epsilon, weight_decay, decoupled,
    mean_weight, square_weight, steps_before, bound,
):  # fmt: skip
    """Return the new var, exp_avg and exp_avg_sq. The first step changes only exp_avg_sq."""
    grad = where((weight_decay != 0) & (decoupled == 0), grad + weight_decay * var, grad)
    shrunk_var = where(decoupled != 0, var - learning_rate * weight_decay * var, var)
    normed = grad / maximum(sqrt(exp_avg_sq), epsilon)
    normed = maximum(minimum(normed, bound), -bound)
    next_mean = lerp(exp_avg, normed, mean_weight)
    square = where(
        steps_before == 0, grad * grad, mean_square(exp_avg_sq, grad, beta2, square_weight)
    )
    var = where(steps_before == 0, var, shrunk_var - learning_rate * next_mean)
    return var, where(steps_before == 0, exp_avg, next_mean), square


CLIP = Hyper("clip_exp", 0.25, "a step is at most the number of steps before to this power")
DECOUPLED = Hyper("decoupled", 0.0, "whether the variable shrinks by the decay instead")
ADOPT = Rule(
    name="ADOPT",
    update=update,
    prepare=prepare,
    hypers=(*hypers(beta2=0.9999, epsilon=1e-6), CLIP, DECOUPLED),
    slots=SLOTS,
    whole=True,
    source="Taniguchi et al. 2024; https://arxiv.org/abs/2411.02853; the authors' adopt.py",
    differs="torch.optim has none. timm's clip_exp is 0.333, the authors' 0.25.",
)
