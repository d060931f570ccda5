"""An entry of the race as users write it: a name, `file.py:NAME` or `PACKAGE:NAME`.

Options stand in parentheses behind the name: `lion_pytorch:Lion(weight_decay=0.1)`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from thalweg._base.literals import names_file, parse_argument, split_at_commas
from thalweg._cli.race.errors import EntryError, RaceError
from thalweg.errors import did_you_mean
from thalweg.formula import Rule

# What stands before the colon in names of the library's own optimizers.
FACES = ("optim", "torch", "v1", "openseq2seq")
# Names of the argument for the learning rate.
RATES = ("lr", "learning_rate")


@dataclass(frozen=True)
class RaceEntry:
    """An entry of the race.

    Attributes:
        text: The entry as it was written.
        name: The entry without its options.
        options: The options in parentheses, without the learning rate.
        rate: The learning rate among the options.
    """

    text: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    rate: float | None = None

    @property
    def title(self) -> str:
        """The text without the file or the package."""
        return self.name.rpartition(":")[2] + self.text[len(self.name) :]

    @property
    def is_own(self) -> bool:
        """True for an object of a file or a package, False for a name of the library."""
        package, colon, _ = self.name.partition(":")
        is_package = bool(colon) and package.lower() not in FACES
        return is_package or names_file(self.name)


def parse_entry(text: str) -> RaceEntry:
    """Return an entry with its options.

    Raises:
        RaceError: An option is not NAME=VALUE, comes twice, or is a learning rate that is not a
            number or a second one.
    """
    # The folder of a file may have parentheses in its name.
    begin = text.find("(", text.find(".py:") + 1)
    if begin < 0 or not text.endswith(")"):
        return RaceEntry(text, text)
    options: dict[str, Any] = {}
    for part in split_at_commas(text[begin + 1 : -1]):
        try:
            name, value = parse_argument(part)
        except ValueError as error:
            raise RaceError(f"an option of '{text}': {error}") from error
        if name in options:
            raise RaceError(f"'{text}' has the option '{name}' twice.")
        options[name] = value
    rates = [options.pop(name) for name in RATES if name in options]
    if len(rates) > 1:
        raise RaceError(f"'{text}' has two learning rates, {' and '.join(RATES)}.")
    if any(isinstance(rate, bool) or not isinstance(rate, int | float) for rate in rates):
        raise RaceError(f"the learning rate of '{text}' is not a number.")
    return RaceEntry(text, text[:begin].rstrip(), options, float(rates[0]) if rates else None)


def load(text: str) -> Any:
    """Return the object that `file.py:NAME` or `PACKAGE:NAME` names.

    A file without NAME stands for its only rule.

    Raises:
        RaceError: There is no such file or module, or no such name in it.
        EntryError: The import fails.
    """
    if not names_file(text):
        return _load_from_package(text)
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


def _load_from_package(text: str) -> Any:
    package, _, name = text.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", text):
        raise RaceError(f"'{text}' is not PACKAGE:NAME, such as torch.optim:Adam.")
    try:
        with _failures_named(package):
            module = importlib.import_module(package)
    except EntryError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
        if missing is None or not f"{package}.".startswith(f"{missing}."):
            raise
        raise RaceError(
            f"there is no module '{missing}' (for '{text}'); install its package, or name an object"
            " of a file as file.py:NAME."
        ) from error
    if not hasattr(module, name):
        raise RaceError(f"'{package}' has no '{name}'. {did_you_mean(name, dir(module))}".rstrip())
    return getattr(module, name)


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"thalweg_race_{digest}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RaceError(f"'{path}' is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles of the file look up its module there.
    sys.modules[spec.name] = module
    folder = str(path.parent)
    # The file may import its neighbours, as `python file.py` would.
    sys.path.insert(0, folder)
    try:
        with _failures_named(str(path)):
            spec.loader.exec_module(module)
    except EntryError:
        del sys.modules[spec.name]
        raise
    finally:
        # The file may have changed the path itself.
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
    return module


@contextlib.contextmanager
def _failures_named(source: str) -> Iterator[None]:
    """Raise EntryError where an import fails, and keep what it prints out of the output."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        raise EntryError(
            f"'{source}' failed while it was imported: {type(error).__name__}: {error}"
        ) from error
