"""HTML page of a race: loss and layer diagnostics of each contestant."""

from __future__ import annotations

from pathlib import Path

from thalweg._cli.race import report
from thalweg._cli.race.outcome import RaceOutcome
from thalweg._cli.race.race_diagnostics import is_measurable
from thalweg._cli.race.run import Lane
from thalweg._cli.race.standings import rank_contestants
from thalweg._cli.report.history import History
from thalweg._cli.report.page import TrainingReport, draw

_UNMEASURED = (
    "Its loss alone: only steps of thalweg.optim, such as those of optim:AdamW, are measured."
)
_OF_TORCH = "Its loss alone: torch's own optimizers measure nothing."


def save(outcome: RaceOutcome, path: Path) -> None:
    """Write the HTML page of the first race, whose steps were measured, to a file."""
    with report.whole(path) as file:
        file.write(text(outcome).encode("utf-8", "replace"))


def text(outcome: RaceOutcome) -> str:
    """Return the HTML page of the first race."""
    race = outcome.race
    seeds_note = f", the first of {outcome.seeds} seeds" if outcome.seeds > 1 else ""
    stop_note = f"; stopped at step {race.step:,}" if race.stopped else ""
    facts = (
        f"{race.steps:,} steps of {race.problem.batch_size} examples, seed {race.seed}{seeds_note}"
        f"{stop_note}. The best first, all from the same weights and over the same batches."
    )
    trainings = [_make_training(ranked.lanes[0]) for ranked in rank_contestants([race])]
    return draw(trainings, f"Race: {race.problem.description}", facts)


def _make_training(lane: Lane) -> TrainingReport:
    history = History() if lane.recorder is None else lane.recorder.history
    rate = lane.learning_rate
    facts = [] if rate is None else [f"learning rate {rate:g}"]
    if lane.diverged_at is not None:
        facts.append(f"its loss is no number from step {lane.diverged_at:,} on")
    elif lane.evaluations:
        facts.append(f"train loss {lane.scores.train_loss:.4f}")
        facts.append(f"test accuracy {lane.scores.test_accuracy:.2%}")
    note = ""
    if not is_measurable(lane.optimizer):
        note = _OF_TORCH if lane.name.startswith("torch:") else _UNMEASURED
    return TrainingReport(history, lane.name, ", ".join(facts), note)
