"""Names of state entries: "w/m" is the slot `m` of the variable `w`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thalweg.variable import name_of

# Function from variables to unique names.
Names = Callable[[Sequence[Any]], list[str]]


def distinct(names: Sequence[str]) -> list[str]:
    """Return unique names: the second "w" becomes "w#1", or "w#2" if "w#1" exists, etc."""
    counts: Counter[str] = Counter()
    used_names: set[str] = set()
    unique_names: list[str] = []
    for name in names:
        candidate = f"{name}#{counts[name]}" if counts[name] else name
        while candidate in used_names:
            counts[name] += 1
            candidate = f"{name}#{counts[name]}"
        counts[name] += 1
        used_names.add(candidate)
        unique_names.append(candidate)
    return unique_names


def keys_of(variables: Sequence[Any]) -> list[str]:
    """Return unique prefixes of the variables' slot names."""
    return distinct([name_of(var).split(":")[0] for var in variables])


def positioned(names: Sequence[str], suffix: str) -> list[str]:
    """Return unique names: a repeated name gets its index, formatted by `suffix`, such as "#{}".

    If the new name is in use, `len(names)` is added to the index.
    """
    counts = Counter(names)
    positioned_names: list[str] = []
    used_names = {name for name, count in counts.items() if count == 1}
    for index, name in enumerate(names):
        while counts[name] > 1 and name + suffix.format(index) in used_names:
            index += len(names)
        positioned_names.append(name + suffix.format(index) if counts[name] > 1 else name)
        used_names.add(positioned_names[-1])
    return positioned_names


def positioned_keys_of(variables: Sequence[Any]) -> list[str]:
    """Return the prefixes of `thalweg.v1` and `thalweg.openseq2seq` in version 0.1."""
    return positioned([name_of(var).split(":")[0] for var in variables], "#{}")


def as_now(
    state: Mapping[str, object], old_names: Sequence[str], new_names: Sequence[str]
) -> Mapping[str, Any]:
    """Rename the values of a state of an old version; return a new dict.

    A state is of the old version if it has old names and no new names. Any other state is returned
    unchanged.

    Args:
        state: Values by name; not changed.
        old_names, new_names: Names in the old and in the present version, in one order.
    """
    removed_names, added_names = set(old_names) - set(new_names), set(new_names) - set(old_names)
    if not state.keys() & removed_names or state.keys() & added_names:
        return state
    names = dict(zip(old_names, new_names, strict=True))
    return {names.get(name, name): value for name, value in state.items()}
