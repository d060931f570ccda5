"""Formulas over full arrays, one NumPy operation at a time: the specification of all engines.

Tensors of other devices are computed by `torch_functions`.
"""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._engines import layout
from thalweg._engines.array_types import Array
from thalweg._engines.denormals import set_denormals
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.layout import compute_dtype
from thalweg._engines.numpy_functions import numpy_formula
from thalweg._engines.protocol import Dtype, Scalars, Stages
from thalweg._engines.torch_functions import torch_dtype, torch_transform
from thalweg.formula import Formula, is_like_update
from thalweg.variable import numpy_copy

_WIDE = (torch.float32, torch.float64)


def _pick_scalars(
    formula: Formula, scalars: Scalars, dtype: Callable[[Any], Any]
) -> dict[str, Any]:
    picked_scalars = {name: scalars[name] for name in trace_formula(formula).scalars}
    return {name: x if isinstance(x, Tensor) else dtype(x) for name, x in picked_scalars.items()}


def to_numpy(tensor: Tensor) -> Array:
    """Return a copy of a tensor; 16-bit types become float32."""
    source = tensor.detach()
    return numpy_copy(source if source.dtype in _WIDE else source.float())


def evaluate(
    formula: Formula, tensors: list[Tensor], scalars: Scalars, dtype: Dtype | None = None
) -> list[Tensor]:
    """Return the results of a formula over CPU tensors, as new contiguous tensors.

    Results have the first tensor's shape.

    Args:
        scalars: {name: scalar}; scalars that the formula does not take are ignored.
        dtype: The dtype of the arithmetic; by default the compute dtype of the first tensor.
    """
    dtype = dtype or compute_dtype(tensors[0].dtype)
    # Copies, because a result may be a parameter into which another result is stored first.
    arrays = [to_numpy(tensor).astype(dtype, copy=False) for tensor in tensors]
    function = numpy_formula(formula, dtype)
    with np.errstate(all="ignore"):
        results = function(*arrays, **_pick_scalars(formula, scalars, dtype))
        results = _flush_results(formula, results, arrays[0], len(arrays) - len(results))
    return [torch.from_numpy(np.array(array, order="C")) for array in results]


def _flush_results(
    formula: Formula, results: Sequence[Any], var: Array, grad_count: int
) -> list[Array]:
    """Return results as arrays of the variable's shape and dtype.

    If this thread flushes denormals, denormal results become zero; inputs returned as results stay.

    Args:
        grad_count: 1 if the second input is a gradient, else 0.
    """
    # A product with 1 flushes results that were selected and not computed.
    unit, formula_graph = var.dtype.type(1), trace_formula(formula)
    arrays: list[Array] = []
    for index, result in enumerate(results):
        is_passthrough = formula_graph.passes_through(index, index + (grad_count if index else 0))
        array = np.asarray(result, var.dtype)
        array = array if is_passthrough else array * unit
        arrays.append(array if array.shape == var.shape else np.broadcast_to(array, var.shape))
    return arrays


def transform(
    stages: Stages, grad: Tensor, scalars: Scalars, flush: bool, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the gradient transformed by the formulas `stages`; `grad` itself without stages.

    Args:
        stages: The formulas; results of a formula have the compute dtype.
        grad: A dense gradient, or the values of a sparse gradient.
        flush: True to treat denormals as zero.
        dtype: The dtype of the returned tensor; by default the gradient's.
    """
    if not stages:
        return grad
    dtype = dtype or grad.dtype
    if grad.device.type != "cpu":
        staged_grad = grad.detach().to(torch_dtype(compute_dtype(dtype)))
        return torch_transform(stages, staged_grad, scalars).to(dtype)
    with set_denormals(flush):
        array, compute = grad.detach(), compute_dtype(dtype)
        for stage in stages:
            (array,) = evaluate(stage, [array], scalars, compute)
        return array.to(dtype)


def flatten_like(tensor: Tensor, var: Tensor) -> Tensor:
    """Return a vector of the elements, in memory order of a dense variable, else row-major."""
    if not layout.is_dense(var):
        return layout.as_packed(tensor).reshape(-1)
    return layout.with_strides_of(tensor, var).as_strided((var.numel(),), (1,))


def measure_elements(formula: Formula, tensors: Sequence[Tensor], scalars: Scalars) -> Tensor:
    """Evaluate a measure's formula for each element; return a float64 tensor."""
    dtype = compute_dtype(tensors[0].dtype) if is_like_update(formula) else np.float64
    kind = torch_dtype(dtype)
    inputs = [tensor.detach().to(kind) for tensor in tensors][
        : len(trace_formula(formula).positional)
    ]
    with np.errstate(all="ignore"):
        values = numpy_formula(formula, dtype)(
            *map(to_numpy, inputs), **_pick_scalars(formula, scalars, dtype)
        )[0]
    # A formula that reads no element, such as a count, returns one number.
    return torch.from_numpy(np.array(np.broadcast_to(values, inputs[0].shape), np.float64))
