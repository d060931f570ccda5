"""Graph mode of the optimizers of Keras, which know no graph themselves."""
