"""Load slots in the state layout of each front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.scalars import scalar_type
from thalweg._core import state
from thalweg._core.grads_and_vars import distinct
from thalweg._core.hyperparameters import as_hyper
from thalweg.checkpoint.step_inference import power_after
from thalweg.checkpoint.torch_optim.hyperparameters import beta_of
from thalweg.keras.optimizers.state_dict import FORMAT
from thalweg.variable import name_of, to_tensor


def load_v1(
    optimizer: Any, variables: Sequence[Tensor], slots: Mapping[int, Any], steps: int | None
) -> None:
    """Set all slots and beta powers of a `thalweg.v1` optimizer; on an error set nothing.

    Args:
        variables: The variables; their missing slots are created.
        slots: {id(variable): {name of slot: tensor}}.
        steps: The number of steps, from which powers of beta are computed; None for 0.

    Raises:
        CheckpointMismatchError: A slot is missing, unknown, or has another shape.
    """
    state_dict: dict[str, Any] = {}
    for key, var in zip(state.keys_of(variables), variables, strict=True):
        state_dict |= {f"{key}/{name}": slot for name, slot in slots.get(id(var), {}).items()}
    powers: dict[str, str] = getattr(optimizer, "POWERS", {}) if variables else {}
    for name, hyper in powers.items():
        beta = beta_of(optimizer, hyper)
        power_tensor = optimizer._get_non_slot_variable(name)
        power_tensor = to_tensor(beta) if power_tensor is None else power_tensor
        dtype = scalar_type(power_tensor)
        power = power_after(as_hyper(beta, dtype), steps or 0)
        state_dict[name] = torch.full_like(power_tensor, float(power), requires_grad=False)
    optimizer.load_state_dict(state_dict, variables or None)


def load_keras(
    optimizer: Any,
    variables: Sequence[Tensor],
    slots: Mapping[int, Any],
    steps: int | None,
    product: float = 1.0,
) -> None:
    """Set all slots and numbers of a `thalweg.keras` optimizer; on an error set nothing.

    Args:
        variables: The variables; their missing slots are created.
        slots: {id(variable): {name of slot: tensor}}. All variables that have slots need an entry.
        steps: The value of `iterations`; None keeps the present one.
        product: Nadam's product of the momentum factors of all steps; other optimizers ignore it.

    Raises:
        CheckpointMismatchError: A slot is missing, unknown, or has another shape.
    """
    owners = distinct([*optimizer._slots.owners(), *variables])
    names = state.distinct([name_of(var) for var in owners])
    slots_by_name = {name: slots.get(id(var), {}) for name, var in zip(names, owners, strict=True)}
    weights: dict[str, Tensor] = {}
    for name in optimizer.EXTRA if slots else ():
        weight = optimizer._extra_weights().get(name)
        dtype = variables[0].dtype if weight is None else weight.dtype
        weights[name] = torch.tensor(product, dtype=dtype, device="cpu")
    iterations = optimizer.iterations.item() if steps is None else steps
    state_dict = {
        "class_name": type(optimizer).__name__,
        "format": FORMAT,
        "iterations": torch.tensor(iterations, dtype=torch.int64, device="cpu"),
        "hyperparameters": {},
        "weights": weights,
        "slots": slots_by_name,
    }
    optimizer.load_state_dict(state_dict, variables or None)
