"""Creation and loading of optimizers from a detected description."""
