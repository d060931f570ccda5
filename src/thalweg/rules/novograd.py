"""NovoGrad: momentum of gradients that are divided by a norm of their variable.

The caller keeps the moving average of each variable's squared norm, and hands the reciprocal of its
root to the step as the separate scalar `grad_scale`. `share` is the factor of gradient averaging,
1 without it. A sparse gradient is a dense one: rows that no index names have a gradient of 0.
"""

from thalweg.formula import Hyper, Rule, Slot, where


def moved(var, normalised, velocity, beta1, weight_decay, share):
    """The velocity after a step."""
    step = where(weight_decay > 0, normalised + weight_decay * var, normalised)
    return velocity * beta1 + step * share


def update(var, grad, velocity, *, learning_rate, beta1, weight_decay, grad_scale, share):
    """Once per element; after the gradient has been made, it is ApplyMomentum."""
    velocity = moved(var, grad * grad_scale, velocity, beta1, weight_decay, share)
    return var - velocity * learning_rate, velocity


def update_untouched(var, velocity, *, learning_rate, beta1, weight_decay, grad_scale, share):
    """Once per element of a row without a gradient."""
    zero = grad_scale * 0.0  # NaN where the scale is infinite, as in a dense gradient
    velocity = moved(var, zero, velocity, beta1, weight_decay, share)
    return var - velocity * learning_rate, velocity


NOVOGRAD = Rule(
    name="NovoGrad",
    update=update,
    update_untouched=update_untouched,
    hypers=(
        Hyper("learning_rate", 1.0, "step size"),
        Hyper("beta1", 0.95, "share of the velocity that is kept"),
        Hyper("beta2", 0.98, "share of the average of squared norms that is kept"),
        Hyper("epsilon", 1e-8, "added to that average, inside the root"),
        Hyper("weight_decay", 0.0, "decay, as a part of the normalised gradient"),
    ),
    slots=(Slot("momentum"),),
    source="Ginsburg et al. 2019; OpenSeq2Seq's optimizers.novograd; kernel ApplyMomentum",
    differs="Not in torch.optim.",
)
