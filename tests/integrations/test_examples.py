"""The scripts of `examples/` that train with `thalweg.optim`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fresh_process import run

EXAMPLES = Path(__file__).parents[2] / "examples"
NUMBER = re.compile(r"-?\d+\.\d+")


def numbers_of(program: str | Path) -> list[float]:
    """Return the numbers in the last line that a program prints."""
    process = run(program)
    assert process.returncode == 0, process.stderr
    return [float(number) for number in NUMBER.findall(process.stdout.splitlines()[-1])]


def test_torch_script_runs_with_replaced_import() -> None:
    script = (EXAMPLES / "polynomial.py").read_text()
    of_torch = script.replace("from thalweg import optim", "from torch import optim")
    assert of_torch != script
    actual, expected = numbers_of(script), numbers_of(of_torch)
    assert actual == pytest.approx(expected, abs=2e-3)
    first, final, *_ = actual
    assert final < first < 0.05


@pytest.mark.parametrize(("name", "package"), [("trainer", "transformers"), ("fit", "lightning")])
def test_example_script_learns(name: str, package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    first, final, *_ = numbers_of(EXAMPLES / f"{name}.py")
    assert final < first / 2


@pytest.mark.slow
def test_a_training_in_half_the_memory_resumes_on_one_rank_to_the_bit(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("torch.distributed.run")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    lines: list[str] = []
    for count, name, steps in ((2, "straight", 4), (2, "stopped", 2), (1, "stopped", 4)):
        command = [*launcher, str(count), str(EXAMPLES / "half_the_memory.py")]
        process = subprocess.run(
            [*command, str(tmp_path / name), str(steps)],
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert process.returncode == 0, process.stderr
        lines.append(process.stdout.splitlines()[-1])
    straight, _, resumed = (line.partition(": ")[2] for line in lines)
    assert straight == resumed
    assert lines[2].startswith("steps 2 to 4")
