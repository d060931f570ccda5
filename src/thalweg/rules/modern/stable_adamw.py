"""StableAdamW: AdamW with a smaller rate where gradients outgrow their root (Wortsman 2023)."""

from thalweg.formula import Rule, maximum, moved, narrow, sqrt
from thalweg.rules.modern.common import SLOTS, hypers, lerp, mean_square, ones
from thalweg.rules.torch.common import as_read


def prepare(*, beta1, beta2, t):
    """Return weights of bias-free running means, in float64."""
    beta1, beta2, t = as_read(beta1), as_read(beta2), as_read(t)
    square_weight = (1 - beta2) / (1 - beta2**t)
    return {
        "mean_weight": (1 - beta1) / (1 - beta1**t),
        "square_weight": square_weight,
        "square_share": 1 - square_weight,
    }


def outgrown(var, grad, exp_avg, exp_avg_sq, *, square_share, square_weight, epsilon):
    """Return squared gradients divided by the running means of squares."""
    square = mean_square(exp_avg_sq, grad, square_share, square_weight)
    return grad * grad / maximum(square, epsilon * epsilon)


def per_variable(*, outgrown, count, learning_rate):
    """Return the scalars of a variable in a step."""
    root = maximum(sqrt(outgrown / maximum(count, 1.0)), 1.0)
    return {"own_rate": learning_rate / narrow(root, like=learning_rate)}


def update(
    var, grad, exp_avg, exp_avg_sq, *, own_rate, epsilon, weight_decay, mean_weight, square_weight,
    square_share,
):  # fmt: skip
    """Return the updated variable and slots."""
    exp_avg = lerp(exp_avg, grad, mean_weight)
    exp_avg_sq = mean_square(exp_avg_sq, grad, square_share, square_weight)
    var = var * (1 - own_rate * weight_decay)
    return moved(var, -(own_rate * exp_avg / (sqrt(exp_avg_sq) + epsilon))), exp_avg, exp_avg_sq


STABLE_ADAMW = Rule(
    name="StableAdamW",
    update=update,
    prepare=prepare,
    measures={"outgrown": outgrown, "count": ones},
    per_variable=per_variable,
    hypers=hypers(beta2=0.99, weight_decay=0.01),
    slots=SLOTS,
    source="Wortsman et al. 2023; https://arxiv.org/abs/2304.13013; pytorch-optimizer",
    differs="torch.optim.AdamW has no clipping of updates.",
)
