"""The beta powers of a file, and the optimizers that they belong to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from thalweg.checkpoint.step_inference import steps_and_betas
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import FoundOptimizer
from thalweg.checkpoint.tensorflow.detection.scalars import count_of

if TYPE_CHECKING:
    from thalweg._formats.stored_tensor import StoredTensor

_POWER = re.compile(r"(?:(.*)/)?(beta[12]_power)(?:_([1-9][0-9]{0,8}))?", re.DOTALL)
_FLOATS = ("F32", "F64")

Sets = dict[str, dict[str, "StoredTensor"]]  # by what stands around the names: "scope/" and "_1"


def split_powers(tensors: Mapping[str, StoredTensor]) -> tuple[Sets, dict[str, StoredTensor]]:
    """Return the powers, each optimizer's by their short names, and everything else."""
    found: Sets = {}
    rest: dict[str, StoredTensor] = {}
    for name, value in tensors.items():
        match = _POWER.fullmatch(name)
        if match is None or value.shape or value.dtype not in _FLOATS:
            rest[name] = value
            continue
        scope, power, number = match.groups()
        found.setdefault(f"{scope or ''} {number or ''}", {})[power] = value
    return found, rest


def with_powers(
    optimizers: Sequence[FoundOptimizer], sets: Sets, counters: Mapping[str, StoredTensor]
) -> list[FoundOptimizer]:
    """Return the optimizers with their powers, and the steps that these tell.

    A second optimizer of the same name has the second set. Where there are more sets than that,
    optimizers of other variables share a name; where there are several names, no order of sets is
    known: then there is an optimizer for each set, with all the slots. Sets that are alike are one.
    """
    sets = sets if _are_different(sets) else dict(list(sets.items())[:1])
    counts = {name: count_of(value) for name, value in counters.items()}
    numbers = {name: count for name, count in counts.items() if count is not None}
    having = [each for each in optimizers if _has_powers(each)]
    sharing = len(sets) > 1 and (len(sets) != len(having) or len({e.name for e in having}) > 1)
    pairs: list[tuple[FoundOptimizer, dict[str, StoredTensor]]] = []
    for found in optimizers:
        if not sets or not _has_powers(found):
            pairs.append((found, {}))
        elif sharing:
            pairs += [(_with_shared_name(found, key), own) for key, own in sets.items()]
        else:
            index = next(at for at, each in enumerate(having) if each is found)
            own = list(sets.values())
            pairs.append((found, own[min(index, len(own) - 1)]))
    return [with_steps(found, own, numbers) for found, own in pairs]


def with_steps(
    found: FoundOptimizer, powers: Mapping[str, StoredTensor], counters: Mapping[str, int]
) -> FoundOptimizer:
    """Return the optimizer with the number of its steps, and betas that follow from the powers.

    Args:
        found: The optimizer.
        powers: Its powers.
        counters: Numbers of steps from elsewhere, by name.
    """
    values = {name.removesuffix("_power"): each.array()[()] for name, each in powers.items()}
    steps = steps_and_betas(values, counters)
    shown = ", ".join(f"{name}={each.array().item():.6g}" for name, each in powers.items())
    return replace(
        found,
        scalars={**found.scalars, **powers},
        evidence=f"{found.evidence}, powers {shown}" if shown else found.evidence,
        hyperparameters={**found.hyperparameters, **steps.betas},
        steps=steps.count,
        notes=(*found.notes, *steps.notes),
        unclear=steps.unclear,
    )


def _are_different(sets: Sets) -> bool:
    return (
        len({tuple(sorted((n, bytes(s.data)) for n, s in own.items())) for own in sets.values()})
        > 1
    )


def _has_powers(found: FoundOptimizer) -> bool:
    if found.family is not None:
        return bool(found.family.powers)
    return any(len(own) == 2 for own in found.slots.values())


def _with_shared_name(found: FoundOptimizer, key: str) -> FoundOptimizer:
    scope, _, number = key.partition(" ")
    title = f"{scope}/" * bool(scope) + "beta1_power" + f"_{number}" * bool(number)
    note = f"several optimizers are called {found.name}: this one has {title}; give its variables"
    return replace(found, notes=(*found.notes, note))
