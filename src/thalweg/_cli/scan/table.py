"""The names of TensorFlow around training: which are in `thalweg.tf`, and which are not."""

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
    """Table of the facade's names.

    Attributes:
        there: For each module, its names.
        changed: Differences of names that are there.
        missing: Replacements of names that are not.
    """

    there: dict[str, list[str]]
    changed: dict[str, str]
    missing: dict[str, str]


def names() -> NameCoverage:
    """Return the table of names, from the modules of the facade and from its messages."""
    there: dict[str, list[str]] = {}
    at_top = _public(tf)
    for path, module in _modules():
        found = _public(module)
        if path[: len(V1)] == V1:  # what the modules of TensorFlow 2 do not have, or have otherwise
            newer = at_top if path == V1 else _public(reached(path[2:]).value)
            found = {name: each for name, each in found.items() if newer.get(name) is not each}
        if found:
            there[title(path)] = sorted(found, key=str.lower)
    missing = {title(path): words for path, words in sorted(_missing().items(), key=_by_module)}
    return NameCoverage(there, dict(_changed()), missing)


def markdown(found: NameCoverage) -> str:
    """Return the names as tables of Markdown."""
    modules = {f"`{name}`": ", ".join(f"`{each}`" for each in own) for name, own in
               found.there.items()}  # fmt: skip
    quoted = [{f"`{name}`": words for name, words in each.items()} for each in found[1:]]
    return "\n\n".join(
        _rows(*headings, rows)
        for headings, rows in (
            (("module", "what is there"), modules),
            (("there, but", "how it differs"), quoted[0]),
            (("not there", "what to do"), quoted[1]),
        )
    )


def _rows(one: str, other: str, rows: dict[str, str]) -> str:
    lines = [f"| {one} | {other} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {key} | {value} |" for key, value in rows.items())])


def _modules() -> Iterator[tuple[Path, ModuleType]]:
    """The modules that stand for TensorFlow's: those that answer for what they do not have."""
    _ = tf.compat.v1  # which is imported when it is first asked for
    pending: list[tuple[Path, ModuleType]] = [((), tf)]
    seen: set[int] = set()
    while pending:
        path, module = pending.pop(0)
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        pending += [
            ((*path, name), each)
            for name, each in sorted(vars(module).items())
            if _is_namespace(each) and name[0] != "_"
        ]


def _is_namespace(value: object) -> bool:
    if not isinstance(value, ModuleType) or "__getattr__" not in vars(value):
        return False
    # Keras' own, and there only once Keras has been imported.
    if value.__name__ == "thalweg.tf.keras.models":
        return False
    return value.__name__.startswith(("thalweg.tf.", "thalweg.v1."))


def _public(module: ModuleType) -> dict[str, object]:
    """What a module offers, without what it imports for its own use."""
    found = {name: each for name, each in vars(module).items() if not name.startswith("_")}
    if hasattr(module, "__all__"):
        found = {name: found[name] for name in module.__all__ if name in found}
    return {name: each for name, each in found.items() if not _is_tool(each)}


def _is_tool(value: object) -> bool:
    home = getattr(value, "__module__", None) or type(value).__module__
    head = home.partition(".")[0]
    own = home in ("thalweg.tf.missing", "thalweg.v1.missing")
    standard = head in sys.stdlib_module_names and head != "builtins"
    return inspect.ismodule(value) or own or standard


def _changed() -> Iterator[tuple[str, str]]:
    for name, words in sorted(CHANGED.items()):
        path = tuple(name.split("."))
        if words and not reached(path).missing:
            yield title(path), words


def _missing() -> dict[Path, str]:
    """The names with messages of their own; the version that a name is of is left out."""
    found: dict[Path, str] = {}
    for name in sorted({*INSTEAD, *OF_VERSION_1}):
        path = tuple(name.removeprefix("compat.v1.").split("."))
        looked_up = reached(path)
        if looked_up.missing == path:
            found[path] = looked_up.words
    return found


def _by_module(item: tuple[Path, str]) -> tuple[Path, str]:
    return item[0][:-1], item[0][-1].lower()
