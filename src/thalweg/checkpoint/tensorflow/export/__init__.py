"""Export of variables and an optimizer in the layouts of TensorFlow."""
