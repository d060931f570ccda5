"""Results of a race to a target so far, in a file that is whole at any moment."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from thalweg._cli.race import report
from thalweg._cli.race.errors import RaceError
from thalweg._cli.race.target.goals import DATA_SEED, GOALS
from thalweg._cli.race.target.halton import halton
from thalweg._cli.race.target.search_spaces import Point, Space
from thalweg._cli.race.target.trial import Ran, Timed

FORMAT = 1
QUIET = 0.9  # of the time that a process alone has of a core


class Key(NamedTuple):
    """Key of a trial."""

    problem: str
    contestant: str
    study: int
    trial: int


@dataclass(frozen=True)
class StudyPlan:
    """Trials to run.

    Args:
        problems: Their names.
        spaces: The contestants' search spaces, by name.
        trials: The number in a study of a contestant on a problem; the fastest counts.
        studies: The number of studies; their median counts.
        seed: Decides points, and with the number of a study the first weights and the batches,
            which are those of all contestants.
        threads: The number of threads of a trial.
    """

    problems: Sequence[str]
    spaces: Mapping[str, Space]
    trials: int
    studies: int
    seed: int = 0
    threads: int = 1

    def trial_keys(self) -> list[Key]:
        """Return the keys of all trials, study by study, so that a stopped race has whole
        studies.
        """
        return [
            Key(problem, name, study, trial)
            for study in range(self.studies)
            for problem in self.problems
            for name in self.spaces
            for trial in range(self.trials)
        ]

    def point(self, key: Key) -> Point:
        """Return the point of a trial: the same on all problems."""
        space = self.spaces[key.contestant]
        number = key.study * self.trials + key.trial
        return space.draw(number, halton(number + 1, space.dimensions, self.seed)[number])

    def seed_of(self, key: Key) -> int:
        """Return the seed of the first weights and batches of a trial."""
        return self.seed + key.study

    def settings(self) -> dict[str, Any]:
        """Return all settings that numbers depend on, as JSON values."""
        told = {
            "problems": {name: asdict(GOALS[name]) for name in self.problems},
            "contestants": {name: asdict(space) for name, space in self.spaces.items()},
            "trials": self.trials,
            "studies": self.studies,
            "seed": self.seed,
            "data_seed": DATA_SEED,
            "threads": self.threads,
            "torch": report.list_versions()["torch"],
            "thalweg": report.list_versions()["thalweg"],
            "machine": platform.machine(),
        }
        return json.loads(json.dumps(told))


@dataclass
class Results:
    """Results of the trials of a plan.

    Attributes:
        plan: The plan.
        ran: The result of each trial.
        timed: The times of the fastest trials of studies when they run alone.
    """

    plan: StudyPlan
    ran: dict[Key, Ran] = field(default_factory=dict)
    timed: dict[Key, Timed] = field(default_factory=dict)

    def fastest(self, problem: str, contestant: str, study: int) -> Key | None:
        """Return the trial of a study that reached the target first; None if none did."""
        keys = [Key(problem, contestant, study, trial) for trial in range(self.plan.trials)]
        own = {key: self.ran[key].steps for key in keys if key in self.ran}
        hits = [(steps, key) for key, steps in own.items() if steps is not None]
        return min(hits)[1] if hits else None

    @property
    def quiet(self) -> float:
        """The share of its time that a timed run had a core for itself, the least of all."""
        shares = [each.cpu / each.seconds for each in self.timed.values() if each.seconds]
        return min(1.0, *shares) if shares else 1.0

    @property
    def by_clock(self) -> bool:
        """True if times are the clock's. Where others took the cores, they are the processor's."""
        return self.plan.threads > 1 or self.quiet >= QUIET

    def to_run(self) -> list[list[Key]]:
        """Return the trials that are still to be run: those of a study one after the other."""
        left = [key for key in self.plan.trial_keys() if key not in self.ran]
        return [list(own) for _, own in groupby(left, key=lambda key: key[:3])]

    def to_time(self) -> list[Key]:
        """Return the trials that are still to be timed, the contestants of a problem one after the
        other.
        """
        plan = self.plan
        found = [
            self.fastest(problem, name, study)
            for study in range(plan.studies)
            for problem in plan.problems
            for name in plan.spaces
        ]
        return [key for key in found if key is not None and key not in self.timed]

    def text(self, summary: Mapping[str, Any] | None = None) -> str:
        """Return the results as JSON text."""
        trials: list[str] = []
        for key in self.plan.trial_keys():
            if key in self.ran:
                row = {**key._asdict(), "point": self.plan.point(key), **asdict(self.ran[key])}
                row["loss"] = row["loss"] if math.isfinite(row["loss"]) else None
                if key in self.timed:
                    row["timed"] = asdict(self.timed[key])
                trials.append(json.dumps(row, allow_nan=False))
        head = {"format": FORMAT, "settings": self.plan.settings(),
                "versions": report.list_versions(), "summary": summary}  # fmt: skip
        lines = json.dumps(head, indent=1, allow_nan=False)[:-2]
        rows = ",\n  ".join(trials)
        return f'{lines},\n "trials": [\n  {rows}\n ]\n}}\n'

    def save(self, path: Path, summary: Mapping[str, Any] | None = None) -> None:
        """Write all of it to a file, which is that of before or this one at any moment."""
        with report.whole(path) as file:
            file.write(self.text(summary).encode())


def resume(plan: StudyPlan, path: Path) -> Results:
    """Read the results of a plan from a file.

    Raises:
        RaceError: There is no such file, it is damaged, or its settings are others; says which.
    """
    told = _read(path)
    _check_settings(plan, told["settings"], path)
    results, known = Results(plan), set(plan.trial_keys())
    try:
        for row in told["trials"]:
            key = Key(row["problem"], row["contestant"], row["study"], row["trial"])
            if key not in known:
                raise ValueError(f"{key} is no trial of these settings")
            results.ran[key] = _ran_of(row)
            if "timed" in row:
                timed = row["timed"]
                results.timed[key] = Timed(float(timed["seconds"]), float(timed["cpu"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error
    return results


def _read(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise RaceError(f"there is no '{path}' to go on from: leave out --resume.") from error
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    is_whole = (
        isinstance(told, dict)
        and isinstance(told.get("settings"), dict)
        and isinstance(told.get("trials"), list)
    )
    if not is_whole or told.get("format") != FORMAT:
        raise _damaged(path, f"it has no settings and trials in format {FORMAT}")
    return told


def _damaged(path: Path, why: object) -> RaceError:
    told = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else why
    return RaceError(
        f"'{path}' is no file of a race to a target, or is damaged ({told}): nothing can go on from"
        " it. Move it away, and leave out --resume."
    )


def _check_settings(plan: StudyPlan, before: dict[str, Any], path: Path) -> None:
    now = plan.settings()
    differing = [name for name in {**now, **before} if now.get(name) != before.get(name)]
    if differing:
        told = "; ".join(
            _tell_difference(name, before.get(name), now.get(name)) for name in differing
        )
        raise RaceError(
            f"'{path}' has results of other settings: {told}. Give the same, or another --out."
        )


def _tell_difference(name: str, before: Any, now: Any) -> str:
    """`trials 5 there, 3 here`; of names which, and of what is the same under them nothing."""
    if isinstance(before, dict) and isinstance(now, dict):
        if set(before) != set(now):
            return f"{name} {', '.join(before)} there, {', '.join(now)} here"
        inner = [each for each in now if before[each] != now[each]]
        return f"{name}: {', '.join(inner)} is another one"
    told = [_name_of(before), _name_of(now)]
    return f"{name} {told[0]} there, {told[1]} here"


def _name_of(setting: Any) -> str:
    """A setting in a few words."""
    if setting is None:
        return "missing"
    return ", ".join(setting) if isinstance(setting, dict) else str(setting)[:100]


def _ran_of(row: dict[str, Any]) -> Ran:
    steps, loss = row["steps"], row["loss"]
    return Ran(
        None if steps is None else int(steps), int(row["taken"]),
        math.inf if loss is None else float(loss), float(row["seconds"]),
    )  # fmt: skip


def has_unfinished(path: Path) -> bool:
    """Return True if a file has trials, and not all of its plan."""
    try:
        told = _read(path)
    except RaceError:
        return False
    return bool(told["trials"]) and told.get("summary") is None
