"""Stochastic rounding: random bits of parameters, and the options `round` and `seed` of states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core.dtensor import is_on_mesh
from thalweg._core.options.stochastic_rounding import Rounding
from thalweg._core.param_groups import parameter_names
from thalweg._core.state import mismatch
from thalweg.errors import InvalidTypeError
from thalweg.formula import Rule
from thalweg.optim.dtensor_params import has_positions, positions_of
from thalweg.variable import REDUCED, dtype_name

NAMES = tuple(field.name for field in Rounding.keywords())


def check_params(optimizer: Any, rule: Rule, params: Sequence[Tensor]) -> None:
    """Raise if a parameter cannot be rounded stochastically.

    Raises:
        InvalidTypeError: A parameter is float64, and has 16-bit slots.
        NotImplementedError: A DTensor is not contiguous, or has placements other than `Shard` and
            `Replicate`. Or a rank has elements on a GPU that are not adjacent in the full tensor.
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


def make_rounding_entries(optimizer: Any) -> dict[str, Any]:
    """Return the entries of groups with the rounding option of an optimizer and its seed."""
    rounding = optimizer.step_options.of(Rounding)
    return {} if rounding.round is None else {name: getattr(rounding, name) for name in NAMES}


def fit_rounding(optimizer: Any, saved_state: dict[str, Any], convert: bool) -> dict[str, Any]:
    """Return a copy of a saved state without the options `round` and `seed` of its groups.

    Args:
        convert: True to ignore saved options that differ from the optimizer's.

    Raises:
        CheckpointMismatchError: Options differ from the optimizer's, and `convert` is False.
    """
    settings = {name: getattr(optimizer.step_options.of(Rounding), name) for name in NAMES}
    problems = [
        f"'{name}' of group {group_index} is {show_value(group[name])}, here {settings[name]!r};"
        " convert=True goes on with what is here"
        for group_index, group in enumerate(saved_state["param_groups"])
        for name in optimizer.step_options.others(group)
        if name in settings
    ]
    if problems and not convert:
        raise mismatch(problems, type(optimizer).__name__)
    groups = saved_state["param_groups"]
    groups = [{k: x for k, x in group.items() if k not in settings} for group in groups]
    return {**saved_state, "param_groups": groups}
