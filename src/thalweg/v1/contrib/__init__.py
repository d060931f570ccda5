"""The parts of TensorFlow 1.15's `tf.contrib` that train."""
