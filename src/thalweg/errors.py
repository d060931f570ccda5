"""The exceptions and warnings of the library; each is also the standard class users catch today."""

import difflib
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

LISTED = 10  # things of a kind that a message names

_HERE = str(Path(__file__).parent) + os.sep


class ThalwegError(Exception):
    """Base of every error that the library raises on purpose."""

    @property
    def message(self) -> str:
        """Text of the error."""
        return str(self)


class InvalidTypeError(ThalwegError, TypeError, ValueError):
    """A value has the wrong type or dtype. TensorFlow raises either class, so both catch it."""


class InvalidArgumentError(ThalwegError, ValueError, IndexError, RuntimeError):
    """A value of the right type is out of range, of the wrong shape, or on the wrong device."""


class LayoutError(ThalwegError, ValueError):
    """A tensor lies in memory in a way that cannot be updated in place."""


class FailedPreconditionError(ThalwegError, RuntimeError):
    """The call is legal, but not in the present state of the object."""


class CancelledError(ThalwegError, RuntimeError):
    """A wait was ended on purpose: the session was closed, or a stop was requested."""


class OutOfRangeError(ThalwegError, RuntimeError):
    """Error of a read past the last element."""


class NotFoundError(ThalwegError, KeyError):
    """Error of a name that does not exist."""

    __str__ = Exception.__str__  # that of KeyError would put the message in quotes


class MissingFileError(NotFoundError, FileNotFoundError):
    """A file does not exist."""


class OptionError(ThalwegError, AttributeError, ValueError):
    """Options exclude one another, or an option that is needed is not there."""


class RuleError(ThalwegError, ValueError):
    """An update rule is written in a way that the library cannot compile."""


class CheckpointMismatchError(InvalidArgumentError):
    """Names, shapes or dtypes of saved state differ from those it is loaded into."""


class NotConsumedError(CheckpointMismatchError, AssertionError):
    """Error of an assertion that a checkpoint was restored as a whole, where it was not."""


class CheckpointWriteError(ThalwegError, OSError):
    """A file could not be written; `errno` says why, and what was there before is intact."""

    def __str__(self) -> str:
        return self.strerror or super().__str__()


class DataLossError(ThalwegError, OSError):
    """A file is damaged: it is not what was written."""


class InvalidConfigError(ThalwegError, ValueError):
    """A description in a file, such as that of an optimizer, cannot be read or names nothing."""


class UnsafeCheckpointError(ThalwegError, ValueError):
    """A file could execute code, or leads outside of its folder."""


class UnsupportedCheckpointError(ThalwegError, NotImplementedError):
    """A file is of a known kind that is not read here."""


class ReplicaMismatchError(ThalwegError, RuntimeError):
    """The ranks of a process group disagree about what they are to bring together."""


class ReplicaLostError(ThalwegError, RuntimeError):
    """Error of a rank of a process group that did not answer: it ended, stopped, or raised an
    error.
    """


class CheckpointWarning(UserWarning):
    """A file among checkpoints, or what is in one, was left alone, or was not there."""


class PerformanceWarning(UserWarning):
    """The result is right, but a faster way was not available."""


class NumericsWarning(UserWarning):
    """The result may differ from what the same code computed in TensorFlow, or from a rule's."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code that led here, however deep in the library."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def listed(texts: Iterable[str], between: str = ", ", most: int = LISTED) -> str:
    """Return the first few of many, and how many more there are."""
    every = list(texts)
    shown, left = between.join(every[:most]), len(every) - most
    return f"{shown}{between.replace(', ', ' ')}and {left} more" if left > 0 else shown


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest of the known names, "" if none is near.

    Case, "_" and "-" are no difference.
    """
    names = {_plain(each): each for each in sorted(known, reverse=True)}
    found = difflib.get_close_matches(_plain(name), names, n=1, cutoff=0.75)
    return f"Did you mean '{names[found[0]]}'?" if found else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
