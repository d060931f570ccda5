"""Common parts of modern rules: hyperparameters, running means, bias corrections."""

from dataclasses import replace

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Hyper, Slot, sqrt, where
from thalweg.rules.torch.common import as_read

_HYPERS = (
    Hyper("learning_rate", 0.001, "step size; torch's lr"),
    Hyper("beta1", 0.9, "share of the mean that is kept; torch's betas[0]"),
    Hyper("beta2", 0.999, "share of the mean square that is kept; torch's betas[1]"),
    Hyper("epsilon", 1e-8, "added to the root; torch's eps"),
    Hyper("weight_decay", 0.0, "share of the variable that it loses, times the rate"),
)
SLOTS = (Slot("exp_avg", momentum=1), Slot("exp_avg_sq", positive=True))


def hypers(**defaults):
    """Return AdamW's hyperparameters with some defaults replaced."""
    return tuple(replace(x, default=defaults.get(x.name, x.default)) for x in _HYPERS)


def lerp(start, end, weight):
    """Return the linear interpolation from start to end."""
    return start + weight * (end - start)


def ones(var, grad):
    """Return a term of a sum: the number of elements."""
    return where(var == var, 1.0, 1.0)


def mean_square(square, grad, beta2, weight):
    """Return the running mean of squares."""
    return square * beta2 + weight * grad * grad


def root_of(square, root_correction, epsilon):
    """Return the root of a mean square after bias correction, plus epsilon."""
    return sqrt(square) / root_correction + epsilon


def measured_step(mean, square, mean_correction, root_correction, epsilon):
    """Return Adam's step up to rounding, with one division per element instead of three."""
    root = sqrt(square) + epsilon * root_correction
    return mean * (root_correction / mean_correction) / root


def weights(*, beta1, beta2):
    """Return the weight of a gradient in each mean; 1 - beta is computed before rounding."""
    return {"mean_weight": 1 - as_read(beta1), "square_weight": 1 - as_read(beta2)}


def corrections(*, beta1, beta2, t):
    """Return the weights of a gradient in the means, and the divisors that correct their bias."""
    return {
        **weights(beta1=beta1, beta2=beta2),
        "mean_correction": 1 - as_read(beta1) ** as_read(t),
        "root_correction": (1 - as_read(beta2) ** as_read(t)) ** 0.5,
    }


def check_one_rate(name, rates):
    """Raise InvalidArgumentError if two nonzero numbers of the array `rates` differ."""
    distinct_rates = sorted({*rates.flat} - {0.0})
    if len(distinct_rates) > 1:
        raise InvalidArgumentError(
            f"Groups of {name} have one rate, or 0, not {' and '.join(map(str, distinct_rates))}."
        )


def check_count(name: str, value: object) -> None:
    """Raise ValueError unless an option is a positive integer; `name` is for the message."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be a positive integer, not {show_value(value)}.")
