"""Assignment of the variables of a checkpoint to tensors: by rules, or by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from thalweg._formats.stored_tensor import dtype_of
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import AXES, Axes, Place, Rules
from thalweg.checkpoint.tensorflow.mapping.name_similarity import (
    by_names,
    hint_at_target,
    hint_at_variable,
)
from thalweg.errors import LISTED
from thalweg.variable import dtype_name

if TYPE_CHECKING:
    from thalweg._formats.stored_tensor import StoredTensor

Names = Mapping[str, Sequence[str]]  # what each variable of a file is called


def map_variables(
    variables: Mapping[str, StoredTensor],
    other_names: Mapping[str, str],
    targets: Mapping[str, Tensor],
    optional: Collection[str],
    rules: Rules | None,
) -> tuple[dict[str, Place], list[str]]:
    """Return the place of each variable, or descriptions of problems; one of both is empty.

    Args:
        variables: The variables of a checkpoint.
        other_names: Second names, by which rules and names may find them, too.
        targets: The tensors to set.
        optional: The names of targets that may stay unset.
        rules: The rules; None assigns by names.
    """
    names = {name: [name] for name in variables}
    for name, other in other_names.items():
        names[name].append(other)
    places = _by_rules(names, rules) if rules else by_names(names, targets)
    taken = Counter(place.target for place in places.values())
    free = [name for name in targets if not taken[name]]
    found: list[str] = []
    told = set(optional)
    for name, value in variables.items():
        place = places.get(name)
        same = [each for each in names[name] if each in targets and not taken[each]]
        if rules and place is None and same:  # beside rules, a name alone does not count
            found.append(f"no rule is for {name!r}: give '{name} -> {same[0]}', too")
            told.add(same[0])
            continue
        problem = _describe_problem(names[name], value, place, targets)
        if problem:
            hints = len(found) < LISTED
            found.append(problem + (_hint(names[name], place, targets, free) if hints else ""))
    found += [f"{name!r} is given {taken[name]} variables" for name in targets if taken[name] > 1]
    left = {name: own for name, own in names.items() if name not in places}
    found += _describe_free([name for name in free if name not in told], left, LISTED - len(found))
    if found and len(found) < LISTED:
        found += _unused_rules(rules, names)
    return ({}, found) if found else (places, [])


def _describe_free(targets: Sequence[str], variables: Names, hints: int) -> list[str]:
    """That targets are given nothing; the first of them, so many, with a hint at a variable."""
    return [
        f"{name!r} is given nothing{hint_at_variable(name, variables) if place < hints else ''}"
        for place, name in enumerate(targets)
    ]


def _hint(
    names: Sequence[str], place: Place | None, targets: Mapping[str, Tensor], free: Sequence[str]
) -> str:
    """Which target may be meant, where there is none for a variable."""
    if place is None:
        return hint_at_target(names, free)
    return hint_at_target([place.target or ""], free) if place.target not in targets else ""


def _by_rules(names: Names, rules: Rules) -> dict[str, Place]:
    found: dict[str, Place] = {}
    for name, own in names.items():
        places = [place for each in own if (place := rules.place(each)) is not None]
        if places:
            found[name] = next((each for each in places if each.target is not None), places[0])
    return found


def _describe_problem(
    names: Sequence[str], value: StoredTensor, place: Place | None, targets: Mapping[str, Tensor]
) -> str:
    """Why a variable cannot be written to its place; "" if it can."""
    if place is None:
        return f"{names[0]!r} belongs to nothing here"
    if place.target is None:
        return ""
    if place.target not in targets:
        return f"there is no {place.target!r} for {names[0]!r}"
    return _describe_mismatch(names, value, place, targets[place.target])


def _describe_mismatch(
    names: Sequence[str], value: StoredTensor, place: Place, target: Tensor
) -> str:
    shape = permute_shape(value.shape, place.axes)
    if shape is None:
        axes = " ".join(map(str, place.axes or ()))
        return f"{names[0]!r} has {len(value.shape)} axes, not those of transpose {axes}"
    dtype = dtype_of(value.dtype)
    if shape == tuple(target.shape) and dtype == target.dtype:
        return ""
    kind = f"{dtype_name(dtype)} of shape {shape}"
    wanted = f"{dtype_name(target.dtype)} of shape {tuple(target.shape)}"
    hint = "" if place.axes else _suggest_rule(names[-1], value.shape, place.target or "", target)
    return f"{names[0]!r} is {kind}, and {place.target!r} is {wanted}{hint}"


def permute_shape(shape: Sequence[int], axes: Axes | None) -> tuple[int, ...] | None:
    """Return a shape with other axes; None if there are more or fewer of them."""
    if axes is None:
        return tuple(shape)
    return tuple(shape[axis] for axis in axes) if len(axes) == len(shape) else None


def _suggest_rule(name: str, shape: Sequence[int], title: str, target: Tensor) -> str:
    """The rule that would turn the axes, if there is one."""
    for word, axes in AXES.items():
        if permute_shape(shape, axes) == tuple(target.shape):
            return f" (the rule '{name} -> {title} {word}' turns its axes)"
    return ""


def _unused_rules(rules: Rules | None, names: Names) -> list[str]:
    """Rules that are for no variable, which is worth saying where something else is wrong."""
    everything = [each for own in names.values() for each in own]
    return [
        f"the rule '{line.title}' is for nothing"
        for line in (rules.lines if rules else ())
        if not any(line.forward(name) for name in everything)
    ]
