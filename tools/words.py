"""Count the names that a reader has to learn: `python tools/words.py [--list KIND]`.

Prints how many functions have a name of one word, are a participle, or are predicates that write,
and which names are those of several classes. `--list` prints those of a kind, with their places.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src" / "thalweg"
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
# Methods by which a predicate would change what it looks at.
WRITERS = {"append", "extend", "add", "clear", "update", "pop", "remove", "discard", "setdefault"}
# Participles that end otherwise than in -ed.
IRREGULAR = {
    "begun", "bound", "built", "done", "drawn", "found", "given", "gone", "held", "kept", "known",
    "laid", "left", "made", "met", "put", "read", "said", "seen", "sent", "set", "shown", "split",
    "spread", "taken", "told", "written",
}  # fmt: skip


def functions() -> Iterator[tuple[str, Any]]:
    """All functions and methods but those of Python's protocols, each with its place."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, FUNCTIONS) and not node.name.startswith("__"):
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", node


def is_one_word(function: Any) -> bool:
    """Whether a name has one word, and so leaves out what is done or to what."""
    return "_" not in function.name.strip("_")


def is_participle(function: Any) -> bool:
    """Whether a name says what has been done in place of what it does."""
    last = function.name.strip("_").split("_")[0]
    return last in IRREGULAR or (last.endswith("ed") and len(last) > 4)


def is_writing_predicate(function: Any) -> bool:
    """Whether what is named as a question changes its object."""
    if not function.name.lstrip("_").startswith(("is_", "has_", "are_", "may_", "have_")):
        return False
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets += [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []
        if any(_is_attribute(target) for target in targets):
            return True
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in WRITERS
            and _is_attribute(node.func.value)
        ):
            return True
    return False


def _is_attribute(node: ast.AST) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Attribute)


def shared_classes() -> dict[str, list[str]]:
    """Names that several classes have, with their places."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    return {name: places for name, places in found.items() if len(places) > 1}


KINDS = {
    "one word": is_one_word,
    "participle": is_participle,
    "writing predicate": is_writing_predicate,
}


def main() -> None:
    """Print the counts, or one list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", choices=[*KINDS, "class"], help="print these names")
    asked = parser.parse_args().list
    everything = list(functions())
    for kind, holds in KINDS.items():
        found = [(place, node.name) for place, node in everything if holds(node)]
        if asked is None:
            print(
                f"{kind:18} {len(found):5} of {len(everything)}  {len(found) / len(everything):.1%}"
            )
        elif asked == kind:
            print("\n".join(f"{name}  {place}" for place, name in found))
    classes = shared_classes()
    if asked is None:
        print(f"{'class':18} {len(classes):5} names that several classes have")
    elif asked == "class":
        print("\n".join(f"{name}  {', '.join(places)}" for name, places in classes.items()))


if __name__ == "__main__":
    main()
