"""Adadelta of TensorFlow 1: the kernel of Keras, other names of slots and another epsilon."""

from dataclasses import replace

from thalweg.formula import Hyper, Slot
from thalweg.rules.adadelta import ADADELTA

ADADELTA_V1 = replace(
    ADADELTA,
    name="AdadeltaV1",
    hypers=(*ADADELTA.hypers[:-1], Hyper("epsilon", 1e-8, "added inside the roots")),
    slots=(Slot("accum", positive=True), Slot("accum_update", positive=True)),
    source="Zeiler 2012; tf.train.AdadeltaOptimizer; kernel ApplyAdadelta",
)
