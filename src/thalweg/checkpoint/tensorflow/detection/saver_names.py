"""Sort the names of a `tf.train.Saver` into variables and optimizer state.

A slot of `w` is called `w/Adam`, the next one `w/Adam_1`: the optimizer's name, numbered in order
of creation. An optimizer that was built inside of a variable scope prepends the scope:
`scope/w/Adam`. Scalars have names without a variable: `beta1_power`, and of a second optimizer
`beta1_power_1`.
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
from thalweg.checkpoint.tensorflow.detection.mixed_precision import split_mixed_precision
from thalweg.checkpoint.tensorflow.detection.scalars import FLOATS, INTEGERS
from thalweg.checkpoint.tensorflow.detection.slot_families import V1, Family, families_titled
from thalweg.errors import UnsupportedCheckpointError, listed

if TYPE_CHECKING:
    from thalweg._formats.stored_tensor import StoredTensor

AVERAGE = "ExponentialMovingAverage"
_KNOWN_STEMS = frozenset({family.title for family in V1} | {AVERAGE})
_MAX_SCOPES = 100  # scopes of a name


def sorted_names(
    path: str, stored_tensors: Mapping[str, StoredTensor], families: Sequence[Family] = ()
) -> TensorFlowCheckpoint:
    """Sort the tensors of a name-based checkpoint into variables, optimizers and counters.

    Args:
        path: The path of the file.
        stored_tensors: The tensors by name.
        families: Optional. Families of an optimizer known to be in the file, with its names; they
            take precedence over TensorFlow's default names.
    """
    mixed, other_tensors = split_mixed_precision(stored_tensors)
    powers, other_tensors = split_powers(other_tensors)
    counters = {name: tensor for name, tensor in other_tensors.items() if _is_counter(name, tensor)}
    stems = frozenset(part for family in families for _, part in family.parts)
    masters = mixed.names if mixed else {}
    candidates = {**other_tensors, **{name: stored_tensors[name] for name in masters}}
    owners = _owners_of_slots(candidates, _KNOWN_STEMS | stems)
    variables = {name: masters.get(owner, owner) for name, owner in owners.items()}
    slots_by_part = _slots_beside(variables, other_tensors, path)
    groups = _by_stem(slots_by_part)
    averages = groups.pop(AVERAGE, {})
    optimizers = _optimizers_in(groups, families, slots_by_part, path)
    optimizers = with_powers(optimizers, powers, counters)
    optimizers, scale = _with_loss_scale(optimizers, families, other_tensors)
    return TensorFlowCheckpoint(
        path=path,
        kind="saver",
        variables={
            name: tensor
            for name, tensor in other_tensors.items()
            if name not in owners and name not in counters and name not in scale
        },
        optimizers=tuple(optimizers),
        counters=counters,
        averages={name: parts[AVERAGE] for name, parts in averages.items() if AVERAGE in parts},
        mixed=mixed,
        source=dict(stored_tensors),
    )


def _with_loss_scale(
    optimizers: list[FoundOptimizer],
    families: Sequence[Family],
    stored_tensors: Mapping[str, StoredTensor],
) -> tuple[list[FoundOptimizer], dict[str, StoredTensor]]:
    """Add the file's loss scale, with notes, to the optimizer, if there is exactly one.

    A file with a scale and no optimizer has one of the first of `families` without slots.

    Returns:
        The optimizers, and the tensors of the scale by name; {} if the scale was not added.
    """
    scale = scale_in(stored_tensors)
    if scale and not optimizers:
        # An optimizer without slots shows only by the scale of its loss, if its class is known.
        slotless = [family for family in families if not family.slots]
        optimizers = [_found_optimizer(family, (), {}) for family in slotless[:1]]
    if not scale or len(optimizers) != 1:
        return optimizers, {}
    notes = (*optimizers[0].notes, *scaled_by(scale))
    return [replace(optimizers[0], loss_scale=scale, notes=notes)], scale


def _optimizers_in(
    groups: Mapping[str, Slots], families: Sequence[Family], slots_by_part: Slots, path: str
) -> list[FoundOptimizer]:
    """Return the optimizers of all slots: first those of given families, then by slot names."""
    optimizers: list[FoundOptimizer] = []
    for family in families:
        if len(set(family.names.values())) > 1 and not optimizers:
            optimizers += _optimizers_of_family(family, slots_by_part, path)
    parts = {part for family in families for _, part in family.parts}
    for stem in sorted(groups.keys() - (parts if optimizers else set())):
        matching = families_titled(stem, families) or families_titled(stem)
        optimizers += _optimizers_named(stem, groups[stem], matching, path)
    return optimizers


def _slots_beside(
    owners: Mapping[str, str], stored_tensors: Mapping[str, StoredTensor], path: str
) -> Slots:
    """Return the slots of each variable, by the last part of the slots' names, such as "Adam_1".

    Args:
        owners: The variable of each slot, by the slot's name.
        stored_tensors: The tensors by name.
        path: The file, for errors.

    Raises:
        UnsupportedCheckpointError: Two slots of a variable have the same last part.
    """
    slots_by_part: Slots = defaultdict(dict)
    names: dict[tuple[str, str], str] = {}
    for name, owner in owners.items():
        key = owner, _last_part(name)
        if key in names:
            raise UnsupportedCheckpointError(
                f"{path}: {names[key]!r} and {name!r} may both be slots of {owner!r}, made in"
                " different scopes; which optimizer they are of the names do not tell."
            )
        names[key] = name
        slots_by_part[owner][key[1]] = stored_tensors[name]
    return slots_by_part


def _by_stem(slots_by_part: Slots) -> dict[str, Slots]:
    """Group slots by the last part of their names without its number: "Adam_1" is under "Adam"."""
    groups: dict[str, Slots] = defaultdict(dict)
    for owner, parts in slots_by_part.items():
        for part, tensor in parts.items():
            groups[_split_number(part)[0]].setdefault(owner, {})[part] = tensor
    return groups


def _last_part(name: str) -> str:
    """Return the part of a name after the last "/"."""
    return name.rpartition("/")[2]


def _split_number(part: str) -> tuple[str, int]:
    """Return the name and the number of "Adam_1"; the number of "Adam" is 0."""
    match = re.fullmatch(r"(.+?)(?:_([1-9][0-9]{0,8}))?", part, re.DOTALL)
    return (match[1], int(match[2] or 0)) if match else (part, 0)


def _is_counter(name: str, tensor: StoredTensor) -> bool:
    """Return True for a scalar called "global_step" in any scope."""
    is_scalar = tensor.dtype in (*INTEGERS, *FLOATS) and not tensor.shape
    return is_scalar and _last_part(name) == GLOBAL_STEP


def _owners_of_slots(
    stored_tensors: Mapping[str, StoredTensor], known_stems: frozenset[str]
) -> dict[str, str]:
    """Return the variable of each slot, by the slot's name.

    Names that are no optimizer's default count if dtype and shape are those of the variable.
    """
    owners: dict[str, str] = {}
    scoped: dict[str, list[str]] = defaultdict(list)
    for name, tensor in stored_tensors.items():
        owner, _, part = name.rpartition("/")
        stem = _split_number(part)[0]
        has_known_stem = stem in known_stems or part in known_stems
        if owner in stored_tensors and (has_known_stem or _is_alike(tensor, stored_tensors[owner])):
            owners[name] = owner
        elif has_known_stem and owner:
            scoped[stem].append(name)
    owners = {name: owner for name, owner in owners.items() if owner not in owners}
    for stem, names in scoped.items():
        unscoped_owners = [
            owner for name, owner in owners.items() if _split_number(_last_part(name))[0] == stem
        ]
        owners |= _without_scopes(stored_tensors, names, unscoped_owners)
    return owners


def _without_scopes(
    stored_tensors: Mapping[str, StoredTensor], names: Sequence[str], unscoped_owners: Sequence[str]
) -> dict[str, str]:
    """Return {slot name: variable name} for slots with names that begin with a scope.

    An optimizer prepends its scope to all its slots. If some of them match no variable, or others
    are beside variables in this scope, they are slots of variables that the file does not have.

    Args:
        stored_tensors: All tensors.
        names: The slots of optimizers with one name.
        unscoped_owners: The variables that have such slots without a scope.
    """
    owners: dict[str, tuple[str, str]] = {}
    for name in names:
        parts = name.rpartition("/")[0].split("/", _MAX_SCOPES)
        for start in range(1, len(parts)):
            candidate = "/".join(parts[start:])
            variable = stored_tensors.get(candidate)
            if variable is not None and variable.shape == stored_tensors[name].shape:
                owners[name] = "/".join(parts[:start]) + "/", candidate
                break
    scopes = {
        scope
        for scope, _ in owners.values()
        if all(name in owners for name in names if name.startswith(scope))
        and not any(owner.startswith(scope) for owner in unscoped_owners)
    }
    return {name: owner for name, (scope, owner) in owners.items() if scope in scopes}


def _is_alike(tensor: StoredTensor, variable: StoredTensor) -> bool:
    """Return True if dtype and shape are equal."""
    return tensor.dtype == variable.dtype and tensor.shape == variable.shape


def _optimizers_named(
    stem: str, slots: Slots, families: Sequence[Family], path: str
) -> list[FoundOptimizer]:
    """Return the optimizers whose slots are named after `stem`.

    If none or several of `families` fit the number of slots, the result is one optimizer without
    a family.
    """
    slot_count = max(len(parts) for parts in slots.values())
    exact = [family for family in families if len(family.slots) == slot_count]
    nonempty = [family for family in families if family.slots]
    multiples = [family for family in nonempty if slot_count % len(family.slots) == 0]
    for matching in (exact, multiples):
        if len(matching) == 1:
            return _optimizers_of_family(matching[0], slots, path)
    parts = sorted({part for parts in slots.values() for part in parts}, key=_split_number)
    candidates = families or [family for family in V1 if len(family.slots) == len(parts)]
    return [
        FoundOptimizer(
            name=stem,
            face="v1",
            family=None,
            candidates=tuple(dict.fromkeys(family.cls for family in candidates)),
            evidence=f"slots {', '.join(parts)}",
            slots=slots,
            scalars={},
            title=stem,
        )
    ]


def _optimizers_of_family(family: Family, slots_by_part: Slots, path: str) -> list[FoundOptimizer]:
    """Return the optimizers of a family, in order of creation.

    A variable numbers its slots, whichever optimizer they belong to. So a variable that only some
    of the optimizers trained does not show which; if only one did, each of them has its slots.

    Raises:
        UnsupportedCheckpointError: Several optimizers trained a variable, but not all, so that
            their order does not show which.
    """
    sets = list(_numbered_slots(family, slots_by_part))
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


def _numbered_slots(family: Family, slots_by_part: Slots) -> Iterator[tuple[list[str], Slots]]:
    """Yield the names and slots of the first optimizer of a family, of the second, and so on."""
    width = Counter(part for _, part in family.parts)
    for place in itertools.count():
        used = Counter({part: place * count for part, count in width.items()})
        names: dict[str, str] = {}
        for kind, part in family.parts:
            names[kind] = f"{part}_{used[part]}" if used[part] else part
            used[part] += 1
        slots = {
            variable: {kind: parts[name] for kind, name in names.items() if name in parts}
            for variable, parts in slots_by_part.items()
            if any(name in parts for name in names.values())
        }
        if not slots:
            return
        yield list(names.values()), slots


def _found_optimizer(family: Family, names: Iterable[str], slots: Slots) -> FoundOptimizer:
    """Return a detected optimizer with slots and without scalars; `names` are its slot names."""
    return FoundOptimizer(
        name=family.title,
        face="openseq2seq" if family.cls == "NovoGrad" else "v1",
        family=family,
        candidates=(family.cls, *family.aliases),
        evidence=f"slots {', '.join(names)}",
        slots=slots,
        scalars={},
        hyperparameters=dict(family.options),
        title=family.title,
    )
