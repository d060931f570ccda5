"""Sorts the names of a `tf.train.Saver`: variables, and what optimizers keep beside them.

A slot of `w` is called `w/Adam`, the next one `w/Adam_1`: the optimizer's name, numbered in order
of creation. An optimizer that was built inside of a variable scope puts the scope in front:
`scope/w/Adam`. What belongs to no variable has a name of its own: `beta1_power`, and of a second
optimizer `beta1_power_1`.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from thalweg.checkpoint.tensorflow.detection.beta_powers import split_powers, with_powers
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import (
    GLOBAL_STEP,
    FoundOptimizer,
    Slots,
    TensorFlowCheckpoint,
)
from thalweg.checkpoint.tensorflow.detection.loss_scales import scale_in, scaled_by
from thalweg.checkpoint.tensorflow.detection.mixed_precision import mixed_precision
from thalweg.checkpoint.tensorflow.detection.scalars import FLOATS, INTEGERS
from thalweg.checkpoint.tensorflow.detection.slot_families import V1, Family, families_titled
from thalweg.errors import UnsupportedCheckpointError, listed

if TYPE_CHECKING:
    from thalweg._formats.stored_tensor import StoredTensor

AVERAGE = "ExponentialMovingAverage"
_KNOWN = frozenset({family.title for family in V1} | {AVERAGE})
_DEEPEST = 100  # scopes that are left off


def sorted_names(
    path: str, tensors: Mapping[str, StoredTensor], families: Sequence[Family] = ()
) -> TensorFlowCheckpoint:
    """Return the checkpoint that these tensors are.

    Args:
        path: Where they were read.
        tensors: All of them, by name.
        families: Optional. What an optimizer may be that is known to be in it, with the names it
            was given; this counts before what TensorFlow's own names say.
    """
    mixed, rest = mixed_precision(tensors)
    powers, rest = split_powers(rest)
    counters = {name: value for name, value in rest.items() if _is_counter(name, value)}
    stems = frozenset(part for family in families for _, part in family.parts)
    masters = mixed.names if mixed else {}
    owners = _owners_of_slots({**rest, **{name: tensors[name] for name in masters}}, _KNOWN | stems)
    beside = _slots_beside({n: masters.get(own, own) for n, own in owners.items()}, rest, path)
    groups = _by_stem(beside)
    averages = groups.pop(AVERAGE, {})
    optimizers = with_powers(_optimizers_in(groups, families, beside, path), powers, counters)
    optimizers, scale = _with_loss_scale(optimizers, families, rest)
    return TensorFlowCheckpoint(
        path=path,
        kind="saver",
        variables={
            name: value
            for name, value in rest.items()
            if name not in owners and name not in counters and name not in scale
        },
        optimizers=tuple(optimizers),
        counters=counters,
        averages={name: own[AVERAGE] for name, own in averages.items() if AVERAGE in own},
        mixed=mixed,
        source=dict(tensors),
    )


def _with_loss_scale(
    optimizers: list[FoundOptimizer], families: Sequence[Family], rest: Mapping[str, StoredTensor]
) -> tuple[list[FoundOptimizer], dict[str, StoredTensor]]:
    """Return the optimizers with the loss scale around the only one, and the scale's tensors."""
    scale = scale_in(rest)
    if scale and not optimizers:
        # An optimizer without slots shows only by the scale of its loss, if its class is known.
        plain = [family for family in families if not family.slots]
        optimizers = [_found_optimizer(family, (), {}) for family in plain[:1]]
    if not scale or len(optimizers) != 1:
        return optimizers, {}
    notes = (*optimizers[0].notes, *scaled_by(scale))
    return [replace(optimizers[0], loss_scale=scale, notes=notes)], scale


def _optimizers_in(
    groups: Mapping[str, Slots], families: Sequence[Family], beside: Slots, path: str
) -> list[FoundOptimizer]:
    """The optimizers whose slots these are: first of what is known to be there, then by names."""
    found: list[FoundOptimizer] = []
    for family in families:
        if len(set(family.names.values())) > 1 and not found:
            found += _of_family(family, beside, path)
    taken = {part for family in families for _, part in family.parts} if found else set[str]()
    for stem in sorted(groups.keys() - taken):
        named = families_titled(stem, families) or families_titled(stem)
        found += _of_name(stem, groups[stem], named, path)
    return found


def _slots_beside(
    owners: Mapping[str, str], values: Mapping[str, StoredTensor], path: str
) -> Slots:
    """The slots of each variable, by the last part of their names.

    Raises:
        UnsupportedCheckpointError: Two of a variable have the same.
    """
    found: Slots = defaultdict(dict)
    placed: dict[tuple[str, str], str] = {}
    for name, owner in owners.items():
        place = owner, _last_part(name)
        if place in placed:
            raise UnsupportedCheckpointError(
                f"{path}: {placed[place]!r} and {name!r} may both be slots of {owner!r}, made in"
                " different scopes; which optimizer they are of the names do not tell."
            )
        placed[place] = name
        found[owner][place[1]] = values[name]
    return found


def _by_stem(beside: Slots) -> dict[str, Slots]:
    """Slots by what they are called without their number."""
    found: dict[str, Slots] = defaultdict(dict)
    for owner, own in beside.items():
        for part, value in own.items():
            found[_split_number(part)[0]].setdefault(owner, {})[part] = value
    return found


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]


def _split_number(part: str) -> tuple[str, int]:
    """The name and the number of "Adam_1"; the number of "Adam" is 0."""
    match = re.fullmatch(r"(.+?)(?:_([1-9][0-9]{0,8}))?", part, re.DOTALL)
    return (match[1], int(match[2] or 0)) if match else (part, 0)


def _is_counter(name: str, value: StoredTensor) -> bool:
    return (
        _last_part(name) == GLOBAL_STEP and value.dtype in (*INTEGERS, *FLOATS) and not value.shape
    )


def _owners_of_slots(tensors: Mapping[str, StoredTensor], known: frozenset[str]) -> dict[str, str]:
    """The variable beside which each slot stands, by the slot's name.

    A name that is no optimizer's counts where the tensor has the dtype and shape of its variable.
    """
    found: dict[str, str] = {}
    loose: dict[str, list[str]] = defaultdict(list)  # of optimizers in scopes, by their names
    for name, value in tensors.items():
        owner, _, part = name.rpartition("/")
        stem = _split_number(part)[0]
        is_known = stem in known or part in known
        if owner in tensors and (is_known or _is_alike(value, tensors[owner])):
            found[name] = owner
        elif is_known and owner:
            loose[stem].append(name)
    found = {name: owner for name, owner in found.items() if owner not in found}
    for stem, names in loose.items():
        beside = [
            owner for name, owner in found.items() if _split_number(_last_part(name))[0] == stem
        ]
        found |= _without_scopes(tensors, names, beside)
    return found


def _without_scopes(
    tensors: Mapping[str, StoredTensor], names: Sequence[str], beside: Sequence[str]
) -> dict[str, str]:
    """The variables of slots that have a scope in front.

    An optimizer puts its scope in front of all its slots. Where some of them fit no variable, or
    others stand beside variables in this scope, they are slots of variables that are not there.

    Args:
        tensors: All.
        names: The slots, of optimizers with one name.
        beside: The variables beside which such an optimizer's slots stand as they are called.
    """
    placed: dict[str, tuple[str, str]] = {}
    for name in names:
        parts = name.rpartition("/")[0].split("/", _DEEPEST)
        for start in range(1, len(parts)):
            rest = "/".join(parts[start:])
            if rest in tensors and tensors[rest].shape == tensors[name].shape:
                placed[name] = "/".join(parts[:start]) + "/", rest
                break
    scopes = {
        scope
        for scope, _ in placed.values()
        if all(name in placed for name in names if name.startswith(scope))
        and not any(owner.startswith(scope) for owner in beside)
    }
    return {name: owner for name, (scope, owner) in placed.items() if scope in scopes}


def _is_alike(one: StoredTensor, other: StoredTensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape


def _of_name(stem: str, own: Slots, families: Sequence[Family], path: str) -> list[FoundOptimizer]:
    """The optimizers of this name whose slots stand beside these variables."""
    most = max(len(slots) for slots in own.values())
    exact = [family for family in families if len(family.slots) == most]
    several = [family for family in families if family.slots and most % len(family.slots) == 0]
    for chosen in (exact, several):
        if len(chosen) == 1:
            return _of_family(chosen[0], own, path)
    parts = sorted({part for slots in own.values() for part in slots}, key=_split_number)
    candidates = families or [family for family in V1 if len(family.slots) == len(parts)]
    return [
        FoundOptimizer(
            name=stem,
            face="v1",
            family=None,
            candidates=tuple(dict.fromkeys(family.cls for family in candidates)),
            evidence=f"slots {', '.join(parts)}",
            slots=own,
            scalars={},
            title=stem,
        )
    ]


def _of_family(family: Family, beside: Slots, path: str) -> list[FoundOptimizer]:
    """The optimizers of a kind, in order of creation.

    A variable numbers the slots beside it, whichever optimizer they are of. So one that only some
    optimizers trained does not tell which: where it was one, each of them has its slots.

    Raises:
        UnsupportedCheckpointError: Several optimizers trained a variable, but not all, so that
            their order does not tell which.
    """
    sets = list(_numbered_slots(family, beside))
    counts = Counter(variable for _, slots in sets for variable in slots)
    shared = {variable for variable, count in counts.items() if count == 1 < len(sets)}
    shared &= sets[0][1].keys() if sets else set()
    unclear = [variable for variable, count in counts.items() if 1 < count < len(sets)]
    if unclear:
        raise UnsupportedCheckpointError(
            f"{path}: {unclear[0]!r} has slots of {counts[unclear[0]]} of {len(sets)} optimizers"
            f" called {family.title}; of which ones the names do not tell."
        )
    first = {variable: sets[0][1][variable] for variable in sorted(shared)}
    note = (
        f"{len(sets)} optimizers are called {family.title}, and one of them trained"
        f" {listed(first)}, it is not known which; each has these slots: give its variables"
    )
    return [
        replace(_found_optimizer(family, names, {**first, **slots}), notes=(note,) if first else ())
        for names, slots in sets
    ]


def _numbered_slots(family: Family, beside: Slots) -> Iterator[tuple[list[str], Slots]]:
    """The names and slots of the first optimizer of a kind, of the second, and so on."""
    width = Counter(part for _, part in family.parts)
    for place in itertools.count():
        used = Counter({part: place * count for part, count in width.items()})
        names: dict[str, str] = {}
        for kind, part in family.parts:
            names[kind] = f"{part}_{used[part]}" if used[part] else part
            used[part] += 1
        slots = {
            variable: {kind: own[name] for kind, name in names.items() if name in own}
            for variable, own in beside.items()
            if any(name in own for name in names.values())
        }
        if not slots:
            return
        yield list(names.values()), slots


def _found_optimizer(family: Family, names: Iterable[str], slots: Slots) -> FoundOptimizer:
    return FoundOptimizer(
        name=family.title,
        face="openseq2seq" if family.cls == "NovoGrad" else "v1",
        family=family,
        candidates=(family.cls, *family.also),
        evidence=f"slots {', '.join(names)}",
        slots=slots,
        scalars={},
        hyperparameters=dict(family.options),
        title=family.title,
    )
