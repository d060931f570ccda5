"""The scripts of `examples/` that train with `thalweg.optim`."""

from __future__ import annotations

import re
import shutil
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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "package"), [("trainer", "transformers"), ("fit", "lightning")])
def test_example_script_learns(name: str, package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    first, final, *_ = numbers_of(EXAMPLES / f"{name}.py")
    assert final < first / 2


def run_ranks(count: int, script: str, folder: Path, *arguments: str) -> list[str]:
    """Run an example on some ranks in a folder and return the lines that it prints.

    A thread of Gloo may abort a process at its end, see docs/distribute.md: then it runs once more,
    from the folder of before.
    """
    launch = "-m torch.distributed.run", "--standalone", "--nproc-per-node", str(count)
    command = *launch, str(EXAMPLES / script), str(folder), *arguments
    former_folder = folder.with_name(f"before-{folder.name}")
    if folder.exists():
        shutil.copytree(folder, former_folder, dirs_exist_ok=True)
    process = run(*command, timeout=280, OMP_NUM_THREADS="1")
    if process.returncode and "terminate called without an active exception" in process.stderr:
        shutil.rmtree(folder)
        if former_folder.exists():
            shutil.copytree(former_folder, folder)
        process = run(*command, timeout=280, OMP_NUM_THREADS="1")
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def losses_of_ranks(count: int, folder: Path) -> list[float]:
    """Return the losses that the GPT prints on some ranks; they begin at a checkpoint."""
    lines = run_ranks(count, "gpt_torchrun.py", folder, "--steps", "12", "--save-every", "6")
    return [float(line.rpartition(" ")[2]) for line in lines]


@pytest.mark.slow
def test_gpt_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    losses = losses_of_ranks(2, tmp_path / "whole")
    assert losses[11] < losses[0] - 1
    shutil.rmtree(tmp_path / "whole" / "step-000012")
    for count, bound in ((2, 0.0), (1, 1e-6)):
        folder = shutil.copytree(tmp_path / "whole", tmp_path / f"resumed-{count}")
        assert losses_of_ranks(count, folder) == pytest.approx(losses[6:], rel=bound)
    page = run("-m thalweg", "report", str(tmp_path / "resumed-1" / "run.jsonl"))
    assert page.returncode == 0, page.stderr
    assert "blocks.1.qkv.weight" in (tmp_path / "resumed-1" / "run.html").read_text()


@pytest.mark.slow
def test_a_training_in_half_the_memory_resumes_on_one_rank_to_the_bit(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    lines = [
        run_ranks(count, "half_the_memory.py", tmp_path / name, str(steps))[-1]
        for count, name, steps in ((2, "straight", 4), (2, "stopped", 2), (1, "stopped", 4))
    ]
    straight, _, resumed = (line.partition(": ")[2] for line in lines)
    assert straight == resumed
    assert lines[2].startswith("steps 2 to 4")
