"""Checkpoints of objects: what they consist of, what is read, and what has become of it."""
