"""Decoupled weight decay: the variable shrinks by a share of itself, then takes its step."""

from dataclasses import replace
from functools import cache

from thalweg.formula import Hyper, Rule, where


def decayed(var, weight_decay):
    """Return the variable after the decay; a decay of 0 changes no bit."""
    return where(weight_decay != 0, var - weight_decay * var, var)


def update(var, grad, *, weight_decay):
    """Return the updated variable. With a sparse gradient, only rows with entries decay."""
    return (decayed(var, weight_decay),)


def before(var, *, decoupled_decay):
    """Return the updated variable, before the formulas of a rule that gets the decay."""
    return decayed(var, decoupled_decay)


WEIGHT_DECAY_HYPER = Hyper("weight_decay", 0.01, "share of the variable, whatever the step size")

# Run before any other rule, it gives that rule the decay; `with_decay` makes one rule of both.
WEIGHT_DECAY = Rule(
    name="WeightDecay",
    update=update,
    hypers=(WEIGHT_DECAY_HYPER,),
    source="Loshchilov & Hutter 2019; tf.contrib.opt.DecoupledWeightDecayExtension",
    differs="torch.optim.AdamW multiplies the decay by the learning rate.",
)


@cache
def with_decay(rule: Rule) -> Rule | None:
    """Return a copy of a rule that first decays the variable; results are cached.

    The copy has a new hyperparameter `decoupled_decay`. A hyperparameter `weight_decay` of the
    rule, which changes the gradient, stays.

    Returns:
        The new rule. None for a rule with `measures`, `levels`, `whole` or `before`: the caller
        must then run the rule `WEIGHT_DECAY` before `rule`.
    """
    # Sums must read decayed variables. With `whole`, a sparse gradient is made dense, but only the
    # rows that it names decay.
    if rule.measures or rule.levels or rule.whole or rule.before is not None:
        return None
    decay = replace(WEIGHT_DECAY_HYPER, name="decoupled_decay")
    hypers = (*rule.hypers, decay)
    return replace(rule, name=f"{rule.name} with decay", hypers=hypers, before=before)
