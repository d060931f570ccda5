"""`tf.examples.tutorials`."""

from thalweg.tf.compat.v1.examples.tutorials import mnist
