"""What the rules of now have in common: hyperparameters, running means, bias corrections."""

from thalweg.formula import Hyper, Slot, sqrt
from thalweg.rules.torch.arithmetic import as_read

LEARNING_RATE = Hyper("learning_rate", 0.001, "step size; torch's lr")
BETA1 = Hyper("beta1", 0.9, "share of the mean that is kept; torch's betas[0]")
BETA2 = Hyper("beta2", 0.999, "share of the mean square that is kept; torch's betas[1]")
EPSILON = Hyper("epsilon", 1e-8, "added to the root; torch's eps")
WEIGHT_DECAY = Hyper("weight_decay", 0.0, "share of the variable that it loses, times the rate")
MEAN, SQUARE = Slot("exp_avg"), Slot("exp_avg_sq")


def lerp(start, end, weight):
    """From start to end."""
    return start + weight * (end - start)


def mean_square(square, grad, beta2):
    """The running mean of squares."""
    return square * beta2 + (1 - beta2) * grad * grad


def root_of(square, root_correction, epsilon):
    """The root of a mean square, after bias correction."""
    return sqrt(square) / root_correction + epsilon


def corrections(*, beta1, beta2, t):
    """Once a step: what means are divided by; in float64, as Python has it."""
    return {
        "mean_correction": 1 - as_read(beta1) ** as_read(t),
        "root_correction": (1 - as_read(beta2) ** as_read(t)) ** 0.5,
    }
