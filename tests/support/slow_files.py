"""Test files that can have slow tests, by their text.

`pytest -m slow` needs no other file: importing and collecting all of them takes half a minute.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

_MARK = re.compile(r"\bmark\.slow\b")
_IMPORT = re.compile(r"^ *(?:from|import) .*", re.MULTILINE)
_DEFINED = re.compile(r"^(?!from |import )(?:(?:def|class) )?(\w+)", re.MULTILINE)
_BETWEEN = "\n\n\n"  # definitions, as the formatter separates them


@cache
def read_modules(root: Path) -> Mapping[str, Sequence[Path]]:
    """Return the Python files in a folder, by their names without the suffix."""
    modules: defaultdict[str, list[Path]] = defaultdict(list)
    for path in root.rglob("*.py"):
        modules[path.stem].append(path)
    return modules


def can_have_slow_tests(path: Path, root: Path) -> bool:
    """Return whether a file marks a test as slow, or uses a name from `root` that does."""
    return bool(_slow_names(path, root, frozenset()))


@cache
def _slow_names(path: Path, root: Path, importers: frozenset[Path]) -> frozenset[str]:
    """Return the names of a file whose definitions contain the mark or another such name."""
    text = path.read_text()
    modules, importers = read_modules(root), importers | {path}
    imported = re.findall(r"\w+", " ".join(_IMPORT.findall(text)))
    paths = {module for word in imported for module in modules.get(word, ())} - importers
    names: set[str] = set().union(*(_slow_names(each, root, importers) for each in paths))
    own = names.intersection(imported)
    is_complete = False
    while not is_complete:
        before = len(own)
        for block in text.split(_BETWEEN):
            if _MARK.search(block) or not (names | own).isdisjoint(re.findall(r"\w+", block)):
                own.update(_DEFINED.findall(block))
        is_complete = len(own) == before
    return frozenset(own)
