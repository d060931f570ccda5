"""Wrappers that leave elements out, by the signs of gradient, variable and step."""

from thalweg.formula import Rule, maximum, moved, where
from thalweg.rules.modern.common import ones
from thalweg.rules.wrappers.base import keep_by_rule, wrapped


def cautious_step(var, grad, base, step, *, cautious_gain):
    """Return the updated variable; a NaN step is kept."""
    agrees = ((step < 0) & (grad > 0)) | ((step > 0) & (grad < 0))
    return moved(base, where(agrees | (step != step), step * cautious_gain, 0.0))


def cautious_step_either_way(var, grad, base, step, *, cautious_gain, maximize):
    """Return the variable after the cautious step of a rule that may maximize."""
    grad = where(maximize != 0, -grad, grad)
    agrees = ((step < 0) & (grad > 0)) | ((step > 0) & (grad < 0))
    return moved(base, where(agrees | (step != step), step * cautious_gain, 0.0))


def kept(var, grad, base, step):
    """Return 1 for elements that go downhill, else 0."""
    return where(((step < 0) & (grad > 0)) | ((step > 0) & (grad < 0)), 1.0, 0.0)


def kept_either_way(var, grad, base, step, *, maximize):
    """Return 1 for elements that follow the objective of a rule that may maximize, else 0."""
    grad = where(maximize != 0, -grad, grad)
    return where(((step < 0) & (grad > 0)) | ((step > 0) & (grad < 0)), 1.0, 0.0)


def gain_of_kept(*, cautious_kept, cautious_count):
    """Return the factor of the steps of elements that move, at most 1000."""
    share = maximum(cautious_kept / maximum(cautious_count, 1.0), 1e-3)
    return {"cautious_gain": 1 / share}


@keep_by_rule
def cautious(rule: Rule) -> Rule:
    """Return a copy of the rule that skips elements whose step has the gradient's sign.

    If the rule maximizes, elements whose step has the opposite sign are skipped. All other steps
    are divided by max(fraction of elements that move, 0.001).

    Raises:
        RuleError: The rule has this wrapper already.
    """
    can_maximize = any(hyper.name == "maximize" for hyper in rule.hypers)
    return wrapped(
        rule,
        "with cautious steps",
        cautious_step_either_way if can_maximize else cautious_step,
        "Liang et al. 2024, https://arxiv.org/abs/2411.16085",
        measures={
            "cautious_kept": kept_either_way if can_maximize else kept,
            "cautious_count": ones,
        },
        per_variable=gain_of_kept,
    )


def decayed_where_smaller(var, grad, base, step):
    """Return the updated variable."""
    shrinks = ((step < 0) & (var > 0)) | ((step > 0) & (var < 0))
    return moved(where(shrinks, base, var), step)


@keep_by_rule
def cautious_decay(rule: Rule) -> Rule:
    """Return a copy of the rule that decays only elements whose step points toward 0.

    The decay is the variable minus `base` in the call `moved(base, step)` of the rule's `update`.
    If `base` is the variable itself, engines raise RuleError for the new rule.
    """
    return wrapped(
        rule,
        "with cautious decay",
        decayed_where_smaller,
        "Chen et al. 2025, https://arxiv.org/abs/2510.12402",
        decays=True,
    )
