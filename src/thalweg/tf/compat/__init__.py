"""`tf.compat`: TensorFlow 1's API as `v1`, `tf` itself as `v2`, and text and bytes."""

from collections.abc import Callable
from typing import Any

from thalweg.tf.missing import not_provided


def as_text(bytes_or_text: str | bytes, encoding: str = "utf-8") -> str:
    """Text, decoded if it is bytes."""
    return bytes_or_text if isinstance(bytes_or_text, str) else bytes_or_text.decode(encoding)


def as_bytes(bytes_or_text: str | bytes, encoding: str = "utf-8") -> bytes:
    """Bytes, encoded if it is text."""
    return bytes_or_text if isinstance(bytes_or_text, bytes) else bytes_or_text.encode(encoding)


def as_str_any(value: Any, encoding: str = "utf-8") -> str:
    """Text: decoded bytes, or the `str` of anything else."""
    return as_text(value, encoding) if isinstance(value, bytes) else str(value)


as_str = as_text

_later: dict[str, Callable[[], Any]] = {}  # `tf` says here how to find what needs all of it


def __getattr__(name: str) -> Any:
    if name in _later:
        return _later[name]()
    raise not_provided("compat", name)
