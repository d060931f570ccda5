"""Functions are short, and packages use few private attributes of other objects."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("without_collector")
STRUCTURE = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "structure.py"))


def test_functions_have_at_most_40_lines() -> None:
    functions = STRUCTURE["functions"]()
    long_functions = [f"{place} has {lines} lines" for _, place, lines in functions if lines > 40]
    assert not long_functions


def test_accesses_to_private_attributes_do_not_increase() -> None:
    counts = {package: len(places) for package, places in STRUCTURE["accesses"]().items()}
    limits = STRUCTURE["MAX_ACCESSES"]
    increased = {name: count for name, count in counts.items() if count > limits.get(name, 0)}
    assert not increased, "python tools/structure.py --list PACKAGE prints the accesses"
    assert sum(limits[name] for name in ("_core", "_engines", "optim")) <= 80


def function_of(source: str) -> ast.FunctionDef:
    """Return the only function of a source."""
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    return function


def test_docstrings_and_decorators_are_not_lines() -> None:
    source = (
        '@cache\ndef f(\n    x,\n):\n    """Return x.\n\n    Unchanged.\n    """\n    return x\n'
    )
    assert STRUCTURE["count_lines"](function_of(source)) == 4


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def _f(): pass", {"_f"}),
        ("class _C:\n    _x: int = 1", {"_C", "_x"}),
        ("def f(self): self._x = 1", {"_x"}),
        ("def f(other): other._x = 1", set()),
        ("def __init__(self): self.x = 1", set()),
    ],
)
def test_private_names_that_a_file_defines(source: str, names: set[str]) -> None:
    assert STRUCTURE["defined_names"](ast.parse(source)) == names


def test_only_accesses_to_other_objects_count(monkeypatch: pytest.MonkeyPatch) -> None:
    source = STRUCTURE["SOURCE"]
    sources = {
        "a/one.py": "class A:\n    def f(self): self._x = self._y()\n    def _y(self): pass",
        "b/two.py": "def f(a, self): return a._x, a._y(), self._x, a._replace(), a._cdata",
    }
    trees = {source / name: ast.parse(text) for name, text in sources.items()}
    accesses = STRUCTURE["accesses"]
    monkeypatch.setitem(accesses.__globals__, "trees", lambda: trees)
    assert accesses() == {"b": ["a._x  b/two.py:1", "a._y  b/two.py:1"]}
