"""The names of what is remembered: "w/m" is the slot `m` of the variable `w`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thalweg.variable import name_of

Names = Callable[[Sequence[Any]], list[str]]  # what variables are called, each another name


def distinct(names: Sequence[str]) -> list[str]:
    """The names, where the second "w" is "w#1", whatever comes after it."""
    seen: Counter[str] = Counter()
    taken: set[str] = set()
    found: list[str] = []
    for name in names:
        made = f"{name}#{seen[name]}" if seen[name] else name
        while made in taken:
            seen[name] += 1
            made = f"{name}#{seen[name]}"
        seen[name] += 1
        taken.add(made)
        found.append(made)
    return found


def keys_of(variables: Sequence[Any]) -> list[str]:
    """What the names of the variables' slots begin with, each another."""
    return distinct([name_of(var).split(":")[0] for var in variables])


def positioned(names: Sequence[str], mark: str) -> list[str]:
    """The names, with `mark` and their position behind those that others have, too."""
    counts = Counter(names)
    found: list[str] = []
    taken = {name for name, count in counts.items() if count == 1}
    for index, name in enumerate(names):
        while counts[name] > 1 and f"{name}{mark}{index}" in taken:
            index += len(names)
        found.append(f"{name}{mark}{index}" if counts[name] > 1 else name)
        taken.add(found[-1])
    return found


def positioned_keys_of(variables: Sequence[Any]) -> list[str]:
    """`keys_of` as version 0.1 of `thalweg.v1` and `thalweg.openseq2seq` wrote them."""
    return positioned([name_of(var).split(":")[0] for var in variables], "#")


def as_now(
    given: Mapping[str, object], before: Sequence[str], now: Sequence[str]
) -> Mapping[str, Any]:
    """A state by the names of today, if it has those of before.

    Args:
        given: The state.
        before, now: What the same entries were called, and are.
    """
    old, new = set(before) - set(now), set(now) - set(before)
    if not given.keys() & old or given.keys() & new:
        return given
    names = dict(zip(before, now, strict=True))
    return {names.get(name, name): value for name, value in given.items()}
