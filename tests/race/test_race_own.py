"""Entries of the race in torch's form, from files and packages, and entries with options."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from small_digits import load_few_digits
from thalweg._cli.main import main
from thalweg._cli.race.contestants import line_up
from thalweg._cli.race.entry import parse_entry
from thalweg._cli.race.errors import EntryError, RaceError
from thalweg._cli.race.problems import DEFAULT_OPTIMIZERS, PROBLEMS
from thalweg._cli.race.run import run

OPTIMIZERS = """
import torch
from torch import nn
from thalweg import Hyper, Rule, sign
from thalweg.keras.optimizers import SGD

print("imported")

class Sign(torch.optim.Optimizer):
    def __init__(self, params, lr=0.001, scale=1.0, betas=(0.9, 0.99), mode="plain"):
        super().__init__(params, {"lr": lr, "scale": scale})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                param.sub_(group["lr"] * group["scale"] * param.grad.sign())

class Modes(Sign):
    calls = []

    def train(self):
        self.calls.append("train")

    def eval(self):
        self.calls.append("eval")

    def step(self, closure=None):
        self.calls.append("step")
        super().step()

class OfModel:
    def __init__(self, model, learning_rate=0.1):
        self.own = torch.optim.SGD(model.parameters(), learning_rate)
        self.step = self.own.step

def make(params, lr=0.002, **options):
    return torch.optim.AdamW(params, lr=lr, **options)

def fixed(params):
    return torch.optim.SGD(params, 0.05)

def several(net):
    first, *others = net.parameters()
    return [torch.optim.SGD([first], 0.1), torch.optim.SGD(others, 0.2)]

def passing(*args, **options):
    return torch.optim.AdamW(*args, **options)

def optional(params=None, lr=0.002):
    return torch.optim.AdamW(params, lr)

def required(params, lr):
    return torch.optim.SGD(params, lr)

made = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)
keras = SGD(0.1)

def closed():
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)

def broken(params):
    raise KeyError("no luck")

def nothing(params):
    return None

def empty(params):
    return []

def update(var, grad, *, learning_rate, scale):
    return (var - learning_rate * scale * sign(grad),)

SIGN = Rule(name="SignSGD", update=update,
            hypers=(Hyper("learning_rate", 0.001), Hyper("scale", 1.0)))

def of_keras(momentum=0.0, learning_rate=0.1):
    return SGD(learning_rate, momentum)
"""


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROBLEMS, "digits", load_few_digits)
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OPTIMIZERS)
    package = Path("site/some_optimizers")
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(OPTIMIZERS)
    (package / "pytorch.py").write_text(OPTIMIZERS)
    (package / "failing.py").write_text("1 / 0\n")
    (package / "needing.py").write_text("import a_module_that_is_missing\n")
    monkeypatch.syspath_prepend("site")
    for name in [name for name in sys.modules if name.startswith("some_optimizers")]:
        monkeypatch.delitem(sys.modules, name)


def race(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["race", "--epochs", "1", "--seed", "3", *arguments])


def results_of(*arguments: str) -> dict[str, dict[str, Any]]:
    result = race("--json", *arguments)
    assert result.exit_code == 0, result.output
    return {row["optimizer"]: row for row in json.loads(result.stdout)["results"]}


# Entries that take the same steps, and the learning rate they race with.
TWINS = {
    "a class of a package": ("torch.optim:AdamW(lr=0.002)", "torch:AdamW", 0.002),
    "its default rate": ("torch.optim:AdamW", "torch:AdamW(lr=0.001)", 0.001),
    "options": (
        "torch.optim:AdamW(weight_decay=0.5, betas=(0.8, 0.9), lr=0.002)",
        "torch:AdamW(weight_decay=0.5,betas=(0.8,0.9))",
        0.002,
    ),
    "a function": ("mine.py:make(weight_decay=0.5)", "torch:AdamW(weight_decay=0.5)", 0.002),
    "a function of a package": ("some_optimizers:make", "mine.py:make", 0.002),
    "of a module with .py in its name": ("some_optimizers.pytorch:make", "mine.py:make", 0.002),
    "without a rate": ("mine.py:fixed", "torch:SGD(lr=0.05)", 0.05),
    "a class of a file": ("mine.py:Sign(scale=2.0)", "mine.py:SIGN(lr=0.002)", 0.001),
    "options of a rule": ("mine.py:SIGN(scale=2.0)", "mine.py:SIGN(learning_rate=0.002)", None),
    "of a model": ("mine.py:OfModel", "torch:SGD(lr=0.1)", 0.1),
    "of any arguments": (
        "mine.py:passing(weight_decay=0.5)", "torch:AdamW(weight_decay=0.5,lr=0.001)", 0.001,
    ),
    "of optional parameters": ("mine.py:optional", "torch:AdamW", 0.002),
    "ours": ("thalweg.optim:AdamW(lr=0.002)", "optim:AdamW", 0.002),
    "ours of matrices": (
        "thalweg.optim:Muon(adjust_lr_fn=match_rms_adamw,lr=0.002)", "optim:Muon", 0.002,
    ),
    "torch's of matrices": (
        "torch.optim:Muon(adjust_lr_fn='match_rms_adamw',lr=0.002)", "torch:Muon", 0.002,
    ),
    "a short name": ("OPTIM:AdamW8BIT", "optim:AdamW(state_storage=8bit)", 0.002),
    "Keras'": ("Adam(beta_1=0.8)", "adam(beta_1=0.8,lr=0.002)", 0.002),
    "a function of Keras' form": ("mine.py:of_keras(momentum=0.9)", "Momentum(lr=0.1)", None),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("entry", "twin", "rate"), TWINS.values(), ids=TWINS)
def test_equal_entries_take_equal_steps(entry: str, twin: str, rate: float | None) -> None:
    problem = PROBLEMS["digits"](0)
    first, second = run(problem, line_up([entry, twin], {}, "digits"), epochs=1).lanes
    assert first.losses == second.losses
    assert min(first.losses[1:]) < first.losses[0]
    assert rate is None or first.learning_rate == rate


def test_the_command_with_entries_of_both_forms() -> None:
    names = "torch:AdamW,mine.py:Sign(scale=2,mode=fast),mine.py:Sign,some_optimizers:several"
    rows = results_of("--optimizers", names, "--lr", "AdamW=0.001,Sign=0.002")
    rates = {name: row["learning_rate"] for name, row in rows.items()}
    assert rates == {
        "torch:AdamW": 0.001, "Sign(scale=2,mode=fast)": 0.001, "Sign": 0.002, "several": None,
    }  # fmt: skip
    row = rows["Sign(scale=2,mode=fast)"]
    assert row["arguments"] == {"scale": 2, "mode": "fast"}
    assert row["source"] == "mine.py:Sign(scale=2,mode=fast)"
    assert min(rows["several"]["losses"][1:]) < rows["several"]["losses"][0]


def test_rate_is_set_by_name_with_options() -> None:
    names = "mine.py:Sign(scale=2,mode=fast),mine.py:Sign,Adam,optim:Adam,some_optimizers:Sign"
    rates = "Sign(scale=2,mode=fast)=0.003,Sign=0.002,some_optimizers:Sign=0.004,Adam=0.005"
    rates_by_name = {name: row["learning_rate"] for name, row in results_of(
        "--optimizers", names, "--lr", rates).items()}  # fmt: skip
    assert rates_by_name == {
        "Sign(scale=2,mode=fast)": 0.003, "Sign": 0.002, "some_optimizers:Sign": 0.004,
        "Adam": 0.005, "optim:Adam": 0.002,
    }  # fmt: skip


def test_general_rate_does_not_override_a_named_rate() -> None:
    lanes = line_up(["SGD", "SGD(lr=0.5)", "torch:SGD(lr=0.4)"], {"torch:SGD": 0.3}, "digits", 0.1)
    assert [contestant.learning_rate for contestant in lanes] == [0.1, 0.5, 0.3]


def test_a_sweep_begins_at_the_default_rate() -> None:
    result = race("--optimizers", "mine.py:Sign", "--lr", "sweep", "--json")
    assert result.exit_code == 0, result.output
    trials = json.loads(result.stdout)["sweep"][0]["tried"]
    assert [trial["learning_rate"] for trial in trials] == [0.0001, 0.0003, 0.001, 0.003, 0.01]


def test_schedule_free_optimizer_switches_modes() -> None:
    (lane,) = run(PROBLEMS["digits"](0), line_up(["mine.py:Modes"], {}, "digits"), epochs=1).lanes
    calls = lane.optimizer._optimizers[0].calls
    assert (calls[0], calls[-2:]) == ("train", ["eval", "train"])
    assert calls.count("eval") == len(lane.evaluations)
    assert "step" not in {calls[place + 1] for place, call in enumerate(calls) if call == "eval"}


def test_report_measures_layers_if_supported() -> None:
    names = "thalweg.optim:AdamW,torch.optim:AdamW,mine.py:make"
    result = race("--optimizers", names, "--report", "race.html")
    assert result.exit_code == 0, result.output
    (text,) = [line for line in Path("race.html").read_text().splitlines() if 'id="data"' in line]
    data = json.loads(text[text.index("{") : text.rindex("}") + 1])
    columns = {training["name"]: len(training["columns"]) for training in data["trainings"]}
    assert columns == {"AdamW": 2, "torch.optim:AdamW": 0, "make": 0}


UNUSABLE = {
    "no module": ("no_such_module:Lion", "there is no module 'no_such_module' (for 'no_such_mod"),
    "no submodule": ("torch.optim.nothing:Lion", "there is no module 'torch.optim.nothing'"),
    "no name": ("some_optimizers:Mods", "'some_optimizers' has no 'Mods'. Did you mean 'Modes'?"),
    "not a name": ("a package:Sign", "'a package:Sign' is not PACKAGE:NAME, such as torch.optim"),
    "without a name": ("some_optimizers:", "'some_optimizers:' is not PACKAGE:NAME"),
    "a module": ("torch:optim", "there is no optimizer 'torch:optim'"),
    "an unknown option": ("mine.py:Sign(scal=2)", "unexpected keyword argument 'scal'"),
    "of the library": ("optim:AdamW(wd=2)", "'optim:AdamW(wd=2)' cannot be made: "),
    "of Keras": ("Adam(beta_3=2)", "'Adam(beta_3=2)' cannot be made: "),
    "of a rule": ("mine.py:SIGN(scal=2)", "cannot be made: "),
    "no rate": ("mine.py:required", "missing a required argument: 'lr'; --lr sets it"),
    "a rate that cannot be set": ("mine.py:fixed(lr=1)", "'mine.py:fixed(lr=1)' has no argument"),
    "already made": ("mine.py:made", "'mine.py:made' is a SGD of other parameters; name"),
    "made alone": ("mine.py:closed", "of other parameters; let it take those of the race"),
    "options of an optimizer": ("mine.py:keras(momentum=1)", "is already made, and takes no opt"),
    "a rate of words": ("mine.py:Sign(lr=fast)", "the learning rate of 'mine.py:Sign(lr=fast)'"),
    "a rate twice": ("mine.py:Sign(lr=1,lr=2)", "'mine.py:Sign(lr=1,lr=2)' has the option 'lr'"),
    "two rates": ("mine.py:Sign(lr=1,learning_rate=2)", "has two learning rates, lr and learning"),
    "a position": ("mine.py:Sign(0.1)", "'0.1' is not NAME=VALUE, such as lr=0.01"),
    "an expression": ("mine.py:Sign(scale=1+x)", "'1+x' is neither a word nor a literal of Python"),
    "a rate below 0": ("mine.py:Sign(lr=-1)", "must be a positive number, not -1.0"),
    "twice": ("mine.py:Sign,mine.py:Sign,mine.py:Sign", "'mine.py:Sign' is in the race twice"),
    "a short name twice": ("optim:AdamW8bit,optim:adamw8bit", "AdamW8bit' is in the race twice"),
}  # fmt: skip


@pytest.mark.parametrize(("names", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_unsupported_entries_raise(
    names: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROBLEMS, "digits", None)  # pyright: ignore[reportArgumentType]
    result = race("--optimizers", names)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert not result.stdout
    assert not Path("race.json").exists()


FAILING = {
    "import": ("some_optimizers.failing:Lion", "'some_optimizers.failing' failed while it "),
    "a missing module": ("some_optimizers.needing:Lion", "No module named 'a_module_that_is"),
    "making": ("mine.py:broken", "'mine.py:broken' failed while it was made: KeyError: 'no luck'"),
    "no optimizer": ("mine.py:nothing", "'mine.py:nothing' made a NoneType, which has no step"),
    "an empty list": ("mine.py:empty", "'mine.py:empty' made no optimizer, but an empty list"),
    "a value": ("torch.optim:AdamW(betas=(2,0))", "failed while it was made: ValueError: Invalid "),
    "a value of ours": ("optim:AdamW(eps=-1)", "optim:AdamW(eps=-1) failed while it was made: "),
    "a closure": ("torch.optim:LBFGS", "LBFGS failed at step 1: "),
}  # fmt: skip


@pytest.mark.parametrize(("names", "message"), FAILING.values(), ids=FAILING)
def test_failing_entries_are_reported(names: str, message: str) -> None:
    result = race("--optimizers", names)
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert not Path("race.json").exists()


@pytest.mark.parametrize(
    ("text", "name", "options", "rate"),
    [
        ("Adam", "Adam", {}, None),
        ("a.py:Adam(lr=1, b=(1, 2))", "a.py:Adam", {"b": (1, 2)}, 1.0),
        ("dir (1)/a.py:Adam", "dir (1)/a.py:Adam", {}, None),
        ("dir(1)/a.py:Adam(b={'x': 1})", "dir(1)/a.py:Adam", {"b": {"x": 1}}, None),
        ("p:Adam(a=8bit,b='x,y',c=None)", "p:Adam", {"a": "8bit", "b": "x,y", "c": None}, None),
        ("p:Adam()", "p:Adam", {}, None),
        ("p:Adam (a=1)", "p:Adam", {"a": 1}, None),
        ("p:Adam(learning_rate=2e-3)", "p:Adam", {}, 0.002),
        ("p:Adam(a=1", "p:Adam(a=1", {}, None),
    ],
)
def test_entry_options_are_parsed(text: str, name: str, options: Any, rate: float | None) -> None:
    entry = parse_entry(text)
    assert (entry.name, entry.options, entry.rate) == (name, options, rate)


def test_nested_entry_options_raise() -> None:
    with pytest.raises((RaceError, EntryError), match="neither a word nor a literal"):
        parse_entry(f"p:Adam(a={'(' * 500}{')' * 500})")


def test_default_race_has_documented_contestants() -> None:
    assert DEFAULT_OPTIMIZERS["digits"] == (
        "torch:AdamW", "optim:AdamW", "optim:AdamW8bit", "optim:Muon", "optim:SOAP", "optim:Lion",
        "Adam", "Ftrl",
    )  # fmt: skip
    result = race()
    assert result.exit_code == 0, result.output
    document = json.loads(Path("race.json").read_text())
    rows = {row["optimizer"]: row for row in document["results"]}
    assert set(rows) == set(DEFAULT_OPTIMIZERS["digits"])
    assert document["settings"]["baseline"] == "torch:AdamW"
    assert rows["optim:AdamW8bit"]["arguments"] == {"state_storage": "8bit"}
    for row in rows.values():
        assert min(row["losses"][1:]) < row["losses"][0], row["optimizer"]
    words = " ".join(result.stdout.split())
    assert "Time of a step, that of torch:AdamW, the baseline, being 1: " in words
    assert all(f"{name} " in words.split("baseline")[1] for name in rows if name != "torch:AdamW")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "us/step" in result.stdout


def test_baseline_comparison_needs_the_baseline() -> None:
    for names in ("torch:AdamW", "SGD,optim:SGD"):
        result = race("--optimizers", names)
        assert "baseline" not in result.stdout
