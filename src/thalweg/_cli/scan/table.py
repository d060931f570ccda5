"""Table of TensorFlow's names around training: available in `thalweg.tf`, or missing."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from thalweg import tf
from thalweg._cli.scan.facade import V1, reached, title
from thalweg._cli.scan.name_usage import Path
from thalweg.tf.behavior_differences import CHANGED
from thalweg.tf.missing import INSTEAD
from thalweg.v1.missing import INSTEAD as OF_VERSION_1


class NameCoverage(NamedTuple):
    """Coverage of TensorFlow's names by `thalweg.tf`.

    Attributes:
        there: {module: available names}.
        changed: {available name: difference}.
        missing: {missing name: replacement}.
    """

    there: dict[str, list[str]]
    changed: dict[str, str]
    missing: dict[str, str]

    def sections(self) -> list[tuple[tuple[str, str], dict[str, str]]]:
        """Return (two headings, {name: text}) of three tables; names of modules have commas."""
        there = {module: ", ".join(module_names) for module, module_names in self.there.items()}
        return [
            (("module", "what is there"), there),
            (("there, but", "how it differs"), self.changed),
            (("not there", "what to do"), self.missing),
        ]


def names() -> NameCoverage:
    """Return the available, changed and missing names of `thalweg.tf`."""
    available: dict[str, list[str]] = {}
    at_top = _public(tf)
    for path, module in _modules():
        members = _public(module)
        if path[: len(V1)] == V1:  # what the modules of TensorFlow 2 do not have, or have otherwise
            newer = at_top if path == V1 else _public(reached(path[2:]).value)
            members = {
                name: member for name, member in members.items() if newer.get(name) is not member
            }
        if members:
            available[title(path)] = sorted(members, key=str.lower)
    by_module = sorted(_missing().items(), key=lambda item: (item[0][:-1], item[0][-1].lower()))
    missing = {title(path): words for path, words in by_module}
    return NameCoverage(available, dict(_changed()), missing)


def markdown(coverage: NameCoverage) -> str:
    """Return the names as Markdown tables."""
    there = {module: [f"`{name}`" for name in names] for module, names in coverage.there.items()}
    tables: list[str] = []
    for headings, rows in coverage._replace(there=there).sections():
        lines = [f"| {' | '.join(headings)} |", "|---|---|"]
        lines += [f"| `{name}` | {text} |" for name, text in rows.items()]
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _modules() -> Iterator[tuple[Path, ModuleType]]:
    """Yield (path, module) once for `thalweg.tf` and each namespace below."""
    # The first access imports this module.
    _ = tf.compat.v1
    pending: list[tuple[Path, ModuleType]] = [((), tf)]
    visited: set[int] = set()
    while pending:
        path, module = pending.pop(0)
        if id(module) in visited:
            continue
        visited.add(id(module))
        yield path, module
        pending += [
            ((*path, name), member)
            for name, member in sorted(vars(module).items())
            if _is_namespace(member) and name[0] != "_"
        ]


def _is_namespace(value: object) -> bool:
    if not isinstance(value, ModuleType) or "__getattr__" not in vars(value):
        return False
    # A module of Keras, which exists only after an import of Keras.
    if value.__name__ == "thalweg.tf.keras.models":
        return False
    return value.__name__.startswith(("thalweg.tf.", "thalweg.v1."))


def _public(module: ModuleType) -> dict[str, object]:
    """Return the public members of a module, without its own imports."""
    members = {name: member for name, member in vars(module).items() if not name.startswith("_")}
    if hasattr(module, "__all__"):
        members = {name: members[name] for name in module.__all__ if name in members}
    return {name: member for name, member in members.items() if not _is_tool(member)}


def _is_tool(value: object) -> bool:
    module_name = getattr(value, "__module__", None) or type(value).__module__
    head = module_name.partition(".")[0]
    is_own_helper = module_name in ("thalweg.tf.missing", "thalweg.v1.missing")
    standard = head in sys.stdlib_module_names and head != "builtins"
    return inspect.ismodule(value) or is_own_helper or standard


def _changed() -> Iterator[tuple[str, str]]:
    for name, words in sorted(CHANGED.items()):
        path = tuple(name.split("."))
        if words and not reached(path).missing:
            yield title(path), words


def _missing() -> dict[Path, str]:
    """Return advice by name, for names with their own message, without `compat.v1`."""
    advice: dict[Path, str] = {}
    for name in sorted({*INSTEAD, *OF_VERSION_1}):
        path = tuple(name.removeprefix("compat.v1.").split("."))
        lookup = reached(path)
        if lookup.missing == path:
            advice[path] = lookup.words
    return advice
