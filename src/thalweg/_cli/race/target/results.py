"""Results of a race to a target, saved atomically after each trial."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, cast

from thalweg._cli.race import report
from thalweg._cli.race.errors import RaceError
from thalweg._cli.race.target.goals import DATA_SEED, GOALS
from thalweg._cli.race.target.halton import halton
from thalweg._cli.race.target.search_spaces import Point, Space
from thalweg._cli.race.target.trial import Ran, Timed

FORMAT = 1
# The least share of a core's time with which times by the clock are valid.
QUIET = 0.9


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
        problems: The names of the problems.
        spaces: The contestants' search spaces, by name.
        trials: Trials per problem, contestant and study; the fastest trial counts.
        studies: The number of studies; the median over studies counts.
        seed: Decides the points and, with the number of a study, the initial weights and batches,
            which all contestants share.
        threads: The number of threads of a trial.
    """

    problems: Sequence[str]
    spaces: Mapping[str, Space]
    trials: int
    studies: int
    seed: int = 0
    threads: int = 1

    def trial_keys(self) -> list[Key]:
        """Return the keys of all trials, study by study, so that stopping keeps full studies."""
        return [
            Key(problem, name, study, trial)
            for study in range(self.studies)
            for problem in self.problems
            for name in self.spaces
            for trial in range(self.trials)
        ]

    def point(self, key: Key) -> Point:
        """Return the point of a trial; it is equal on all problems."""
        space = self.spaces[key.contestant]
        trial_index = key.study * self.trials + key.trial
        return space.draw(
            trial_index, halton(trial_index + 1, space.dimensions, self.seed)[trial_index]
        )

    def seed_of(self, key: Key) -> int:
        """Return the seed of the first weights and batches of a trial."""
        return self.seed + key.study

    def settings(self) -> dict[str, Any]:
        """Return all settings that influence results, as JSON values."""
        settings = {
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
        # As read from a file: tuples become lists, so that `resume` can compare settings.
        return json.loads(json.dumps(settings))


@dataclass
class Results:
    """Results of the trials of a plan.

    Attributes:
        plan: The plan.
        outcomes: {key: result of the trial}.
        timings: {key: time of a study's fastest trial, which runs alone}.
    """

    plan: StudyPlan
    outcomes: dict[Key, Ran] = field(default_factory=dict[Key, Ran])
    timings: dict[Key, Timed] = field(default_factory=dict[Key, Timed])

    def fastest(self, problem: str, contestant: str, study: int) -> Key | None:
        """Return the key of a study's trial with the fewest steps to the target; None if none."""
        keys = [Key(problem, contestant, study, trial) for trial in range(self.plan.trials)]
        steps_by_key = {key: self.outcomes[key].steps for key in keys if key in self.outcomes}
        hits = [(steps, key) for key, steps in steps_by_key.items() if steps is not None]
        return min(hits)[1] if hits else None

    @property
    def quiet(self) -> float:
        """Return the least ratio of processor time to clock time of the timed trials, at most 1."""
        fractions = [
            timing.cpu / timing.seconds for timing in self.timings.values() if timing.seconds
        ]
        return min(1.0, *fractions) if fractions else 1.0

    @property
    def by_clock(self) -> bool:
        """Return True for clock times; False for processor times, if other processes ran."""
        return self.plan.threads > 1 or self.quiet >= QUIET

    def to_run(self) -> list[list[Key]]:
        """Return the remaining trials, a list per study of a contestant on a problem."""
        pending = [key for key in self.plan.trial_keys() if key not in self.outcomes]
        return [list(study) for _, study in groupby(pending, key=lambda key: key[:3])]

    def to_time(self) -> list[Key]:
        """Return the keys of the studies' fastest trials, without keys in `timings`."""
        plan = self.plan
        fastest_keys = [
            self.fastest(problem, name, study)
            for study in range(plan.studies)
            for problem in plan.problems
            for name in plan.spaces
        ]
        return [key for key in fastest_keys if key is not None and key not in self.timings]

    def text(self, summary: Mapping[str, Any] | None = None) -> str:
        """Return the results as JSON text."""
        trials: list[str] = []
        for key in self.plan.trial_keys():
            if key in self.outcomes:
                row: dict[str, Any] = {**key._asdict(), "point": self.plan.point(key)}
                row |= asdict(self.outcomes[key])
                row["loss"] = row["loss"] if math.isfinite(row["loss"]) else None
                if key in self.timings:
                    row["timed"] = asdict(self.timings[key])
                trials.append(json.dumps(row, allow_nan=False))
        head = {"format": FORMAT, "settings": self.plan.settings(),
                "versions": report.list_versions(), "summary": summary}  # fmt: skip
        lines = json.dumps(head, indent=1, allow_nan=False)[:-2]
        rows = ",\n  ".join(trials)
        return f'{lines},\n "trials": [\n  {rows}\n ]\n}}\n'

    def save(self, path: Path, summary: Mapping[str, Any] | None = None) -> None:
        """Write the results to a file atomically."""
        with report.whole(path) as file:
            file.write(self.text(summary).encode())


def resume(plan: StudyPlan, path: Path) -> Results:
    """Read the results of a plan from a file.

    Raises:
        RaceError: The file does not exist, is damaged, or has different settings.
    """
    document = _read(path)
    _check_settings(plan, document["settings"], path)
    results, planned_keys = Results(plan), set(plan.trial_keys())
    try:
        for row in document["trials"]:
            key = Key(row["problem"], row["contestant"], row["study"], row["trial"])
            if key not in planned_keys:
                raise ValueError(f"{key} is no trial of these settings")
            results.outcomes[key] = _ran_of(row)
            if "timed" in row:
                timing_row = row["timed"]
                results.timings[key] = Timed(float(timing_row["seconds"]), float(timing_row["cpu"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error
    return results


def _read(path: Path) -> dict[str, Any]:
    try:
        document = cast("dict[str, Any]", json.loads(path.read_bytes()))
    except FileNotFoundError as error:
        raise RaceError(f"there is no '{path}' to go on from: leave out --resume.") from error
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    is_complete = (
        isinstance(document, dict)  # pyright: ignore[reportUnnecessaryIsInstance]
        and isinstance(document.get("settings"), dict)
        and isinstance(document.get("trials"), list)
    )
    if not is_complete or document.get("format") != FORMAT:
        raise _damaged(path, f"it has no settings and trials in format {FORMAT}")
    return document


def _damaged(path: Path, cause: object) -> RaceError:
    reason = f"{type(cause).__name__}: {cause}" if isinstance(cause, Exception) else cause
    return RaceError(
        f"'{path}' is no file of a race to a target, or is damaged ({reason}): nothing can go on"
        " from it. Move it away, and leave out --resume."
    )


def _check_settings(plan: StudyPlan, saved: dict[str, Any], path: Path) -> None:
    present = plan.settings()
    changed_names = [name for name in {**present, **saved} if present.get(name) != saved.get(name)]
    if changed_names:
        differences = "; ".join(
            _tell_difference(name, saved.get(name), present.get(name)) for name in changed_names
        )
        raise RaceError(
            f"'{path}' has results of other settings: {differences}. Give the same, or another"
            " --out."
        )


def _tell_difference(name: str, saved: Any, present: Any) -> str:
    """Describe a different setting, such as `trials 5 there, 3 here`."""
    if isinstance(saved, dict) and isinstance(present, dict):
        there, here = cast("dict[str, object]", saved), cast("dict[str, object]", present)
        if set(there) != set(here):
            return f"{name} {', '.join(there)} there, {', '.join(here)} here"
        inner = [key for key in here if there[key] != here[key]]
        return f"{name}: {', '.join(inner)} is another one"
    texts = [_name_of(saved), _name_of(present)]
    return f"{name} {texts[0]} there, {texts[1]} here"


def _name_of(setting: Any) -> str:
    """Return a setting as short text."""
    if setting is None:
        return "missing"
    if isinstance(setting, dict):
        return ", ".join(cast("dict[str, object]", setting))
    return str(setting)[:100]


def _ran_of(row: dict[str, Any]) -> Ran:
    steps, loss = row["steps"], row["loss"]
    return Ran(
        None if steps is None else int(steps), int(row["taken"]),
        math.inf if loss is None else float(loss), float(row["seconds"]),
    )  # fmt: skip


def has_unfinished(path: Path) -> bool:
    """Return True if a file has trials but not all trials of its plan."""
    try:
        document = _read(path)
    except RaceError:
        return False
    return bool(document["trials"]) and document.get("summary") is None
