"""Checkpoints of objects: members, files, restoration and status."""
