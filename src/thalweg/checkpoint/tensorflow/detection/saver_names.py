"""Sorting of tensors in a file of `tf.train.Saver` into variables and optimizer state.

A slot of `w` is called `w/Adam`, the next one `w/Adam_1`: the optimizer's name (the *stem*),
numbered in order of creation. An optimizer that was built inside of a variable scope prepends the
scope: `scope/w/Adam`. Scalars have names without a variable: `beta1_power`, and of a second
optimizer `beta1_power_1`.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from thalweg._formats.stored_tensor import StoredTensor
from thalweg.checkpoint.tensorflow.detection.beta_powers import split_powers, with_powers
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import (
    GLOBAL_STEP,
    FoundOptimizer,
    Slots,
    TensorFlowCheckpoint,
    split_mixed_precision,
    with_loss_scale,
)
from thalweg.checkpoint.tensorflow.detection.scalars import FLOATS, INTEGERS, scale_in
from thalweg.checkpoint.tensorflow.detection.slot_families import V1, Family, families_titled
from thalweg.errors import UnsupportedCheckpointError, listed

AVERAGE = "ExponentialMovingAverage"
_REGISTERED_STEMS = frozenset({family.title for family in V1} | {AVERAGE})
# The most scopes of a name. Each is tried as the end of a prefix.
_MAX_SCOPES = 100


def sorted_names(
    path: str, stored_tensors: Mapping[str, StoredTensor], families: Sequence[Family] = ()
) -> TensorFlowCheckpoint:
    """Sort the tensors of a name-based checkpoint into variables, optimizers and counters.

    Args:
        stored_tensors: {name: tensor}.
        families: Optional. The user's optimizer classes, with their slots. Slot names of these
            classes take precedence over TensorFlow's defaults.
    """
    mixed, other_tensors = split_mixed_precision(stored_tensors)
    powers, other_tensors = split_powers(other_tensors)
    counters = {name: tensor for name, tensor in other_tensors.items() if _is_counter(name, tensor)}
    stems = frozenset(suffix for family in families for _, suffix in family.parts)
    masters = mixed.names if mixed else {}
    # Slots of masters are named after the masters, and become slots of the masters' variables.
    candidates = {**other_tensors, **{name: stored_tensors[name] for name in masters}}
    variables_by_slot = _find_owners(candidates, _REGISTERED_STEMS | stems)
    variables = {name: masters.get(owner, owner) for name, owner in variables_by_slot.items()}
    slots_by_suffix = _group_by_owner(variables, other_tensors, path)
    groups = _group_by_stem(slots_by_suffix)
    averages = groups.pop(AVERAGE, {})
    optimizers = _find_optimizers(groups, families, slots_by_suffix, path)
    optimizers = with_powers(optimizers, powers, counters)
    optimizers, scale = _add_loss_scale(optimizers, families, other_tensors)
    return TensorFlowCheckpoint(
        path=path,
        kind="saver",
        variables={
            name: tensor
            for name, tensor in other_tensors.items()
            if name not in variables_by_slot and name not in counters and name not in scale
        },
        optimizers=tuple(optimizers),
        counters=counters,
        averages={
            name: by_suffix[AVERAGE] for name, by_suffix in averages.items() if AVERAGE in by_suffix
        },
        mixed=mixed,
        source=dict(stored_tensors),
    )


def _add_loss_scale(
    optimizers: list[FoundOptimizer],
    families: Sequence[Family],
    stored_tensors: Mapping[str, StoredTensor],
) -> tuple[list[FoundOptimizer], dict[str, StoredTensor]]:
    """Add the file's loss scale, with notes, to a copy of the only optimizer.

    If `optimizers` is empty, an optimizer for the scale is made from the first of `families` that
    has no slots. If there is no such family, or if there are several optimizers, the loss scale is
    not added.

    Returns:
        The optimizers, and {name: tensor} of the scale; {} if the scale was not added.
    """
    scale = scale_in(stored_tensors)
    if scale and not optimizers:
        # An optimizer without slots shows only by the scale of its loss, if its class is known.
        slotless = [family for family in families if not family.slots]
        optimizers = [_describe_optimizer(family, (), {}) for family in slotless[:1]]
    if not scale or len(optimizers) != 1:
        return optimizers, {}
    return [with_loss_scale(optimizers[0], scale)], scale


def _find_optimizers(
    groups: Mapping[str, Slots], families: Sequence[Family], slots_by_suffix: Slots, path: str
) -> list[FoundOptimizer]:
    """Return the optimizers to which the slots in a file belong.

    Args:
        groups: {stem: slots}; the stem of a slot "w/Adam_1" is "Adam".
        families: The families that the user named; they are tried before TensorFlow's.
        slots_by_suffix: {variable: {last part of the slot name: slot}}.
    """
    # Slots with several stems are in several groups, so such a family divides all slots first.
    optimizers: list[FoundOptimizer] = []
    for family in families:
        if len(set(family.names.values())) > 1 and not optimizers:
            optimizers += _split_by_optimizer(family, slots_by_suffix, path)
    suffixes = {suffix for family in families for _, suffix in family.parts}
    for stem in sorted(groups.keys() - (suffixes if optimizers else set())):
        matching = families_titled(stem, families) or families_titled(stem)
        optimizers += _identify_by_stem(stem, groups[stem], matching, path)
    return optimizers


def _group_by_owner(
    variables_by_slot: Mapping[str, str], stored_tensors: Mapping[str, StoredTensor], path: str
) -> Slots:
    """Return {variable name: {last part of the slot name, such as "Adam_1": slot}}.

    Raises:
        UnsupportedCheckpointError: Names of two slots of a variable end alike.
    """
    slots_by_suffix: Slots = defaultdict(dict)
    names: dict[tuple[str, str], str] = {}
    for name, owner in variables_by_slot.items():
        key = owner, _last_part(name)
        if key in names:
            raise UnsupportedCheckpointError(
                f"{path}: {names[key]!r} and {name!r} may both be slots of {owner!r}, made in"
                " different scopes; which optimizer they are of the names do not tell."
            )
        names[key] = name
        slots_by_suffix[owner][key[1]] = stored_tensors[name]
    return slots_by_suffix


def _group_by_stem(slots_by_suffix: Slots) -> dict[str, Slots]:
    """Return {stem: slots}; the stem of a slot name "w/Adam_1" is "Adam"."""
    groups: dict[str, Slots] = defaultdict(dict)
    for owner, by_suffix in slots_by_suffix.items():
        for suffix, tensor in by_suffix.items():
            groups[_split_number(suffix)[0]].setdefault(owner, {})[suffix] = tensor
    return groups


def _last_part(name: str) -> str:
    """Return the part of a name after the last "/"."""
    return name.rpartition("/")[2]


def _split_number(suffix: str) -> tuple[str, int]:
    """Return the name and the number of "Adam_1"; the number of "Adam" is 0."""
    match = re.fullmatch(r"(.+?)(?:_([1-9][0-9]{0,8}))?", suffix, re.DOTALL)
    return (match[1], int(match[2] or 0)) if match else (suffix, 0)


def _is_counter(name: str, tensor: StoredTensor) -> bool:
    """Return True for a scalar called "global_step" in any scope."""
    is_scalar = tensor.dtype in (*INTEGERS, *FLOATS) and not tensor.shape
    return is_scalar and _last_part(name) == GLOBAL_STEP


def _find_owners(
    stored_tensors: Mapping[str, StoredTensor], registered_stems: frozenset[str]
) -> dict[str, str]:
    """Return {slot name: variable name}; all other tensors are not slots.

    A name "w/Adam_1" consists of a variable's name and a suffix with the stem "Adam". A tensor with
    such a name is a slot if the stem is in `registered_stems`, or if tensor and variable have equal
    dtype and shape. With a registered stem, the name may begin with additional scopes.
    """
    variables_by_slot: dict[str, str] = {}
    scoped: dict[str, list[str]] = defaultdict(list)
    for name, tensor in stored_tensors.items():
        owner, _, suffix = name.rpartition("/")
        stem = _split_number(suffix)[0]
        is_registered = stem in registered_stems or suffix in registered_stems
        var = stored_tensors.get(owner)
        if var and (is_registered or (tensor.dtype, tensor.shape) == (var.dtype, var.shape)):
            variables_by_slot[name] = owner
        elif is_registered and owner:
            scoped[stem].append(name)
    # The owner must be a variable, not a slot.
    variables_by_slot = {
        name: owner for name, owner in variables_by_slot.items() if owner not in variables_by_slot
    }
    for stem, names in scoped.items():
        unscoped_variables = [
            owner
            for name, owner in variables_by_slot.items()
            if _split_number(_last_part(name))[0] == stem
        ]
        variables_by_slot |= _find_scoped_owners(stored_tensors, names, unscoped_variables)
    return variables_by_slot


def _find_scoped_owners(
    stored_tensors: Mapping[str, StoredTensor],
    names: Sequence[str],
    unscoped_variables: Sequence[str],
) -> dict[str, str]:
    """Return {slot name: variable name} for slots whose names begin with an additional scope.

    An optimizer made in a scope prepends the scope to all its slots: "scope/w/Adam" is a slot of
    "w". So a scope counts only if each of `names` in it matches a variable of equal shape, and if
    no variable in `unscoped_variables` is in it.

    Args:
        names: Slot names with one stem, such as "Adam", for which no variable "scope/w" exists.
        unscoped_variables: The variables that have a slot of this stem without additional scopes.
    """
    locations: dict[str, tuple[str, str]] = {}
    for name in names:
        segments = name.rpartition("/")[0].split("/", _MAX_SCOPES)
        for start in range(1, len(segments)):
            candidate = "/".join(segments[start:])
            variable = stored_tensors.get(candidate)
            if variable is not None and variable.shape == stored_tensors[name].shape:
                locations[name] = "/".join(segments[:start]) + "/", candidate
                break
    scopes = {
        scope
        for scope, _ in locations.values()
        if all(name in locations for name in names if name.startswith(scope))
        and not any(owner.startswith(scope) for owner in unscoped_variables)
    }
    return {name: owner for name, (scope, owner) in locations.items() if scope in scopes}


def _identify_by_stem(
    stem: str, slots: Slots, families: Sequence[Family], path: str
) -> list[FoundOptimizer]:
    """Return the optimizers whose slots have names such as "w/Adam_1", with the stem "Adam".

    The largest number of slots per variable decides. The only family (class) with this number of
    slots is selected. Otherwise, a family whose number of slots divides it stands for several equal
    optimizers. If no family or several fit, return one optimizer with all slots and `family` None.
    """
    slot_count = max(len(suffixes) for suffixes in slots.values())
    exact = [family for family in families if len(family.slots) == slot_count]
    nonempty = [family for family in families if family.slots]
    multiples = [family for family in nonempty if slot_count % len(family.slots) == 0]
    for matching in (exact, multiples):
        if len(matching) == 1:
            return _split_by_optimizer(matching[0], slots, path)
    suffixes = sorted(
        {suffix for suffixes in slots.values() for suffix in suffixes}, key=_split_number
    )
    candidates = families or [family for family in V1 if len(family.slots) == len(suffixes)]
    return [
        FoundOptimizer(
            name=stem,
            face="v1",
            family=None,
            candidates=tuple(dict.fromkeys(family.cls for family in candidates)),
            evidence=f"slots {', '.join(suffixes)}",
            slots=slots,
            scalars={},
            title=stem,
        )
    ]


def _split_by_optimizer(family: Family, slots_by_suffix: Slots, path: str) -> list[FoundOptimizer]:
    """Divide slots among equal optimizers of a family; return them in order of creation.

    TensorFlow numbers the slots of each variable: "Adam_2" begins the second optimizer that trained
    this variable. If a variable has slots of one optimizer only, the optimizer is unknown. Then all
    optimizers get these slots, with a note.

    Raises:
        UnsupportedCheckpointError: A variable has slots of several optimizers, but not of all.
    """
    sets = list(_split_by_number(family, slots_by_suffix))
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
        replace(
            _describe_optimizer(family, names, {**first, **slots}), notes=(note,) if first else ()
        )
        for names, slots in sets
    ]


def _split_by_number(family: Family, slots_by_suffix: Slots) -> Iterator[tuple[list[str], Slots]]:
    """Yield (slot names, {variable: {kind: slot}}) of the first, second, ... optimizer.

    The iteration ends at the first optimizer without slots.
    """
    width = Counter(suffix for _, suffix in family.parts)
    for index in itertools.count():
        used = Counter({suffix: index * count for suffix, count in width.items()})
        names: dict[str, str] = {}
        for kind, suffix in family.parts:
            names[kind] = f"{suffix}_{used[suffix]}" if used[suffix] else suffix
            used[suffix] += 1
        slots = {
            variable: {kind: by_suffix[name] for kind, name in names.items() if name in by_suffix}
            for variable, by_suffix in slots_by_suffix.items()
            if any(name in by_suffix for name in names.values())
        }
        if not slots:
            return
        yield list(names.values()), slots


def _describe_optimizer(family: Family, names: Iterable[str], slots: Slots) -> FoundOptimizer:
    """Return an optimizer of the family, without scalars; `names` are its slot names."""
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
