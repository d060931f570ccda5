"""Writes that no interruption splits."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Sequence
from typing import Any


def run(calls: Sequence[Callable[[], Any]]) -> None:
    """Make calls in their order; no signal and no asynchronous exception comes between them.

    Args:
        calls: What runs in C alone, as `functools.partial` of `copy_` of a plain tensor. Python
            looks for signals between its own instructions, of which there is one here.
    """
    collections.deque(map(operator.call, calls), maxlen=0)
