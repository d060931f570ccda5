"""Losses of AdamW on the problems of `thalweg race`, for `_cli/race/target/goals.py`.

The rate is the best of AdamW's space, the rest of it the baseline of its source; then come as many
seeds. Printed are the losses after each tenth of the steps, the median over seeds.

    python tools/race_goals.py [PROBLEM ...] [--seeds N]
"""

from __future__ import annotations

import argparse
import statistics
import sys

from thalweg._cli.race.target.goals import GOALS
from thalweg._cli.race.target.search_spaces import SPACES
from thalweg._cli.race.target.trial import follow_trial

BASELINE = {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95}


def losses_of(problem: str, rate: float, seed: int) -> list[tuple[int, float]]:
    """Return steps and losses of one training."""
    point = {"lr": rate, **BASELINE}
    measurements = follow_trial(problem, SPACES["optim:AdamW"], point, seed, threads=1)
    return [(steps, loss) for steps, loss, _ in measurements]


def main() -> None:
    """Print what is reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--seeds", type=int, default=9)
    arguments = parser.parse_args()
    rates = SPACES["optim:AdamW"].choices["lr"]
    for problem in arguments.problems or GOALS:
        losses_by_rate = {rate: losses_of(problem, rate, 100)[-1][1] for rate in rates}
        best = min(losses_by_rate, key=losses_by_rate.get)
        say(f"{problem}: the last loss by rate {losses_by_rate}")
        curves = [losses_of(problem, best, seed) for seed in range(100, 100 + arguments.seeds)]
        for tenth in range(1, 11):
            index = len(curves[0]) * tenth // 10 - 1
            losses = sorted(curve[index][1] for curve in curves)
            low, middle, high = losses[0], statistics.median(losses), losses[-1]
            say(f"  after {curves[0][index][0]} steps: {middle:.4f}, from {low:.4f} to {high:.4f}")


def say(line: str) -> None:
    """Print it at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
