"""Flaws of a file, located from the inside out: the flaw, its place, and the file."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from thalweg.errors import DataLossError, ThalwegError

_SHOWN = 200  # characters of a name that an error shows


class CorruptFileError(Exception):
    """Flaw of a file; code that knows the file's name turns it into an error.

    Args:
        words: A description.
        kind: The class of the error.
    """

    def __init__(self, words: str, kind: type[ThalwegError] = DataLossError) -> None:
        super().__init__(words)
        self.kind = kind


@contextmanager
def locate_flaws(place: str) -> Generator[None]:
    """Prefix flaws with where they are."""
    try:
        yield
    except CorruptFileError as flaw:
        raise CorruptFileError(f"{place}: {flaw}", flaw.kind) from None


@contextmanager
def raise_flaws(path: str) -> Generator[None]:
    """Raise flaws as errors that begin with the name of the file."""
    try:
        yield
    except CorruptFileError as flaw:
        raise flaw.kind(f"{path}: {flaw}") from None


def quote_name(name: str | bytes) -> str:
    """Return a name as errors show it; a very long one is shortened."""
    text = repr(name[:_SHOWN])
    return text if len(name) <= _SHOWN else f"{text}... ({len(name)} long)"


def checksum_flaw(stored: int, calculated: int) -> CorruptFileError:
    """Return the flaw of bytes that have another CRC32C, in TensorFlow's words."""
    return CorruptFileError(
        f"Checksum does not match: stored {stored} vs. calculated on the restored bytes"
        f" {calculated}"
    )
