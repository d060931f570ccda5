"""A script, and what becomes of each name of TensorFlow in it."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from pathlib import Path

from thalweg._cli.scan.facade import (
    PRIVATE,
    V1,
    State,
    is_of_version_1,
    private_verdict,
    title,
    verdict,
)
from thalweg._cli.scan.name_usage import uses
from thalweg.errors import ThalwegError


class ScanError(ThalwegError, ValueError):
    """A file cannot be read, or is no Python."""


@dataclass(frozen=True)
class Name:
    """A name of TensorFlow, and what becomes of it.

    Attributes:
        name: Beginning with "tf"; where several share a beginning that is missing, that.
        state: "there", "changed" or "missing".
        words: How it differs, or what to use instead.
        lines: Where it is used.
        uses: The whole names, where they are longer.
    """

    name: str
    state: State
    words: str
    lines: tuple[int, ...]
    uses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scanned:
    """Names found in a script.

    Attributes:
        path: The file.
        version: 1 or 2: whether it uses names that only TensorFlow 1 has.
        names: By their first lines.
    """

    path: str
    version: int
    names: tuple[Name, ...]

    def of(self, state: State) -> list[Name]:
        """Return the names in one state."""
        return [each for each in self.names if each.state == state]


def scan(path: str | Path) -> Scanned:
    """Find the names of TensorFlow in a script, which is not run.

    Raises:
        ScanError: It cannot be read, or is no Python.
    """
    found = uses(_parsed(path))
    version_1 = any(is_of_version_1(use.path) for use in found)
    # Without an import of one, `tensorflow` has no attribute `python`.
    has_private = any((use.module or ())[:1] == PRIVATE for use in found)
    places: dict[tuple[str, State, str], tuple[set[int], set[str]]] = {}
    for use in found:
        is_private = has_private and use.path[:1] == PRIVATE
        judged = private_verdict(use) if is_private else verdict(use, version_1)
        state, name, words = judged
        lines, whole = places.setdefault((title(name), state, words), (set(), set()))
        lines.add(use.line)
        whole |= {title(use.path)} - {title(name)}
    names = (
        Name(*key, tuple(sorted(lines)), tuple(sorted(whole)))
        for key, (lines, whole) in places.items()
    )
    return Scanned(str(path), 1 if version_1 else 2, tuple(names))


def version_of(path: str | Path) -> int:
    """1 if a script has names of TensorFlow 1 right below `tensorflow`, otherwise 2.

    Raises:
        ScanError: It cannot be read, or is no Python.
    """
    paths = [use.path for use in uses(_parsed(path))]
    return 1 if any(is_of_version_1(each) and each[:2] != V1 for each in paths) else 2


def _parsed(path: str | Path) -> ast.Module:
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise ScanError(f"'{path}' cannot be read: {error.strerror or error}.") from error
    if Path(path).suffix == ".ipynb":
        raise ScanError(
            f"'{path}' is a notebook: make a script of it, with jupyter nbconvert --to script."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the compiler thinks of it
            return ast.parse(source, str(path))
    except SyntaxError as error:
        where = "" if error.lineno is None else f" (line {error.lineno})"
        raise ScanError(f"'{path}' is no Python 3: {error.msg}{where}.") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ScanError(
            f"'{path}' cannot be parsed: {error or 'it is nested too deep'}."
        ) from error
