"""Prodigy: AdamW that estimates its rate from the distance to the start (Mishchenko 2023)."""

from thalweg.formula import Rule, Slot, absolute, moved, sqrt, where
from thalweg.rules.modern.common import SLOTS, mean_square
from thalweg.rules.modern.prodigy_scalars import HYPERS, NUMBERS, per_optimizer, prepare

# NaN marks an element of `p0` that has not been set to its variable yet.
UNSET_START = float("nan")


def _started(var, p0):
    return where(p0 != p0, var, p0)


def _decayed(var, grad, weight_decay, decouple):
    return where((weight_decay != 0) & (decouple == 0), grad + weight_decay * var, grad)


def numerator(var, grad, p0, *, weight, weight_decay, decouple):
    """Return a term of a sum: weight * gradient * (initial variable - variable)."""
    return weight * (_decayed(var, grad, weight_decay, decouple) * (_started(var, p0) - var))


def denominator(
    var, grad, p0, s, *, learning_rate, beta3, sum_weight, weight_decay, decouple
):  # fmt: skip
    """Return the magnitude of the running sum of gradients; 0 if the rate is 0."""
    decayed_grad = _decayed(var, grad, weight_decay, decouple)
    return where(learning_rate != 0, absolute(s * beta3 + sum_weight * decayed_grad), 0.0)


def update(
    var, grad, p0, s, exp_avg, exp_avg_sq, *, learning_rate, beta1, beta2, beta3, epsilon, rate,
    weight_decay, decouple, sum_weight, mean_weight, square_weight, d_after, moves,
):  # fmt: skip
    """Return the new var, p0, s, exp_avg and exp_avg_sq. A learning rate of 0 changes only p0."""
    decayed_grad = _decayed(var, grad, weight_decay, decouple)
    has_rate = learning_rate != 0
    s = where(has_rate, s * beta3 + sum_weight * decayed_grad, s)
    mean = where(has_rate, exp_avg * beta1 + mean_weight * decayed_grad, exp_avg)
    square = where(
        has_rate, mean_square(exp_avg_sq, decayed_grad, beta2, square_weight), exp_avg_sq
    )
    shrinks = (moves != 0) & (decouple != 0) & (weight_decay != 0)
    base = where(shrinks, var - weight_decay * rate * var, var)
    ahead = where(beta1 != 0, mean, decayed_grad * d_after)  # as the authors' without a mean
    step = rate * ahead / (sqrt(square) + d_after * epsilon)
    return moved(base, -where(moves != 0, step, 0.0)), _started(var, p0), s, mean, square


PRODIGY = Rule(
    name="Prodigy",
    update=update,
    prepare=prepare,
    measures={"numerator": numerator, "denominator": denominator},
    per_optimizer=per_optimizer,
    hypers=HYPERS,
    slots=(*NUMBERS, Slot("p0", UNSET_START, exact=True), Slot("s", exact=True), *SLOTS),
    source="Mishchenko and Defazio 2023; https://arxiv.org/abs/2306.06101; prodigyopt",
    differs="torch.optim has none. Leave the rate at 1: it is a factor of the one that is found.",
)
