"""The digests of steps are those of the recorded file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "step_digests.py"
RECORD = ROOT / "tests" / "goldens" / "step_digests.txt"
SECONDS = 75


def run_tool(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_digests_of_a_random_sample_are_the_recorded_ones() -> None:
    if not RECORD.exists():
        pytest.skip(f"{RECORD} has not been recorded: run tools/step_digests.py --record")
    check = run_tool("--check", RECORD, "--sample", SECONDS)
    if check.stdout.startswith("skipped"):
        pytest.skip(check.stdout.strip())
    assert check.returncode == 0, check.stdout + check.stderr


@pytest.mark.slow
def test_another_digest_fails_and_another_machine_skips(tmp_path: Path) -> None:
    name = "keras.SGD"
    record = tmp_path / "digests.txt"
    assert run_tool("--record", record, "--only", name).returncode == 0
    text = record.read_text()
    assert run_tool("--check", record, "--only", name).returncode == 0
    machine, first, *others = text.splitlines()
    changed = first[:-1] + ("0" if first[-1] != "0" else "1")
    record.write_text("\n".join([machine, changed, *others, ""]))
    check = run_tool("--check", record, "--only", name)
    assert check.returncode == 1
    assert f"different digests: 1\n  {' '.join(first.split()[:6])}\n" in check.stdout
    record.write_text("\n".join(["# another machine", first, *others, ""]))
    check = run_tool("--check", record, "--only", name)
    assert check.returncode == 0
    assert check.stdout.startswith("skipped: recorded with another machine; this is torch")


def test_each_pair_of_values_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOL.parent))
    monkeypatch.setenv("THALWEG_TUNING", "")
    import step_digests  # pyright: ignore[reportMissingImports]

    cases = step_digests.list_cases()
    covered = {pair for case in cases for pair in case.pairs()}
    possible = {
        pair
        for family in step_digests.FAMILIES
        for optimizer in family.optimizers
        for option in ("plain", *family.options)
        for case in step_digests.possible_cases(optimizer, option, family)
        for pair in case.pairs()
    }
    assert not possible - covered
    assert len(cases) * len(step_digests.ENGINES) <= 3000
    assert len({case.name for case in cases}) == len(cases)
