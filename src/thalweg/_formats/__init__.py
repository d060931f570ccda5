"""File formats: bytes, checksums and atomic writes of tensors.

This module imports nothing, so that `atomic_write` needs the standard library only.
"""
