"""Errors about corrupt files. The file's name is added last, by `raise_flaws`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from thalweg._formats.checksum import unmask_checksum
from thalweg.errors import DataLossError, ThalwegError

_MAX_QUOTED = 200  # characters of a name that an error shows


class CorruptFileError(Exception):
    """Error about a corrupt file, without the file's name.

    Args:
        text: A description.
        kind: The class to which `raise_flaws` converts the error.
    """

    def __init__(self, text: str, kind: type[ThalwegError] = DataLossError) -> None:
        super().__init__(text)
        self.kind = kind


@contextmanager
def locate_flaws(location: str) -> Generator[None]:
    """Prefix a CorruptFileError of the `with` block with a location."""
    try:
        yield
    except CorruptFileError as flaw:
        raise CorruptFileError(f"{location}: {flaw}", flaw.kind) from None


@contextmanager
def raise_flaws(path: str) -> Generator[None]:
    """Convert a CorruptFileError of the `with` block to an error with the path."""
    try:
        yield
    except CorruptFileError as flaw:
        raise flaw.kind(f"{path}: {flaw}") from None


def quote_name(name: str | bytes) -> str:
    """Return a name for messages, shortened if it is very long."""
    text = repr(name[:_MAX_QUOTED])
    return text if len(name) <= _MAX_QUOTED else f"{text}... ({len(name)} long)"


def check_checksum(masked: int, calculated: int) -> None:
    """Raise CorruptFileError, with TensorFlow's message, unless the checksums are equal."""
    stored = unmask_checksum(masked)
    if stored != calculated:
        text = f"stored {stored} vs. calculated on the restored bytes {calculated}"
        raise CorruptFileError(f"Checksum does not match: {text}")
