"""Which tensor each variable of a checkpoint becomes: by rules, or by its name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from thalweg.checkpoint.tensorflow.numbers import dtype_of
from thalweg.checkpoint.tensorflow.rules import AXES, Axes, Place, Rules
from thalweg.variable import dtype_name

if TYPE_CHECKING:
    from thalweg.storage.stored import Stored

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
_BY_RANK = {2: "dense", 3: "conv1d", 4: "conv2d", 5: "conv3d"}


def mapped(
    variables: Mapping[str, Stored],
    other_names: Mapping[str, str],
    targets: Mapping[str, Tensor],
    optional: Iterable[str],
    rules: Rules | None,
) -> tuple[dict[str, Place], list[str]]:
    """Where each variable goes, and why that cannot be, in words; one of both is empty.

    Args:
        variables: The variables of a checkpoint.
        other_names: Second names, by which rules and names may find them, too.
        targets: The tensors that are to be set.
        optional: The names of those that need not be.
        rules: The rules; None goes by names.
    """
    names = {name: [name] for name in variables}
    for name, other in other_names.items():
        names[name].append(other)
    places = _by_rules(names, rules) if rules else _by_names(names, targets)
    found = _differences(variables, names, places, targets)
    taken = [place.target for place in places.values() if place.target is not None]
    found += [
        f"{target!r} is given {taken.count(target)} variables"
        for target in dict.fromkeys(taken)
        if taken.count(target) > 1
    ]
    missing = [name for name in targets if name not in taken and name not in set(optional)]
    left = [name for name in variables if name not in places]
    found += [f"{name!r} is given nothing{_nearest(name, left, names)}" for name in missing]
    if found:
        found += _unused(rules, names)
    return ({}, found) if found else (places, [])


def _by_rules(names: Mapping[str, Sequence[str]], rules: Rules) -> dict[str, Place]:
    found: dict[str, Place] = {}
    for name, own in names.items():
        places = [place for each in own if (place := rules.place(each)) is not None]
        if places:
            found[name] = next((each for each in places if each.target is not None), places[0])
    return found


def _by_names(
    names: Mapping[str, Sequence[str]], targets: Mapping[str, Tensor]
) -> dict[str, Place]:
    """Variables and tensors that have the same name, or whose names end alike as no others do."""
    ours = {target: _parts(target) for target in targets}
    fitting = {
        name: [
            target
            for target, parts in ours.items()
            if any(_ends_alike(parts, _renamed(_parts(each))) for each in own)
            or any(_ends_alike(parts, _parts(each)) for each in own)
        ]
        for name, own in names.items()
    }
    exact = {
        name: [t for t in found if any(ours[t] in (_parts(e), _renamed(_parts(e))) for e in own)]
        for (name, found), own in zip(fitting.items(), names.values(), strict=True)
    }
    chosen = {name: exact[name] or fitting[name] for name in names}
    wanted = [target for found in chosen.values() for target in found]
    return {
        name: Place(found[0])
        for name, found in chosen.items()
        if len(found) == 1 and wanted.count(found[0]) == 1
    }


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"[/.]", name.split(":")[0]) if part]


def _renamed(parts: list[str]) -> list[str]:
    """The parts of a name as torch's modules have them."""
    return [*parts[:-1], _WORDS.get(parts[-1], parts[-1])] if parts else parts


def _ends_alike(one: list[str], other: list[str]) -> bool:
    shorter = min(len(one), len(other))
    return shorter > 0 and one[-shorter:] == other[-shorter:]


def _differences(
    variables: Mapping[str, Stored],
    names: Mapping[str, Sequence[str]],
    places: Mapping[str, Place],
    targets: Mapping[str, Tensor],
) -> list[str]:
    found: list[str] = []
    free = [name for name in targets if name not in {place.target for place in places.values()}]
    for name, value in variables.items():
        place = places.get(name)
        if place is None:
            found.append(f"{name!r} belongs to nothing here{_nearest_target(names[name], free)}")
        elif place.target is not None and place.target not in targets:
            near = _nearest(place.target, list(targets), {each: [each] for each in targets})
            found.append(f"there is no {place.target!r} for {name!r}{near}")
        elif place.target is not None:
            found += _unlike(names[name], value, place, targets[place.target])
    return found


def _unlike(names: Sequence[str], value: Stored, place: Place, target: Tensor) -> list[str]:
    """Why a variable cannot be written to a tensor."""
    shape = turned(value.shape, place.axes)
    if shape is None:
        axes = " ".join(map(str, place.axes or ()))
        return [f"{names[0]!r} has {len(value.shape)} axes, not those of transpose {axes}"]
    dtype = dtype_of(value)
    if shape == tuple(target.shape) and dtype == target.dtype:
        return []
    kind = f"{dtype_name(dtype)} of shape {shape}"
    wanted = f"{dtype_name(target.dtype)} of shape {tuple(target.shape)}"
    hint = "" if place.axes else _hint(names[-1], value.shape, place.target or "", target)
    return [f"{names[0]!r} is {kind}, and {place.target!r} is {wanted}{hint}"]


def turned(shape: Sequence[int], axes: Axes | None) -> tuple[int, ...] | None:
    """A shape with other axes; None if there are more or fewer of them."""
    if axes is None:
        return tuple(shape)
    return tuple(shape[axis] for axis in axes) if len(axes) == len(shape) else None


def _hint(name: str, shape: Sequence[int], title: str, target: Tensor) -> str:
    """The rule that would turn the axes, if there is one."""
    for word, axes in AXES.items():
        if turned(shape, axes) == tuple(target.shape):
            return f" (the rule '{name} -> {title} {word}' turns its axes)"
    return ""


def _nearest(name: str, known: Sequence[str], names: Mapping[str, Sequence[str]]) -> str:
    """A question that names the nearest of TensorFlow's names."""
    plain = {other: each for each in known for other in map(_plain, names[each])}
    near = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.6)
    return f"; the nearest is {plain[near[0]]!r}" if near else ""


def _nearest_target(own: Sequence[str], free: Sequence[str]) -> str:
    plain = {_plain(each): each for each in free}
    near = [m for each in own for m in difflib.get_close_matches(_plain(each), plain, 1, 0.6)]
    if not near:
        return ""
    target = plain[near[0]]
    last = _parts(own[-1])[-1:]
    if last and last[0] in _KERNELS and target.endswith("weight"):
        return f"; if it is {target!r}, a rule has to say so: its axes are in another order"
    return f"; the nearest is {target!r}"


def _plain(name: str) -> str:
    return "/".join(_renamed(_parts(name))).replace("kernel", "weight").lower()


def _unused(rules: Rules | None, names: Mapping[str, Sequence[str]]) -> list[str]:
    """Rules that are for no variable; only worth saying where something else is wrong."""
    everything = [each for own in names.values() for each in own]
    return [
        f"the rule '{line.title}' is for nothing"
        for line in (rules.lines if rules else ())
        if not any(line.forward(name) for name in everything)
    ]
