"""The state of training as named tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg.engines import saturate
from thalweg.errors import FailedPreconditionError
from thalweg.graph import is_symbolic
from thalweg.openseq2seq.optimizers.accumulation import ACCUMULATOR, Accumulators
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.masters import Masters
from thalweg.v1.train.matching import check_matches, distinct_names, tensors_of
from thalweg.v1.train.optimizer import Optimizer
from thalweg.v1.train.state import base_name
from thalweg.variable import REDUCED

_MASTER = "master"


def keys_of(variables: Sequence[Any]) -> list[str]:
    """The names of variables, each another."""
    return distinct_names([base_name(var) for var in variables], "#")


def state_of(
    optimizer: Optimizer,
    variables: Sequence[Any],
    masters: Masters,
    scaler: AutomaticLossScaler | None,
    accumulators: Accumulators | None = None,
) -> dict[str, Tensor]:
    """Copies of masters, slots, accumulators and the scaler's state.

    Raises:
        FailedPreconditionError: The state is variables of a graph.
    """
    _refuse_symbols(variables)
    if _present(optimizer, variables, masters, accumulators):
        _complete(optimizer, variables, masters, accumulators)  # a first run may make no update
    present = _present(optimizer, variables, masters, accumulators)
    found = {name: each.detach().clone() for name, each in present.items()}
    if scaler is not None:
        found |= {f"loss_scale/{name}": value for name, value in scaler.state_dict().items()}
    return found


def load_state(
    state: Mapping[str, Any],
    optimizer: Optimizer,
    variables: Sequence[Any],
    masters: Masters,
    scaler: AutomaticLossScaler | None,
    accumulators: Accumulators | None = None,
    others: Mapping[str, Tensor] | None = None,
) -> None:
    """Set all state from `state_of`, and variables to their masters; all or nothing.

    Args:
        state: The state.
        optimizer, variables, masters, scaler, accumulators: What it is loaded into.
        others: More tensors that the state has by name.

    Raises:
        CheckpointMismatchError: Names, shapes or dtypes differ.
        FailedPreconditionError: The state is variables of a graph.
    """
    _refuse_symbols(variables)
    given = tensors_of(state)
    own = {} if scaler is None else {f"loss_scale/{k}": v for k, v in scaler.variables.items()}
    own |= dict(others or {})
    present = _present(optimizer, variables, masters, accumulators)
    begins = not present and set(given) <= set(own)  # it was saved before the first step
    # What there is decides: a variable may have another shape or dtype by now than its slots.
    expected = {} if begins else _expected(optimizer, variables, accumulators) | present
    check_matches(given, own | expected, "The state of this training")
    if not begins:
        _complete(optimizer, variables, masters, accumulators)
        own |= _present(optimizer, variables, masters, accumulators)
    with torch.no_grad():
        for name, value in given.items():
            own[name].copy_(value)
        for var in variables:
            if var.dtype in REDUCED and masters.get(var) is not None:
                saturate(masters.get(var), var)


def _present(
    optimizer: Optimizer,
    variables: Sequence[Any],
    masters: Masters,
    accumulators: Accumulators | None,
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, var in zip(keys_of(variables), variables, strict=True):
        master = masters.get(var)
        target = var if master is None else master
        if master is not None:
            found[f"{key}/{_MASTER}"] = master
        found |= {f"{key}/{n}": s for n, s in optimizer._slots.all_of(target).items()}
        total = None if accumulators is None else accumulators.get(target)
        if total is not None:
            found[f"{key}/{ACCUMULATOR}"] = total
    if found:
        found |= {name: each for (name, _), each in optimizer._non_slots.items()}
    return found


def _complete(
    optimizer: Optimizer,
    variables: Sequence[Any],
    masters: Masters,
    accumulators: Accumulators | None,
) -> None:
    """Make what is missing of masters, slots and accumulators."""
    targets = [masters.of(var) for var in variables]
    optimizer._create_slots(targets)
    if accumulators is not None:
        accumulators.make(targets)


def _expected(
    optimizer: Optimizer, variables: Sequence[Any], accumulators: Accumulators | None
) -> dict[str, Any]:
    """State of these names, shapes and dtypes, without touching the optimizer's own."""
    twin = optimizer._stateless()
    stand_ins = Masters()
    sums = None if accumulators is None else Accumulators()
    _complete(twin, variables, stand_ins, sums)
    return _present(twin, variables, stand_ins, sums)


def _refuse_symbols(values: Any) -> None:
    if any(map(is_symbolic, values)):
        raise FailedPreconditionError(
            "The state is variables of a graph: a session has its values. Run the variables."
        )
