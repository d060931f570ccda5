"""Sets an optimizer of `thalweg.keras` to what a file has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from thalweg._core import state
from thalweg._core.hyperparameters import is_function
from thalweg._core.pairs import distinct
from thalweg.checkpoint.tensorflow.importers.optimizer_factory import refuse_contradictions
from thalweg.keras.optimizers.state_dict import FORMAT

_OTHERWISE = {"decay": "_initial_decay"}

Slots = Sequence[tuple[Tensor, Mapping[str, Tensor]]]


def loading_keras(
    optimizer: Any,
    slots: Slots,
    scalars: Mapping[str, Tensor],
    hyperparameters: Mapping[str, Any],
) -> AbstractContextManager[state.Loading]:
    """Return the loading that sets slots, counters and hyperparameters.

    Args:
        optimizer: The optimizer.
        slots: For each variable its slots by kind.
        scalars: "iter", and other values that belong to no variable.
        hyperparameters: The hyperparameters in the file.

    Raises:
        CheckpointMismatchError: The optimizer has other slots or hyperparameters.
    """
    known = optimizer._hyper
    # No number depends on the name, "adam" in files of Keras 3.
    hypers = {n: value for n, value in hyperparameters.items() if n != "name"}
    for name in [name for name in hypers if name in known]:
        if is_function(known.raw(name)):  # a schedule takes the place of the file's
            del hypers[name]
    fixed = {name: value for name, value in hypers.items() if name not in known}
    if "decay" in hyperparameters:  # the variable of this name has no effect, as in TensorFlow
        fixed["decay"] = hyperparameters["decay"]
    own = {name: getattr(optimizer, _OTHERWISE.get(name, name), None) for name in fixed}
    refuse_contradictions(fixed, own)
    variables = [var for var, _ in slots]
    owners = distinct([*optimizer._owners(), *variables])
    keys = dict(zip(map(id, owners), state.keys_of(owners), strict=True))
    weights = {name: value for name, value in scalars.items() if name != "iter"}
    given = {
        "class_name": type(optimizer).__name__,
        "format": FORMAT,
        "iterations": scalars.get("iter", torch.zeros((), dtype=torch.int64, device="cpu")),
        "hyperparameters": {n: each for n, each in hypers.items() if n not in fixed},
        "weights": weights,
        "slots": {keys[id(var)]: dict(own) for var, own in slots},
    }
    return optimizer._loading(given, variables or None)


def without_momentum(slots: Slots) -> Slots:
    """Slots of an optimizer whose momentum is 0; newer versions of Keras make it all the same."""
    return [
        (var, {kind: each for kind, each in own.items() if kind != "momentum"})
        for var, own in slots
    ]
