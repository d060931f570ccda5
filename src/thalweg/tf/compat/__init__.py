"""`tf.compat`: TensorFlow 1's API as `v1`, `tf` itself as `v2`, and text and bytes."""

from thalweg.tf.compat.deferred import find as __getattr__


def as_text(bytes_or_text: str | bytes, encoding: str = "utf-8") -> str:
    """Return a string, decoded from bytes if necessary."""
    return bytes_or_text if isinstance(bytes_or_text, str) else bytes_or_text.decode(encoding)


def as_bytes(bytes_or_text: str | bytes, encoding: str = "utf-8") -> bytes:
    """Return bytes, encoded from a string if necessary."""
    return bytes_or_text if isinstance(bytes_or_text, bytes) else bytes_or_text.encode(encoding)


def as_str_any(value: object, encoding: str = "utf-8") -> str:
    """Return decoded bytes, or `str` of another value."""
    return as_text(value, encoding) if isinstance(value, bytes) else str(value)


as_str = as_text
