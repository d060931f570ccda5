"""The command line: races on both problems, listings, and errors of all options."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from small_digits import load_few_digits
from thalweg._cli import options
from thalweg._cli.main import main
from thalweg._cli.race.problems import PROBLEMS, digits

RULE = """
from thalweg import Hyper, Rule, sign

def update(var, grad, *, learning_rate):
    return (var - learning_rate * sign(grad),)

SIGN = Rule(name="SignSGD", update=update, hypers=(Hyper("learning_rate", 0.001),))
"""
ENTRIES = """
from thalweg import Hyper, Rule
from thalweg.keras.optimizers import Adam, SGD
from thalweg.rules import ADAM
from thalweg.v1 import train
from thalweg.v1.contrib import opt

def blow_up(var, grad, *, learning_rate):
    return (var * (learning_rate / (learning_rate - learning_rate)),)

def wrong(var, grad, *, learning_rate):
    return (open(var),)

HYPERS = (Hyper("learning_rate", 0.01),)
Bad = Rule(name="Bad", update=blow_up, hypers=HYPERS)
Wrong = Rule(name="Wrong", update=wrong, hypers=HYPERS)
Number = 3

class Late(SGD):
    def _create_slots(self, var_list):
        raise KeyError("too late")

def late():
    return Late(0.1)

class Mine(Adam):
    def __init__(self, learning_rate=0.002):
        super().__init__(learning_rate, beta_1=0.8)

class Broken(Adam):
    def __init__(self):
        raise KeyError("no luck")

instance = SGD(0.1)

def factory():
    return SGD(0.05, momentum=0.9)

def nothing():
    return None

class Plain(train.Optimizer):
    def __init__(self):
        super().__init__(False, "Plain")

    def _apply_dense(self, grad, var):
        var.sub_(0.1 * grad)

plain = Plain()
classic = train.MomentumOptimizer(0.05, 0.9)

def averaged():
    return opt.MovingAverageOptimizer(train.AdamOptimizer(0.002))

def dual(learning_rate=0.5):
    return train.AdagradDAOptimizer(learning_rate, train.get_or_create_global_step())
"""
SMALL = ("--epochs", "1", "--seed", "3")


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PROBLEMS, "digits", load_few_digits)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "sign.py").write_text(RULE)
    (tmp_path / "mine.py").write_text(ENTRIES)
    (tmp_path / "failing.py").write_text("import thalweg\n1 / 0\n")


@pytest.fixture
def small_stdlib(monkeypatch: pytest.MonkeyPatch) -> None:
    from thalweg._cli.race.problems import stdlib_text

    monkeypatch.setattr(stdlib_text, "PACKAGES", "argparse ast json collections typing")
    monkeypatch.setattr(stdlib_text, "FEWEST_TOKENS", 10_000)


def invoke(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, arguments, env=env)


def race(*arguments: str) -> dict[str, Any]:
    result = invoke("race", *SMALL, "--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["optimizer"]: row for row in report["results"]}


def check_report(report: dict[str, Any]) -> None:
    settings = report["settings"]
    assert settings["seed"] == 3
    assert {"python", "torch", "thalweg"} <= set(report["versions"])
    assert [row["rank"] for row in report["results"]] == list(range(1, len(report["results"]) + 1))
    for row in report["results"]:
        assert len(row["losses"]) == settings["steps"]
        assert row["evaluations"][-1]["step"] == settings["steps"]
        assert row["evaluations"][-1]["train_loss"] == row["train_loss"]
        assert row["train_loss"] < 0.95 * row["losses"][0]
        assert 0 <= row["test_accuracy"] <= 1
        assert row["seconds"] > 0
        assert row["microseconds_per_step"] > 0


def test_race_on_digits_writes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROBLEMS, "digits", digits.load)
    Path("new/out").mkdir(parents=True)
    result = invoke("race", *SMALL, "--optimizers", "adam,Ftrl", "--out", "new/out")
    assert result.exit_code == 0, result.output
    assert not result.stderr
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert Path("new/out/race.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads(Path("new/out/race.json").read_text())
    check_report(report)
    for row in report["results"]:
        assert row["optimizer"] in result.stdout
    accuracies = [row["test_accuracy"] for row in report["results"]]
    assert accuracies == sorted(accuracies, reverse=True)
    assert report["problem"]["train_examples"] + report["problem"]["test_examples"] == 1797


@pytest.mark.slow
def test_race_on_digit_lines_runs() -> None:
    report = race("--problem", "lines", "--optimizers", "Adam,v1:MomentumOptimizer")
    check_report(report)
    assert report["problem"]["test_examples"] == 512
    assert by_name(report)["Adam"]["test_accuracy"] > 0.5


@pytest.mark.slow
@pytest.mark.usefixtures("small_stdlib")
def test_race_on_standard_library_text_runs() -> None:
    report = race("--problem", "stdlib", "--optimizers", "Adagrad,Adam")
    check_report(report)
    assert report["problem"]["name"] == "stdlib"
    assert report["problem"]["parameters"] > 50_000 * 32


def test_embedding_table_is_large_and_its_gradients_sparse() -> None:
    from thalweg._cli.race.problems.stdlib_text import FEATURES, NextToken

    model = NextToken()
    assert model.table.num_embeddings >= 50_000
    scores = model(torch.zeros(3, FEATURES, dtype=torch.int64))
    (gradient,) = torch.autograd.grad(scores.sum(), [model.table.weight])
    assert gradient.is_sparse


def test_missing_library_sources_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    from thalweg._cli.race.problems import stdlib_text

    monkeypatch.setattr(stdlib_text, "root", lambda: Path("nowhere"))
    result = invoke("race", "--problem", "stdlib")
    assert result.exit_code == 1
    assert "found 0 .py files" in result.stderr


def test_optimizers_share_start_and_batches() -> None:
    Path("again.py").write_text("from thalweg.rules import ADAM\n")
    rows = by_name(race("--optimizers", "Adam,again.py:ADAM", "--lr", "0.003"))
    assert rows["Adam"]["losses"] == rows["again.py:ADAM"]["losses"]


def test_seed_determines_results() -> None:
    first, two = (race("--optimizers", "SGD") for _ in range(2))
    assert first["results"][0]["losses"] == two["results"][0]["losses"]
    third = race("--optimizers", "SGD", "--seed", "4")
    assert first["results"][0]["losses"] != third["results"][0]["losses"]


def test_races_rules_and_optimizers_of_the_user() -> None:
    names = "Adam,sign.py,mine.py:Mine,mine.py:instance,mine.py:factory"
    rows = by_name(race("--optimizers", names, "--lr", "Mine=0.004,signsgd=0.002,instance=0.3"))
    rates = {name: row["learning_rate"] for name, row in rows.items()}
    assert rates == {
        "Adam": 0.002, "SignSGD": 0.002, "Mine": 0.004, "instance": 0.3,
        "factory": pytest.approx(0.05),
    }  # fmt: skip
    assert rows["SignSGD"]["losses"][-1] < rows["SignSGD"]["losses"][0]


@pytest.mark.slow
def test_races_optimizers_of_tensorflow_1_beside_all_others() -> None:
    names = "Adam,v1:AdamOptimizer,v1:LazyAdamOptimizer,v1:momentumoptimizer,LARS,sign.py"
    rows = by_name(race("--optimizers", names, "--lr", "v1:MomentumOptimizer=0.03,LARS=3"))
    assert sorted(rows) == sorted(
        ["Adam", "v1:AdamOptimizer", "v1:LazyAdamOptimizer", "v1:MomentumOptimizer", "LARS",
         "SignSGD"]
    )  # fmt: skip
    lazy, full = rows["v1:LazyAdamOptimizer"], rows["v1:AdamOptimizer"]
    assert lazy["losses"] == full["losses"]  # dense gradients: one formula
    assert full["learning_rate"] == rows["Adam"]["learning_rate"]
    momentum = rows["v1:MomentumOptimizer"]
    assert momentum["learning_rate"] == 0.03
    assert momentum["arguments"] == {"momentum": 0.9}
    assert momentum["source"] == "thalweg.v1.train.momentum"
    assert rows["LARS"]["learning_rate"] == 3


def test_races_novograd_by_both_names() -> None:
    names = "NovoGrad,openseq2seq:NovoGrad"
    rows = by_name(race("--epochs", "4", "--optimizers", names, "--lr", "NovoGrad=0.01"))
    rule, full_row = rows["NovoGrad"], rows["openseq2seq:NovoGrad"]
    assert rule["learning_rate"] == 0.01
    assert full_row["source"] == "thalweg.openseq2seq.optimizers.novograd"
    assert full_row["losses"][-1] < full_row["losses"][0]


def test_races_optimizers_of_torch_beside_those_of_the_library() -> None:
    names = "Adam,OPTIM:adam,torch:Adam,optim:momentum,torch:SGD"
    rows = by_name(race("--optimizers", names, "--lr", "torch:SGD=0.1"))
    assert sorted(rows) == ["Adam", "optim:Adam", "optim:Momentum", "torch:Adam", "torch:SGD"]
    fused, torchs = rows["optim:Adam"], rows["torch:Adam"]
    assert fused["losses"] == pytest.approx(torchs["losses"], rel=1e-3)
    assert fused["losses"] != rows["Adam"]["losses"]  # epsilon stands elsewhere
    assert fused["learning_rate"] == torchs["learning_rate"] == rows["Adam"]["learning_rate"]
    assert (fused["source"], torchs["source"]) == ("thalweg.optim.classes", "torch.optim.adam")
    assert rows["optim:Momentum"]["arguments"] == {"momentum": 0.9}
    assert rows["torch:SGD"]["learning_rate"] == 0.1


@pytest.mark.slow
@pytest.mark.usefixtures("small_stdlib")
def test_torch_optimizers_race_on_sparse_gradients() -> None:
    names = "optim:SGD,torch:SGD"
    first, second = race("--problem", "stdlib", "--optimizers", names)["results"]
    assert first["losses"][-1] < first["losses"][0]
    assert first["losses"] == pytest.approx(second["losses"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("small_stdlib")
def test_tensorflow_1_optimizers_race_on_sparse_gradients() -> None:
    names = "v1:LazyAdamOptimizer,v1:AdagradDAOptimizer,v1:LARSOptimizer,openseq2seq:novograd"
    report = race("--problem", "stdlib", "--optimizers", names)
    for row in report["results"]:
        assert row["losses"][-1] < row["losses"][0], row["optimizer"]


def test_every_optimizer_has_a_rate_for_every_problem() -> None:
    from thalweg._cli.race.contestants import line_up
    from thalweg._cli.race.problems import PROBLEMS
    from thalweg._cli.registry import by_torch, names

    for problem in PROBLEMS:
        racing = line_up([*names(), *by_torch()], {}, problem)
        assert [contestant.name for contestant in racing if contestant.learning_rate is None] == []


def test_a_rule_of_tensorflow_1_races_through_its_optimizer() -> None:
    from thalweg._cli.race.contestants import line_up
    from thalweg._cli.registry import by_rule
    from thalweg.rules import OPENSEQ2SEQ_RULES, V1_RULES

    for rule in (*V1_RULES, *OPENSEQ2SEQ_RULES):
        (contestant,) = line_up([rule.name], {}, "digits")
        optimizer: Any = contestant.make(None)
        assert optimizer._choose_rule() is rule
        assert isinstance(optimizer, by_rule()[rule.name].cls)


@pytest.mark.slow
def test_races_optimizers_of_tensorflow_1_of_the_user() -> None:
    names = "mine.py:plain,mine.py:classic,mine.py:averaged,mine.py:dual"
    rows = by_name(race("--optimizers", names, "--lr", "classic=0.04,dual=0.2"))
    rates = {name: row["learning_rate"] for name, row in rows.items()}
    assert rates == {"plain": None, "classic": 0.04, "averaged": None, "dual": 0.2}
    assert rows["averaged"]["losses"][-1] < rows["averaged"]["losses"][0]


def test_lr_option_sets_default_and_named_rates() -> None:
    rows = by_name(race("--optimizers", "SGD,Nesterov", "--lr", "0.03,nesterov=0.01"))
    assert [rows[name]["learning_rate"] for name in ("SGD", "Nesterov")] == [0.03, 0.01]


def test_a_file_of_the_user_may_import_its_neighbours() -> None:
    Path("rules").mkdir()
    Path("rules/neighbour_of_mine.py").write_text(RULE)
    Path("rules/entry.py").write_text("from neighbour_of_mine import SIGN\n")
    initial = list(sys.path)
    assert "SignSGD" in by_name(race("--optimizers", "rules/entry.py:SIGN"))
    assert sys.path == initial


def test_user_file_may_change_sys_path() -> None:
    Path("own.py").write_text("import sys\nsys.path.pop(0)\n" + RULE)
    initial = list(sys.path)
    assert "sign(grad)" in invoke("show", "own.py").stdout
    assert sys.path == initial


def test_nan_ranks_last_and_is_null() -> None:
    result = invoke("race", *SMALL, "--optimizers", "mine.py:Bad,SGD")
    assert result.exit_code == 0, result.output
    assert "NaN at step 2" in result.stdout
    report = json.loads(Path("race.json").read_text())
    assert [row["optimizer"] for row in report["results"]] == ["SGD", "Bad"]
    assert report["results"][1]["train_loss"] is None
    assert report["results"][1]["diverged_at"] == 2


def test_tensorboard_events_of_each_race_have_a_folder_of_their_own() -> None:
    race("--optimizers", "SGD", "--logdir", "runs")
    (first,) = Path("runs/digits/SGD").glob("events.out.tfevents.*")
    result = invoke("race", *SMALL, "--optimizers", "SGD", "--logdir", "runs")
    assert result.stdout.splitlines()[-1] == "Saved race.json, race.png, runs/digits-2"
    assert list(Path("runs/digits/SGD").iterdir()) == [first]
    assert len(list(Path("runs/digits-2/SGD").iterdir())) == 1


def test_a_race_that_fails_leaves_no_folder_of_events() -> None:
    result = invoke("race", *SMALL, "--optimizers", "mine.py:late", "--logdir", "runs")
    assert result.exit_code == 1, result.output
    assert not list(Path("runs").iterdir())


class Interrupting:
    """Optimizer that raises KeyboardInterrupt in the n-th step of all."""

    steps = 0

    @classmethod
    def after(cls, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
        from thalweg._cli.race import run

        monkeypatch.setitem(PROBLEMS, "digits", digits.load)
        cls.steps, advance = steps, run.applied

        def applied(optimizer: Any) -> Any:
            apply = advance(optimizer)

            def step(pairs: Any) -> None:
                cls.steps -= 1
                if not cls.steps:
                    raise KeyboardInterrupt
                apply(pairs)

            return step

        monkeypatch.setattr(run, "applied", applied)


def test_results_before_ctrl_c_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    Interrupting.after(monkeypatch, 60)
    result = invoke("race", *SMALL, "--optimizers", "SGD,Adam,mine.py:Bad")
    assert result.exit_code == 130
    assert "SGD" in result.stdout
    assert "Saved race.json, race.png" in result.stdout
    assert result.stderr.splitlines()[-1].startswith("Error: stopped at step ")
    report = json.loads(Path("race.json").read_text())
    assert 0 < report["stopped_at_step"] < report["settings"]["steps"]
    rows = by_name(report)
    for name in ("SGD", "Adam"):
        assert 0 < len(rows[name]["losses"]) < report["settings"]["steps"]
    assert len(rows["SGD"]["evaluations"]) == len(rows["Adam"]["evaluations"]) > 0
    assert rows["Bad"]["diverged_at"] == 2
    assert Path("race.png").read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_before_every_optimizer_has_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    Interrupting.after(monkeypatch, 4)
    result = invoke("race", *SMALL, "--optimizers", "SGD,Adam", "--json")
    assert result.exit_code == 130
    rows = by_name(json.loads(result.stdout))
    assert (len(rows["SGD"]["losses"]), len(rows["Adam"]["losses"])) == (4, 0)
    assert rows["SGD"]["test_accuracy"] is None


def test_ctrl_c_before_the_race_exits_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    from thalweg._cli.race.problems import PROBLEMS

    def load(seed: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(PROBLEMS, "digits", load)
    result = invoke("race", "--logdir", "runs")
    assert result.exit_code == 130
    assert result.stderr.split() == ["Error:", "stopped."]
    assert not Path("race.json").exists()
    assert not list(Path("runs").iterdir())


def refuse_to_load(seed: int) -> None:
    raise AssertionError("the race has begun")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "sign.py/deeper"], "--out: cannot write to 'sign.py/deeper': "),
        (["--logdir", "sign.py/deeper"], "--logdir: cannot write to 'sign.py/deeper': "),
        (["--out", "taken"], "'taken/race.png' is a folder"),
        (["--out", "a b"], "--out: there is no folder 'a b'; make it first: mkdir -p 'a b'"),
    ],
)
def test_output_paths_are_validated_before_the_race(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thalweg._cli.race.problems import PROBLEMS

    monkeypatch.setitem(PROBLEMS, "digits", refuse_to_load)
    Path("taken/race.png").mkdir(parents=True)
    result = invoke("race", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal with prepared answers."""
    from thalweg._cli import output_paths as command

    class Terminal:
        def isatty(self) -> bool:
            return True

    class Both:
        stdin = stderr = Terminal()

    monkeypatch.setattr(command, "sys", Both)


@pytest.mark.usefixtures("somebody")
def test_missing_folder_is_created_after_confirmation() -> None:
    arguments = ["race", *SMALL, "--optimizers", "SGD", "--out", "a/b"]
    outcome = CliRunner().invoke(main, arguments, input="y\n")
    assert outcome.exit_code == 0, outcome.output
    assert "There is no folder 'a/b'. Make it? [y/N]" in outcome.stderr
    assert Path("a/b/race.json").is_file()


@pytest.mark.usefixtures("somebody")
def test_missing_folder_is_not_created_without_confirmation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from thalweg._cli.race.problems import PROBLEMS

    monkeypatch.setitem(PROBLEMS, "digits", refuse_to_load)
    outcome = CliRunner().invoke(main, ["race", "--out", "a/b"], input="n\n")
    assert (outcome.exit_code, Path("a").exists()) == (1, False)
    assert outcome.stderr.endswith("Error: stopped.\n")


def test_existing_result_is_replaced_atomically() -> None:
    for name in ("race.json", "race.png"):
        Path(name).write_text("old")
        Path(name).chmod(0o400)
    race("--optimizers", "SGD")
    assert Path("race.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(Path("race.json").read_text())["format"] == 1
    assert not list(Path().glob(".race*"))


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664], ids=oct)
def test_replaced_result_keeps_permissions(mode: int) -> None:
    from thalweg._cli.race.report import whole

    old_umask = os.umask(0o022)
    try:
        Path("race.json").write_text("old")
        Path("race.json").chmod(mode)
        for name in ("race.json", "new.json"):
            with whole(Path(name)) as file:
                actual_mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                assert actual_mode == (mode if name == "race.json" else 0o644)
    finally:
        os.umask(old_umask)
    assert stat.S_IMODE(Path("race.json").stat().st_mode) == mode
    assert stat.S_IMODE(Path("new.json").stat().st_mode) == 0o644


def test_results_are_not_written_through_links() -> None:
    Path("precious").write_text("precious")
    for name in ("race.json", "race.png"):
        Path(f".{name}.partial").symlink_to("precious")
        Path(name).symlink_to("precious")
    race("--optimizers", "SGD")
    assert Path("precious").read_text() == "precious"
    assert not Path("race.json").is_symlink()


def test_more_threads_than_cores_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "usable_cores", lambda: 2)
    result = invoke("race", *SMALL, "--optimizers", "SGD", "--threads", "99")
    assert "--threads 99 is more than the 2 cores here; using 2." in result.stderr
    assert json.loads(Path("race.json").read_text())["settings"]["threads"] == 2


def test_table_states_its_ranking() -> None:
    result = invoke("race", *SMALL, "--optimizers", "SGD")
    assert "Ranked by test accuracy, then train loss." in result.stdout


def test_the_picture_holds_its_title_and_all_names() -> None:
    from dataclasses import replace

    from thalweg._cli.race import plot
    from thalweg._cli.race.contestants import line_up
    from thalweg._cli.race.problems import PROBLEMS
    from thalweg._cli.race.run import run

    heat = run(PROBLEMS["digits"](0), line_up(["SGD"], {}, "digits"), epochs=1)
    heat.problem = replace(heat.problem, description="many words " * 20)
    heat.lanes[0].contestant = replace(heat.lanes[0].contestant, name="folder/" * 20 + "a.py:A")
    figure = plot.figure([heat])
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    for part in (figure._suptitle, figure.axes[1].get_legend()):
        box = part.get_window_extent()
        assert min(box.x0, box.y0) >= 0
        assert (box.x1, box.y1) <= (width, height)
    assert all(axes.get_position().width > 0.2 for axes in figure.axes)


def test_race_shows_live_table_on_a_terminal() -> None:
    from rich.console import Console

    from thalweg._cli.race.contestants import line_up
    from thalweg._cli.race.outcome import race_seeds
    from thalweg._cli.race.problems import PROBLEMS
    from thalweg._cli.race_progress import watch_race

    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    with watch_race(screen, "digits") as progress:
        assert progress is not None
        race_seeds(
            PROBLEMS["digits"], line_up(["SGD"], {}, "digits"), seeds=[0], epochs=1,
            progress=progress,
        )  # fmt: skip
    assert isinstance(screen.file, io.StringIO)
    assert "test acc." in screen.file.getvalue()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizers", "Adan"], "no optimizer 'Adan'; near it: Adam,"),
        (["--optimizers", "qqq"], "no optimizer 'qqq'; all are listed by `thalweg rules`; y"),
        (["--optimizers", "v1:LazyAdam"], "'v1:LazyAdam'; near it: v1:LazyAdamOptimizer,"),
        (["--optimizers", "AdamOptimizer"], "'AdamOptimizer'; near it: v1:AdamOptimizer,"),
        (["--optimizers", "NovoGradOptimizer"], "near it: NovoGrad,"),
        (["--optimizers", "Adma"], "All are listed by `thalweg rules`; yours is given as file.py"),
        (["--optimizers", "v1:adamoptimizer,v1:AdamOptimizer"], "is in the race twice"),
        (["--optimizers", "v1:SyncReplicasOptimizer"], "and replicas that train with it"),
        (["--optimizers", "v1:movingaverageoptimizer"], "a function of yours that makes both"),
        (["--optimizers", "v1:VariableClippingOptimizer"], "and the variables to clip"),
        (["--optimizers", "v1:Optimizer"], "it is the base class of the others"),
        (["--optimizers", "mine.py:plain", "--lr", "0.1"], "cannot be set from outside"),
        (["--optimizers", ","], "no optimizer was named"),
        (["--optimizers", "Adam,adam"], "'Adam' is in the race twice"),
        (["--optimizers", "none.py:RULE"], "there is no file 'none.py'"),
        (["--optimizers", "sign.py:RULE"], "'sign.py' has no 'RULE'; its rules: SIGN"),
        (["--optimizers", "mine.py"], "'mine.py' needs a name"),
        (["--optimizers", "mine.py:Number"], "'mine.py:Number' is a int"),
        (["--optimizers", "mine.py:nothing"], "made a NoneType"),
        (["--lr", "fast"], "'fast' is neither a number nor NAME=NUMBER, nor 'sweep'"),
        (["--lr", "sweep,Adam=1"], "'sweep' stands alone"),
        (
            ["--optimizers", "mine.py:plain", "--lr", "sweep"],
            "the learning rate of plain is no num",
        ),
        (["--seeds", "0"], "'--seeds': it must be a whole number, 1 or more and no more than 100"),
        (["--seed", str(2**63 - 1), "--seeds", "2"], "--seeds 2 from --seed 92233720368547758"),
        (["--lr", "Adam="], "'Adam=' is neither"),
        (["--lr", "-1"], "must be a positive number, not -1.0"),
        (["--lr", "nan"], "must be a positive number, not nan"),
        (["--optimizers", "SGD", "--lr", "Adam=1"], "'Adam', which is not in the race: SGD"),
        (["--epochs", "0"], "'--epochs': it must be a whole number, 1 or more; not '0'."),
        (["--epochs", "-3"], "it must be a whole number, 1 or more; not '-3'."),
        (["--epochs", "1.5"], "it must be a whole number, 1 or more; not '1.5'."),
        (["--seed", "-1"], "a whole number, 0 or more and no more than 9223372036854775807; not"),
        (["--seed", str(2**63)], "0 or more and no more than 9223372036854775807; not '9223"),
        (["--threads", "0"], "'--threads': it must be a whole number, 1 or more"),
        (["--out"], "requires an argument. (Help: thalweg race --help)"),
        (["--problem", "mnist"], "'mnist' is not one of 'digits', 'lines', 'stdlib'"),
        (["--out", "sign.py"], "'sign.py' is a file"),
        (["--out", "sign.py/deeper"], "cannot write to 'sign.py/deeper'"),
        (["--nonsense"], "No such option"),
    ],
)
def test_usage_errors_exit_with_code_2(arguments: list[str], message: str) -> None:
    result = invoke("race", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
    assert not result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["failing.py:RULE"], "failed while it was imported: ZeroDivisionError: division by zero"),
        (["mine.py:Broken"], "'mine.py:Broken' failed while it was made: KeyError: 'no luck'"),
        (["mine.py:late", *SMALL], "late failed at step 1: "),
    ],
)
def test_errors_in_the_user_file_are_reported(arguments: list[str], message: str) -> None:
    result = invoke("race", "--optimizers", *arguments)
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [["race", "--optimizers", "SGD,mine.py:Wrong"], ["show", "mine.py:Wrong"],
     ["bench", "--rules", "mine.py:Wrong"]],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_a_rule_of_the_user_is_checked_first(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert "Rule 'Wrong': wrong (" in result.stderr
    assert "mine.py:12): a formula cannot call `open`" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not result.stdout


@pytest.mark.parametrize(
    ("module", "arguments", "package"),
    [
        ("matplotlib", [], "matplotlib"),
        ("sklearn", [], "scikit-learn"),
        ("tensorboard", ["--logdir", "runs"], "tensorboard"),
    ],
)
def test_missing_extra_names_the_package_to_install(
    module: str, arguments: list[str], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    result = invoke("race", *arguments)
    assert result.exit_code == 1
    assert f"{package} is not installed" in result.stderr
    assert "pip install 'thalweg[race]'" in result.stderr


@pytest.mark.parametrize("position", ["before", "after"])
def test_debug_shows_the_traceback(position: str) -> None:
    arguments = ["race", "--optimizers", "failing.py:RULE"]
    index = 0 if position == "before" else 1
    result = invoke(*arguments[:index], "--debug", *arguments[index:])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "ZeroDivisionError" in result.stderr
    assert "Traceback" not in invoke(*arguments).output


def test_no_color_disables_color() -> None:
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert "\x1b[31m" in invoke("show", "nothing", env=terminal).stderr
    assert "\x1b" not in invoke("show", "nothing", env={**terminal, "NO_COLOR": "1"}).stderr
    assert "\x1b[" in invoke("show", "adam", env=terminal).stdout


def test_rules_lists_every_rule() -> None:
    from thalweg._cli.commands.rules import describe_sparse_update
    from thalweg.rules import RULES

    result = invoke("rules")
    assert result.exit_code == 0
    document = json.loads(invoke("rules", "--json").stdout)
    assert [entry["name"] for entry in document] == [rule.name for rule in RULES]
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    ends = next(number for number, line in enumerate(lines) if number > 2 and not line.strip())
    column = lines[1].index("a sparse gradient updates")
    starts = {
        line.split()[0]: number for number, line in enumerate(lines[3:ends], 3) if line[1] != " "
    }
    for rule in RULES:
        assert all(slot.name[:20] in result.stdout for slot in rule.slots)
        first = starts[rule.name]
        next_start = min((number for number in starts.values() if number > first), default=ends)
        cells = [line[column:] for line in lines[first:next_start]]
        assert " ".join(" ".join(cells).split()) == describe_sparse_update(rule)
    for row in document:
        assert {"slots", "hypers", "sparse", "source", "differs"} <= set(row)


def test_show_prints_the_formula() -> None:
    result = invoke("show", "aDaM")
    assert result.exit_code == 0
    for text in ("def update(", "def update_sparse(", "def update_untouched(", "def prepare("):
        assert text in result.stdout
    assert "    v = v + (grad * grad - v) * (1 - beta2)\n" in result.stdout
    assert "torch.optim.Adam adds epsilon after bias correction" in result.stdout
    assert "0.999" in result.stdout
    document = json.loads(invoke("show", "Adam", "--json").stdout)
    assert "def update(" in document["formula"]
    assert "root_correction" in document["torch"]["formula"]
    assert "root_correction" in result.stdout


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("Adam", 1, "1 a step: the update"),
        ("optim:LAMB", 2, "2 a step: variable and step; the update"),
        ("optim:SM3", 2, "2 a step: rows and columns; the update"),
        ("optim:Adafactor", 3, "3 a step: row, column and variable; step; the update"),
    ],
)
def test_show_prints_how_often_a_step_goes_over_memory(name: str, count: int, message: str) -> None:
    assert message in invoke("show", name).stdout
    assert json.loads(invoke("show", name, "--json").stdout)["sweeps"] == count


def test_show_prints_formulas_of_one_name_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = invoke("show", "Nadam").stdout.splitlines()
    assert narrow.index("TensorFlow's formula") < narrow.index("torch.optim's formula")
    monkeypatch.setenv("COLUMNS", "240")
    wide = invoke("show", "Nadam").stdout.splitlines()
    (heading,) = [line for line in wide if "TensorFlow's formula" in line]
    assert "torch.optim's formula" in heading
    assert "torch.optim's formula" not in invoke("show", "Ftrl").stdout


def test_show_prints_rules_of_torch() -> None:
    assert "root_correction" in invoke("show", "optim:adam").stdout
    assert invoke("show", "TorchAdam").stdout == invoke("show", "optim:Adam").stdout
    assert "optim:RAdam" in invoke("rules").stdout


def test_show_prints_the_defaults_and_sparse_gradients_of_a_class() -> None:
    from thalweg import optim
    from thalweg._cli.class_facts import describe_sparse_update
    from thalweg._cli.registry import by_torch

    document = json.loads(invoke("show", "optim:AdamW", "--json").stdout)
    hypers = {hyper["name"]: hyper["default"] for hyper in document["hypers"]}
    assert (hypers["weight_decay"], hypers["decoupled_weight_decay"]) == (0.01, True)
    assert re.search(r"weight_decay +0\.01 ", invoke("show", "optim:AdamW").stdout)
    assert "refused; `step` raises RuntimeError: Lion" in invoke("show", "optim:lion").stdout
    assert "refused" not in invoke("show", "Adam").stdout.partition("Sparse gradient")[2]
    for name in ("optim:Adan", "torch:Adam", "optim:Adagrad", "optim:SparseAdam", "TorchAdam"):
        title = name if ":" in name else "optim:Adam"
        entry = by_torch()[title]
        words = describe_sparse_update(entry.rule, getattr(optim, entry.cls.factory.__name__))
        assert json.loads(invoke("show", name, "--json").stdout)["sparse"] == words


@pytest.mark.parametrize(
    ("name", "helpers"),
    [
        ("ftrl", ["shrink", "thresholded", "clipped"]),
        ("nadam", ["schedule"]),
        ("lars", ["per_variable", "scaled"]),
        ("optim:LAMB", ["step_squares", "per_variable", "decayed"]),
        ("helped.py:HELPED", ["inner", "helper"]),
    ],
)
def test_show_prints_the_functions_that_a_formula_calls(name: str, helpers: list[str]) -> None:
    Path("neighbour_of_helped.py").write_text("def inner(x):\n    return x + 1\n")
    Path("helped.py").write_text(
        "import math\nfrom thalweg import Hyper, Rule, sqrt\n"
        "from neighbour_of_helped import inner\n"
        "def helper(x):\n    return sqrt(inner(x))\n"
        "def prepare(*, learning_rate):\n    return {'rate': math.sqrt(learning_rate)}\n"
        "def update(var, grad, *, rate):\n    return (var - rate * helper(grad),)\n"
        "HELPED = Rule(name='Helped', update=update, prepare=prepare,\n"
        "    hypers=(Hyper('learning_rate', 0.1),))\n"
    )
    text = json.loads(invoke("show", name, "--json").stdout)["formula"]
    for helper in helpers:
        assert text.count(f"def {helper}(") == 1
        assert f"def {helper}(" in invoke("show", name).stdout
    assert "def sqrt(" not in text


def test_show_prints_wrappers_of_a_step() -> None:
    Path("wrapped.py").write_text(
        "from thalweg.rules import ADAM_W\n"
        "from thalweg.rules.wrappers import cautious, cautious_decay\n"
        "WRAPPED = cautious(cautious_decay(ADAM_W))\n"
    )
    text = invoke("show", "wrapped.py:WRAPPED").stdout
    order = [text.index(f"def {name}(") for name in ("update", "decayed_where_smaller")]
    assert order < [text.index("def cautious_step("), text.index("def decayed(")]
    assert "all rows, made dense" in text


def test_show_takes_a_rule_of_the_user() -> None:
    assert "sign(grad)" in invoke("show", "sign.py:SIGN").stdout


def test_show_prints_slot_storage_and_fused_stages() -> None:
    Path("kept.py").write_text(
        "from dataclasses import replace\n"
        "from thalweg.rules import ADAM\n"
        "m, v = ADAM.slots\n"
        "KEPT = replace(ADAM, slots=(replace(m, storage='linear8'), v))\n"
    )
    text = invoke("show", "kept.py:KEPT").stdout
    assert re.search("m +starts at 0, kept in linear8\n", text)
    assert re.search("v +starts at 0, never negative\n", text)
    assert "Before the update" not in text
    text = invoke("show", "optim:SM3").stdout
    assert "  Measure of cover, makes rows\n" in text
    assert "  FusedStage of keep, makes accumulator_0, accumulator_1\n" in text
    document = json.loads(invoke("show", "optim:SM3", "--json").stdout)
    assert [entry["kind"] for entry in document["passes"]] == ["Measure", "Measure", "FusedStage"]
    document = json.loads(invoke("show", "Adagrad", "--json").stdout)
    assert (document["slots"][0]["positive"], document["slots"][0]["exact"]) == (True, True)
    assert "  Stage of " in invoke("show", "optim:Muon").stdout


@pytest.mark.parametrize(
    ("name", "rule"),
    [("V1:larsoptimizer", "LARS"), ("openseq2seq:NovoGrad", "NovoGrad"), ("novograd", "NovoGrad")],
)
def test_show_takes_optimizers_by_name(name: str, rule: str) -> None:
    assert json.loads(invoke("show", name, "--json").stdout)["name"] == rule


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("admm", "near it: Adam, Nadam"),
        ("rms", "RMSPropV1. All are listed by `thalweg rules`."),
        ("xyz", "no rule 'xyz'; all are listed by `thalweg rules`."),
        ("LARSOptimizer", "near it: v1:LARSOptimizer, LARS"),
        ("v1:MovingAverageOptimizer", "it needs another optimizer"),
        ("mine.py:Number", "is a int, not a thalweg.Rule"),
        ("none.py:A", "there is no file"),
    ],
)
def test_show_with_invalid_name_fails(name: str, message: str) -> None:
    result = invoke("show", name)
    assert result.exit_code == 2
    assert message in result.stderr


def test_help_and_version_are_printed() -> None:
    for arguments in (["--help"], ["race", "--help"], ["rules", "--help"], ["show", "--help"]):
        result = invoke(*arguments)
        assert result.exit_code == 0
        assert "Example" in result.stdout
    assert "`thalweg race`" in invoke("--help").stdout.splitlines()[-1]
    assert "..." not in invoke("--help").stdout.partition("Commands:")[2]
    assert invoke("--version").stdout.startswith("thalweg")
    assert invoke().exit_code == 2
    assert invoke("rase").exit_code == 2


def test_user_rule_is_not_merged_with_equal_names() -> None:
    from dataclasses import replace

    from thalweg._cli.commands.rules import _of_torch
    from thalweg.rules import ADAM

    assert _of_torch(ADAM) is not None
    assert _of_torch(replace(ADAM)) is None
