"""What can go wrong with a race before it runs."""

from __future__ import annotations

import importlib

from thalweg.errors import ThalwegError

EXTRA = {"sklearn": "scikit-learn", "matplotlib": "matplotlib", "tensorboard": "tensorboard"}


class RaceError(ThalwegError, ValueError):
    """The race cannot be run as it was asked for."""


class EntryError(ThalwegError, RuntimeError):
    """The user's file failed while it was imported, or its optimizer while it was made or run."""


class MissingExtraError(ThalwegError, ImportError):
    """A package of the extra `race` is not installed."""


def need(*modules: str) -> None:
    """Refuse to go on without the modules of the extra `race`.

    Raises:
        MissingExtraError: Names the packages that are missing and how to get them.
    """
    missing: list[str] = []
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(EXTRA.get(module, module))
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(
            f"{' and '.join(missing)} {verb} not installed; the race needs: "
            "pip install 'thalweg[race]'"
        )
