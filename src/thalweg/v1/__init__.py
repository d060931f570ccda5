"""TensorFlow 1: `tf.compat.v1`'s optimizers (`train`), and graph mode."""

from thalweg.graph import *  # noqa: F403
