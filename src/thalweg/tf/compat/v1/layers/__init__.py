"""`tf.layers`: layers as functions and as classes, with variables of `get_variable`."""

from thalweg.tf.compat.v1.layers.base import Layer
from thalweg.tf.compat.v1.layers.convolution import (
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    conv1d,
    conv2d,
    conv2d_transpose,
    conv3d,
)
from thalweg.tf.compat.v1.layers.dense import Dense, Dropout, Flatten, dense, dropout, flatten
from thalweg.tf.compat.v1.layers.normalization import BatchNormalization, batch_normalization
from thalweg.tf.compat.v1.layers.pooling import (
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
    MaxPooling1D,
    MaxPooling2D,
    MaxPooling3D,
    average_pooling1d,
    average_pooling2d,
    average_pooling3d,
    max_pooling1d,
    max_pooling2d,
    max_pooling3d,
)
from thalweg.tf.missing import attribute_of

__getattr__ = attribute_of("compat.v1.layers")
