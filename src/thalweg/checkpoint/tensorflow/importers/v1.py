"""Sets an optimizer of `thalweg.v1` to what a file has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._core import state
from thalweg._core.hyperparameters import is_number
from thalweg.checkpoint.step_inference import power_after, steps_of
from thalweg.checkpoint.tensorflow.importers.optimize_loss import inner_of
from thalweg.checkpoint.tensorflow.mapping.mapped_tensors import MappedTensors
from thalweg.v1 import train
from thalweg.v1.contrib.opt import MovingAverageOptimizer
from thalweg.v1.train.wrapping_optimizer import WrappingOptimizer

Slots = Sequence[tuple[Tensor, Mapping[str, Tensor]]]


def loading_v1(
    optimizer: Any, slots: Slots, scalars: Mapping[str, Tensor]
) -> AbstractContextManager[state.Loading]:
    """Return the loading that sets slots and powers.

    Args:
        optimizer: The optimizer.
        slots: For each variable its slots by kind.
        scalars: The powers by name.

    Raises:
        CheckpointMismatchError: The optimizer has other slots, or its betas have other powers.
    """
    own = dict(scalars)
    betas = _constant_betas(optimizer)
    found = describe_contradictions(own, betas)
    if found:
        raise state.mismatch(found)
    own |= _implied_powers(own, betas)
    variables = [var for var, _ in slots]
    for key, (_, kinds) in zip(state.keys_of(variables), slots, strict=True):
        own |= {f"{key}/{kind}": value for kind, value in kinds.items()}
    return optimizer._loading(own, variables)


def with_moving_averages(optimizer: object, slots: Slots, placed: MappedTensors) -> Slots:
    """Return slots with the file's averages, for a `MovingAverageOptimizer` among the wrappers."""
    averaging: Any = optimizer
    while not isinstance(averaging, MovingAverageOptimizer):
        if not isinstance(averaging, WrappingOptimizer):
            return slots
        averaging = cast(Any, averaging)._opt
    kind: str = cast(Any, averaging)._ema.name
    own = {id(var): (var, dict(kinds)) for var, kinds in slots}
    for name, average in placed.file.averages.items():
        if name in placed.places:
            var = placed.target(name)
            own.setdefault(id(var), (var, {}))[1][kind] = placed.permute_like(name, average)
    return [*own.values()]


def _constant_betas(optimizer: train.Optimizer) -> dict[str, object]:
    """The betas that are numbers, by the names of their powers."""
    inner: object = inner_of(optimizer)
    if not isinstance(inner, train.AdamOptimizer):
        return {}
    given = {power: getattr(inner, inner.HYPERS[hyper]) for power, hyper in inner.POWERS.items()}
    return {power: beta for power, beta in given.items() if is_number(beta)}


def describe_contradictions(powers: Mapping[str, Tensor], betas: Mapping[str, object]) -> list[str]:
    """Return reasons why the powers are not those of these betas after one number of steps."""
    found: list[str] = []
    counts: dict[str, int] = {}
    powers = {name: each for name, each in powers.items() if each.is_floating_point()}
    for name in [name for name in powers if name in betas]:
        value, beta = _as_scalars(powers[name], betas[name])
        count = steps_of(value, beta)
        if count is not None:
            counts[name] = count
        elif 0 < value < 1 and 0 < beta < 1:
            short = name.removesuffix("_power")
            found.append(f"{name!r} is {value!s}, no power of {short}={betas[name]}")
    if len(set(counts.values())) > 1:
        shown = " and ".join(f"{name!r} after {count}" for name, count in counts.items())
        found.append(f"the powers are those of different numbers of steps: {shown}")
    for name in [name for name in powers if name in betas and name not in counts and counts]:
        value, beta = _as_scalars(powers[name], betas[name])
        count = next(iter(counts.values()))
        if value == 0 and power_after(beta, count) != 0:
            short = name.removesuffix("_power")
            found.append(f"{name!r} is 0, no power of {short}={betas[name]} after {count} steps")
    return found


def _as_scalars(power: Tensor, beta: object) -> tuple[Any, Any]:
    value = power.numpy()[()]
    return value, value.dtype.type(np.float32(beta) if type(beta) is float else beta)


def _implied_powers(powers: Mapping[str, Tensor], betas: Mapping[str, Any]) -> dict[str, Tensor]:
    """Powers that the optimizer has and the file need not: contrib's AdaMax keeps one."""
    if not powers:
        return {}
    counts = [steps_of(*_as_scalars(powers[name], betas[name])) for name in powers if name in betas]
    found: dict[str, Tensor] = {}
    for name in betas.keys() - powers.keys():
        beta = np.float32(betas[name])
        count = next((each for each in counts if each is not None), None)
        value = np.float32(0) if count is None else power_after(beta, count)
        found[name] = torch.tensor(float(value), dtype=torch.float32, device="cpu")
    return found
