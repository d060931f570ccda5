"""Savers, checkpoints of objects, and the files that both read and write."""
