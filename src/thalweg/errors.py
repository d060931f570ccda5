"""Exceptions and warnings of the library, which are subclasses of standard classes."""

import difflib
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

# Number of items that a message lists.
LISTED = 10

_PACKAGE_PREFIX = str(Path(__file__).parent) + os.sep


class ThalwegError(Exception):
    """Base of every error that the library raises on purpose."""

    @property
    def message(self) -> str:
        """Text of the error."""
        return str(self)


class InvalidTypeError(ThalwegError, TypeError, ValueError):
    """Error for a wrong type or dtype; both a TypeError and a ValueError, as in TensorFlow."""


class InvalidArgumentError(ThalwegError, ValueError, IndexError, RuntimeError):
    """Error for a value out of range, of the wrong shape, or on the wrong device."""


class LayoutError(ThalwegError, ValueError):
    """Error for a tensor whose memory layout does not allow updates in place."""


class FailedPreconditionError(ThalwegError, RuntimeError):
    """Error for a call that is invalid in the present state of the object."""


class CancelledError(ThalwegError, RuntimeError):
    """Error of a wait that was cancelled by closing the session or requesting a stop."""


class OutOfRangeError(ThalwegError, RuntimeError):
    """Error of a read past the last element."""


class NotFoundError(ThalwegError, KeyError):
    """Error of a name that does not exist."""

    # `KeyError.__str__` would put the message in quotes.
    __str__ = Exception.__str__


class MissingFileError(NotFoundError, FileNotFoundError):
    """Error for a file that does not exist."""


class OptionError(ThalwegError, AttributeError, ValueError):
    """Error for conflicting options, or for a missing option."""


class RuleError(ThalwegError, ValueError):
    """Error for an invalid update rule."""


class CheckpointMismatchError(InvalidArgumentError):
    """Error for saved state whose names, shapes or dtypes differ from the target's."""


class NotConsumedError(CheckpointMismatchError, AssertionError):
    """Error of a failed assertion that a checkpoint was restored completely."""


class CheckpointWriteError(ThalwegError, OSError):
    """Error of a failed write, with the cause in `errno`; the old file is intact."""

    def __str__(self) -> str:
        return self.strerror or super().__str__()


class DataLossError(ThalwegError, OSError):
    """Error for a damaged file."""


class InvalidConfigError(ThalwegError, ValueError):
    """Error for an invalid description of an object, such as an optimizer's config."""


class UnsafeCheckpointError(ThalwegError, ValueError):
    """Error for a file that could execute code, or refers outside of its folder."""


class UnsupportedCheckpointError(ThalwegError, NotImplementedError):
    """Error for a file of a known but unsupported format."""


class ReplicaMismatchError(ThalwegError, RuntimeError):
    """Error for ranks of a process group with different arguments of a collective operation."""


class ReplicaLostError(ThalwegError, RuntimeError):
    """Error for a rank of a process group that ended, stopped, or raised an error."""


class CheckpointWarning(UserWarning):
    """Warning about a file, or contents of a checkpoint, that were ignored or missing."""


class PerformanceWarning(UserWarning):
    """Warning that a slower code path is used."""


class NumericsWarning(UserWarning):
    """Warning that results may differ from TensorFlow's results, or from a rule's formula."""


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning with the line of the user's code as its location."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE_PREFIX):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def listed(texts: Iterable[str], separator: str = ", ", limit: int = LISTED) -> str:
    """Join the first `limit` texts, and add the number of omitted ones."""
    all_texts = list(texts)
    text, omitted = separator.join(all_texts[:limit]), len(all_texts) - limit
    return f"{text}{separator.replace(', ', ' ')}and {omitted} more" if omitted > 0 else text


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return a question with the most similar known name, or "" if none is similar.

    Case, "_" and "-" are ignored.
    """
    names = {_plain(candidate): candidate for candidate in sorted(candidates, reverse=True)}
    matches = difflib.get_close_matches(_plain(name), names, n=1, cutoff=0.75)
    return f"Did you mean '{names[matches[0]]}'?" if matches else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
