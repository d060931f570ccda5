"""What people used of `tf.contrib.layers` around training."""

from thalweg.v1.contrib.layers.regularizers import l2_regularizer

__all__ = ["l2_regularizer"]
