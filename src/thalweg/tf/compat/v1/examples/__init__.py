"""`tf.examples`: the reader that tutorials of TensorFlow 1 begin with."""

from thalweg.tf.compat.v1.examples import tutorials
from thalweg.tf.missing import attribute_of

__getattr__ = attribute_of("compat.v1.examples")
