"""The digests of steps are those of the recorded file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "step_digests.py"
RECORD = ROOT / "tests" / "goldens" / "step_digests.txt"
SECONDS = 60


def run_tool(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def step_digests() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOL.parent))
        for variable in ("THALWEG_TUNING", "OMP_WAIT_POLICY"):
            patch.setenv(variable, "")
        import step_digests  # pyright: ignore[reportMissingImports]
    return step_digests


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sampled_digests_equal_the_record() -> None:
    check = run_tool("--check", RECORD, "--sample", SECONDS)
    if check.stdout.startswith("skipped"):
        pytest.skip(check.stdout.strip())
    assert check.returncode == 0, check.stdout + check.stderr
    assert int(check.stdout.removeprefix("checked ").split()[0]) > 0, check.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_another_digest_fails_and_another_machine_skips(tmp_path: Path) -> None:
    name = "keras.Adamax"
    record = tmp_path / "digests.txt"
    assert run_tool("--record", record, "--only", name).returncode == 0
    text = record.read_text()
    assert run_tool("--check", record, "--only", name, "--jobs", 1).returncode == 0
    machine, first, *lines = text.splitlines()
    altered = first[:-1] + ("0" if first[-1] != "0" else "1")
    record.write_text("\n".join([machine, altered, *lines, ""]))
    check = run_tool("--check", record, "--only", name, "--jobs", 1)
    assert check.returncode == 1
    assert f"different digests: 1\n  {' '.join(first.split()[:6])}\n" in check.stdout
    record.write_text("\n".join(["# another machine", first, *lines, ""]))
    check = run_tool("--check", record, "--only", name)
    assert check.returncode == 0
    assert check.stdout.startswith("skipped: recorded with another machine; this is torch")


@pytest.mark.slow
def test_an_interrupted_record_continues(tmp_path: Path) -> None:
    arguments = ("--only", "keras.Adamax", "--jobs", 1)
    complete, continued = tmp_path / "whole.txt", tmp_path / "continued.txt"
    assert run_tool("--record", complete, *arguments).returncode == 0
    machine, first, *_ = complete.read_text().splitlines()
    first_part = f"{machine}\n{first[:-1]}\n"
    (tmp_path / "continued.txt.part").write_text(first_part)
    assert run_tool("--record", continued, *arguments).returncode == 0
    expected = complete.read_text().replace(first, first[:-1])
    assert continued.read_text() == expected
    assert not (tmp_path / "continued.txt.part").exists()


def test_every_pair_of_values_is_covered(step_digests: Any) -> None:
    cases = step_digests.list_cases()
    covered = {pair for case in cases for pair in case.pairs()}
    possible = {
        pair
        for optimizer in step_digests.OPTIMIZERS
        for option in ("plain", *step_digests.OPTIONS[optimizer.partition(".")[0]])
        for case in step_digests.possible_cases(optimizer, option)
        for pair in case.pairs()
    }
    assert not possible - covered
    assert len(cases) * len(step_digests.ENGINES) <= 3000
    arguments = {(case.optimizer, case.arguments) for case in cases}
    assert arguments == {
        (optimizer, index)
        for optimizer, variants in step_digests.OPTIMIZERS.items()
        for index in range(len(variants))
    }


def test_the_record_has_each_case_and_equal_digests_of_engines(step_digests: Any) -> None:
    _, digests = step_digests.read_record(RECORD)
    assert list(digests) == [case.name for case in step_digests.list_cases()]
    assert not [name for name, words in digests.items() if " " in words]
