"""`tf.version` of TensorFlow 1; see `thalweg.tf.version`."""

from thalweg.tf.version import COMPILER_VERSION, GIT_VERSION

VERSION = "1.15.0"
