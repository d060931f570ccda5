"""A state in the form that each face loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.scalars import scalar_type
from thalweg._core import state
from thalweg._core.hyperparameters import as_hyper
from thalweg._core.pairs import distinct
from thalweg.checkpoint.step_inference import power_after
from thalweg.checkpoint.torch_optim.hyperparameters import beta_of
from thalweg.keras.optimizers.state_dict import FORMAT
from thalweg.variable import name_of, to_tensor


def into_v1(
    into: Any, variables: Sequence[Tensor], slots: Mapping[int, Any], steps: int | None
) -> None:
    """Set slots and powers of an optimizer of `thalweg.v1`."""
    made: dict[str, Any] = {}
    for key, var in zip(state.keys_of(variables), variables, strict=True):
        made |= {f"{key}/{name}": value for name, value in slots.get(id(var), {}).items()}
    powers: dict[str, str] = getattr(into, "POWERS", {}) if variables else {}
    for name, hyper in powers.items():
        beta = beta_of(into, hyper)
        own = into._get_non_slot_variable(name)
        own = to_tensor(beta) if own is None else own
        kind = scalar_type(own)
        power = power_after(as_hyper(beta, kind), steps or 0)
        made[name] = torch.full_like(own, float(power), requires_grad=False)
    into.load_state_dict(made, variables or None)


def into_keras(
    into: Any,
    variables: Sequence[Tensor],
    slots: Mapping[int, Any],
    steps: int | None,
    product: float = 1.0,
) -> None:
    """Set slots, `iterations` and Nadam's product of an optimizer of `thalweg.keras`."""
    owners = distinct([*into._slots.owners(), *variables])
    titles = state.distinct([name_of(var) for var in owners])
    own = {title: slots.get(id(var), {}) for title, var in zip(titles, owners, strict=True)}
    weights: dict[str, Tensor] = {}
    for name in into.EXTRA if slots else ():
        known = into._extra_weights().get(name)
        dtype = variables[0].dtype if known is None else known.dtype
        weights[name] = torch.tensor(product, dtype=dtype, device="cpu")
    count = into.iterations.item() if steps is None else steps
    made = {
        "class_name": type(into).__name__,
        "format": FORMAT,
        "iterations": torch.tensor(count, dtype=torch.int64, device="cpu"),
        "hyperparameters": {},
        "weights": weights,
        "slots": own,
    }
    into.load_state_dict(made, variables or None)
