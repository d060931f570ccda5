"""Output of runs with skipped tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SKIPPING = """
import pytest

@pytest.mark.parametrize("number", range(30))
def test_needs_a_device(number):
    pytest.skip("needs a device")

@pytest.mark.skip(reason="needs a disk")
def test_needs_a_disk():
    pass

@pytest.mark.xfail(strict=True)
def test_fails():
    assert False

def test_passes():
    pass
"""


def run_pytest(path: Path, *options: str) -> list[str]:
    """Run tests of a file with the settings of this folder, and return the lines of output."""
    folder = Path(__file__).parent
    search_path = [str(folder), str(folder / "support"), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "conftest", "-n", "0"]
    process = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-o", "timeout=300", *options, str(path)],
        capture_output=True, text=True, check=False, cwd=path.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search_path))},
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout.splitlines()


def test_reasons_of_skipped_tests_are_a_line_each_and_verbose_runs_name_tests(
    tmp_path: Path,
) -> None:
    path = tmp_path / "test_skipping.py"
    path.write_text(SKIPPING)
    progress, *summary = run_pytest(path, "-q")
    assert progress.split()[0] == "x."
    assert [line for line in summary if "needs" in line] == [
        "30 skipped: needs a device", "1 skipped: needs a disk",
    ]  # fmt: skip
    assert "1 passed, 31 skipped, 1 xfailed" in summary[-1]
    assert sum("SKIPPED" in line for line in run_pytest(path, "-v")) == 31
