"""`tf.examples.tutorials.mnist`."""

from thalweg.tf.compat.v1.examples.tutorials.mnist import input_data
