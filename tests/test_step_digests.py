"""The digests of steps are those of the recorded file."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "step_digests.py"
RECORD = ROOT / "tests" / "goldens" / "step_digests.txt"
SECONDS = 20


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
def test_another_digest_fails_another_machine_skips_and_a_record_continues(
    tmp_path: Path,
    step_digests: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: None)
    name = "keras.Adamax#0 clip"
    cases = [case for case in step_digests.list_cases() if name in case.name]
    record, part = tmp_path / "digests.txt", tmp_path / "digests.txt.part"
    assert run_tool("--record", record, "--only", name, "--jobs", 2).returncode == 0
    machine, first, *lines = record.read_text().splitlines()
    altered = first[:-1] + ("0" if first[-1] != "0" else "1")
    record.write_text("\n".join([machine, altered, *lines, ""]))
    assert step_digests.check_record(record, cases, 1, None) == 1
    assert f"different digests: 1\n  {' '.join(first.split()[:6])}\n" in capsys.readouterr().out
    record.write_text("\n".join(["# another machine", first, *lines, ""]))
    assert step_digests.check_record(record, cases, 1, None) == 0
    skipped = "skipped: recorded with another machine; this is torch"
    assert capsys.readouterr().out.startswith(skipped)
    part.write_text(f"{machine}\n{altered}\n")
    step_digests.write_record(record, cases, 1)
    assert record.read_text() == "\n".join([machine, altered, *lines, ""])
    assert not part.exists()


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
