"""The scripts of `examples/` that train with `thalweg.optim`."""

from __future__ import annotations

import re
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
