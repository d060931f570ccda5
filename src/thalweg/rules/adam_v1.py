"""Adam of TensorFlow 1: the formulas of Keras, other bias corrections and another epsilon.

Keras raises beta1 and beta2 to the step's number. TensorFlow 1 keeps the powers in two variables,
multiplied after each step. A caller with such variables passes their values before the step as
`beta1_power` and `beta2_power` to `prepare`, cast to the compute dtype.
"""

from dataclasses import replace

from thalweg.formula import Hyper, sqrt
from thalweg.rules.adam import ADAM


def prepare(*, learning_rate, beta1_power, beta2_power):
    """Return the scalars of a step; unlike in Keras, dense and sparse use one order of factors."""
    alpha = learning_rate * sqrt(1 - beta2_power) / (1 - beta1_power)
    return {"alpha": alpha, "alpha_sparse": alpha}


EPSILON = Hyper("epsilon", 1e-8, "added to the root before bias correction")
ADAM_V1 = replace(
    ADAM,
    name="AdamV1",
    prepare=prepare,
    hypers=(*ADAM.hypers[:-1], EPSILON),
    source='Kingma & Ba 2015, "epsilon hat"; tf.train.AdamOptimizer; kernel ApplyAdam',
)
