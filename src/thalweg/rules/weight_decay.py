"""Decoupled weight decay: the variable shrinks by a share of itself, then takes its step."""

from thalweg.formula import Hyper, Rule, where


def decayed(var, weight_decay):
    """The variable after the decay; its bits are its own where the decay is 0."""
    return where(weight_decay != 0, var - weight_decay * var, var)


def update(var, grad, *, weight_decay):
    """Once per element; of a sparse gradient only the named rows decay."""
    return (decayed(var, weight_decay),)


WEIGHT_DECAY_HYPER = Hyper("weight_decay", 0.01, "share of the variable, whatever the step size")

# Run before any other rule, it gives that rule the decay; AdamW and MomentumW have it fused.
WEIGHT_DECAY = Rule(
    name="WeightDecay",
    update=update,
    hypers=(WEIGHT_DECAY_HYPER,),
    source="Loshchilov & Hutter 2019; tf.contrib.opt.DecoupledWeightDecayExtension",
    differs="torch.optim.AdamW multiplies the decay by the learning rate.",
)
