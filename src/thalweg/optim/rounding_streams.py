"""Identification of the random bits of parameters, for stochastic rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._core.dtensor import is_on_mesh
from thalweg._core.param_groups import Group, parameter_names, params_of
from thalweg._engines.random_bits import Place
from thalweg.errors import InvalidTypeError
from thalweg.formula import Rule
from thalweg.optim.dtensor_params import has_positions, positions_of
from thalweg.variable import REDUCED, dtype_name


def places_of(optimizer: Any, rule: Rule, params: Sequence[Tensor]) -> list[Place]:
    """Return for each parameter the pair that selects its random bits.

    A pair is (index of the parameter in the optimizer, positions of its local elements in the full
    tensor).
    """
    check_params(optimizer, rule, params)
    param_indices = {id(param): k for k, param in enumerate(params_of(optimizer.param_groups))}
    return [(param_indices[id(param)], positions_of(param)) for param in params]


def check_group(optimizer: Any, group: Group) -> None:
    """Raise if no random bits are defined for parameters of a new group.

    Raises:
        InvalidArgumentError, InvalidTypeError, NotImplementedError: As `check_params`.
    """
    check_params(optimizer, optimizer.rule_of(group), group["params"])


def check_params(optimizer: Any, rule: Rule, params: Sequence[Tensor]) -> None:
    """Raise if a parameter cannot be rounded stochastically.

    Raises:
        InvalidTypeError: A parameter is float64, and has 16-bit slots.
        NotImplementedError: A DTensor is not contiguous, or has placements other than `Shard` and
            `Replicate`; or it is on a GPU, with elements that are not adjacent in the full tensor.
    """
    for param in params:
        requirement = ""
        if is_on_mesh(param) and not has_positions(param):
            requirement = (
                "round='stochastic' is defined for contiguous ones whose placements are Shard or"
                " Replicate"
            )
        elif param.device.type == "cuda" and not isinstance(positions_of(param), int):
            requirement = (
                "on a GPU round='stochastic' is defined for those that are cut along dimension 0,"
                " or not at all"
            )
        if requirement:
            placements = ", ".join(map(str, cast("Any", param).placements))
            raise NotImplementedError(
                f"'{_name_of(optimizer, param)}' is a DTensor with the placements ({placements});"
                f" {requirement}."
            )
        if param.dtype == torch.float64:
            _check_wide(optimizer, rule, param)


def _check_wide(optimizer: Any, rule: Rule, param: Tensor) -> None:
    """Raise InvalidTypeError for a float64 parameter with slots of 16 bits."""
    kinds = optimizer.step_options.kinds
    for slot in rule.element_slots:
        dtype = kinds.of(slot, param)
        if dtype in REDUCED:
            raise InvalidTypeError(
                f"'{_name_of(optimizer, param)}' is float64, and slot '{slot.name}' of it"
                f" {dtype_name(dtype)}: round='stochastic' rounds numbers of float32. Give another"
                " state_dtype, or parameters of float32, float16 or bfloat16."
            )


def _name_of(optimizer: Any, param: Tensor) -> str:
    """Return the name of a parameter for messages."""
    (name,) = parameter_names(optimizer.param_groups, [param])
    return name
