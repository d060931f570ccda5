"""The README's examples run, and the code blocks of the docs are doctests."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import thalweg
from many import many
from thalweg import checkpoint
from thalweg.storage import container

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SOURCE = Path(thalweg.__file__).parent
FILES = (path.relative_to(SOURCE.parent).with_suffix("") for path in SOURCE.rglob("*.py"))
NAMES = (".".join(path.parts).removesuffix(".__init__") for path in FILES)
MODULES = sorted(name for name in NAMES if not re.search(r"\.(cli|race|bench)\b", name))
NEEDS_KERAS = re.compile(r"\.keras3|\.tf\.keras\.(models|lookup)")


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme_example_prints_what_it_says(number: int, tmp_path: Path) -> None:
    block = BLOCKS[number]
    path = tmp_path / "example.py"  # a formula's source is read from its file
    path.write_text(block)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, str(path), "exec"), {"__name__": "example"})
    said = re.findall(r"print\(.*\)  # (.*)", block)
    assert out.getvalue().splitlines() == said


def test_readme_commands_are_single_lines() -> None:
    commands = re.findall(r"<!-- \w+ command -->\n```sh\n(.*?)```", README, re.DOTALL)
    assert [command.count("\n") for command in commands] == [1, 1]


def test_readme_converts_a_checkpoint(tmp_path: Path) -> None:
    (block,) = re.findall(r"```sh\n(thalweg convert .*?)```", README, re.DOTALL)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    command = f'thalweg() {{ "{sys.executable}" -m thalweg "$@"; }}\n{block}'
    done = subprocess.run(["sh", "-ec", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "variables/layer2/kernel" in done.stdout
    tensors = container.read(tmp_path / "adam.safetensors").tensors
    variables = {
        name.removeprefix("variables/"): thalweg.Variable(torch.zeros_like(each.tensor()))
        for name, each in tensors.items()
        if name.startswith("variables/")
    }
    found = checkpoint.restore(tmp_path / "adam.safetensors", variables=variables)
    assert (found.optimizer._lr, found.optimizer._beta1) == (0.01, 0.8)


@pytest.mark.slow
def test_readme_trains_on_two_ranks() -> None:
    pytest.importorskip("torch.distributed.run")
    ((command, said),) = re.findall(r"```sh\n(torchrun .*)\n# (.*)\n```", README)
    command = command.replace("torchrun", f"{sys.executable} -m torch.distributed.run --standalone")
    done = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.stdout.splitlines() == [said], done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_docs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.name in ("keras3.md", "tensorflow.md"):
        pytest.importorskip("keras", reason="Keras 3 is not installed")
    monkeypatch.chdir(ROOT)  # files of the repository are named from there
    results = doctest.testfile(str(path), module_relative=False)
    assert results.failed == 0


@many("name", MODULES)
def test_docstring_examples(name: str) -> None:
    if NEEDS_KERAS.search(name) and find_spec("keras") is None:
        return
    if name.endswith("cuda.functions") and find_spec("triton") is None:
        return
    module = importlib.import_module(name)
    if module.__name__.startswith("torch."):  # such as `thalweg.optim.lr_scheduler`, which it is
        return
    runner = doctest.DocTestRunner()
    for each in doctest.DocTestFinder().find(module):
        if each.examples:  # before any run, doctest looks whether any file of source has changed
            runner.run(each)
    assert runner.summarize().failed == 0


def test_every_public_name_is_documented() -> None:
    undocumented = [name for name in thalweg.__all__ if not getattr(thalweg, name).__doc__]
    assert not undocumented
