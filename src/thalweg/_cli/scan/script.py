"""Scan of a script: the state of each TensorFlow name in it."""

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
    """Error for a file that cannot be read or is not Python 3."""


@dataclass(frozen=True)
class Name:
    """Name of TensorFlow in a script with its state.

    Attributes:
        name: The name, beginning with "tf", or the missing prefix that several names share.
        state: "there", "changed" or "missing".
        words: The difference, or the replacement.
        lines: The lines that use the name.
        uses: The full names that are longer than `name`.
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
        version: 1 if the script uses names that only TensorFlow 1 has, otherwise 2.
        names: The names in the order of their first lines.
    """

    path: str
    version: int
    names: tuple[Name, ...]

    def of(self, state: State) -> list[Name]:
        """Return the names in one state."""
        return [name for name in self.names if name.state == state]


def scan(path: str | Path) -> Scanned:
    """Find the names of TensorFlow in a script without running the script.

    Raises:
        ScanError: The file cannot be read or is not Python 3.
    """
    found_uses = uses(_parsed(path))
    version_1 = any(is_of_version_1(use.path) for use in found_uses)
    # `tensorflow` has the attribute `python` only after an import of a private module.
    has_private = any((use.module or ())[:1] == PRIVATE for use in found_uses)
    groups: dict[tuple[str, State, str], tuple[set[int], set[str]]] = {}
    for use in found_uses:
        is_private = has_private and use.path[:1] == PRIVATE
        verdict_ = private_verdict(use) if is_private else verdict(use, version_1)
        state, name, words = verdict_
        lines, full_names = groups.setdefault((title(name), state, words), (set(), set()))
        lines.add(use.line)
        full_names |= {title(use.path)} - {title(name)}
    names = (
        Name(*key, tuple(sorted(lines)), tuple(sorted(full_names)))
        for key, (lines, full_names) in groups.items()
    )
    return Scanned(str(path), 1 if version_1 else 2, tuple(names))


def version_of(path: str | Path) -> int:
    """Return 1 if a script uses names of TensorFlow 1 without `compat.v1`, otherwise 2.

    Raises:
        ScanError: The file cannot be read or is not Python 3.
    """
    paths = [use.path for use in uses(_parsed(path))]
    return 1 if any(is_of_version_1(path_) and path_[:2] != V1 for path_ in paths) else 2


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
            # Warnings of the compiler concern the script, not the scan.
            warnings.simplefilter("ignore")
            return ast.parse(source, str(path))
    except SyntaxError as error:
        location = "" if error.lineno is None else f" (line {error.lineno})"
        raise ScanError(f"'{path}' is no Python 3: {error.msg}{location}.") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ScanError(
            f"'{path}' cannot be parsed: {error or 'it is nested too deep'}."
        ) from error
