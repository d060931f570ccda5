"""Similarity of names of TensorFlow variables and of parameters."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from thalweg.checkpoint.tensorflow.mapping.mapping_rules import Place

# Last parts of names in TensorFlow and in torch. Kernels are missing because their axes differ.
_WORDS = {
    "gamma": "weight",
    "beta": "bias",
    "biases": "bias",
    "embeddings": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_KERNELS = ("kernel", "weights", "W", "w")
_MAX_COMPARED, _MAX_LENGTH = 1000, 200  # names for hints, and their characters
_MAX_PARTS = 50  # parts of a name

Parts = tuple[str, ...]


def map_by_names(names: Mapping[str, Sequence[str]], targets: Iterable[str]) -> dict[str, Place]:
    """Return the destination of each variable that matches just one target by its name.

    An equal name is preferred; else a name and a target match if one of them ends with the other,
    compared by parts, with the last part also in torch's terms ("weight" for "gamma"). Variables
    that match the same target have no destination.

    Args:
        names: The names of each variable, by the variable's key.
        targets: The names of the targets.
    """
    targets_by_name: dict[Parts, list[str]] = defaultdict(list)
    targets_by_ending: dict[Parts, list[str]] = defaultdict(list)
    for target in targets:
        parts = _parts_of(target)
        targets_by_name[parts].append(target)
        for end in _endings_of(parts):
            targets_by_ending[end].append(target)
    matches: dict[str, list[str]] = {}
    for name, aliases in names.items():
        forms = {_parts_of(alias) for alias in aliases}
        forms |= {_torch_parts(parts) for parts in forms}
        exact = {target for parts in forms for target in targets_by_name.get(parts, ())}
        similar = {target for parts in forms for target in targets_by_ending.get(parts, ())}
        endings = {ending for parts in forms for ending in _endings_of(parts)}
        similar |= {target for parts in endings for target in targets_by_name.get(parts, ())}
        matches[name] = sorted(exact or similar)
    counts = Counter(target for candidates in matches.values() for target in candidates)
    return {
        name: Place(candidates[0])
        for name, candidates in matches.items()
        if len(candidates) == 1 and counts[candidates[0]] == 1
    }


def hint_at_target(aliases: Sequence[str], targets: Sequence[str]) -> str:
    """Return a hint about the target most similar to a variable's names, for a message."""
    nearest = _nearest_name(
        aliases, {_plain_name(target): target for target in targets[:_MAX_COMPARED]}
    )
    if nearest is None:
        return ""
    parts = _parts_of(aliases[-1])
    if parts and parts[-1] in _KERNELS and nearest.endswith("weight"):
        return f"; if it is {nearest!r}, a rule has to say so: its axes are in another order"
    return f"; the nearest is {nearest!r}"


def hint_at_variable(target: str, names: Mapping[str, Sequence[str]]) -> str:
    """Return a hint about the variable most similar to a target, for a message."""
    compared = list(names)[:_MAX_COMPARED]
    nearest = _nearest_name(
        [target], {_plain_name(alias): name for name in compared for alias in names[name]}
    )
    return "" if nearest is None else f"; the nearest is {nearest!r}"


def _nearest_name(names: Sequence[str], targets: Mapping[str, str]) -> str | None:
    """Return the target with the name most similar to one of `names`; None if none is similar."""
    for name in names:
        nearest = difflib.get_close_matches(_plain_name(name), targets, n=1, cutoff=0.6)
        if nearest:
            return targets[nearest[0]]
    return None


def _parts_of(name: str) -> Parts:
    """Return the parts of a name, split at "/" and ".", without ":0"."""
    return tuple(part for part in re.split(r"[/.]", name.split(":")[0]) if part)


def _torch_parts(parts: Parts) -> Parts:
    """Return the parts of a name with the last one in torch's terms."""
    return (*parts[:-1], _WORDS.get(parts[-1], parts[-1])) if parts else parts


def _endings_of(parts: Parts) -> list[Parts]:
    """Return all endings of a name, the whole name included unless it has very many parts."""
    return [parts[start:] for start in range(max(0, len(parts) - _MAX_PARTS), len(parts))]


def _plain_name(name: str) -> str:
    """Return a name in lower case without separators, for comparison."""
    parts = _torch_parts(_parts_of(name[-_MAX_LENGTH:]))
    return "/".join(parts).replace("kernel", "weight").lower()
