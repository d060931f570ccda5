"""Constructors in a user's code, as pyright and mypy read them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

import thalweg

HERE = Path(__file__).parent
CASES = ("typed_training.py", "typed_mistakes.py")
SOURCE = str(Path(thalweg.__file__).parents[1])


def _run(*command: str, given: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, cwd=HERE, capture_output=True, text=True, env={**os.environ, **given}
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def by_pyright(folder: Path) -> list[tuple[str, int]]:
    command = (sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable)
    found = json.loads(_run(*command, *CASES, given={"PYTHONPATH": SOURCE}))["generalDiagnostics"]
    errors = [each for each in found if each["severity"] == "error"]
    return [(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors]


def by_mypy(folder: Path) -> list[tuple[str, int]]:
    command = (sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent")
    said = _run(*command, "--cache-dir", str(folder), *CASES, given={"MYPYPATH": SOURCE})
    return [(name, int(line)) for name, line in re.findall(r"^(\S+):(\d+): error:", said, re.M)]


@pytest.mark.parametrize("checker", [by_pyright, by_mypy])
def test_mistakes_are_found_and_nothing_else(
    checker: Callable[[Path], list[tuple[str, int]]], tmp_path: Path
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
    assert {*checker(tmp_path)} == {*lines}
