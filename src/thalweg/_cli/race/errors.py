"""Errors of a race before it runs."""

from __future__ import annotations

import importlib

from thalweg.errors import ThalwegError

PACKAGES = {"sklearn": "scikit-learn"}  # those whose modules have other names
NEEDED_BY = {"cli": "the command", "race": "the race"}


class RaceError(ThalwegError, ValueError):
    """The race cannot be run as it was asked for."""


class EntryError(ThalwegError, RuntimeError):
    """The user's file failed while it was imported, or its optimizer while it was made or run."""


class MissingExtraError(ThalwegError, ImportError):
    """A package of an extra is not installed."""


def need_modules(*modules: str, extra: str = "race") -> None:
    """Refuse to go on without modules that an extra of thalweg brings.

    Raises:
        MissingExtraError: Names the packages that are missing and how to get them.
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
            f"{' and '.join(missing)} {verb} not installed; {NEEDED_BY[extra]} needs: "
            f"pip install 'thalweg[{extra}]'"
        )
