"""Features of all commands: examples that run as printed, JSON, plain text, completion."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from thalweg import Variable, checkpoint, optim
from thalweg._cli import progress
from thalweg._cli.commands import bench, race
from thalweg._cli.console import make_console
from thalweg._cli.main import COMMANDS, main
from thalweg.conform import atlas
from thalweg.keras.optimizers import Adam
from thalweg.optim.diagnostics import Diagnostics, JsonLines

SAVER = Path(__file__).parents[1] / "goldens/checkpoints/ckpt_v1/adam"
WEIGHTS = Path(__file__).parents[1] / "goldens/keras_files"
CONVERTED = Path(__file__).parents[1] / "goldens/converted"
MODULE = """
import torch
from thalweg import Hyper, Rule, sign

def update(var, grad, *, learning_rate):
    return (var - learning_rate * sign(grad),)

MyRule = Rule(name="MyRule", update=update, hypers=(Hyper("learning_rate", 0.001),))

class MyLion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99)):
        super().__init__(params, dict(lr=lr, betas=betas))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_(m.lerp(p.grad, 1 - beta1).sign_(), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - beta2)
"""
SCRIPT = "import tensorflow.compat.v1 as tf\nopt = tf.train.AdamOptimizer(0.1)\n"
TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}

# Quick ones, by command: what is asked for JSON, and for plain text.
QUICK = {
    "race": "race --epochs 1 --optimizers SGD",
    "rules": "rules",
    "show": "show Adam",
    "bench": "bench model.safetensors --rules SGD --peers torch-fused --rounds 1",
    "conform": "conform torch.optim:AdamW",
    "inspect": "inspect run7/checkpoint-12.safetensors",
    "verify": "verify run7/checkpoint-11.safetensors run7/checkpoint-12.safetensors",
    "diff": "diff run7/checkpoint-11.safetensors run7/checkpoint-12.safetensors",
    "convert": "convert --force run7/checkpoint-12.safetensors out.ckpt --to tf",
    "scan": "scan train.py",
    "doctor": "doctor",
    "watch": "watch run.jsonl",
    "report": "report run.jsonl",
}
DIFFER = {"diff"}  # whose exit status says so
# Those that train or measure take seconds.
RUN = [
    pytest.param(name, marks=[pytest.mark.slow] if name in ("race", "bench") else [])
    for name in QUICK
]


def printed_examples(text: str) -> list[str]:
    """Return the lines below `Examples:` in the help of a command."""
    _, _, examples = text.partition("Examples:\n")
    block = examples.partition("\n\n")[0].replace("\\\n", "")
    return [" ".join(line.split()) for line in block.splitlines()]


HELP = {name: CliRunner().invoke(main, [name, "--help"]).stdout for name in COMMANDS}
EXAMPLES = [
    *printed_examples(CliRunner().invoke(main, ["--help"]).stdout),
    *(line for text in HELP.values() for line in printed_examples(text)),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the files that the examples name, and work in their folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    Path("mine.py").write_text(MODULE)
    Path("train.py").write_text(SCRIPT)
    Path("project").mkdir()
    Path("project/train.py").write_text(SCRIPT)
    Path("names.txt").write_text("** -> **\n")
    Path("run7").mkdir()
    w, opt = Variable([[1.0, 2.0]], name="w"), Adam(0.5)
    for step in (11, 12):
        opt.apply_gradients([([[1.0, -1.0]], w)])
        checkpoint.save(f"run7/checkpoint-{step}.safetensors", optimizer=opt, variables=[w])
    recorder = Diagnostics(sinks=[JsonLines("run.jsonl")])
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = optim.SGD([("weight", weight)], lr=0.1, diagnostics=recorder)
    weight.grad = torch.ones(2)
    optimizer.step()
    recorder.close()
    for path in SAVER.glob("model.ckpt-5.*"):
        shutil.copy(path, ".")
    shutil.copy(next(WEIGHTS.rglob("*.h5")), "weights.h5")
    shutil.copy(CONVERTED / "adan.pt", "optimizer.pt")
    return tmp_path


def run(line: str, **env: str) -> Result:
    words = shlex.split(line)
    expanded = [
        path
        for word in words
        for path in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
    ]
    return CliRunner().invoke(main, expanded, env=env)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_and_json(name: str) -> None:
    examples = printed_examples(HELP[name])
    assert examples
    assert all(line.startswith(f"thalweg {name}") for line in examples)
    assert "--json" in HELP[name]
    assert name in QUICK


def do_instead(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace long trainings and measurements; return the names of replaced calls."""
    calls: list[str] = []

    def survey(table: atlas.Atlas, *_: object) -> atlas.Atlas:
        calls.append("conform")
        for cell in (cell for row in table.rows for cell in row.cells):
            cell.verdict = "not driven"
        return table

    def note(command: str, returned: object = None) -> Callable[..., Any]:
        return lambda *_, **__: calls.append(command) or returned

    monkeypatch.setattr(race, "_run_race", note("race"))
    monkeypatch.setattr(race, "launch_ranks", note("race"))
    monkeypatch.setattr(race, "race_to_targets", note("race"))
    monkeypatch.setattr(bench, "_measure_all", note("bench", []))
    monkeypatch.setattr(bench, "_print_table", note("bench"))
    monkeypatch.setattr("thalweg._cli.bench.table.judge_noise", lambda rows: {"message": ""})
    monkeypatch.setattr("thalweg._cli.bench.table.plot", note("bench"))
    monkeypatch.setattr(atlas, "survey", survey)
    return calls


@pytest.mark.one_in(3)
@pytest.mark.parametrize("line", dict.fromkeys(EXAMPLES))
def test_printed_examples_run(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = do_instead(monkeypatch)
    _, name, *args = shlex.split(line)
    packages = {*re.findall(r"(\w+)[\w.]*:[A-Z]", line)} - {"mine", "optim", "torch"}
    if missing := [package for package in packages if importlib.util.find_spec(package) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    if name == "bench":
        save_file({"w": torch.zeros(4, 3)}, "model.safetensors")
    if "converted.safetensors" in args:
        for text in printed_examples(HELP["convert"])[:1]:
            first = run(text.removeprefix("thalweg ").replace("model.safetensors", args[-1]))
            assert first.exit_code == 0, first.output
    outcome = run(line.removeprefix("thalweg "))
    expected = 1 if name == "diff" and "run7" in line else 0
    assert outcome.exit_code == expected, outcome.output
    assert (name in ("race", "bench") or "--atlas" in args) == bool(calls)


@pytest.mark.parametrize("name", RUN)
def test_json_output_is_only_json(name: str, folder: Path) -> None:
    save_file({"w": torch.zeros(4, 3)}, "model.safetensors")
    outcome = run(f"{QUICK[name]} --json", **TERMINAL)
    assert outcome.exit_code == (name in DIFFER), outcome.output
    assert json.loads(outcome.stdout)


@pytest.mark.parametrize("name", RUN)
def test_no_color_output_has_no_escape_codes(name: str, folder: Path) -> None:
    save_file({"w": torch.zeros(4, 3)}, "model.safetensors")
    outcome = run(QUICK[name], **TERMINAL, NO_COLOR="1")
    assert outcome.exit_code == (name in DIFFER), outcome.output
    assert outcome.stdout
    assert "\x1b" not in outcome.stdout + outcome.stderr


def test_color_output_has_escape_codes(folder: Path) -> None:
    for name in ("rules", "show", "scan", "inspect", "conform"):
        assert "\x1b[" in run(QUICK[name], **TERMINAL).stdout, name


def test_json_marks_unverifiable_files(folder: Path) -> None:
    path = Path("run7/checkpoint-11.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    outcome = run(f"{QUICK['verify']} --json")
    assert outcome.exit_code == 1
    states = {entry["path"]: entry["state"] for entry in json.loads(outcome.stdout)}
    assert states == {str(path): "failed", "run7/checkpoint-12.safetensors": "verified"}


def complete(env: dict[str, str]) -> Result:
    return CliRunner().invoke(main, prog_name="thalweg", env=env)


@pytest.mark.parametrize(
    ("words", "expected"),
    [("thalweg do", "doctor"), ("thalweg verify --js", "--json"), ("thalweg verify ru", "file")],
)
def test_shell_completion_suggests_commands(words: str, expected: str) -> None:
    env = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    process = complete({**env, "_THALWEG_COMPLETE": "bash_complete"})
    assert expected in process.stdout
    assert "Usage" not in process.stdout


def test_help_explains_shell_completion() -> None:
    text = CliRunner().invoke(main, ["--help"]).stdout
    for shell in re.findall(r"_THALWEG_COMPLETE=(\w+)", text):
        process = complete({"_THALWEG_COMPLETE": shell})
        assert "_THALWEG_COMPLETE" in process.stdout, shell
    assert text.count("_THALWEG_COMPLETE=") == 3


class Terminal:
    """A stderr that is a terminal."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Write without a buffer."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", [False, True])
def test_progress_is_shown_on_a_terminal(no_color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("NO_COLOR", "1" if no_color else "")
    with progress.watch_fraction("begun") as show:
        show(0.25, lambda: "a quarter")
    with progress.show_busy("busy"):
        pass
    assert ("25 %" in stderr.text) == (not no_color)
    assert ("busy" in stderr.text) == (not no_color)
    assert ("\x1b" in stderr.text) == (not no_color)
    assert make_console(stderr=True).is_terminal == (not no_color)
