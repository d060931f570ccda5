"""A user's code and the examples of the README, as pyright and mypy read them."""

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

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
CASES = ("typed_training.py", "typed_mistakes.py")
SOURCE = str(Path(thalweg.__file__).parents[1])
# Examples are checked as scripts without annotations.
UNTYPED = "# mypy: allow-untyped-calls, allow-untyped-defs"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Paths of the cases and of a file for each example of the README, whose lines it keeps."""
    examples: list[str] = []
    for session in doc_blocks.sessions(README):
        path = tmp_path / f"readme_{session.line}.py"
        path.write_text(UNTYPED + "\n" * (session.line - 1) + session.text)
        examples.append(str(path))
    return [*(str(HERE / case) for case in CASES), *examples]


def _run(*command: str, given: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, cwd=HERE, capture_output=True, text=True, env={**os.environ, **given}
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def by_pyright(files: Sequence[str], folder: Path) -> list[tuple[str, int]]:
    command = (sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable)
    found = json.loads(_run(*command, *files, given={"PYTHONPATH": SOURCE}))["generalDiagnostics"]
    errors = [each for each in found if each["severity"] == "error"]
    return [(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors]


def by_mypy(files: Sequence[str], folder: Path) -> list[tuple[str, int]]:
    command = (sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent")
    said = _run(*command, "--cache-dir", str(folder), *files, given={"MYPYPATH": SOURCE})
    found = re.findall(r"^(\S+):(\d+): error:", said, re.MULTILINE)
    return [(Path(name).name, int(line)) for name, line in found]


@pytest.mark.slow
@pytest.mark.parametrize("checker", [by_pyright, by_mypy])
def test_mistakes_are_found_and_nothing_else(
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
        for number, line in enumerate((HERE / case).read_text().splitlines(), 1)
        if line.endswith("# wrong")
    ]
    assert {*checker(files, tmp_path / "cache")} == {*lines}
