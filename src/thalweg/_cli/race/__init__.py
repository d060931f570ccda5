"""Race: training of one model from one start with several optimizers, on real data."""
