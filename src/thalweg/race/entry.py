"""A user's entry to the race: the object NAME of a Python file, given as `file.py:NAME`."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from thalweg.formula import Rule
from thalweg.race.errors import EntryError, RaceError


def load(text: str) -> Any:
    """The object that `file.py:NAME` names; the file's only rule where `:NAME` is left out.

    Raises:
        RaceError: If there is no such file, or no such name in it.
        EntryError: If the file fails while it is imported.
    """
    file, _, name = text.partition(".py:")
    path = Path(file if not name and file.endswith(".py") else f"{file}.py").expanduser()
    if not path.is_file():
        raise RaceError(f"there is no file '{path}' (for '{text}').")
    module = _import_file(path)
    if name and hasattr(module, name):
        return getattr(module, name)
    rules = [key for key, value in vars(module).items() if isinstance(value, Rule)]
    if not name and len(rules) == 1:
        return getattr(module, rules[0])
    listed = f"its rules: {', '.join(rules)}" if rules else "it has no rule"
    problem = f"has no '{name}'" if name else f"needs a name, '{path}:NAME'"
    raise RaceError(f"'{path}' {problem}; {listed}.")


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"thalweg_race_{digest}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RaceError(f"'{path}' is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles of the file look it up there
    folder = str(path.parent)
    sys.path.insert(0, folder)  # as `python file.py` would, for its own imports
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise EntryError(
            f"'{path}' failed while it was imported: {type(error).__name__}: {error}"
        ) from error
    finally:
        with contextlib.suppress(ValueError):  # the file may have changed the path itself
            sys.path.remove(folder)
    return module
