"""`tf.keras.optimizers`: thalweg's optimizers, also in `legacy`."""

from thalweg.keras import optimizers as legacy
from thalweg.keras.optimizers import *
from thalweg.tf.missing import attribute_of

__getattr__ = attribute_of("keras.optimizers")
