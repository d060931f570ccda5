"""Graph mode of Keras optimizers, which are written for eager mode."""
