"""A user's code and the examples of the README under pyright and mypy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

import doc_blocks
import thalweg

FOLDER = Path(__file__).parent
README = FOLDER.parents[1] / "README.md"
CASES = ("typed_training.py", "typed_mistakes.py")
SOURCE = str(Path(thalweg.__file__).parents[1])
# Examples are checked as scripts without annotations.
UNTYPED = "# mypy: allow-untyped-calls, allow-untyped-defs"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return paths of the cases and of a file for each example of the README, with its lines."""
    examples: list[str] = []
    for session in doc_blocks.sessions(README):
        path = tmp_path / f"readme_{session.line}.py"
        path.write_text(UNTYPED + "\n" * (session.line - 1) + session.text)
        examples.append(str(path))
    return [*(str(FOLDER / case) for case in CASES), *examples]


def _run(*command: str, env: Mapping[str, str]) -> str:
    process = subprocess.run(
        command, cwd=FOLDER, capture_output=True, text=True, env={**os.environ, **env}
    )
    assert process.returncode in (0, 1), process.stdout + process.stderr
    return process.stdout


def by_pyright(files: Sequence[str], folder: Path) -> list[tuple[str, int]]:
    command = (sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable)
    rows = json.loads(_run(*command, *files, env={"PYTHONPATH": SOURCE}))["generalDiagnostics"]
    errors = [row for row in rows if row["severity"] == "error"]
    return [(Path(error["file"]).name, error["range"]["start"]["line"] + 1) for error in errors]


def by_mypy(files: Sequence[str], folder: Path) -> list[tuple[str, int]]:
    command = (sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent")
    output = _run(*command, "--cache-dir", str(folder), *files, env={"MYPYPATH": SOURCE})
    matches = re.findall(r"^(\S+):(\d+): error:", output, re.MULTILINE)
    return [(Path(name).name, int(line)) for name, line in matches]


@pytest.mark.slow
@pytest.mark.parametrize("checker", [by_pyright, by_mypy])
def test_type_checker_reports_only_the_mistakes(
    checker: Callable[[Sequence[str], Path], list[tuple[str, int]]],
    files: list[str],
    tmp_path: Path,
) -> None:
    name = checker.__name__.removeprefix("by_")
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    lines = [
        (case, number)
        for case in CASES
        for number, line in enumerate((FOLDER / case).read_text().splitlines(), 1)
        if line.endswith("# wrong")
    ]
    assert {*checker(files, tmp_path / "cache")} == {*lines}
