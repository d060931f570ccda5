"""Rprop of torch: the signs of successive gradients change a step size per element."""

from dataclasses import replace

from thalweg.formula import Hyper, Rule, Slot, maximum, minimum, moved, where
from thalweg.rules.torch.common import LEARNING_RATE, MAXIMIZE, direction_of


def prepare(*, maximize):
    """Return the scalars of a parameter group."""
    return {"direction": direction_of(maximize)}


def update(
    var,
    grad,
    prev,
    step_size,
    *,
    direction,
    eta_minus,
    eta_plus,
    step_size_min,
    step_size_max,
):
    """Return the new var, prev and step_size. Where the sign changes, var stays, and prev is 0."""
    grad = grad * direction
    agreement = grad * prev
    factor = where(agreement < 0, eta_minus, where(agreement > 0, eta_plus, 1))
    step_size = minimum(maximum(step_size * factor, step_size_min), step_size_max)
    grad = where(factor == eta_minus, 0, grad)  # as torch tells it, which may be where eta is 1
    move = where(grad < 0, -1, where(grad > 0, 1, 0))  # torch's sign of NaN is 0
    return moved(var, -(move * step_size)), grad, step_size


TORCH_RPROP = Rule(
    name="TorchRprop",
    update=update,
    prepare=prepare,
    hypers=(
        replace(LEARNING_RATE, default=0.01, doc="step size of all elements at first; torch's lr"),
        Hyper("eta_minus", 0.5, "what a step size is multiplied by where signs differ; etas[0]"),
        Hyper("eta_plus", 1.2, "what it is multiplied by where they agree; etas[1]"),
        Hyper("step_size_min", 1e-6, "the smallest step size; step_sizes[0]"),
        Hyper("step_size_max", 50.0, "the largest step size; step_sizes[1]"),
        MAXIMIZE,
    ),
    # `step_size` starts at the learning rate.
    slots=(Slot("prev", exact=True), Slot("step_size", 0.01, positive=True, exact=True)),
    source="Riedmiller & Braun 1993; torch.optim.Rprop",
    differs="The formula of torch.optim.Rprop.",
)
