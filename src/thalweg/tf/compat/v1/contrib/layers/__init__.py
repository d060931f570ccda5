"""`tf.contrib.layers`: the most common functions."""

from thalweg.tf.compat.v1.contrib.layers.functions import (
    avg_pool2d,
    batch_norm,
    conv2d,
    conv2d_transpose,
    dropout,
    flatten,
    fully_connected,
    layer_norm,
    linear,
    max_pool2d,
    relu,
)
from thalweg.tf.compat.v1.contrib.layers.optimizers import (
    OPTIMIZER_CLS_NAMES,
    OPTIMIZER_SUMMARIES,
    adaptive_clipping_fn,
    optimize_loss,
)
from thalweg.tf.compat.v1.contrib.layers.weights import (
    apply_regularization,
    l1_regularizer,
    sum_regularizer,
    variance_scaling_initializer,
    xavier_initializer,
)
from thalweg.tf.missing import attribute_of
from thalweg.v1.contrib.layers import l2_regularizer

convolution2d = conv2d
convolution2d_transpose = conv2d_transpose
xavier_initializer_conv2d = xavier_initializer

__getattr__ = attribute_of("compat.v1.contrib.layers")
