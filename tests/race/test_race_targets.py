"""The race to a target: points, trials, studies, profiles, ranks, the file, the command."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import thalweg._cli.commands.race
from thalweg import optim
from thalweg._cli import race_target as command
from thalweg._cli.main import main
from thalweg._cli.race.errors import EntryError, RaceError
from thalweg._cli.race.problems import PROBLEMS
from thalweg._cli.race.problems.problem import Examples, Problem
from thalweg._cli.race.target import picture, profile, run_trials, summary, trial
from thalweg._cli.race.target.contestant import make_optimizer, make_schedule, rate_factor
from thalweg._cli.race.target.goals import GOALS, Goal
from thalweg._cli.race.target.halton import halton
from thalweg._cli.race.target.results import Results, StudyPlan, resume
from thalweg._cli.race.target.search_spaces import DEFAULT, SPACES, Log, Space, find_spaces
from thalweg._cli.race.target.trial import Ran, Timed

MODEL = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def load_tiny(seed: int) -> Problem:
    """Return a problem of three classes, given by the sum of four features."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(64, 4, generator=generator)
    examples = Examples(inputs, (inputs.sum(1) > 1).long() + (inputs.sum(1) > -1).long())
    return Problem(
        name="tiny", description="", train=examples, train_sample=examples, test=examples,
        make_model=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
        batch_size=8, epochs=1, output="2.*",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace all problems by a tiny one, for 12 steps."""
    monkeypatch.chdir(tmp_path)
    for name in PROBLEMS:
        monkeypatch.setitem(PROBLEMS, name, load_tiny)
        monkeypatch.setitem(GOALS, name, Goal(loss=1.0, steps=24, every=3))
    trial.load.cache_clear()
    yield
    trial.load.cache_clear()


# Points


@pytest.mark.parametrize(("seed", "base"), [(0, 2), (1, 2), (0, 3), (7, 3)])
def test_points_fill_each_part_of_the_interval(seed: int, base: int) -> None:
    points = halton(base**3, 2, seed)
    column = sorted(point[base - 2] for point in points)
    gaps = [current - previous for previous, current in pairwise([*column, column[0] + 1])]
    assert gaps == pytest.approx([base**-3] * base**3)
    assert all(0 <= x < 1 for x in column)


def test_seed_determines_the_points() -> None:
    assert halton(5, 3, 1) == halton(7, 3, 1)[:5]
    assert halton(5, 3, 1) != halton(5, 3, 2)


@pytest.mark.parametrize("name", SPACES)
def test_every_search_space_has_a_source_and_makes_optimizers(name: str) -> None:
    space, problem = SPACES[name], load_tiny(0)
    assert "arxiv" in space.source or "mlcommons" in space.source
    for number, unit in enumerate(halton(3, space.dimensions, 0)):
        model = problem.make_model()
        optimizer = make_optimizer(space, space.draw(number, unit), model, problem, 100)
        param_ids = [id(x) for group in optimizer.param_groups for x in group["params"]]
        assert sorted(param_ids) == sorted(map(id, model.parameters()))
        kinds = {group.get("rule", space.rule) for group in optimizer.param_groups}
        assert kinds <= {space.rule, "AdamW"}
        assert space.rule in kinds


def test_muon_gets_only_hidden_matrices() -> None:
    problem, space = load_tiny(0), SPACES["optim:Muon"]
    model = problem.make_model()
    point = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9, "beta1": 0.8, "beta2": 0.98,
             "adamw_share": 0.25}  # fmt: skip
    optimizer = make_optimizer(space, point, model, problem, 100)
    muon, adamw = sorted(optimizer.param_groups, key=lambda group: group["rule"], reverse=True)
    assert [x is model[0].weight for x in muon["params"]] == [True]  # pyright: ignore[reportIndexIssue]
    assert (muon["lr"], muon["momentum"], muon["weight_decay"]) == (0.02, 0.9, 0.1)
    assert (adamw["lr"], adamw["betas"], adamw["weight_decay"]) == (0.005, (0.8, 0.98), 0.1)


@pytest.mark.parametrize(
    ("choice", "share", "value"),
    [((1.0, 2.0, 3.0), 0.0, 1.0), ((1.0, 2.0, 3.0), 0.999, 3.0), (Log(1e-4, 1e-2), 0.5, 1e-3)],
)
def test_unit_interval_selects_a_value(choice: Any, share: float, value: float) -> None:
    assert Space("Lion", "", {"lr": choice}).draw(0, [share]) == {"lr": pytest.approx(value)}


def test_listed_points_are_used_in_order() -> None:
    plan = StudyPlan(["lm"], find_spaces(["ScheduleFreeAdamW"]), trials=5, studies=2)
    rates = [plan.point(key)["lr"] for key in plan.trial_keys()]
    assert rates == [0.003, 0.004, 0.005, 0.01, 0.002] * 2


def test_rate_warms_up_and_decays() -> None:
    factors = [rate_factor(step, warmup=4, steps=20) for step in range(21)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[12] == pytest.approx(0.5)
    assert factors[20] == pytest.approx(0.0)


def test_a_schedule_free_class_has_no_schedule_and_warms_up_itself() -> None:
    space, problem = SPACES["optim:ScheduleFreeAdamW"], load_tiny(0)
    optimizer = make_optimizer(space, space.draw(0, ()), problem.make_model(), problem, 100)
    assert isinstance(optimizer, optim.ScheduleFreeAdamW)
    assert optimizer.param_groups[0]["warmup_steps"] == 2
    assert make_schedule(space, optimizer, 100) is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["Muon", "optim:muon"], "'optim:Muon' is in the race twice"),
        (["optim:NorMuon"], "'optim:NorMuon' has no published search space here"),
        (["optim:Muonn"], "Did you mean 'optim:Muon'?"),
        (["mine.py:RULE"], "Those that have one: optim:AdamW, "),
        ([], "no contestant was named"),
    ],
)
def test_contestants_without_a_space_are_named(names: list[str], message: str) -> None:
    with pytest.raises(RaceError, match=message.replace("?", r"\?")):
        find_spaces(names)


# Trials


def test_trial_ends_at_the_target_and_is_reproducible() -> None:
    space = SPACES["optim:AdamW"]
    point = {"lr": 0.032, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.95}
    first = trial.run_trial("lm", space, point, 0, 1)
    second = trial.run_trial("lm", space, point, 0, 1)
    assert replace(first, seconds=0) == replace(second, seconds=0)
    assert first.steps == first.taken
    assert first.taken in range(3, 25, 3)
    assert first.loss <= 1.0
    assert trial.run_trial("lm", space, {**point, "lr": 1e-7}, 0, 1).steps is None


def test_a_loss_that_is_no_number_ends_a_trial() -> None:
    point = {"lr": 1e30, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.95}
    outcome = trial.run_trial("lm", SPACES["optim:AdamW"], point, 0, 1)
    assert (outcome.steps, outcome.taken < 24) == (None, True)


def test_a_step_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(self: Any) -> None:
        raise ValueError("too late")

    monkeypatch.setattr(optim.Lion, "step", step)
    with pytest.raises(EntryError, match=r"Lion failed at step 1 of 'tiny' with .*: too late"):
        trial.run_trial("lm", SPACES["optim:Lion"], SPACES["optim:Lion"].draw(0, [0.0] * 4), 0, 1)


def test_schedule_free_class_is_evaluated_with_averages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags: list[bool] = []

    def test_loss(self: Problem, model: nn.Module) -> float:
        flags.append(optimizers[-1].step_cache.holds_averages)
        return math.inf

    def remembered(*arguments: Any) -> Any:
        optimizers.append(make_optimizer(*arguments))
        return optimizers[-1]

    optimizers: list[Any] = []
    monkeypatch.setattr(Problem, "test_loss", test_loss)
    monkeypatch.setattr(trial, "make_optimizer", remembered)
    for name in ("optim:ScheduleFreeAdamW", "optim:Lion"):
        space = SPACES[name]
        trial.run_trial("lm", space, space.draw(0, [0.0] * space.dimensions), 0, 1)
    assert flags == [True, False]


def test_embedding_tables_are_dense_for_all_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(seed: int) -> Problem:
        problem = load_tiny(seed)
        inputs = (problem.train.inputs[:, 0] > 0).long()
        examples = problem.train._replace(inputs=inputs)
        return replace(problem, train=examples, test=examples, make_model=model, output="1.*")

    def model() -> nn.Module:
        return nn.Sequential(nn.Embedding(2, 8, sparse=True), nn.Linear(8, 3))

    monkeypatch.setitem(PROBLEMS, "stdlib", load)
    space = SPACES["optim:Lion"]
    assert trial.run_trial("stdlib", space, space.draw(0, [0.5] * 4), 0, 1).taken > 0


# Profiles


@pytest.mark.parametrize(
    ("costs", "scores"),
    [
        ({"p": {"A": 10, "B": 20}, "q": {"A": 10, "B": 10}}, {"A": 1.0, "B": 5 / 6}),
        ({"p": {"A": 10, "B": 40}, "q": {"A": math.inf, "B": 10}}, {"A": 0.5, "B": 0.5}),
        ({"p": {"A": math.inf, "B": math.inf}}, {"A": 0.0, "B": 0.0}),
        ({"p": {"A": 10, "B": 100}}, {"A": 1.0, "B": 0.0}),
    ],
)
def test_scores_equal_expected_values(costs: Any, scores: dict[str, float]) -> None:
    assert profile.scores_of(costs) == pytest.approx(scores)


@pytest.mark.parametrize("ratios", [[1.0, 2.0, 3.5, math.inf], [1.0], [math.inf], [5.0, 1.5]])
def test_a_score_is_the_mean_of_the_profile_that_is_drawn(ratios: list[float]) -> None:
    taus, shares = profile.curve_of(ratios)
    area = sum(s * (b - a) for s, a, b in zip(shares, taus, taus[1:], strict=False))
    assert area / 3 == pytest.approx(profile.score_of(ratios))
    assert (taus[0], taus[-1]) == (1.0, 4.0)
    assert shares == sorted(shares)


def finished(costs: dict[str, list[list[int | None]]], problems: int = 1) -> Results:
    """Return results of contestants: for each study the steps of its trials."""
    names = dict(zip(costs, SPACES.values(), strict=False))
    first = next(iter(costs.values()))
    plan = StudyPlan([*GOALS][:problems], names, len(first[0]), len(first))
    results = Results(plan)
    for key in plan.trial_keys():
        steps = costs[key.contestant][key.study][key.trial]
        results.outcomes[key] = Ran(steps, steps or 400, 0.5, 1.0)
        if steps is not None:
            results.timings[key] = Timed(steps / 10, steps / 10)
    return results


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        # The fastest of a study, then the median of the studies.
        ({"A": [[30, 10], [20, None], [19, 50]], "B": [[80, 60]] * 3}, "A 19 1, B 60 2"),
        ({"A": [[10], [None], [None]], "B": [[50], [50], [50]]}, "B 50 1-2, A inf 1-2"),
        ({"A": [[100], [20], [30]], "B": [[40], [40], [40]]}, "A 30 1-2, B 40 1-2"),
        ({"A": [[20]], "B": [[10]]}, "B 10 1, A 20 2"),
        ({"A": [[20]] * 3, "B": [[20]] * 3}, "A 20 1-2, B 20 1-2"),
    ],
)
def test_ranks_within_study_spread_are_shared(costs: Any, expected: str) -> None:
    places = profile.place_all(finished(costs), profile.steps_of)
    rows = [
        f"{place.name} {place.costs['digits']:.0f} {place.first}"
        + f"-{place.last}" * (place.first != place.last)
        for place in places
    ]
    assert ", ".join(rows) == expected


def test_tuning_costs_and_undecided_ranks_are_reported() -> None:
    results = finished({"A": [[30, None], [20, None]], "B": [[40, 80], [41, 80]]})
    overview = summary.summarize(results)
    assert vars(overview.tuning["A"]) == {"steps": 425.0, "hits": 2, "studies": 2}
    assert vars(overview.tuning["B"]) == {"steps": 120.5, "hits": 2, "studies": 2}
    assert [entry.name for entry in overview.seconds] == ["A", "B"]
    assert "cannot tell B from A" in summary.write_notes(results, overview)[1]
    assert json.loads(json.dumps(summary.as_json(overview), allow_nan=False))["by_clock"] is True


def test_times_are_cpu_times_on_a_busy_machine() -> None:
    results = finished({"A": [[30], [20]], "B": [[40], [41]]})
    overview = summary.summarize(results)
    assert [entry.costs["digits"] for entry in overview.seconds] == [2.5, 4.05]
    for key, timing in results.timings.items():
        results.timings[key] = replace(timing, seconds=100.0)
    overview = summary.summarize(results)
    assert [entry.costs["digits"] for entry in overview.seconds] == [2.5, 4.05]
    assert (
        "a timed run had 2% of one. So times are the proc"
        in summary.write_notes(results, overview)[-1]
    )
    results.plan = replace(results.plan, threads=2)  # of several threads it says nothing
    assert summary.summarize(results).seconds[0].costs["digits"] == 100.0


def test_the_picture_is_the_same_each_time(tmp_path: Path) -> None:
    results = finished({"A": [[30], [20]], "B": [[None], [41]]}, problems=4)
    overview = summary.summarize(results)
    for name in ("one.svg", "two.svg"):
        picture.save(results, overview, tmp_path / name)
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    assert "digits, lines, stdlib, lm" in text
    assert [len(axes.lines) for axes in picture.figure(results.plan, overview).axes] == [2, 2]


# The command


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["race", "--target", "--jobs", "1", *arguments])


SHORT = ("--trials", "2", "--studies", "2", "--problem", "lm",
         "--optimizers", "adamw,ScheduleFreeAdamW,optim:Muon")  # fmt: skip


def stop_after(monkeypatch: pytest.MonkeyPatch, name: str, count: int) -> None:
    """Raise KeyboardInterrupt after so many calls of a function of `run_trials`."""
    run, remaining = getattr(run_trials, name), [count]

    def stopping(*arguments: Any) -> Any:
        remaining[0] -= 1
        if remaining[0] < 0:
            raise KeyboardInterrupt
        return run(*arguments)

    monkeypatch.setattr(run_trials, name, stopping)


def numbers_of(text: str) -> Any:
    document = json.loads(text)
    for row in document["trials"]:
        del row["seconds"]
        row.pop("timed", None)
    return document["trials"], document["settings"]


def test_stopped_race_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    uninterrupted = invoke(*SHORT, "--json")
    assert uninterrupted.exit_code == 0, uninterrupted.output
    assert uninterrupted.stdout == Path("target.json").read_text()
    Path("target.json").unlink()
    for name, count, total in (("run_trial", 5, 5), ("run_trial", 4, 9), ("time_trial", 2, 12)):
        with monkeypatch.context() as patch:
            stop_after(patch, name, count)
            outcome = invoke(*SHORT, *(["--resume"] if Path("target.json").exists() else []))
        assert outcome.exit_code == 130
        assert f"stopped; {total} of 12 trials are kept" in outcome.stderr
        assert len(json.loads(Path("target.json").read_text())["trials"]) == total
        refusal = invoke(*SHORT)
        assert refusal.exit_code == 2
        assert "has trials of a race that was stopped" in refusal.stderr
    times = [row for row in json.loads(Path("target.json").read_text())["trials"] if "timed" in row]
    assert len(times) == 2
    outcome = invoke(*SHORT, "--resume")
    assert outcome.exit_code == 0, outcome.output
    assert "Steps to the target" in outcome.stdout
    assert "Seconds to the target" in outcome.stdout
    assert "optim:Muon" in outcome.stdout
    assert outcome.stdout.endswith("Saved target.json, target.svg\n")
    assert numbers_of(Path("target.json").read_text()) == numbers_of(uninterrupted.stdout)
    assert Path("target.svg").read_text().startswith("<?xml")
    assert invoke(*SHORT).exit_code == 0  # one that is over is replaced


def test_resumed_race_needs_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    short = ("--trials", "1", "--studies", "1", "--problem", "lm", "--optimizers", "Lion")
    assert invoke(*short).exit_code == 0
    for changes, message in (
        (("--trials", "2"), "trials 1 there, 2 here"),
        (("--seed", "1", "--studies", "2"), "studies 1 there, 2 here; seed 0 there, 1 here"),
        (("--optimizers", "Muon"), "contestants optim:Lion there, optim:Muon here"),
        (("--problem", "lm,digits"), "problems lm there, lm, digits here"),
    ):
        outcome = invoke(*short, *changes, "--resume")
        assert outcome.exit_code == 1
        assert f"'target.json' has results of other settings: {message}." in outcome.stderr
    monkeypatch.setitem(GOALS, "lm", Goal(0.7, 24, 3))
    assert "problems: lm is another one" in invoke(*short, "--resume").stderr


ROW = {"problem": "lm", "contestant": "optim:Lion", "study": 0, "trial": 0, "steps": 3, "taken": 3,
       "loss": 0.5, "seconds": 1.0}  # fmt: skip


def test_missing_settings_are_reported_briefly() -> None:
    plan, path = StudyPlan(["lm"], find_spaces(["Lion"]), 1, 1), Path("target.json")
    settings = {"seed": 0, "trials": {}, "machine": "x" * 5000}
    path.write_text(json.dumps({"format": 1, "settings": settings, "trials": []}))
    with pytest.raises(RaceError, match="problems missing there, lm here; ") as error:
        resume(plan, path)
    assert "contestants missing there, optim:Lion here" in str(error.value)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("trials", "message"),
    [
        (None, "JSONDecodeError"),
        ("[]", "no settings and trials"),
        ('{"format": 9, "settings": {}, "trials": []}', "no settings and trials in format 1"),
        ([{**ROW, "trial": 7}], "is no trial of these settings"),
        ([{**ROW, "steps": "x"}], "invalid literal"),
        ([{**ROW, "loss": []}], "TypeError"),
        ([{"problem": "lm"}], "KeyError"),
        ([3], "TypeError"),
    ],
)
def test_damaged_file_raises(trials: Any, message: str) -> None:
    plan, path = StudyPlan(["lm"], find_spaces(["Lion"]), 1, 1), Path("target.json")
    text = trials if isinstance(trials, str) else "{" if trials is None else json.dumps(
        {"format": 1, "settings": plan.settings(), "trials": trials}
    )  # fmt: skip
    path.write_text(text)
    with pytest.raises(RaceError, match=r"is no file of a race to a target, or is damaged") as info:
        resume(plan, path)
    assert message in str(info.value)
    assert path.read_text() == text


def test_a_process_that_is_killed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures.process import BrokenProcessPool

    class Pool:
        def submit(self, *arguments: Any) -> Any:
            from concurrent.futures import Future

            future: Future[Any] = Future()
            future.set_exception(BrokenProcessPool())
            return future

    class Opened:
        def __enter__(self) -> Pool:
            return Pool()

        def __exit__(self, *error: Any) -> None: ...

    monkeypatch.setattr(run_trials, "_open_pool", lambda jobs: Opened())
    results = Results(StudyPlan(["lm"], find_spaces(["Lion"]), 1, 1))
    with pytest.raises(EntryError, match="was killed, perhaps for its memory: --jobs 2"):
        run_trials.run_all(results, Path("target.json"), 2, lambda share, text: None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trials", "0"], "'--trials': it must be a whole number, 1 or more and no more than"),
        (["--studies", "0"], "'--studies': it must be a whole number, 1 or more and no more than"),
        (["--jobs", "0"], "'--jobs': it must be a whole number, 1 or more"),
        (["--problem", "digits,mnist"], "'mnist' is not one of 'digits', 'lines', 'stdlib', 'lm'"),
        (["--problem", "lm,lm"], "'lm' comes twice"),
        (["--optimizers", "optim:NorMuon"], "'optim:NorMuon' has no published search space here"),
        (["--optimizers", ","], "no contestant was named"),
        (["--lr", "0.1"], "--lr does not go with --target: rates are drawn from search spaces"),
        (["--epochs", "2"], "--epochs does not go with --target"),
        (["--seeds", "2"], "--seeds does not go with --target: --studies says how many there are"),
        (["--nproc", "2"], "--nproc does not go with --target: a trial runs in one process"),
        (["--logdir", "runs"], "--logdir does not go with --target"),
        (["--out", "gone"], "there is no folder 'gone'"),
    ],
)
def test_options_that_exclude_a_target_fail(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["race", "--target", *arguments])
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not list(Path().iterdir())


@pytest.mark.parametrize("option", ["--trials=2", "--studies=2", "--jobs=1", "--resume"])
def test_options_that_need_a_target_fail(option: str) -> None:
    result = CliRunner().invoke(main, ["race", option])
    assert result.exit_code == 2
    assert f"{option.partition('=')[0]} goes with --target." in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--problem", "digits,lm"], "--problem: one at a time"),
        (["--problem", "lm", "--nproc", "17"], "--nproc 17 is more than the 16 examples"),
    ],
)
def test_invalid_options_of_a_race_fail(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["race", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_resume_without_a_saved_race_fails() -> None:
    result = invoke("--resume")
    assert result.exit_code == 1
    assert "there is no 'target.json' to go on from: leave out --resume" in result.stderr


def test_problem_names_equal_goal_names() -> None:
    assert [*GOALS] == [*PROBLEMS] == [*thalweg._cli.commands.race.PROBLEMS]
    assert set(DEFAULT) <= set(SPACES)
    assert len(DEFAULT) == 6


def test_a_narrow_terminal_gets_fewer_columns() -> None:
    results = finished({"A": [[30], [20]], "B": [[None], [41]]}, problems=4)
    overview = summary.summarize(results)
    cells = [{"hits": "1/2", "tuning": "30"}] * len(overview.steps)
    for width, count in ((120, 9), (45, 7), (16, 2)):
        table = command._table(results.plan, overview.steps, ",.0f", cells, width)
        assert len(table.columns) <= count
    assert str(table.columns[0].header) == "optimizer"


# The command, to which Ctrl-C comes when the file has the first trial.
STOPPED = """
import os, signal
from thalweg.__main__ import main
from thalweg._cli.race.target.results import Results

def save_and_stop(*arguments):
    save(*arguments)
    os.kill(os.getpid(), signal.SIGINT)

save, Results.save = Results.save, save_and_stop
main()
"""


@pytest.mark.slow
def test_ctrl_c_ends_processes_and_the_race_resumes(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    arguments = [
        "race", "--target", "--trials", "1", "--studies", "1", "--problem", "digits",
        "--optimizers", "AdamW,Lion",
    ]  # fmt: skip

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    stopped = run("-c", STOPPED, *arguments, "--jobs", "2")
    assert stopped.returncode == 130, stopped.stderr
    assert "stopped; 1 of 2 trials are kept" in stopped.stderr.splitlines()[-1]
    path = tmp_path / "target.json"
    assert len(json.loads(path.read_text())["trials"]) == 1
    resumed = run("-m", "thalweg", *arguments, "--jobs", "1", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert len(json.loads(path.read_text())["trials"]) == 2
