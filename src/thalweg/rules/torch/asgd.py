"""ASGD of torch: gradient descent with a mean of the variables that starts after some steps.

A step uses the `eta` and `mu` of the previous step, so a learning rate counts one step late.
"""

from thalweg.formula import Hyper, Rule, Slot, moved, where
from thalweg.rules.torch.common import as_read, at_least_one, decayed, direction_of, make_hypers


def prepare(*, learning_rate, lambd, alpha, t0, maximize, t, eta, mu):
    """Return {name: scalar of step t} for `update`, with the `eta` and `mu` of the next step."""
    return {
        "direction": direction_of(maximize),
        "shrink": 1 - lambd * as_read(eta),
        "step_size": -as_read(eta),
        "mean_weight": as_read(mu),
        "eta": learning_rate / ((1 + lambd * learning_rate * t) ** alpha),
        "mu": 1 / at_least_one(t - t0),
    }


def update(var, grad, ax, *, direction, weight_decay, shrink, step_size, mean_weight):
    """Return the updated variable and slots."""
    grad = decayed(grad * direction, var, weight_decay)
    var = moved(var * shrink, step_size * grad)
    return var, where(mean_weight != 1, ax + (var - ax) * mean_weight, var)


TORCH_ASGD = Rule(
    name="TorchASGD",
    update=update,
    prepare=prepare,
    hypers=make_hypers(
        0.01,
        Hyper("lambd", 1e-4, "share of the variable that a step of size 1 takes away"),
        Hyper("alpha", 0.75, "power with which the step size falls"),
        Hyper("t0", 1e6, "number of the step with which the mean starts"),
    ),
    # `eta` starts at the learning rate.
    slots=(Slot("eta", 0.01, scalar=True), Slot("mu", 1.0, scalar=True), Slot("ax", exact=True)),
    source="Polyak & Juditsky 1992; torch.optim.ASGD",
    differs="The formula of torch.optim.ASGD.",
)
