"""Beta powers of a file, and the optimizers that they belong to."""

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

Sets = dict[str, dict[str, StoredTensor]]  # by what stands around the names: "scope/" and "_1"


def split_powers(
    stored_tensors: Mapping[str, StoredTensor],
) -> tuple[Sets, dict[str, StoredTensor]]:
    """Split tensors into beta powers and others.

    Returns:
        The powers of each optimizer by their names without scope and number, such as "beta1_power";
        the key of each optimizer is the scope and the number. And the other tensors by name.
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
    """Return the optimizers with their powers and the step counts that these imply.

    The second optimizer with the same name has the second set of powers. If there are more sets
    than optimizers, several share a name; if there are several names, the order of sets is unknown:
    then there is one optimizer for each set, with all slots. Equal sets count once.
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
            power_sets = list(sets.values())
            pairs.append((detected, power_sets[min(index, len(power_sets) - 1)]))
    return [with_steps(detected, powers, step_counts) for detected, powers in pairs]


def with_steps(
    detected: FoundOptimizer, powers: Mapping[str, StoredTensor], counters: Mapping[str, int]
) -> FoundOptimizer:
    """Return a copy of an optimizer with powers, and the step count and betas inferred from them.

    The powers are added to the scalars and to the evidence. If no step count explains them, or
    several do, `steps` is None, `notes` has the reason, and `unclear` the names of the betas.

    Args:
        detected: The optimizer.
        powers: The powers of the optimizer by name, such as "beta1_power".
        counters: Step counts from other variables, by name.
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
    """Return True unless all sets have the same powers."""
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
    """Return the optimizer with a note that others have the same name; `key` is its scope."""
    scope, _, suffix = key.partition(" ")
    power_name = f"{scope}/" * bool(scope) + "beta1_power" + f"_{suffix}" * bool(suffix)
    note = f"several optimizers are called {detected.name}: this one has {power_name}"
    note += "; give its variables"
    return replace(detected, notes=(*detected.notes, note))
