"""Files of tensors: bytes, checksums and the order in which they reach the disk. No optimizers.

Nothing is imported here, so that `thalweg._formats.atomic_write` needs the standard library alone.
"""
