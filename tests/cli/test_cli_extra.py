"""The command is an extra: the library works without click and rich, and names what is missing."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from pathlib import Path

import pytest

import fresh_process
import thalweg
from case_batches import many
from rulebook import slow_unless

SOURCE = Path(thalweg.__file__).parent
# What these show is made of rich's tables; nobody imports them but the command and benchmarks.
ALLOWED = {
    SOURCE / name
    for name in ("_base/terminal_tables.py", "_cli/race/report.py", "_cli/bench/table.py")
}
OTHER_PATHS = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    if path not in ALLOWED and not path.is_relative_to(SOURCE / "_cli")
]
RUN = {
    "script": "from thalweg.__main__ import main; main()",
    "module": "import runpy; runpy.run_module('thalweg', run_name='__main__')",
}


def run_without(missing: str, code: str) -> subprocess.CompletedProcess[str]:
    hidden_modules = dict.fromkeys(missing.split())
    return fresh_process.run(f"import sys; sys.modules.update({hidden_modules})\n{code}", "rules")


@pytest.mark.parametrize("code", RUN.values(), ids=RUN)
@pytest.mark.parametrize(
    ("missing", "message"),
    [
        slow_unless(False, "click", "click is"),
        slow_unless(False, "rich", "rich is"),
        ("click rich", "click and rich are"),
    ],
)
def test_missing_cli_extra_names_what_to_install(missing: str, message: str, code: str) -> None:
    process = run_without(missing, code)
    assert process.returncode == 2
    assert not process.stdout
    assert process.stderr == (
        f"Error: {message} not installed; the command needs: pip install 'thalweg[cli]'\n"
    )


@pytest.mark.parametrize("code", RUN.values(), ids=RUN)
def test_command_runs_with_cli_extra(code: str) -> None:
    process = run_without("", code)
    assert process.returncode == 0, process.stderr
    assert "AMSGrad" in process.stdout


def test_the_library_trains_without_the_extra() -> None:
    process = run_without(
        "click rich",
        "import thalweg, thalweg.tf, thalweg._cli.race.run, thalweg._cli.bench.compare\n"
        "w = thalweg.Variable([1.0])\n"
        "thalweg.keras.optimizers.SGD(0.5).apply_gradients([([1.0], w)])\n"
        "print(w.item())",
    )
    assert process.stdout == "0.5\n", process.stderr


@many("path", OTHER_PATHS)
def test_only_cli_modules_import_click_and_rich(path: Path) -> None:
    packages: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.partition(".")[0])
    assert not packages & {"click", "rich"}


def test_race_and_test_extras_include_cli() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    dependencies = {name.partition(">")[0] for name in project["dependencies"]}
    assert dependencies == {"llvmlite", "numpy", "safetensors", "torch"}
    extras = project["optional-dependencies"]
    assert {name.partition(">")[0] for name in extras["cli"]} == {"click", "rich"}
    assert "thalweg[cli]" in extras["race"]
    assert "thalweg[cli]" in extras["test"]
