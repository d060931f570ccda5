"""Names of TensorFlow's variables and of parameters that mean the same, or nearly."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from thalweg.checkpoint.tensorflow.mapping.mapping_rules import Place

# The last part of a name in TensorFlow and in torch. A kernel is not among them: its axes differ.
_WORDS = {
    "gamma": "weight",
    "beta": "bias",
    "biases": "bias",
    "embeddings": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_KERNELS = ("kernel", "weights", "W", "w")
_COMPARED, _LONGEST = 1000, 200  # names that a hint compares, and their characters
_DEEPEST = 50  # parts of a name

Parts = tuple[str, ...]


def by_names(names: Mapping[str, Sequence[str]], targets: Iterable[str]) -> dict[str, Place]:
    """Variables and tensors that have the same name, or whose names end alike as no others do.

    Args:
        names: What each variable is called.
        targets: The names of the tensors.
    """
    whole: dict[Parts, list[str]] = defaultdict(list)
    ends: dict[Parts, list[str]] = defaultdict(list)
    for target in targets:
        parts = _parts_of(target)
        whole[parts].append(target)
        for end in _endings_of(parts):
            ends[end].append(target)
    chosen: dict[str, list[str]] = {}
    for name, own in names.items():
        known = {form for each in own for form in (_parts_of(each), _torch_parts(_parts_of(each)))}
        exact = {target for parts in known for target in whole.get(parts, ())}
        alike = {target for parts in known for target in ends.get(parts, ())}
        alike |= {t for parts in known for end in _endings_of(parts) for t in whole.get(end, ())}
        chosen[name] = sorted(exact or alike)
    wanted = Counter(target for found in chosen.values() for target in found)
    return {
        name: Place(found[0])
        for name, found in chosen.items()
        if len(found) == 1 and wanted[found[0]] == 1
    }


def hint_at_target(own: Sequence[str], targets: Sequence[str]) -> str:
    """Return the target that a variable with these names may be meant for, in words."""
    near = _nearest_name(own, {_plain_name(each): each for each in targets[:_COMPARED]})
    if near is None:
        return ""
    if _parts_of(own[-1])[-1:] and _parts_of(own[-1])[-1] in _KERNELS and near.endswith("weight"):
        return f"; if it is {near!r}, a rule has to say so: its axes are in another order"
    return f"; the nearest is {near!r}"


def hint_at_variable(target: str, names: Mapping[str, Sequence[str]]) -> str:
    """Return the variable that a target may be meant for, in words."""
    listed = list(names)[:_COMPARED]
    near = _nearest_name(
        [target], {_plain_name(each): name for name in listed for each in names[name]}
    )
    return "" if near is None else f"; the nearest is {near!r}"


def _nearest_name(own: Sequence[str], known: Mapping[str, str]) -> str | None:
    for name in own:
        near = difflib.get_close_matches(_plain_name(name), known, n=1, cutoff=0.6)
        if near:
            return known[near[0]]
    return None


def _parts_of(name: str) -> Parts:
    return tuple(part for part in re.split(r"[/.]", name.split(":")[0]) if part)


def _torch_parts(parts: Parts) -> Parts:
    """The parts of a name as torch's modules have them."""
    return (*parts[:-1], _WORDS.get(parts[-1], parts[-1])) if parts else parts


def _endings_of(parts: Parts) -> list[Parts]:
    """What the name ends in; the whole of it included, unless it is very long."""
    return [parts[start:] for start in range(max(0, len(parts) - _DEEPEST), len(parts))]


def _plain_name(name: str) -> str:
    return "/".join(_torch_parts(_parts_of(name[-_LONGEST:]))).replace("kernel", "weight").lower()
