"""Scalars of a step that are on a device, such as step counts and learning rates in tensors."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from thalweg._core.step_scalars import Groups, ScalarsOf, columns_of
from thalweg._core.vectors import TORCH, number, without_denormals
from thalweg._engines import apply_prepare, bind_arguments, compute_dtype
from thalweg._engines.protocol import Columns, Dtype
from thalweg.formula import Rule


def device_columns(
    groups: Groups,
    scalars_of: ScalarsOf,
    dtypes: Sequence[Dtype],
    variables: Sequence[Tensor],
    device: torch.device,
) -> Columns:
    """Return a rule's scalars in a step as `Columns`, with vectors on a device.

    If a scalar is a tensor in any group, `by_variable` has a vector with its number for each
    variable. `columns_of` handles all other scalars.

    Args:
        groups: The parameter group of each variable; None for a single group.
        scalars_of: `scalars_of(dtype, group)` returns {name: scalar}.
        dtypes, variables: As for `columns_of`.
        device: The device of the vectors.
    """
    var_dtypes = [compute_dtype(var.dtype) for var in variables]
    keys = list(zip(var_dtypes, [None] * len(variables) if groups is None else groups, strict=True))
    table = {key: scalars_of(*key) for key in dict.fromkeys(keys)}
    names = dict.fromkeys(
        name for row in table.values() for name, value in row.items() if isinstance(value, Tensor)
    )
    host_scalars = {
        key: {name: value for name, value in row.items() if name not in names}
        for key, row in table.items()
    }
    columns = columns_of(groups, lambda dtype, key: host_scalars[dtype, key], dtypes, variables)
    device_vectors = {
        name: expand_to_variables(keys, {key: row[name] for key, row in table.items()}, device)
        for name in names
    }
    return columns._replace(by_variable={**columns.by_variable, **device_vectors})


def expand_to_variables(
    keys: Sequence[Hashable], values: Mapping[Any, Any], device: torch.device
) -> Tensor:
    """Return a vector with one number for each variable, on a device.

    Args:
        keys: For each variable its key, such as (dtype, group).
        values: {key: number, tensor of shape (), or vector over all variables}. Elements of a
            vector are used for the variables with its key.
        device: The device of the result, and of tensors in `values`.
    """
    pieces: list[Tensor] = []
    for key, run in groupby(range(len(keys)), key=keys.__getitem__):
        indices, value = list(run), values[key]
        if not isinstance(value, Tensor):
            value = torch.full((), float(value), dtype=torch.float64, device=device)
        first, count = indices[0], len(indices)
        pieces.append(value.narrow(0, first, count) if value.dim() else value.expand(count))
    return pieces[0] if len(pieces) == 1 else torch.cat([piece.double() for piece in pieces])


def device_derived_scalars(
    rule: Rule, values: dict[str, object], dtype: Dtype, step: Tensor, device: torch.device
) -> dict[str, Any]:
    """Return {name: scalar} for a rule's formulas, for a step count on a device.

    The dict has the hyperparameters, their powers, "t" and the results of the rule's `prepare`. If
    an argument of `prepare` is a tensor, all arguments are passed as tensors. A hyperparameter that
    `prepare` returns unchanged is not converted.

    Args:
        values: {name: hyperparameter}, a scalar of the host or a tensor of shape ().
        dtype: The compute dtype. Powers are computed in float64 and rounded once.
        step: The number of the step, a tensor of shape ().
        device: The device of new tensors.
    """
    torch_dtype = TORCH[dtype]
    scalars = {**values, "t": step.to(torch_dtype)}
    for power, hyper in rule.powers.items():
        if power not in scalars:
            base = number(scalars[hyper], device)
            power_value = torch.pow(base.double(), step.double()).to(torch_dtype)
            scalars[power] = without_denormals(power_value)
    if rule.prepare is None:
        return scalars
    arguments = bind_arguments(rule, "prepare", scalars)
    if any(isinstance(scalar, Tensor) for scalar in arguments.values()):
        scalars |= {name: number(scalar, device) for name, scalar in arguments.items()}
    derived_scalars = apply_prepare(rule, scalars)
    # Scalars that `prepare` returns unchanged stay numbers of the host.
    host_values = {name: x for name, x in values.items() if derived_scalars[name] is scalars[name]}
    return {**derived_scalars, **host_values}
