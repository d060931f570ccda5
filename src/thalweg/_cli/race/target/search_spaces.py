"""Contestants of a race to a target, each with a published search space and a schedule.

Numbers are from the sources. MARIN has the grids of "Fantastic Pretraining Optimizers and Where to
Find Them" for the smallest model, with the paper's settings: gradients are clipped to a norm of 1,
SOAP changes its bases every tenth step, Muon does not warm up. All other contestants warm up in 5 %
of the steps, as AlgoPerf's baselines. The rate then falls as a cosine, except for schedule-free
classes. Epsilons are the defaults of the classes. Regularization outside of the optimizer (dropout,
smoothed labels) and sizes of batches are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from thalweg._cli.race.errors import RaceError
from thalweg.errors import did_you_mean

MARIN = (
    "https://arxiv.org/abs/2509.02046; marin-community/marin,"
    " experiments/optimizer_sweep/PhaseI/exp725_{}sweep_130M_1.py"
)
PAPER_BASELINES = (
    "https://arxiv.org/abs/2306.07179; mlcommons/algorithmic-efficiency,"
    " algorithms/archived_paper_baselines/{}/tuning_search_space.json"
)
SUBMISSIONS = (
    "mlcommons/submissions_algorithms,"
    " previous_leaderboards/algoperf_v06/submissions/external_tuning/{}/tuning_search_space.json"
)


@dataclass(frozen=True)
class Log:
    """Range of numbers that are drawn uniformly by their logarithms."""

    low: float
    high: float


Point = dict[str, float]


@dataclass(frozen=True)
class Space:
    """A contestant's search space and schedule.

    Args:
        rule: The class of `thalweg.optim`.
        source: Where the space was published.
        choices: {argument: the values or the range to draw from}.
        points: Points {argument: value} to use in turn, instead of `choices`.
        fixed: Arguments of the class that are not drawn.
        warmup: The share of steps in which the rate rises from 0.
        falls: Whether the rate then falls to 0 by a cosine. A schedule-free class warms up
            by an argument, and has a constant rate.
    """

    rule: str
    source: str
    choices: Mapping[str, Sequence[float] | Log] = field(
        default_factory=dict[str, Sequence[float] | Log]
    )
    points: Sequence[Point] = ()
    fixed: Mapping[str, float] = field(default_factory=dict[str, float])
    warmup: float = 0.05
    falls: bool = True

    @property
    def dimensions(self) -> int:
        """Return the number of coordinates in [0, 1) of a point."""
        return len(self.choices)

    def draw(self, index: int, unit: Sequence[float]) -> Point:
        """Return the point {argument: value} of a trial.

        Args:
            index: The number of the trial; numbers continue from study to study. If the space has
                `points`, return point `index % len(points)`.
            unit: One number in [0, 1) per entry of `choices`, to select a value; unused if the
                space has `points`.
        """
        if self.points:
            return dict(self.points[index % len(self.points)])
        return {
            name: _choose(choice, fraction)
            for (name, choice), fraction in zip(self.choices.items(), unit, strict=True)
        }


def _choose(choice: Sequence[float] | Log, fraction: float) -> float:
    if isinstance(choice, Log):
        span = math.log(choice.high / choice.low)
        return float(f"{choice.low * math.exp(fraction * span):.6g}")
    return choice[int(fraction * len(choice))]


_DECAY, _BETA2 = (0.0, 0.1, 0.2), (0.9, 0.95, 0.98)
_CLIPPED = {"clip_grad_norm": 1.0}
_ADAM = {"lr": (8e-3, 1.6e-2, 3.2e-2), "weight_decay": _DECAY, "beta1": (0.8, 0.9, 0.95, 0.98),
         "beta2": _BETA2}  # fmt: skip

SPACES = {
    f"optim:{space.rule}": space
    for space in (
        Space("AdamW", MARIN.format("adamw"),
              {"lr": (4e-3, 8e-3, 1.6e-2, 3.2e-2), "weight_decay": _DECAY,
               "beta1": (0.9, 0.95, 0.98), "beta2": _BETA2}, fixed=_CLIPPED),
        Space("NAdamW", MARIN.format("nadamw"), _ADAM, fixed=_CLIPPED),
        Space("CautiousAdamW", MARIN.format("cautious"), _ADAM, fixed=_CLIPPED),
        Space("MARS", MARIN.format("mars"),
              {**_ADAM, "beta2": (0.9, 0.95, 0.98, 0.99), "gamma": (0.0125, 0.025, 0.05, 0.1)},
              fixed=_CLIPPED),
        Space("Lion", MARIN.format("lion"),
              {"lr": (5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
               "weight_decay": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
               "beta1": (0.8, 0.9, 0.95, 0.98), "beta2": _BETA2}, fixed=_CLIPPED),
        Space("Muon", MARIN.format("muon"),
              {"lr": (8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 1.28e-1), "weight_decay": _DECAY,
               "momentum": (0.8, 0.9, 0.95, 0.98), "beta1": (0.8, 0.9, 0.95, 0.98),
               "beta2": _BETA2, "adamw_share": (0.1, 0.2, 0.3)}, fixed=_CLIPPED, warmup=0.0),
        Space("SOAP", MARIN.format("soape"),
              {"lr": (4e-3, 8e-3, 1.6e-2), "weight_decay": _DECAY, "beta1": (0.8, 0.9, 0.95),
               "beta2": (0.9, 0.95, 0.98, 0.99), "shampoo_beta": (0.9, 0.95, 0.98, 0.99)},
              fixed=_CLIPPED),
        Space("ScheduleFreeAdamW", SUBMISSIONS.format("schedule_free_adamw_v2"),
              points=({"lr": 0.003, "beta1": 0.9, "beta2": 0.9955, "weight_decay": 0.08},
                      {"lr": 0.004, "beta1": 0.9, "beta2": 0.9955, "weight_decay": 0.08},
                      {"lr": 0.005, "beta1": 0.9, "beta2": 0.62918, "weight_decay": 0.08},
                      {"lr": 0.01, "beta1": 0.925, "beta2": 0.99, "weight_decay": 0.04},
                      {"lr": 0.002, "beta1": 0.9, "beta2": 0.9955, "weight_decay": 0.08}),
              warmup=0.02, falls=False),
        Space("LAMB", PAPER_BASELINES.format("lamb"),
              {"lr": Log(1e-4, 1e-2), "one_minus_beta1": Log(0.05, 0.3),
               "weight_decay": Log(1e-3, 1.0)}, fixed={"beta2": 0.999}),
    )
}  # fmt: skip
DEFAULT = tuple(
    f"optim:{name}" for name in ("AdamW", "NAdamW", "Lion", "ScheduleFreeAdamW", "Muon", "SOAP")
)


def find_spaces(names: Sequence[str]) -> dict[str, Space]:
    """Return {full name: search space}, with names such as `optim:AdamW`.

    Args:
        names: Names in any case; "optim:" may be omitted.

    Raises:
        RaceError: A name has no search space or is repeated, or there is no name.
    """
    names_by_lower_case = {name.lower(): name for name in SPACES}
    spaces: dict[str, Space] = {}
    for text in names:
        name = names_by_lower_case.get(f"optim:{text.lower().removeprefix('optim:')}")
        if name is None:
            suggestion = did_you_mean(text, SPACES)
            raise RaceError(
                f"'{text}' has no published search space here, so it cannot race to a target."
                f" {suggestion + ' ' if suggestion else ''}Those that have one:"
                f" {', '.join(SPACES)}."
            )
        if name in spaces:
            raise RaceError(f"'{name}' is in the race twice.")
        spaces[name] = SPACES[name]
    if not spaces:
        raise RaceError(f"no contestant was named; these can race: {', '.join(SPACES)}.")
    return spaces
