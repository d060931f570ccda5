"""Assignment of a checkpoint's variables to tensors, by rules or by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from thalweg._formats.stored_tensor import dtype_of
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import AXES, Axes, Place, Rules
from thalweg.checkpoint.tensorflow.mapping.name_similarity import (
    hint_at_target,
    hint_at_variable,
    map_by_names,
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
    """Return the destination of each variable and no problems, or problems and no destinations.

    Args:
        variables: The variables of a checkpoint.
        other_names: Second names of variables, which rules and targets may also match.
        targets: The tensors to set.
        optional: The names of targets that may stay unset.
        rules: The rules; None assigns by names.
    """
    names = {name: [name] for name in variables}
    for name, alias in other_names.items():
        names[name].append(alias)
    places = _map_by_rules(names, rules) if rules else map_by_names(names, targets)
    assigned = Counter(place.target for place in places.values())
    free = [name for name in targets if not assigned[name]]
    problems: list[str] = []
    reported = set(optional)
    for name, stored_tensor in variables.items():
        place = places.get(name)
        same_names = [alias for alias in names[name] if alias in targets and not assigned[alias]]
        if rules and place is None and same_names:
            problems.append(f"no rule is for {name!r}: give '{name} -> {same_names[0]}', too")
            reported.add(same_names[0])
            continue
        problem = _describe_problem(names[name], stored_tensor, place, targets)
        if problem:
            # The target that may be meant, unless the rule's target exists.
            meant = names[name] if place is None else [place.target or ""]
            has_hint = len(problems) < LISTED and (place is None or place.target not in targets)
            problems.append(problem + (hint_at_target(meant, free) if has_hint else ""))
    counts = {name: assigned[name] for name in targets if assigned[name] > 1}
    problems += [f"{name!r} is given {count} variables" for name, count in counts.items()]
    unmapped = {name: aliases for name, aliases in names.items() if name not in places}
    free = [name for name in free if name not in reported]
    hints = LISTED - len(problems)
    problems += [
        f"{name!r} is given nothing{hint_at_variable(name, unmapped) if index < hints else ''}"
        for index, name in enumerate(free)
    ]
    if problems and len(problems) < LISTED:
        problems += _unused_rules(rules, names)
    return ({}, problems) if problems else (places, [])


def _map_by_rules(names: Names, rules: Rules) -> dict[str, Place]:
    """Return the destination of each variable that a rule matches, by the variable's key."""
    places: dict[str, Place] = {}
    for name, aliases in names.items():
        candidates = [place for alias in aliases if (place := rules.place(alias)) is not None]
        if candidates:
            targeted = [place for place in candidates if place.target is not None]
            places[name] = (targeted or candidates)[0]
    return places


def _describe_problem(
    names: Sequence[str],
    stored_tensor: StoredTensor,
    place: Place | None,
    targets: Mapping[str, Tensor],
) -> str:
    """Return why a variable cannot be written to its destination; "" if it can."""
    if place is None:
        return f"{names[0]!r} belongs to nothing here"
    if place.target is None:
        return ""
    if place.target not in targets:
        return f"there is no {place.target!r} for {names[0]!r}"
    return _describe_mismatch(names, stored_tensor, place, targets[place.target])


def _describe_mismatch(
    names: Sequence[str], stored_tensor: StoredTensor, place: Place, target: Tensor
) -> str:
    """Return how a variable's shape or dtype differs from its target's; "" if they are equal."""
    shape = permute_shape(stored_tensor.shape, place.axes)
    if shape is None:
        axes = " ".join(map(str, place.axes or ()))
        return f"{names[0]!r} has {len(stored_tensor.shape)} axes, not those of transpose {axes}"
    dtype = dtype_of(stored_tensor.dtype)
    if shape == tuple(target.shape) and dtype == target.dtype:
        return ""
    kind = f"{dtype_name(dtype)} of shape {shape}"
    target_text = f"{dtype_name(target.dtype)} of shape {tuple(target.shape)}"
    hint = _suggest_rule(names[-1], stored_tensor.shape, place.target or "", target)
    hint = "" if place.axes else hint
    return f"{names[0]!r} is {kind}, and {place.target!r} is {target_text}{hint}"


def permute_shape(shape: Sequence[int], axes: Axes | None) -> tuple[int, ...] | None:
    """Return a shape with permuted axes; None if the number of axes differs."""
    if axes is None:
        return tuple(shape)
    return tuple(shape[axis] for axis in axes) if len(axes) == len(shape) else None


def _suggest_rule(name: str, shape: Sequence[int], target_name: str, target: Tensor) -> str:
    """Return a hint about a rule with axes that would fit; "" if there is none."""
    for word, axes in AXES.items():
        if permute_shape(shape, axes) == tuple(target.shape):
            return f" (the rule '{name} -> {target_name} {word}' turns its axes)"
    return ""


def _unused_rules(rules: Rules | None, names: Names) -> list[str]:
    """Return a line for each rule that matches no variable."""
    all_names = [alias for aliases in names.values() for alias in aliases]
    return [
        f"the rule '{line.title}' is for nothing"
        for line in (rules.lines if rules else ())
        if not any(line.forward(name) for name in all_names)
    ]
