"""`tf.contrib`: optimizers and common layers."""

from thalweg.tf.compat.v1.contrib import layers
from thalweg.tf.missing import attribute_of
from thalweg.v1.contrib import framework, opt

__getattr__ = attribute_of("compat.v1.contrib")
