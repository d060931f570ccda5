"""Adamax of torch: epsilon is added to the magnitude of the gradient."""

from thalweg.formula import Hyper, Rule, Slot, absolute, maximum, moved
from thalweg.rules.torch.common import BETA1, decayed, direction_of, lerp, make_hypers


def prepare(*, learning_rate, beta1, maximize, t):
    """Return the scalars of a step for a parameter group."""
    return {
        "direction": direction_of(maximize),
        "mean_weight": 1 - beta1,
        "step_size": -(learning_rate / (1 - beta1**t)),
    }


def update(
    var, grad, exp_avg, exp_inf, *, direction, weight_decay, beta2, mean_weight, epsilon, step_size
):
    """Return the updated variable and slots; the step is added, so `step_size` is negative."""
    grad = decayed(grad * direction, var, weight_decay)
    exp_avg = lerp(exp_avg, grad, mean_weight)
    exp_inf = maximum(exp_inf * beta2, absolute(grad) + epsilon)
    return moved(var, step_size * exp_avg / exp_inf), exp_avg, exp_inf


TORCH_ADAMAX = Rule(
    name="TorchAdamax",
    update=update,
    prepare=prepare,
    hypers=make_hypers(
        0.002,
        BETA1,
        Hyper("beta2", 0.999, "share of the largest magnitude that is kept; torch's betas[1]"),
        Hyper("epsilon", 1e-8, "added to the magnitude of the gradient; torch's eps"),
    ),
    slots=(Slot("exp_avg", momentum=1), Slot("exp_inf", positive=True)),
    source="Kingma & Ba 2015, algorithm 2; torch.optim.Adamax",
    differs="The formula of torch.optim.Adamax.",
)
