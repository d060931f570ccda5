"""Formulas as functions of torch tensors, for devices without kernels."""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.device_numbers import widened
from thalweg._engines.formula_parser import bind_formula, trace_formula
from thalweg._engines.numpy_functions import square
from thalweg._engines.protocol import Dtype
from thalweg.formula import Formula, maximum, minimum, narrow, sign


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """Return the torch dtype of a compute dtype of NumPy."""
    return torch.float64 if dtype is np.float64 else torch.float32


def _round_once(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function of tensors that calls `function` in the widest dtype and rounds once.

    The result is rounded to the promoted dtype of the arguments.
    """

    def apply(*values: Tensor) -> Tensor:
        dtype = reduce(torch.promote_types, [value.dtype for value in values])
        return function(*map(widened, values)).to(dtype)

    return apply


def _compute_sqrt(x: Tensor) -> Tensor:
    """Return square roots; on the CPU by NumPy, because torch's are 1 ulp off for some inputs."""
    if x.device.type != "cpu" or x.is_complex():
        return torch.sqrt(x)
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.asarray(np.sqrt(x.numpy())))


TORCH: dict[str, Callable[..., Any]] = {
    "sqrt": _compute_sqrt,
    "absolute": torch.abs,
    "sign": sign,
    "where": torch.where,
    "maximum": maximum,
    "minimum": minimum,
    "square": square,
    "exp": _round_once(torch.exp),
    "log": _round_once(torch.log),
    "power": _round_once(torch.pow),
    "wide": widened,
    "narrow": narrow,
}


@cache
def torch_formula(formula: Formula, dtype: torch.dtype, device: torch.device, dim: int) -> Formula:
    """Return the formula as a function of torch tensors with `dim` dimensions."""
    return bind_formula(formula, TORCH, _to_number(dtype, device, dim))


def _to_number(dtype: torch.dtype, device: torch.device, dim: int) -> Callable[[float], Tensor]:
    """Return a function that converts a float to a tensor of shape (1,), or () if `dim` is 0.

    Type promotion of torch ignores tensors of shape (), unlike NumPy. Division by a Python number
    would multiply by its reciprocal.
    """
    return partial(torch.full, (1,) * min(dim, 1), dtype=dtype, device=device)


def torch_evaluate(
    formula: Formula,
    tensors: Sequence[Tensor],
    scalars: Mapping[str, Any],
    dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """Return the results of a formula over tensors of any device.

    Args:
        tensors: The formula's positional inputs; the first tensor has the compute dtype.
        scalars: {name: scalar}, a number or a tensor.
        dtype: Optional. The dtype of the results, by default the compute dtype.
    """
    first = tensors[0]
    target = first.dtype, first.device, first.dim()
    to_tensor = _to_number(*target)
    picked = {name: scalars[name] for name in trace_formula(formula).scalars}
    # A measure in float64 reads vectors of float32.
    arguments = {
        name: x.to(first.dtype) if isinstance(x, Tensor) else to_tensor(x)
        for name, x in picked.items()
    }
    results = torch_formula(formula, *target)(*tensors, **arguments)
    return [result.to(dtype or first.dtype).expand(first.shape) for result in results]


def torch_transform(stages: Sequence[Formula], grad: Tensor, scalars: Mapping[str, Any]) -> Tensor:
    """Return a gradient, which has the compute dtype, after the formulas `stages`."""
    for stage in stages:
        grad = torch_evaluate(stage, [grad], scalars)[0]
    return grad
