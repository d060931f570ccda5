"""Loading of `thalweg.keras` optimizers from a TensorFlow file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from thalweg._core import state
from thalweg._core.grads_and_vars import distinct
from thalweg._core.hyperparameters import is_function
from thalweg.checkpoint.tensorflow.importers.optimizer_factory import check_contradictions
from thalweg.keras.optimizers.state_dict import FORMAT

_OTHERWISE = {"decay": "_initial_decay"}

Slots = Sequence[tuple[Tensor, Mapping[str, Tensor]]]


def loading_keras(
    optimizer: Any, slots: Slots, scalars: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]
) -> AbstractContextManager[state.Loading]:
    """Return a context manager that validates, and yields the `Loading` of slots and counters.

    Args:
        optimizer: The optimizer.
        slots: For each variable its slots by kind.
        scalars: "iter", and other scalars of the optimizer.
        hyperparameters: The hyperparameters in the file.

    Raises:
        CheckpointMismatchError: The optimizer has other slots or hyperparameters.
    """
    store = optimizer._hyper
    # No number depends on the name, "adam" in files of Keras 3.
    hypers = {name: hyper for name, hyper in hyperparameters.items() if name != "name"}
    for name in [name for name in hypers if name in store]:
        if is_function(store.raw(name)):  # a schedule takes the place of the file's
            del hypers[name]
    fixed = {name: hyper for name, hyper in hypers.items() if name not in store}
    if "decay" in hyperparameters:  # the variable of this name has no effect, as in TensorFlow
        fixed["decay"] = hyperparameters["decay"]
    current = {name: getattr(optimizer, _OTHERWISE.get(name, name), None) for name in fixed}
    check_contradictions(fixed, current)
    variables = [var for var, _ in slots]
    owners = distinct([*optimizer._owners(), *variables])
    keys = dict(zip(map(id, owners), state.keys_of(owners), strict=True))
    weights = {name: weight for name, weight in scalars.items() if name != "iter"}
    state_dict = {
        "class_name": type(optimizer).__name__,
        "format": FORMAT,
        "iterations": scalars.get("iter", torch.zeros((), dtype=torch.int64, device="cpu")),
        "hyperparameters": {name: hyper for name, hyper in hypers.items() if name not in fixed},
        "weights": weights,
        "slots": {keys[id(var)]: dict(by_kind) for var, by_kind in slots},
    }
    return optimizer._loading(state_dict, variables or None)


def without_momentum(slots: Slots) -> Slots:
    """Return slots without the momentum, which newer versions of Keras store even if it is 0."""
    return [
        (var, {kind: slot for kind, slot in by_kind.items() if kind != "momentum"})
        for var, by_kind in slots
    ]
