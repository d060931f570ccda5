"""Files of tensors: bytes, checksums and the order in which they reach the disk. No optimizers.

Nothing is imported here, so that `thalweg.storage.disk` needs the standard library alone.
"""
