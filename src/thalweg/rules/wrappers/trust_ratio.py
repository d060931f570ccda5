"""Wrappers that scale a step to the norm of the variable times the learning rate."""

from thalweg.errors import RuleError
from thalweg.formula import Rule, moved, narrow, sqrt, variable_squares, where, wide
from thalweg.rules.modern.sphere import RADIUS
from thalweg.rules.wrappers.base import check_rate, keep_by_rule, wrapped


def step_squares(var, grad, base, step):
    """Return the squares of the step in float64, as float32 might not hold them."""
    return wide(step) * wide(step)


def step_products(var, grad, base, step):
    """Return the products of variable and step in float64, as float32 might not hold them."""
    return wide(var) * wide(step)


def scaled_step(var, grad, base, step, *, trust_scale):
    """Return the updated variable."""
    return moved(base, step * trust_scale)


def scale_of_trust(*, trust_variable, trust_step, learning_rate):
    """Return the trust factor times the rate; 1 if the norm of variable or step is 0."""
    has_lengths = (trust_variable > 0) & (trust_step > 0)
    ratio = sqrt(trust_variable) / sqrt(where(trust_step > 0, trust_step, 1.0))
    return {"trust_scale": where(has_lengths, learning_rate * ratio, 1.0)}


@keep_by_rule
def trust_ratio(rule: Rule) -> Rule:
    """Return a rule whose steps have the norm of the variable times the learning rate, as in LAMB.

    Raises:
        RuleError: The rule has no `learning_rate`, or has this wrapper already.
    """
    check_rate(rule, "with a trust ratio")
    return wrapped(
        rule,
        "with a trust ratio",
        scaled_step,
        "You et al. 2019, https://arxiv.org/abs/1904.00962",
        measures={"trust_variable": variable_squares, "trust_step": step_squares},
        per_variable=scale_of_trust,
    )


def step_on_sphere(var, grad, base, step, *, sphere_back, sphere_along):
    """Return the updated variable; what decays would be put back anyway."""
    return moved(where(sphere_back == 0, base, var * sphere_back), step * sphere_along)


def turn(*, sphere_variable, sphere_step, sphere_product, radius, learning_rate):
    """Return {"sphere_back": variable's factor, "sphere_along": step's factor, "radius": norm}.

    Args:
        sphere_variable, sphere_step, sphere_product: Sums of the variable's squares, of the
            step's squares, and of the products of variable and step.
        radius: The norm to keep. A negative number selects the variable's present norm.
        learning_rate: The length of the step divided by the radius.
    """
    radius = wide(narrow(where(radius < 0, sqrt(sphere_variable), radius), learning_rate))
    along_factor = learning_rate * radius / sqrt(where(sphere_step > 0, sphere_step, 1.0))
    end_squares = (
        sphere_variable
        + 2 * along_factor * sphere_product
        + along_factor * along_factor * sphere_step
    )
    moves = (radius > 0) & (sphere_step > 0) & (end_squares > 0)
    back_factor = where(
        moves, radius / sqrt(where(moves, end_squares, 1.0)), where(radius > 0, 1.0, 0.0)
    )
    return {
        "sphere_back": back_factor,
        "sphere_along": where(moves, along_factor * back_factor, 1.0),
        "radius": narrow(radius, learning_rate),
    }


@keep_by_rule
def sphere(rule: Rule) -> Rule:
    """Return a copy of the rule that keeps the initial norm of each variable: Adam gives AdamH.

    A step is as long as the initial norm times the learning rate. Decoupled decay has no effect. A
    variable that begins at 0 takes the rule's unchanged steps.

    Raises:
        RuleError: The rule has no `learning_rate`, has this wrapper already, or has a formula
            `before` (as with `with_decay`).
    """
    check_rate(rule, "on a sphere")
    if rule.before is not None:
        raise RuleError(f"Rule {rule.name!r} on a sphere: its decay, which comes first, leaves it.")
    return wrapped(
        rule,
        "on a sphere",
        step_on_sphere,
        "Hyperball, 2026, https://arxiv.org/abs/2606.16899",
        measures={
            "sphere_variable": variable_squares,
            "sphere_step": step_squares,
            "sphere_product": step_products,
        },
        per_variable=turn,
        slots=(RADIUS,),
    )
