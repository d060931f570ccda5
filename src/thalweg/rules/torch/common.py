"""Common parts of torch's optimizers: the direction of a step, decay, a running mean."""

from dataclasses import replace

from thalweg.formula import Hyper, absolute, where

LEARNING_RATE = Hyper("learning_rate", 0.001, "step size; torch's lr")
BETA1 = Hyper("beta1", 0.9, "share of the mean that is kept; torch's betas[0]")
BETA2 = Hyper("beta2", 0.999, "share of the mean square that is kept; torch's betas[1]")
EPSILON = Hyper("epsilon", 1e-8, "added to the root; torch's eps")
WEIGHT_DECAY = Hyper("weight_decay", 0.0, "share of the variable that is added to its gradient")
MAXIMIZE = Hyper("maximize", 0.0, "whether steps go uphill")


def make_hypers(learning_rate, *own):
    """Return a rule's hyperparameters: the rate with this default, `own`, decay, `maximize`."""
    return replace(LEARNING_RATE, default=learning_rate), *own, WEIGHT_DECAY, MAXIMIZE


def direction_of(maximize):
    """Return the factor of the gradient, on the host: -1 to maximize, else 1."""
    return -1.0 if maximize else 1.0


# A device that counts the steps gives `prepare` tensors of numbers.


def as_read(number):
    """Return a scalar of the state, or a bool, as a float or float64 tensor, for `prepare`."""
    return number.double() if hasattr(number, "double") else float(number)


def multiplied(number, factor):
    """Return `number`, a scalar of the state, times `factor`, in the dtype of `number`."""
    if hasattr(factor, "item"):  # a tensor
        factor = factor.to(number.dtype) if hasattr(number, "to") else factor.item()
    return number * (number.narrow(factor) if hasattr(number, "trace_choice") else factor)


def at_least_one(number):
    """Return max(number, 1)."""
    return number.clamp(min=1) if hasattr(number, "clamp") else max(1, number)


def lesser(number, bound):
    """Return min(number, bound)."""
    if hasattr(number, "clamp"):
        return number.clamp(max=bound)
    return bound.clamp(max=number) if hasattr(bound, "clamp") else min(number, bound)


def value_if(condition, value, default):
    """Return `value()` where the condition holds, else `default`."""
    if hasattr(condition, "trace_choice"):  # a symbol
        return condition.trace_choice(value, default)
    if hasattr(condition, "where"):  # a tensor
        return value().where(condition, default)
    return value() if condition else default


def decayed(grad, var, weight_decay):
    """Return the gradient plus the decay; exactly the gradient if the decay is 0."""
    # Also for an infinite variable, whose product with 0 is NaN.
    return where(weight_decay != 0, grad + weight_decay * var, grad)


def lerp(start, end, weight):
    """Return start + weight * (end - start), computed from the nearer end as in torch."""
    # As `torch.lerp`: from the nearer end, so that a weight of 1 gives the end exactly.
    difference = end - start
    is_start_nearer = absolute(weight) < 0.5
    return (
        where(is_start_nearer, start, end) + where(is_start_nearer, weight, weight - 1) * difference
    )
