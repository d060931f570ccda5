"""Adamax of tf.contrib.opt: the formulas of Keras, and another epsilon.

As in `adam_v1.py`, `beta1_power` is a running product there.
"""

from dataclasses import replace

from thalweg.formula import Hyper
from thalweg.rules.adamax import ADAMAX

ADAMAX_V1 = replace(
    ADAMAX,
    name="AdamaxV1",
    hypers=(
        Hyper("learning_rate", 0.001, "step size"),
        Hyper("beta1", 0.9, "share of the mean that is kept"),
        Hyper("beta2", 0.999, "share of the largest gradient that is kept"),
        Hyper("epsilon", 1e-8, "added to the divisor"),
    ),
    source="Kingma & Ba 2015, section 7.1; tf.contrib.opt.AdaMaxOptimizer; kernel ApplyAdaMax",
)
