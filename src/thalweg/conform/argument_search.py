"""Argument changes to try, one at a time, for two optimizers that differ.

Every boolean argument is inverted, except `maximize` and those that choose how a step is computed
(`candidate.MACHINERY`). An argument of both takes the value of the other optimizer. Arguments named
in `VALUES` take the values of that table.
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
# Set on both sides at once: agreement shows that the optimizers differ in this term.
BOTH: dict[str, tuple[Any, ...]] = {"weight_decay": (0.0,)}


def list_trials(theirs: Candidate, ours: Candidate) -> Iterator[tuple[str, Candidate, Candidate]]:
    """Yield the description of each change, and both candidates with the change applied."""
    their_values, our_values = theirs.known_values(), ours.known_values()
    for name, value in _list_changes(their_values, our_values):
        yield f"theirs {name}={value!r}", theirs.with_arguments(**{name: value}), ours
    for name, value in _list_changes(our_values, their_values):
        yield f"ours {name}={value!r}", theirs, ours.with_arguments(**{name: value})

    for name, values in BOTH.items():
        for value in values:
            if their_values.get(name, value) != value and our_values.get(name, value) != value:
                yield (f"both {name}={value!r}", theirs.with_arguments(**{name: value}),
                       ours.with_arguments(**{name: value}))  # fmt: skip


def _list_changes(
    arguments: dict[str, object], counterpart: dict[str, Any]
) -> Iterator[tuple[str, object]]:
    """Yield distinct changes (name, value) of the arguments of one candidate."""
    for name, value in arguments.items():
        if name in MACHINERY or name == "maximize":
            continue
        trials = [not value] if isinstance(value, bool) else list(VALUES.get(name, ()))
        if name in counterpart and not isinstance(value, bool):
            trials.insert(0, counterpart[name])
        known_values: list[Any] = [value]
        for trial in trials:
            if not any(trial is known or trial == known for known in known_values):
                known_values.append(trial)
                yield name, trial
