"""The scripts of `examples/` that train with `thalweg.optim`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fresh_process import run

EXAMPLES = Path(__file__).parents[2] / "examples"
NUMBER = re.compile(r"-?\d+\.\d+")


def numbers_of(program: str | Path) -> list[float]:
    """The numbers in the last line that it prints."""
    ended = run(program)
    assert ended.returncode == 0, ended.stderr
    return [float(each) for each in NUMBER.findall(ended.stdout.splitlines()[-1])]


def test_a_script_of_torch_runs_with_another_import() -> None:
    script = (EXAMPLES / "polynomial.py").read_text()
    of_torch = script.replace("from thalweg import optim", "from torch import optim")
    assert of_torch != script
    found, wanted = numbers_of(script), numbers_of(of_torch)
    assert found == pytest.approx(wanted, abs=2e-3)
    first, last, *_ = found
    assert last < first < 0.05


@pytest.mark.parametrize(("name", "package"), [("trainer", "transformers"), ("fit", "lightning")])
def test_an_example_learns(name: str, package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    first, last, *_ = numbers_of(EXAMPLES / f"{name}.py")
    assert last < first / 2
