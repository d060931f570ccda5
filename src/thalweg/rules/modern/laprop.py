"""LaProp: momentum of gradients, each divided by the RMS first (Ziyin et al. 2020)."""

# Pyright takes `torch` for the package beside this one.
# pyright: reportArgumentType=false
import torch

from thalweg.formula import Rule, Slot, sqrt
from thalweg.rules.modern.common import SLOTS, hypers, mean_square, weights
from thalweg.rules.torch.common import as_read, multiplied, value_if


def prepare(*, learning_rate, beta1, beta2, t, rate_mean=None):
    """Return {name: scalar of step t}, computed in float64, with the new `rate_mean` if not None.

    `rate_mean`, the running mean of learning rates, corrects the bias of exp_avg, which contains
    learning rates. None assumes a constant learning rate.
    """
    scalars = weights(beta1=beta1, beta2=beta2)
    scalars["square_correction"] = 1 - as_read(beta2) ** as_read(t)
    if rate_mean is None:
        return {**scalars, "step_size": 1 / (1 - as_read(beta1) ** as_read(t))}
    rate = as_read(learning_rate)
    rate_mean = multiplied(rate_mean, as_read(beta1)) + scalars["mean_weight"] * rate
    step_size = value_if(rate_mean != 0, lambda: rate / rate_mean, 0.0)
    return {**scalars, "step_size": step_size, "rate_mean": rate_mean}


def update(
    var, grad, exp_avg, exp_avg_sq, *, learning_rate, beta1, beta2, epsilon, weight_decay,
    mean_weight, square_weight, square_correction, step_size,
):  # fmt: skip
    """Return the new var, exp_avg and exp_avg_sq. The variable decays after its step."""
    exp_avg_sq = mean_square(exp_avg_sq, grad, beta2, square_weight)
    normed = grad / (sqrt(exp_avg_sq / square_correction) + epsilon)
    exp_avg = exp_avg * beta1 + learning_rate * mean_weight * normed
    var = var - step_size * exp_avg
    return var - learning_rate * weight_decay * var, exp_avg, exp_avg_sq


LAPROP = Rule(
    name="LaProp",
    update=update,
    prepare=prepare,
    hypers=hypers(learning_rate=4e-4, epsilon=1e-15),
    # The authors keep Python's number.
    slots=(Slot("rate_mean", dtype=torch.float64, scalar=True), *SLOTS),
    source="Ziyin et al. 2020; https://arxiv.org/abs/2002.04839; timm.optim.LaProp",
    differs="torch.optim.Adam divides the mean of gradients; here gradients are divided first."
    " Decay is times the rate, as in timm; the authors' is not."
    " Where variables have no numbers of their own, as in Keras, bias is that of a constant rate.",
)
