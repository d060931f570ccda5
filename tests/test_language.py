"""The tools that measure names, docstrings and commit subjects."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[1] / "tools"
LANGUAGE = runpy.run_path(str(TOOLS / "language.py"))
COMMITS = runpy.run_path(str(TOOLS / "commits.py"))


@pytest.mark.parametrize("name", ["kept", "own", "_beside", "is_known", "thereOwn"])
def test_names_without_meaning_count(name: str) -> None:
    assert LANGUAGE["is_nameless"](name)


@pytest.mark.parametrize("name", ["params", "kept_rows", "x", "__all__", "step", "cached_plan"])
def test_names_with_meaning_do_not_count(name: str) -> None:
    assert not LANGUAGE["is_nameless"](name)


def package_of(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what the tool reads of a file."""
    path = tmp_path / "module.py"
    path.write_text(source)
    read = LANGUAGE["read_file"]
    monkeypatch.setitem(read.__globals__, "ROOT", tmp_path)
    monkeypatch.setitem(read.__globals__, "external_parameters", frozenset)
    package = LANGUAGE["Package"]()
    read(path, package)
    return package


def test_bindings_docstrings_and_parameters_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = '''"""What this is."""
def f(self, kept: int, *, rate: float = 0.1):
    """Return a sum."""
    own = self.total = kept
    return [x for x in own]
'''
    package = package_of(source, tmp_path, monkeypatch)
    assert sorted(name for name, _ in package.bindings) == ["kept", "own", "rate", "total", "x"]
    counter = LANGUAGE["counted"]
    assert counter(package, "B1") == (["kept  module.py:2", "own  module.py:4"], 5)
    assert counter(package, "short") == (["x  module.py:5"], 5)
    assert counter(package, "B2") == (["What this is.  module.py:1"], 2)


def test_names_of_many_types_are_ambiguous() -> None:
    package = LANGUAGE["Package"]()
    package.parameters += [("part", kind, "") for kind in ("int", "str", "float", "list", "bool")]
    package.parameters += [("rate", kind, "") for kind in ("float",) * 4 + ("int",)]
    assert LANGUAGE["ambiguous_names"](package) == {"part"}
    hits, total = LANGUAGE["counted"](package, "types")
    assert (len(hits), total) == (5, 10)


def test_a_value_above_the_record_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "language.json"
    record.write_text('{"optim": {"B1": 3.0}}')
    find_worse = LANGUAGE["find_worse"]
    monkeypatch.setitem(find_worse.__globals__, "RECORD", record)
    assert find_worse({"optim": {"B1": 3.0}}) == []
    (line,) = find_worse({"optim": {"B1": 3.1}})
    assert line == "optim: B1 is 3.1, recorded 3.0; see --list B1"
    assert find_worse({"new": {"B1": 0.0}}) == ["new: not in language.json; add it with --record"]


def test_every_package_is_recorded() -> None:
    rows = {*LANGUAGE["json"].loads(LANGUAGE["RECORD"].read_text())}
    folders = {LANGUAGE["package_of"](path) for path in LANGUAGE["ROOT"].glob("src/*/*/*.py")}
    assert rows >= folders | {"thalweg", "documentation", *LANGUAGE["FOLDERS"]}


def test_parameters_of_external_functions_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torch/optim" in LANGUAGE["EXTERNAL"]
    # Small folders: the parameters of all packages take ten seconds to read.
    names = LANGUAGE["read_parameters"].__globals__
    monkeypatch.setitem(names, "EXTERNAL", ("no_such_package/x", "torch/optim", "safetensors"))
    function = ast.parse("def add_param_group(self, param_group): pass").body[0]
    (argument,) = LANGUAGE["arguments_of"](function)
    assert ("add_param_group", argument.arg) in LANGUAGE["external_parameters"].__wrapped__()


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("Fix the clip norm of empty groups", ""),
        ("What computes a stage", "does not begin with an imperative verb"),
        ("fix the clip norm", "does not begin with a capital letter"),
        ("Fix it.", "ends with a full stop"),
        (f"Fix {'x' * 72}", "has 76 characters; 72 are allowed"),
    ],
)
def test_commit_subjects_are_measured(subject: str, fault: str) -> None:
    faults = COMMITS["find_faults"](subject, COMMITS["read_verbs"]())
    assert (faults == []) if not fault else any(fault in text for text in faults)
