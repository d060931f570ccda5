"""Print the longest functions of each package, and its accesses to private attributes of others.

    python tools/structure.py                  a table, one row per package
    python tools/structure.py --list optim     the accesses of one package

A function's lines are those of its definition without the docstring. An access counts if the object
is neither `self` nor `cls`, and the attribute has a leading underscore and is defined in another
file of thalweg: private members of torch and `_replace` of named tuples do not count.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "thalweg"
MAX_LINES = 40
# The largest number of accesses per package; other packages have none.
MAX_ACCESSES = {
    "_base": 4,
    "_cli": 2,
    "_core": 12,
    "_engines": 13,
    "_graph": 53,
    "checkpoint": 59,
    "diagnostics": 12,
    "distribute": 13,
    "integrations": 29,
    "keras": 96,
    "openseq2seq": 20,
    "optim": 54,
    "tf": 4,
    "thalweg": 4,
    "v1": 92,
}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def package_of(path: Path) -> str:
    """Return the folder below `thalweg` that has a file, or "thalweg"."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "thalweg"


@cache
def trees() -> dict[Path, ast.Module]:
    """Return the syntax trees of all modules."""
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def count_lines(function: _Function) -> int:
    """Return the lines of a function without its docstring and decorators."""
    first = function.body[0]
    is_docstring = ast.get_docstring(function) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if is_docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def functions() -> Iterator[tuple[str, str, int]]:
    """Yield the package, place and lines of each function."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                place = f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"
                yield package_of(path), place, count_lines(node)


def is_own(node: ast.expr) -> bool:
    """Return whether an expression is `self`, `cls` or `super()`."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "super")


def defined_names(tree: ast.Module) -> set[str]:
    """Return the private names that a file defines: functions, variables, attributes of `self`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=value, attr=name, ctx=ast.Store()) if is_own(value):
                names.add(name)
            case _:
                pass
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def accesses() -> dict[str, list[str]]:
    """Return the places of accesses to private attributes of other objects, by package."""
    names_by_path = {path: defined_names(tree) for path, tree in trees().items()}
    owners = Counter(name for names in names_by_path.values() for name in names)
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees().items():
        foreign = owners.keys() - names_by_path[path]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in foreign and not is_own(node.value):
                place = f"{path.relative_to(SOURCE)}:{node.lineno}"
                places[package_of(path)].append(f"{ast.unparse(node)}  {place}")
    return places


def table() -> str:
    """Return the table of all packages."""
    lines_by_package: dict[str, list[int]] = defaultdict(list)
    for package, _, lines in functions():
        lines_by_package[package].append(lines)
    places = accesses()
    rows = [f"{'':<14}{'functions':>10}{'longest':>9}{'accesses':>10}"]
    for package, lines in sorted(lines_by_package.items()):
        count = len(places.get(package, ()))
        rows.append(f"{package:<14}{len(lines):>10,}{max(lines):>9}{count:>10}")
    rows.append(f"{'all':<14}{sum(map(len, lines_by_package.values())):>10,}"
                f"{max(map(max, lines_by_package.values())):>9}"
                f"{sum(map(len, places.values())):>10}")  # fmt: skip
    return "\n".join(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", metavar="PACKAGE")
    package = parser.parse_args().list
    text = table() if package is None else "\n".join(accesses()[package])
    sys.stdout.write(f"{text}\n")
