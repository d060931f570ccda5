"""Loading of `thalweg.v1` optimizers from a TensorFlow file."""

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
    """Return a context manager that yields the `Loading` of slots and powers.

    Args:
        optimizer: The optimizer.
        slots: For each variable its slots by kind.
        scalars: The powers by name.

    Raises:
        CheckpointMismatchError: The optimizer has other slots, or its betas have other powers.
    """
    state_dict = dict(scalars)
    betas = _constant_betas(optimizer)
    problems = describe_contradictions(state_dict, betas)
    if problems:
        raise state.mismatch(problems)
    state_dict |= _implied_powers(state_dict, betas)
    variables = [var for var, _ in slots]
    for key, (_, kinds) in zip(state.keys_of(variables), slots, strict=True):
        state_dict |= {f"{key}/{kind}": slot for kind, slot in kinds.items()}
    return optimizer._loading(state_dict, variables)


def with_moving_averages(optimizer: object, slots: Slots, mapped: MappedTensors) -> Slots:
    """Return slots with the file's averages, for a `MovingAverageOptimizer` among the wrappers."""
    wrapper: Any = optimizer
    while not isinstance(wrapper, MovingAverageOptimizer):
        if not isinstance(wrapper, WrappingOptimizer):
            return slots
        wrapper = cast(Any, wrapper)._opt
    kind: str = cast(Any, wrapper)._ema.name
    slots_by_id = {id(var): (var, dict(kinds)) for var, kinds in slots}
    for name, average in mapped.file.averages.items():
        if name in mapped.places:
            var = mapped.target(name)
            slots_by_id.setdefault(id(var), (var, {}))[1][kind] = mapped.permute_like(name, average)
    return [*slots_by_id.values()]


def _constant_betas(optimizer: train.Optimizer) -> dict[str, object]:
    """Return the betas that are numbers, by the names of their powers."""
    inner: object = inner_of(optimizer)
    if not isinstance(inner, train.AdamOptimizer):
        return {}
    hypers = {power: getattr(inner, inner.HYPERS[hyper]) for power, hyper in inner.POWERS.items()}
    return {power: beta for power, beta in hypers.items() if is_number(beta)}


def describe_contradictions(powers: Mapping[str, Tensor], betas: Mapping[str, object]) -> list[str]:
    """Return reasons why the powers are not those of these betas after one number of steps."""
    problems: list[str] = []
    counts: dict[str, int] = {}
    powers = {name: power for name, power in powers.items() if power.is_floating_point()}
    for name in [name for name in powers if name in betas]:
        power, beta = _as_scalars(powers[name], betas[name])
        count = steps_of(power, beta)
        if count is not None:
            counts[name] = count
        elif 0 < power < 1 and 0 < beta < 1:
            short = name.removesuffix("_power")
            problems.append(f"{name!r} is {power!s}, no power of {short}={betas[name]}")
    if len(set(counts.values())) > 1:
        counts_text = " and ".join(f"{name!r} after {count}" for name, count in counts.items())
        problems.append(f"the powers are those of different numbers of steps: {counts_text}")
    for name in [name for name in powers if name in betas and name not in counts and counts]:
        power, beta = _as_scalars(powers[name], betas[name])
        count = next(iter(counts.values()))
        if power == 0 and power_after(beta, count) != 0:
            short = name.removesuffix("_power")
            problems.append(f"{name!r} is 0, no power of {short}={betas[name]} after {count} steps")
    return problems


def _as_scalars(power: Tensor, beta: object) -> tuple[Any, Any]:
    """Return a power and its beta as NumPy scalars of the power's dtype."""
    scalar = power.numpy()[()]
    return scalar, scalar.dtype.type(np.float32(beta) if type(beta) is float else beta)


def _implied_powers(powers: Mapping[str, Tensor], betas: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return powers that the optimizer has and the file lacks: contrib's AdaMax stores only one."""
    if not powers:
        return {}
    counts = [steps_of(*_as_scalars(powers[name], betas[name])) for name in powers if name in betas]
    implied: dict[str, Tensor] = {}
    for name in betas.keys() - powers.keys():
        beta = np.float32(betas[name])
        count = next((known_count for known_count in counts if known_count is not None), None)
        power = np.float32(0) if count is None else power_after(beta, count)
        implied[name] = torch.tensor(float(power), dtype=torch.float32, device="cpu")
    return implied
