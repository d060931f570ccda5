"""The arguments that are tried where two optimizers part, each alone.

Every boolean argument of either is turned over, but for those that choose how a step is computed
(`side.MACHINERY`) or turn it around; an argument that both have with different values takes that
of the other; and the values of the table below are tried for the arguments that have these names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from thalweg.conform.candidate import MACHINERY, Candidate

VALUES: dict[str, tuple[Any, ...]] = {
    "clip_exp": (0.25, 0.333),
    "clip_grad_norm": (1.0,),
    "clip_threshold": (1.0,),
    "decay_rate": (-0.8, 0.8),
    "eps": (1e-16, 1e-15, 1e-8, 1e-6),
    "initial_accumulator_value": (0.0, 0.1),
    "max_grad_norm": (None, 0.0, 1.0),
    "momentum": (0.0, 0.9),
    "momentum_decay": (0.0, 0.004),
    "n_sma_threshold": (4, 5),
    "ns_coefficients": ((3.4445, -4.7750, 2.0315),),
    "r": (0.0,),
    "trust_coefficient": (0.001, 1.0),
    "weight_lr_power": (0.0, 2.0),
}
# Given to both at once: says that they part in what these add.
BOTH: dict[str, tuple[Any, ...]] = {"weight_decay": (0.0,)}


def list_trials(theirs: Candidate, ours: Candidate) -> Iterator[tuple[str, Candidate, Candidate]]:
    """Yield the name of each change, and both sides with it."""
    mine, own = theirs.known_values(), ours.known_values()
    for name, value in _list_changes(mine, own):
        yield f"theirs {name}={value!r}", theirs.with_arguments(**{name: value}), ours
    for name, value in _list_changes(own, mine):
        yield f"ours {name}={value!r}", theirs, ours.with_arguments(**{name: value})

    for name, values in BOTH.items():
        for value in values:
            if mine.get(name, value) != value and own.get(name, value) != value:
                yield (f"both {name}={value!r}", theirs.with_arguments(**{name: value}),
                       ours.with_arguments(**{name: value}))  # fmt: skip


def _list_changes(own: dict[str, object], other: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """What is tried of one side: name and value, each once."""
    for name, value in own.items():
        if name in MACHINERY or name == "maximize":
            continue
        further = [not value] if isinstance(value, bool) else list(VALUES.get(name, ()))
        if name in other and not isinstance(value, bool):
            further.insert(0, other[name])
        told: list[Any] = [value]
        for each in further:
            if not any(each is known or each == known for known in told):
                told.append(each)
                yield name, each
