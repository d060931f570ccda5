"""The problem of digits with a few of its examples, for races that need not learn."""

from __future__ import annotations

from dataclasses import replace

from thalweg._cli.race.problems import Problem, digits
from thalweg._cli.race.problems.problem import Examples


def load_few_digits(seed: int) -> Problem:
    """Load 320 examples to train on and 100 to test."""
    problem = digits.load(seed)
    train, test = (Examples(*(tensor[:count] for tensor in examples)) for examples, count in (
        (problem.train, 320), (problem.test, 100)))  # fmt: skip
    return replace(problem, train=train, train_sample=test, test=test)
