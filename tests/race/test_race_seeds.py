"""Races over several seeds and with several learning rates: ranks, tables, files."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console

from small_digits import load_few_digits
from thalweg._cli.main import main
from thalweg._cli.race import outcome as outcomes
from thalweg._cli.race import plot, report, run, standings, sweep
from thalweg._cli.race.contestants import Contestant, line_up
from thalweg._cli.race.problems import PROBLEMS
from thalweg._cli.race.problems.problem import Scores
from thalweg._cli.race.run import Evaluation, Lane, Race

LONG = "v1:ProximalGradientDescentOptimizer"


def lane(name: str, accuracy: float, loss: float = 0.1, rate: float = 0.1) -> Lane:
    contestant = Contestant(name, lambda rate: None, rate, "here")  # pyright: ignore[reportArgumentType]
    new_lane = Lane(contestant, torch.nn.Linear(1, 1), None, losses=[1.0, loss])
    new_lane.model_times, new_lane.optimizer_times = [0.1, 0.1], [0.1, 0.1]
    if math.isnan(accuracy):
        new_lane.diverged_at = 1
    else:
        new_lane.evaluations.append(Evaluation(2, Scores(loss, loss, accuracy)))
    return new_lane


def races(**accuracies: list[float]) -> list[Race]:
    seeds = range(len(next(iter(accuracies.values()))))
    problem: Any = None
    return [
        Race(problem, [lane(name, row[seed]) for name, row in accuracies.items()], 1, seed, 1, 2)
        for seed in seeds
    ]


@pytest.mark.parametrize(
    ("accuracies", "ranks"),
    [
        ({"A": [0.9], "B": [0.8]}, "A1 B2"),
        ({"A": [0.9], "B": [0.9]}, "A1 B2"),
        ({"A": [0.90, 0.91, 0.92], "B": [0.80, 0.81, 0.82]}, "A1 B2"),
        ({"A": [0.80, 0.81, 0.82], "B": [0.90, 0.91, 0.92]}, "B1 A2"),
        ({"A": [0.90, 0.80, 0.91], "B": [0.80, 0.90, 0.90]}, "A1-2 B1-2"),
        # What both seeds share is no difference: pairs are compared.
        ({"A": [0.52, 0.91, 0.72], "B": [0.50, 0.89, 0.70]}, "A1 B2"),
        ({"A": [0.9, 0.9], "B": [0.9, 0.9], "C": [0.1, 0.1]}, "A1-2 B1-2 C3"),
        ({"A": [0.9, 0.8], "B": [0.8, 0.79]}, "A1-2 B1-2"),  # two seeds: t is 12.7
        ({"A": [math.nan, math.nan], "B": [0.3, 0.31]}, "B1 A2"),
    ],
)
def test_ranks_within_seed_spread_are_shared(
    accuracies: dict[str, list[float]], ranks: str
) -> None:
    rows = standings.rank_contestants(races(**accuracies))
    texts = [f"{row.name}{standings.format_ranks(row.first, row.last)}" for row in rows]
    assert " ".join(texts) == ranks


def test_results_have_means_and_spread() -> None:
    (row,) = standings.rank_contestants(races(A=[0.5, 0.7, math.nan]))
    assert row.accuracies == [0.5, 0.7, 0.0]
    assert (row.accuracy, row.diverged) == (pytest.approx(0.4), 1)
    assert row.spread == pytest.approx(0.36056, abs=1e-5)
    assert row.train_loss == pytest.approx(0.1)
    assert report.cells_of(row)[1:3] == ["NaN in 1 of 3", "40.00% ± 36.06"]


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (120, "# optimizer lr train loss test acc. seconds us/step"),
        (85, "# optimizer lr train loss test acc. us/step"),
        (75, "# optimizer lr train loss test acc."),
        (60, "# optimizer lr test acc."),
        (55, "# optimizer test acc."),
        (50, "optimizer test acc."),
        (20, "optimizer test acc."),
    ],
)
def test_a_narrow_terminal_gets_fewer_columns(width: int, headings: str) -> None:
    screen = Console(file=io.StringIO(), width=width)
    table = report.table(races(**{LONG: [0.9], "SGD": [0.8]}), width)
    assert " ".join(str(column.header) for column in table.columns) == headings
    screen.print(table)
    assert isinstance(screen.file, io.StringIO)
    text = screen.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert (LONG in text) is (width >= 50)


def test_sweep_table_fits_a_narrow_terminal() -> None:
    lanes = [lane("SGD", 0.9, loss, rate) for loss, rate in zip((3, 2, 1, 2, 3), (1, 2, 3, 4, 5))]
    swept = replace(races(SGD=[0.9])[0], lanes=lanes)
    for width, count in ((80, 7), (40, 4), (10, 2)):
        assert len(report.sweep_table(swept, width).columns) == count


@pytest.mark.parametrize(
    ("losses", "won", "edge"),
    [
        ((3, 2, 1, 2, 3), 3, False),
        ((1, 2, 3, 4, 5), 1, True),
        ((5, 4, 3, 2, 1), 5, True),
        ((1, 1, 2, 3, 4), 1, True),
        ((math.nan, 2, 1, math.nan, math.nan), 3, False),
        ((math.nan,) * 5, 1, True),
    ],
)
def test_sweep_selects_the_lowest_train_loss(
    losses: tuple[float, ...], won: int, edge: bool
) -> None:
    lanes = [
        lane("SGD", loss if math.isnan(loss) else 0.5, loss, place)
        for place, loss in enumerate(losses, start=1)
    ]
    assert sweep.best_lane(lanes).learning_rate == won
    assert sweep.is_at_the_edge(lanes) is edge


def test_sweep_tries_equal_numbers_of_rates() -> None:
    contestants = sweep.enter_rates(line_up(["SGD", "Adam"], {}, "digits"))
    assert [contestant.name for contestant in contestants] == ["SGD"] * 5 + ["Adam"] * 5
    rates = [contestant.learning_rate for contestant in contestants]
    assert rates == [0.02, 0.06, 0.2, 0.6, 2, 0.0002, 0.0006, 0.002, 0.006, 0.02]


# The command


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROBLEMS, "digits", load_few_digits)
    monkeypatch.chdir(tmp_path)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["race", "--epochs", "1", *arguments])


def test_seeds_combine_with_a_sweep() -> None:
    result = invoke("--optimizers", "SGD,Adam", "--seed", "3", "--seeds", "2", "--lr", "sweep",
                    "--logdir", "runs")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "seeds 3 to 4" in result.stdout
    assert "Ranked by the mean test accuracy of 2 seeds" in result.stdout
    assert Path("race.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads(Path("race.json").read_text())
    assert document["settings"]["seeds"] == [3, 4]
    swept = {entry["optimizer"]: entry for entry in document["sweep"]}
    assert all(len(entry["tried"]) == 5 for entry in swept.values())
    rows = {entry["optimizer"]: entry for entry in document["results"]}
    for name, row in rows.items():
        losses = {trial["learning_rate"]: trial["train_loss"] for trial in swept[name]["tried"]}
        assert row["learning_rate"] == swept[name]["learning_rate"] == min(losses, key=losses.get)
        assert f"{row['learning_rate']:g}" in result.stdout
        accuracies = [
            entry["test_accuracy"]
            for race in document["races"]
            for entry in race["results"]
            if entry["optimizer"] == name
        ]
        assert accuracies == row["test_accuracies"]
        assert len(list(Path("runs/digits", name).iterdir())) == 2


def test_each_of_several_seeds_equals_its_own_race() -> None:
    document = json.loads(invoke("--optimizers", "SGD", "--seeds", "2", "--json").stdout)
    single = json.loads(invoke("--optimizers", "SGD", "--seed", "1", "--json").stdout)
    row, single_row = document["races"][1]["results"][0], single["results"][0]
    assert row["losses"] == single_row["losses"]
    assert single["results"][0]["evaluations"][-1]["test_accuracy"] == row["test_accuracy"]


@pytest.mark.parametrize("moment", ["loading", "racing"])
def test_ctrl_c_keeps_the_seeds_that_were_over(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(seed: int) -> Any:
        if seed == 2 and moment == "loading":
            raise KeyboardInterrupt
        return problem(seed)

    def turns(race: Race, *arguments: Any) -> None:
        take(race, *arguments)
        if race.seed == 2:
            raise KeyboardInterrupt

    problem, take = PROBLEMS["digits"], run._take_turns
    monkeypatch.setitem(PROBLEMS, "digits", load)
    monkeypatch.setattr(run, "_take_turns", turns)
    result = invoke("--optimizers", "SGD", "--seeds", "4")
    assert result.exit_code == 130
    assert "stopped; the races of 2 of 4 seeds are kept." in result.stderr
    document = json.loads(Path("race.json").read_text())
    assert (document["settings"]["seeds"], document["stopped"]) == ([0, 1], True)


def test_ctrl_c_in_a_sweep_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def turns(race: Race, *arguments: Any) -> None:
        take(race, *arguments)
        raise KeyboardInterrupt

    take = run._take_turns
    monkeypatch.setattr(run, "_take_turns", turns)
    outcome = outcomes.race_seeds(
        PROBLEMS["digits"], line_up(["SGD"], {}, "digits"), seeds=[0, 1], sweeps=True, epochs=1
    )
    assert outcome.stopped
    (race,) = outcome.races
    assert outcome.swept is not None
    assert race.lanes == [sweep.best_lane(outcome.swept.lanes)]


def test_progress_goes_from_zero_to_total() -> None:
    fractions: list[float] = []
    labels: dict[str, bool] = {}

    def progress(fraction: outcomes.Fraction, race: Race) -> None:
        fractions.append(fraction.done(race))
        labels[fraction.label] = fraction.searching

    outcomes.race_seeds(
        PROBLEMS["digits"], line_up(["SGD"], {}, "digits"), seeds=[5, 6], sweeps=True, epochs=1,
        progress=progress,
    )  # fmt: skip
    assert fractions == sorted(fractions)
    assert (0 < fractions[0] < 0.1, fractions[-1]) == (True, 1.0)
    assert labels == {"seed 5 (1 of 2)": True, "seed 6 (2 of 2)": False}


def test_the_picture_of_several_seeds_has_an_area_for_each() -> None:
    outcome = outcomes.race_seeds(
        PROBLEMS["digits"], line_up(["SGD", "Adam"], {}, "digits"), seeds=[0, 1], epochs=1
    )
    left_axes, right_axes, *_ = plot.figure(outcome.races).axes
    assert [len(axes.collections) for axes in (left_axes, right_axes)] == [2, 2]
    assert [len(axes.lines) for axes in (left_axes, right_axes)] == [2, 2]
