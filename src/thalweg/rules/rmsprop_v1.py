"""RMSProp of TensorFlow 1: the kernels of Keras' RMSprop with momentum, started at 1 and not at 0.

The `decay` of TensorFlow's optimizer is `rho` here.
"""

from dataclasses import replace

from thalweg.formula import Hyper, Slot
from thalweg.rules.rmsprop_momentum import CENTERED_MOMENTUM_RMSPROP, MOMENTUM_RMSPROP

HYPERS = (*MOMENTUM_RMSPROP.hypers[:-1], Hyper("epsilon", 1e-10, "added inside the root"))
DIFFERS = (
    "torch.optim.RMSprop starts the average at 0, adds epsilon outside the root and keeps lr out"
    " of the momentum."
)

RMSPROP_V1 = replace(
    MOMENTUM_RMSPROP,
    name="RMSPropV1",
    hypers=HYPERS,
    slots=(Slot("rms", 1.0, positive=True), Slot("momentum")),
    source="tf.train.RMSPropOptimizer; kernel ApplyRMSProp",
    differs=DIFFERS,
)

CENTERED_RMSPROP_V1 = replace(
    CENTERED_MOMENTUM_RMSPROP,
    name="CenteredRMSPropV1",
    hypers=HYPERS,
    slots=(Slot("rms", 1.0, positive=True), Slot("momentum"), Slot("mg", momentum=1)),
    source="tf.train.RMSPropOptimizer(centered=True); kernel ApplyCenteredRMSProp",
    differs=DIFFERS,
)
