"""Base of the four AdamW rules, which differ in weight decay."""

from thalweg.formula import Hyper, Rule, moved
from thalweg.rules.modern.common import SLOTS, corrections, hypers, lerp, mean_square, root_of


def as_it_is(value, counterpart, learning_rate, weight_decay):
    """Return `value`, a gradient or variable, without decay."""
    return value


def adamw(module, name, decay, *, grad_of=as_it_is, var_of=as_it_is, source, differs):
    """Return AdamW's rule with the weight decay that `grad_of` or `var_of` applies.

    Args:
        module: Name of the caller's module. For pickle, the module must have the rule's `update`
            as its attribute `update`.
        name: The rule's name.
        decay: Description of the hyperparameter `weight_decay`.
        grad_of: `grad_of(grad, var, learning_rate, weight_decay)` returns the gradient to use.
        var_of: `var_of(var, step, learning_rate, weight_decay)` returns the decayed variable.
        source, differs: Fields of `Rule`.
    """

    def update(
        var, grad, exp_avg, exp_avg_sq, *, learning_rate, beta2, epsilon, weight_decay, mean_weight,
        square_weight, mean_correction, root_correction,
    ):  # fmt: skip
        grad = grad_of(grad, var, learning_rate, weight_decay)
        exp_avg = lerp(exp_avg, grad, mean_weight)
        exp_avg_sq = mean_square(exp_avg_sq, grad, beta2, square_weight)
        step = exp_avg / root_of(exp_avg_sq, root_correction, epsilon)
        var = var_of(var, step, learning_rate, weight_decay)
        return moved(var, -(learning_rate / mean_correction * step)), exp_avg, exp_avg_sq

    update.__module__, update.__qualname__ = module, "update"
    return Rule(
        name=name,
        update=update,
        prepare=corrections,
        hypers=(*hypers()[:-1], Hyper("weight_decay", 0.01, decay)),
        slots=SLOTS,
        source=source,
        differs=differs,
    )
