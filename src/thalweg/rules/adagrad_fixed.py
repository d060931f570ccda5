"""Adagrad that only reads its accumulators: the ApplyAdagrad kernels with update_slots=False."""

from dataclasses import replace

from thalweg.formula import sqrt
from thalweg.rules.adagrad import ADAGRAD
from thalweg.rules.adagrad_v1 import ADAGRAD_V1


def update(var, grad, accumulator, *, learning_rate):
    """Return the updated variable and slots; computes the kernel's rsqrt(x) as 1 / sqrt(x)."""
    return var - grad * learning_rate * (1 / sqrt(accumulator)), accumulator


def update_single(var, grad, accumulator, *, learning_rate):
    """Return the updated variable and slots of a one-element row; the kernel divides."""
    return var - grad * learning_rate / sqrt(accumulator), accumulator


def update_beside(var, grad, accumulator, *, learning_rate, epsilon):
    """Return the updated variable and slots; ApplyAdagradV2."""
    return var - grad * learning_rate / (sqrt(accumulator) + epsilon), accumulator


ADAGRAD_V1_FIXED = replace(
    ADAGRAD_V1, name="AdagradV1Fixed", update=update, update_single=update_single
)
ADAGRAD_FIXED = replace(ADAGRAD, name="AdagradFixed", update=update_beside)
