"""NAdam of torch: each parameter stores the running product of the scheduled momenta."""

from dataclasses import replace

from thalweg.formula import Hyper, Rule, Slot, sqrt
from thalweg.rules.torch.adam import TORCH_ADAM, prepare_adam
from thalweg.rules.torch.common import LEARNING_RATE, MAXIMIZE, as_read, decayed, lerp, multiplied


def prepare(
    *,
    learning_rate,
    beta1,
    beta2,
    weight_decay,
    decoupled_weight_decay,
    momentum_decay,
    maximize,
    t,
    mu_product,
):
    """Return {name: scalar of step t} for `update`, with a new `mu_product` of unchanged dtype."""
    mu = beta1 * (1.0 - 0.5 * (0.96 ** (t * momentum_decay)))
    mu_next = beta1 * (1.0 - 0.5 * (0.96 ** ((t + 1) * momentum_decay)))
    mu_product = multiplied(mu_product, mu)
    product = as_read(mu_product)
    return {
        **prepare_adam(learning_rate, beta1, beta2, weight_decay, decoupled_weight_decay, maximize),
        "square_correction": 1 - beta2**t,
        "gradient_step": -learning_rate * (1.0 - mu) / (1.0 - product),
        "mean_step": (-learning_rate * mu_next) / (1.0 - product * mu_next),
        "mu_product": mu_product,
    }


def update(
    var,
    grad,
    exp_avg,
    exp_avg_sq,
    *,
    direction,
    shrink,
    added_decay,
    beta2,
    mean_weight,
    square_weight,
    square_correction,
    gradient_step,
    mean_step,
    epsilon,
):
    """Return the new var, exp_avg and exp_avg_sq."""
    grad = decayed(grad * direction, var, added_decay)
    exp_avg = lerp(exp_avg, grad, mean_weight)
    exp_avg_sq = exp_avg_sq * beta2 + square_weight * grad * grad
    root = sqrt(exp_avg_sq / square_correction) + epsilon
    var = var * shrink + gradient_step * grad / root
    return var + mean_step * exp_avg / root, exp_avg, exp_avg_sq


TORCH_NADAM = Rule(
    name="TorchNAdam",
    update=update,
    prepare=prepare,
    hypers=(
        replace(LEARNING_RATE, default=0.002),
        *TORCH_ADAM.hypers[1:-1],
        Hyper("momentum_decay", 0.004, "of the momentum's schedule"),
        MAXIMIZE,
    ),
    slots=(Slot("mu_product", 1.0, scalar=True), *TORCH_ADAM.slots),
    source="Dozat 2016; torch.optim.NAdam",
    differs="The formula of torch.optim.NAdam.",
)
