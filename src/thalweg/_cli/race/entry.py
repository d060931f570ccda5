"""Entries of a race on the command line: a name, `file.py:NAME` or `PACKAGE:NAME`.

Options follow the name in parentheses: `lion_pytorch:Lion(weight_decay=0.1)`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from thalweg._base.literals import names_file, parse_argument, split_at_commas
from thalweg._cli.race.errors import EntryError, RaceError, name_failures
from thalweg.errors import did_you_mean
from thalweg.formula import Rule

# Prefixes before the colon in names of the library's optimizers.
FRONT_ENDS = ("optim", "torch", "v1", "openseq2seq")
# Names of the argument for the learning rate.
RATES = ("lr", "learning_rate")


@dataclass(frozen=True)
class RaceEntry:
    """Parsed entry of a race.

    Attributes:
        text: The entry as it was written.
        name: The entry without its options.
        options: The options in parentheses, without the learning rate.
        rate: The learning rate in parentheses; None without a rate.
    """

    text: str
    name: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    rate: float | None = None

    @property
    def label(self) -> str:
        """Return the text without the file or the package."""
        return self.name.rpartition(":")[2] + self.text[len(self.name) :]

    @property
    def is_own(self) -> bool:
        """Return True for an object of a file or package, False for a name of the library."""
        package, colon, _ = self.name.partition(":")
        is_package = bool(colon) and package.lower() not in FRONT_ENDS
        return is_package or names_file(self.name)


def parse_entry(text: str) -> RaceEntry:
    """Parse an entry such as `Adam(lr=0.1)` into name, options and learning rate.

    Raises:
        RaceError: An option is not NAME=VALUE or is repeated, or the learning rate is not a number
            or is repeated.
    """
    # The folder of a file may have parentheses in its name.
    begin = text.find("(", text.find(".py:") + 1)
    if begin < 0 or not text.endswith(")"):
        return RaceEntry(text, text)
    options: dict[str, Any] = {}
    for piece in split_at_commas(text[begin + 1 : -1]):
        try:
            name, value = parse_argument(piece)
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
    """Import and return the object `file.py:NAME` or `PACKAGE:NAME`, or the only rule of `file.py`.

    Raises:
        RaceError: The file, the module or the name does not exist, or the file has several rules.
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
    available = f"its rules: {', '.join(rules)}" if rules else "it has no rule"
    problem = f"has no '{name}'" if name else f"needs a name, '{path}:NAME'"
    raise RaceError(f"'{path}' {problem}; {available}.")


def _load_from_package(text: str) -> Any:
    package, _, name = text.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", text):
        raise RaceError(f"'{text}' is not PACKAGE:NAME, such as torch.optim:Adam.")
    try:
        with _importing(package):
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
    # Dataclasses and pickles of the file need its module in sys.modules.
    sys.modules[spec.name] = module
    directory = str(path.parent)
    # The file may import modules beside it, as with `python file.py`.
    sys.path.insert(0, directory)
    try:
        with _importing(str(path)):
            spec.loader.exec_module(module)
    except EntryError:
        del sys.modules[spec.name]
        raise
    finally:
        # The file may have changed the path itself.
        with contextlib.suppress(ValueError):
            sys.path.remove(directory)
    return module


@contextlib.contextmanager
def _importing(source: str) -> Generator[None]:
    """Convert errors of an import to EntryError; redirect its standard output to stderr."""
    with (
        name_failures(f"'{source}' failed while it was imported"),
        contextlib.redirect_stdout(sys.stderr),
    ):
        yield
