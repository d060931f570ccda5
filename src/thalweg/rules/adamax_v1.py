"""Adamax of tf.contrib.opt: the formulas of Keras, and another epsilon.

As in `adam_v1.py`, `beta1_power` is a running product there.
"""

from dataclasses import replace

from thalweg.formula import Hyper
from thalweg.rules.adamax import ADAMAX

ADAMAX_V1 = replace(
    ADAMAX,
    name="AdamaxV1",
    hypers=(*ADAMAX.hypers[:-1], Hyper("epsilon", 1e-8, "added to the divisor")),
    source="Kingma & Ba 2015, section 7.1; tf.contrib.opt.AdaMaxOptimizer; kernel ApplyAdaMax",
)
