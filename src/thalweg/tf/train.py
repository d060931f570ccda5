"""`tf.train`: TensorFlow 1's optimizers, schedules and global step."""

from thalweg.tf.missing import attribute_of
from thalweg.v1.train import *

__getattr__ = attribute_of("train")
