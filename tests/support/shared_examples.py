"""Examples of Hypothesis that many rules share: it draws them once in a process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings


def check_examples(
    check: Callable[..., None], count: int, strategy: Any, first: int = 0, stride: int = 1
) -> None:
    """Call `check` with each of so many examples; one that fails is made as small as can be.

    Drawing would take as long as the steps that are tried, and all rules would be given the same:
    Hypothesis derives its numbers from the text of a test.

    Args:
        check: What fails where something is wrong.
        count: How many.
        strategy: Of tuples of its arguments; the same object for all that share them.
        first: The first example to check.
        stride: The distance between two examples to check; others are for other tests.
    """
    try:
        for example in _drawn(count, strategy)[first::stride]:
            check(*example)
    except (Exception, pytest.fail.Exception):
        settings(max_examples=count)(given(strategy)(lambda example: check(*example)))()
        raise


@cache
def _drawn(count: int, strategy: Any) -> list[Any]:
    examples: list[Any] = []

    @settings(max_examples=count)
    @given(strategy)
    def draw(example: Any) -> None:
        examples.append(example)

    draw()
    return examples
