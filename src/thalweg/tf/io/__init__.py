"""`tf.io`: files."""

from thalweg.tf.io import gfile
from thalweg.tf.missing import attribute_of

__getattr__ = attribute_of("io")
