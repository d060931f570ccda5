"""Scalars that a device alone knows: of steps that it counts, and of rates that lie there.

They are tensors of shape (), or have one number for each variable of the step. Nobody waits for the
device.
"""

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
    there: torch.device,
) -> Columns:
    """As `columns_of`, where some scalars are tensors of a device."""
    own = [compute_dtype(var.dtype) for var in variables]
    keys = list(zip(own, [None] * len(own) if groups is None else groups, strict=True))
    found = {key: scalars_of(*key) for key in dict.fromkeys(keys)}
    names = dict.fromkeys(
        name for made in found.values() for name, value in made.items() if isinstance(value, Tensor)
    )
    known = {
        key: {name: value for name, value in made.items() if name not in names}
        for key, made in found.items()
    }
    columns = columns_of(groups, lambda dtype, key: known[dtype, key], dtypes, variables)
    moving = {
        name: expand_to_variables(keys, {key: made[name] for key, made in found.items()}, there)
        for name in names
    }
    return columns._replace(separate={**columns.separate, **moving})


def expand_to_variables(
    keys: Sequence[Hashable], values: Mapping[Any, Any], there: torch.device
) -> Tensor:
    """One number for each variable, of those of its key: a number or a tensor."""
    parts: list[Tensor] = []
    for key, run in groupby(range(len(keys)), key=keys.__getitem__):
        places, value = list(run), values[key]
        if not isinstance(value, Tensor):
            value = torch.full((), float(value), dtype=torch.float64, device=there)
        first, count = places[0], len(places)
        parts.append(value.narrow(0, first, count) if value.dim() else value.expand(count))
    return parts[0] if len(parts) == 1 else torch.cat([part.double() for part in parts])


def device_derived_scalars(
    rule: Rule, values: dict[str, object], dtype: Dtype, step: Tensor, there: torch.device
) -> dict[str, Any]:
    """As `derived`, where the number of the step, and other numbers, are tensors of a device.

    Powers are computed in float64 and rounded once. `prepare` is given tensors where one of its
    arguments is one.
    """
    kind = TORCH[dtype]
    known = {**values, "t": step.to(kind)}
    for power, hyper in rule.powers.items():
        if power not in known:
            base = number(known[hyper], there)
            found = torch.pow(base.double(), step.double()).to(kind)
            known[power] = without_denormals(found)
    if rule.prepare is None:
        return known
    given = bind_arguments(rule, "prepare", known)
    if any(isinstance(each, Tensor) for each in given.values()):
        known |= {name: number(each, there) for name, each in given.items()}
    made = apply_prepare(rule, known)
    # What the host knows, it goes on knowing.
    return {**made, **{name: each for name, each in values.items() if made[name] is known[name]}}
