"""What people used of `tf.contrib.layers` around training."""

from thalweg.v1.contrib.layers.regularizers import l2_regularizer
from thalweg.v1.missing import attribute_of

__all__ = ["l2_regularizer"]


def __dir__() -> list[str]:
    return sorted(__all__)


__getattr__ = attribute_of("contrib.layers")
