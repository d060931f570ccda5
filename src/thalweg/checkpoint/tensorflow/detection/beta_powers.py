"""Beta powers in a file, and their assignment to optimizers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from thalweg._formats.stored_tensor import StoredTensor
from thalweg.checkpoint.step_inference import steps_and_betas
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import FoundOptimizer
from thalweg.checkpoint.tensorflow.detection.scalars import count_of

_POWER = re.compile(r"(?:(.*)/)?(beta[12]_power)(?:_([1-9][0-9]{0,8}))?", re.DOTALL)
_FLOATS = ("F32", "F64")

# {scope and number in the names: {"beta1_power": tensor, ...}}; the key of "s/beta1_power_1" is
# "s 1".
Sets = dict[str, dict[str, StoredTensor]]


def split_powers(
    stored_tensors: Mapping[str, StoredTensor],
) -> tuple[Sets, dict[str, StoredTensor]]:
    """Split tensors into beta powers and other tensors.

    Returns:
        {"scope number": {"beta1_power": tensor, ...}}, and {name: tensor} of the other tensors. The
        inner dicts, called sets, have the powers of one optimizer: powers whose names have the same
        scope and number.
    """
    sets: Sets = {}
    other_tensors: dict[str, StoredTensor] = {}
    for name, tensor in stored_tensors.items():
        match = _POWER.fullmatch(name)
        if match is None or tensor.shape or tensor.dtype not in _FLOATS:
            other_tensors[name] = tensor
            continue
        scope, power, suffix = match.groups()
        sets.setdefault(f"{scope or ''} {suffix or ''}", {})[power] = tensor
    return sets, other_tensors


def with_powers(
    optimizers: Sequence[FoundOptimizer], sets: Sets, counters: Mapping[str, StoredTensor]
) -> list[FoundOptimizer]:
    """Return copies of the optimizers with beta powers, and step counts inferred from the powers.

    `sets` is the first result of `split_powers`. If all sets are equal, each optimizer that has
    powers gets the first set. If there are as many different sets as such optimizers, and these all
    have the same name, they get the sets in order. If not, each such optimizer is returned once per
    set, with a note. `counters` is {name: tensor} of step counters.
    """
    sets = sets if _are_different(sets) else dict(list(sets.items())[:1])
    counts = {name: count_of(counter) for name, counter in counters.items()}
    step_counts = {name: count for name, count in counts.items() if count is not None}
    candidates = [optimizer for optimizer in optimizers if _has_powers(optimizer)]
    names = {optimizer.name for optimizer in candidates}
    are_ambiguous = len(sets) > 1 and (len(sets) != len(candidates) or len(names) > 1)
    pairs: list[tuple[FoundOptimizer, dict[str, StoredTensor]]] = []
    for detected in optimizers:
        if not sets or not _has_powers(detected):
            pairs.append((detected, {}))
        elif are_ambiguous:
            pairs += [(_with_shared_name(detected, key), powers) for key, powers in sets.items()]
        else:
            index = [optimizer is detected for optimizer in candidates].index(True)
            # Equal sets were reduced to one, which all optimizers get.
            power_sets = list(sets.values())
            pairs.append((detected, power_sets[min(index, len(power_sets) - 1)]))
    return [with_steps(detected, powers, step_counts) for detected, powers in pairs]


def with_steps(
    detected: FoundOptimizer, powers: Mapping[str, StoredTensor], counters: Mapping[str, int]
) -> FoundOptimizer:
    """Return a copy of an optimizer with beta powers, and inferred step count and betas.

    The powers are added to `scalars` and `evidence`. If no step count or several step counts
    explain the powers, `steps` is None, `notes` have the reason, and `unclear` has the names of
    ambiguous betas.

    Args:
        powers: The powers of the optimizer by name, such as "beta1_power".
        counters: {name: step count} of variables in the file.
    """
    values = {name.removesuffix("_power"): power.array()[()] for name, power in powers.items()}
    steps = steps_and_betas(values, counters)
    power_text = ", ".join(f"{name}={power.array().item():.6g}" for name, power in powers.items())
    return replace(
        detected,
        scalars={**detected.scalars, **powers},
        evidence=f"{detected.evidence}, powers {power_text}" if power_text else detected.evidence,
        hyperparameters={**detected.hyperparameters, **steps.betas},
        steps=steps.count,
        notes=(*detected.notes, *steps.notes),
        unclear=steps.unclear,
    )


def _are_different(sets: Sets) -> bool:
    """Return True unless all sets have equal powers."""
    contents = [
        sorted((name, bytes(t.data)) for name, t in powers.items()) for powers in sets.values()
    ]
    return any(content != contents[0] for content in contents)


def _has_powers(detected: FoundOptimizer) -> bool:
    """Return True if the class of an optimizer, or its number of slots, implies beta powers."""
    if detected.family is not None:
        return bool(detected.family.powers)
    return any(len(by_kind) == 2 for by_kind in detected.slots.values())


def _with_shared_name(detected: FoundOptimizer, key: str) -> FoundOptimizer:
    """Return a copy of an optimizer with a note that several have its name; `key` is its scope."""
    scope, _, suffix = key.partition(" ")
    power_name = f"{scope}/" * bool(scope) + "beta1_power" + f"_{suffix}" * bool(suffix)
    note = f"several optimizers are called {detected.name}: this one has {power_name}"
    note += "; give its variables"
    return replace(detected, notes=(*detected.notes, note))
