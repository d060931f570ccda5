"""FTRL-proximal of TensorFlow 1: the kernels of Keras, other names of slots, a guarded beta.

TensorFlow 1 adds beta to l2 before the sum is cast: in float32, unless the learning rate was given
as a float64. A caller with float64 variables calls `adjusted_l2` with such scalars, and passes the
result to the rule as `l2`, with a `beta` of 0.
"""

from dataclasses import replace

from thalweg.formula import Slot, maximum, number_like
from thalweg.rules.ftrl import FTRL
from thalweg.rules.ftrl_power import FTRL_POWER


def adjusted_l2(learning_rate, l2, beta):
    """Return l2 with beta added; a learning rate of 0 does not give NaN, unlike in Keras."""
    return l2 + beta / (2 * maximum(learning_rate, number_like(1e-36, learning_rate)))


def prepare(*, learning_rate, l2, beta):
    """Return the scalars of a step."""
    return {"l2_adjusted": adjusted_l2(learning_rate, l2, beta)}


SLOTS = (Slot("accum", 0.1, positive=True, exact=True), Slot("linear", exact=True))

FTRL_V1 = replace(
    FTRL,
    name="FtrlV1",
    prepare=prepare,
    slots=SLOTS,
    source="McMahan et al. 2013; tf.train.FtrlOptimizer; kernels ApplyFtrl, ApplyFtrlV2",
)

FTRL_POWER_V1 = replace(
    FTRL_POWER,
    name="FtrlPowerV1",
    prepare=prepare,
    slots=SLOTS,
    source="tf.train.FtrlOptimizer(learning_rate_power=...); kernels as FtrlV1",
)
