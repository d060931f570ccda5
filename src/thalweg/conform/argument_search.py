"""Trials of changed arguments, one at a time, that may make two optimizers agree.

Boolean arguments are inverted, except `maximize` and the arguments in `candidate.MACHINERY`, which
choose how a step is computed. If both optimizers have an argument, each tries the value of the
opposite optimizer. Arguments named in `VALUES` take the values of that table.
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
Trial = tuple[str, Candidate, Candidate]

# Set on both sides at once: agreement shows that the optimizers differ in this term.
SHARED_VALUES: dict[str, tuple[Any, ...]] = {"weight_decay": (0.0,)}


def list_trials(external: Candidate, native: Candidate) -> Iterator[Trial]:
    """Yield (description, external candidate, native candidate) for each trial.

    A trial changes one argument of one candidate, or sets an argument of both candidates to a value
    in `SHARED_VALUES`. A changed candidate is a copy. Descriptions are for example "theirs r=0.0"
    for `external`, "ours r=0.0" for `native`, and "both weight_decay=0.0".
    """
    external_values, native_values = external.known_values(), native.known_values()
    for name, value in _list_changes(external_values, native_values):
        yield f"theirs {name}={value!r}", external.with_arguments(**{name: value}), native
    for name, value in _list_changes(native_values, external_values):
        yield f"ours {name}={value!r}", external, native.with_arguments(**{name: value})

    for name, values in SHARED_VALUES.items():
        for value in values:
            both_values = external_values, native_values
            if all(arguments.get(name, value) != value for arguments in both_values):
                yield (f"both {name}={value!r}", external.with_arguments(**{name: value}),
                       native.with_arguments(**{name: value}))  # fmt: skip


def _list_changes(
    arguments: dict[str, object], counterpart: dict[str, Any]
) -> Iterator[tuple[str, object]]:
    """Yield (argument name, new value) for each trial that changes an argument of one candidate.

    A bool is inverted. Any other argument takes its value in `counterpart`, the arguments of the
    opposite candidate, and then the values that `VALUES` has for its name. Values equal to the
    present value are left out, and `maximize` and arguments in `MACHINERY` are not changed.
    """
    for name, value in arguments.items():
        if name in MACHINERY or name == "maximize":
            continue
        trials = [not value] if isinstance(value, bool) else list(VALUES.get(name, ()))
        if name in counterpart and not isinstance(value, bool):
            trials.insert(0, counterpart[name])
        distinct_values: list[Any] = [value]
        for trial in trials:
            if not any(trial is distinct or trial == distinct for distinct in distinct_values):
                distinct_values.append(trial)
                yield name, trial
