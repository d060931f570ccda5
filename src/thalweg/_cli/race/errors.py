"""Errors of a race before it runs."""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager

from thalweg.errors import ThalwegError

# Package names of modules whose names differ.
PACKAGES = {"sklearn": "scikit-learn"}
PURPOSES = {"cli": "the command", "race": "the race"}


class RaceError(ThalwegError, ValueError):
    """Error in the options of a race."""


class EntryError(ThalwegError, RuntimeError):
    """Error of a user's file at import, or of an optimizer that cannot be built or run."""


class MissingExtraError(ThalwegError, ImportError):
    """Error for a package of an extra that is not installed."""


@contextmanager
def name_failures(failure: str) -> Generator[None]:
    """Convert errors of a `with` block to an EntryError, whose message begins with `failure`.

    An EntryError is raised unchanged.
    """
    try:
        yield
    except EntryError:
        raise
    except (Exception, SystemExit) as error:
        raise EntryError(f"{failure}: {type(error).__name__}: {error}") from error


def need_modules(*modules: str, extra: str = "race") -> None:
    """Raise an error unless all `modules` of the pip extra `extra` can be imported.

    Raises:
        MissingExtraError: Lists the missing packages and the command that installs them.
    """
    missing: list[str] = []
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(PACKAGES.get(module, module))
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(
            f"{' and '.join(missing)} {verb} not installed; {PURPOSES[extra]} needs: "
            f"pip install 'thalweg[{extra}]'"
        )
