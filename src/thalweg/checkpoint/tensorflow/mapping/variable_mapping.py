"""Assignment of a checkpoint's variables to tensors, by rules or by name."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import Tensor

from thalweg._formats.stored_tensor import StoredTensor, dtype_of
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import AXES, Axes, Place, Rules
from thalweg.errors import LISTED
from thalweg.variable import dtype_name

# {variable of a file: its names}.
Names = Mapping[str, Sequence[str]]


def map_variables(
    variables: Mapping[str, StoredTensor],
    other_names: Mapping[str, str],
    targets: Mapping[str, Tensor],
    optional: Collection[str],
    rules: Rules | None,
) -> tuple[dict[str, Place], list[str]]:
    """Return ({variable: destination}, []). If there are problems, return ({}, problems).

    Args:
        variables: {name: variable} of a checkpoint.
        other_names: {name: alias} of variables. Rules and targets may match the name or the alias.
        targets: {name: tensor to set}.
        optional: The names of targets that may stay unset.
        rules: The rules; None assigns by names.
    """
    names = {name: [name] for name in variables}
    for name, alias in other_names.items():
        names[name].append(alias)
    matches = _map_by_rules(names, rules) if rules else map_by_names(names, targets)
    assigned = Counter(match.target for match in matches.values())
    free = [name for name in targets if not assigned[name]]
    problems, reported = list[str](), set(optional)
    for name, stored_tensor in variables.items():
        match = matches.get(name)
        same_names = [alias for alias in names[name] if alias in targets and not assigned[alias]]
        if rules and match is None and same_names:
            problems.append(f"no rule is for {name!r}: give '{name} -> {same_names[0]}', too")
            reported.add(same_names[0])
            continue
        problem = _describe_problem(names[name], stored_tensor, match, targets)
        if problem:
            # The target that may be meant, unless the rule's target exists.
            meant = names[name] if match is None else [match.target or ""]
            is_missing = match is None or match.target not in targets
            adds_advice = len(problems) < LISTED and is_missing
            problems.append(problem + (hint_at_target(meant, free) if adds_advice else ""))
    counts = {name: assigned[name] for name in targets if assigned[name] > 1}
    problems += [f"{name!r} is given {count} variables" for name, count in counts.items()]
    unmapped = {name: aliases for name, aliases in names.items() if name not in matches}
    free = [name for name in free if name not in reported]
    hints = LISTED - len(problems)
    problems += [
        f"{name!r} is given nothing{hint_at_variable(name, unmapped) if index < hints else ''}"
        for index, name in enumerate(free)
    ]
    if problems and len(problems) < LISTED:
        problems += _unused_rules(rules, names)
    return ({}, problems) if problems else (matches, [])


def _map_by_rules(names: Names, rules: Rules) -> dict[str, Place]:
    """Return {variable: destination} for the variables that a rule matches.

    A destination with target None omits the variable. If both names of a variable match a rule, the
    first destination with a target counts.
    """
    destinations: dict[str, Place] = {}
    for name, aliases in names.items():
        candidates = [
            destination for alias in aliases if (destination := rules.place(alias)) is not None
        ]
        if candidates:
            targeted = [destination for destination in candidates if destination.target is not None]
            destinations[name] = (targeted or candidates)[0]
    return destinations


def _describe_problem(
    names: Sequence[str],
    stored_tensor: StoredTensor,
    destination: Place | None,
    targets: Mapping[str, Tensor],
) -> str:
    """Return why a variable cannot be written to its destination; "" if it can, or is omitted."""
    if destination is None:
        return f"{names[0]!r} belongs to nothing here"
    if destination.target is None:
        return ""
    if destination.target not in targets:
        return f"there is no {destination.target!r} for {names[0]!r}"
    target = targets[destination.target]
    shape = permute_shape(stored_tensor.shape, destination.axes)
    if shape is None:
        axes = " ".join(map(str, destination.axes or ()))
        return f"{names[0]!r} has {len(stored_tensor.shape)} axes, not those of transpose {axes}"
    dtype = dtype_of(stored_tensor.dtype)
    if shape == tuple(target.shape) and dtype == target.dtype:
        return ""
    kind = f"{dtype_name(dtype)} of shape {shape}"
    target_text = f"{dtype_name(target.dtype)} of shape {tuple(target.shape)}"
    advice = ""
    if not destination.axes:
        advice = _suggest_rule(names[-1], stored_tensor.shape, destination.target, target)
    return f"{names[0]!r} is {kind}, and {destination.target!r} is {target_text}{advice}"


def permute_shape(shape: Sequence[int], axes: Axes | None) -> tuple[int, ...] | None:
    """Return a shape with permuted axes; None if the number of axes differs."""
    if axes is None:
        return tuple(shape)
    return tuple(shape[axis] for axis in axes) if len(axes) == len(shape) else None


def _suggest_rule(name: str, shape: Sequence[int], target_name: str, target: Tensor) -> str:
    """Return a hint at a rule whose permuted axes give the target's shape; "" if there is none."""
    for word, axes in AXES.items():
        if permute_shape(shape, axes) == tuple(target.shape):
            return f" (the rule '{name} -> {target_name} {word}' turns its axes)"
    return ""


def _unused_rules(rules: Rules | None, names: Names) -> list[str]:
    """Return one line per rule that matches no variable."""
    all_names = [alias for aliases in names.values() for alias in aliases]
    return [
        f"the rule '{line.title}' is for nothing"
        for line in (rules.lines if rules else ())
        if not any(line.forward(name) for name in all_names)
    ]


# Last parts of names in TensorFlow and in torch. Kernels are missing because their axes differ.
_TORCH_NAMES = {
    "gamma": "weight",
    "beta": "bias",
    "biases": "bias",
    "embeddings": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_KERNELS = ("kernel", "weights", "W", "w")
# The most names that are compared for hints, and the most characters of each: `difflib` is slow.
_MAX_COMPARED, _MAX_LENGTH = 1000, 200
# The most parts of an ending that is matched.
_MAX_SEGMENTS = 50

Segments = tuple[str, ...]


def map_by_names(names: Mapping[str, Sequence[str]], targets: Iterable[str]) -> dict[str, Place]:
    """Return {variable: destination} for variables whose name matches one target only.

    An equal name is preferred. Else, the parts of the shorter name must be the last parts of the
    longer name. Parts are separated by "/" or ".". The last part may be torch's word ("weight" for
    "gamma"). Variables that share their only match are left out.

    Args:
        names: {variable: its names}.
    """
    targets_by_name: dict[Segments, list[str]] = defaultdict(list)
    targets_by_ending: dict[Segments, list[str]] = defaultdict(list)
    for target in targets:
        segments = _split_name(target)
        targets_by_name[segments].append(target)
        for end in _list_endings(segments):
            targets_by_ending[end].append(target)
    matches: dict[str, list[str]] = {}
    for name, aliases in names.items():
        forms = {_split_name(alias) for alias in aliases}
        forms |= {_translate_segments(segments) for segments in forms}
        exact = {target for segments in forms for target in targets_by_name.get(segments, ())}
        similar = {target for segments in forms for target in targets_by_ending.get(segments, ())}
        endings = {ending for segments in forms for ending in _list_endings(segments)}
        similar |= {target for segments in endings for target in targets_by_name.get(segments, ())}
        matches[name] = sorted(exact or similar)
    counts = Counter(target for candidates in matches.values() for target in candidates)
    return {
        name: Place(candidates[0])
        for name, candidates in matches.items()
        if len(candidates) == 1 and counts[candidates[0]] == 1
    }


def hint_at_target(aliases: Sequence[str], targets: Sequence[str]) -> str:
    """Return a hint at the target with a name similar to `aliases`; "" if there is none."""
    nearest = _nearest_name(
        aliases, {_plain_name(target): target for target in targets[:_MAX_COMPARED]}
    )
    if nearest is None:
        return ""
    segments = _split_name(aliases[-1])
    if segments and segments[-1] in _KERNELS and nearest.endswith("weight"):
        return f"; if it is {nearest!r}, a rule has to say so: its axes are in another order"
    return f"; the nearest is {nearest!r}"


def hint_at_variable(target: str, names: Mapping[str, Sequence[str]]) -> str:
    """Return a message's hint at the variable whose name is most similar; "" if none is similar."""
    compared = list(names)[:_MAX_COMPARED]
    nearest = _nearest_name(
        [target], {_plain_name(alias): name for name in compared for alias in names[name]}
    )
    return "" if nearest is None else f"; the nearest is {nearest!r}"


def _nearest_name(names: Sequence[str], targets: Mapping[str, str]) -> str | None:
    """Return the value in `targets` whose key is most similar to one of `names`, or None."""
    for name in names:
        nearest = difflib.get_close_matches(_plain_name(name), targets, n=1, cutoff=0.6)
        if nearest:
            return targets[nearest[0]]
    return None


def _split_name(name: str) -> Segments:
    """Return the parts of a name, split at "/" and ".", without ":0"."""
    return tuple(segment for segment in re.split(r"[/.]", name.split(":")[0]) if segment)


def _translate_segments(segments: Segments) -> Segments:
    """Return the parts of a name with the last one in torch's terms."""
    return (*segments[:-1], _TORCH_NAMES.get(segments[-1], segments[-1])) if segments else segments


def _list_endings(segments: Segments) -> list[Segments]:
    """Return the endings of a name that have at most 50 parts, the longest first."""
    return [
        segments[start:] for start in range(max(0, len(segments) - _MAX_SEGMENTS), len(segments))
    ]


def _plain_name(name: str) -> str:
    """Return a name in lower case without separators, for comparison."""
    segments = _translate_segments(_split_name(name[-_MAX_LENGTH:]))
    return "/".join(segments).replace("kernel", "weight").lower()
