"""Goals: a loss on the test examples of each problem, and the number of steps for it."""

from __future__ import annotations

from dataclasses import dataclass

DATA_SEED = 0  # of all runs: a target is one of these test examples


@dataclass(frozen=True)
class Goal:
    """A target.

    Args:
        loss: On the test examples; at most this is a hit.
        steps: How many there are for it; a rate that falls is 0 after them.
        every: The loss is measured after so many.
    """

    loss: float
    steps: int
    every: int


# The loss that the median of 5 seeds of AdamW has after 75 % of the steps, at the best of the rates
# of its space, rounded up to two digits: `tools/race_goals.py` measures it.
GOALS = {
    "digits": Goal(0.07, 308, 11),
    "lines": Goal(0.07, 256, 16),
    "stdlib": Goal(3.7, 300, 10),
    "lm": Goal(2.2, 400, 10),
}
