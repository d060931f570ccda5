"""The race: one model trained from one start by several optimizers, side by side, on real data."""
