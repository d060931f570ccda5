"""Savers, checkpoints of objects, and their files."""
