"""Operators between eager tensors and NumPy arrays, with TensorFlow's conversions.

For an operator between an array and a tensor, NumPy calls the tensor's `__array_ufunc__`. The
exception is `tensor == array`, which torch computes: `Tensor.__eq__` is therefore replaced. Further
operators between two tensors do not call this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.errors import InvalidTypeError
from thalweg.variable import divide_tensors, operand_like

_OPERATORS: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    np.add: torch.add, np.subtract: torch.sub, np.multiply: torch.mul, np.divide: divide_tensors,
    np.floor_divide: torch.floor_divide, np.remainder: torch.remainder, np.power: torch.pow,
    np.matmul: torch.matmul, np.less: torch.lt, np.less_equal: torch.le, np.greater: torch.gt,
    np.greater_equal: torch.ge, np.equal: torch.eq, np.not_equal: torch.ne,
    np.bitwise_and: torch.bitwise_and, np.bitwise_or: torch.bitwise_or,
    np.bitwise_xor: torch.bitwise_xor,
}  # fmt: skip
_torch_equal: Callable[[Tensor, Any], Any] = torch.Tensor.__eq__


def apply_ufunc(tensor: Tensor, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    """Return the result of a NumPy function as a tensor; implement `Tensor.__array_ufunc__`.

    For an operator such as `+`, convert the array to the dtype and device of the tensor. Autograd
    records the operation. `array += tensor` returns a new tensor; the array is unchanged. All other
    functions run in NumPy on the tensor's memory.
    """
    function = _OPERATORS.get(ufunc) if method == "__call__" and len(inputs) == 2 else None
    # `array += tensor` calls the ufunc with `out` set to the array.
    is_augmented = options.keys() == {"out"} and options["out"][0] is inputs[0]
    if function is not None and (is_augmented or not options):
        x, y = inputs
        if isinstance(x, Tensor) and isinstance(y, np.ndarray | np.generic):
            return _operate(function, x, operand_like(y, x))
        if isinstance(y, Tensor) and isinstance(x, np.ndarray | np.generic):
            return _operate(function, operand_like(x, y), y)
    return _call_numpy(tensor, getattr(ufunc, method), inputs, options)


def equal_to(tensor: Tensor, operand: Any) -> Any:
    """Return `tensor == operand`. An array is first converted to the dtype of the tensor."""
    if isinstance(operand, np.ndarray):
        return _operate(torch.eq, tensor, operand_like(operand, tensor))
    return _torch_equal(tensor, operand)


def _operate(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return `function(x, y)`; tensors whose shapes do not broadcast are unequal."""
    if function in (torch.eq, torch.ne):
        try:
            torch.broadcast_shapes(x.shape, y.shape)
        except RuntimeError:
            return torch.tensor(function is torch.ne, dtype=torch.bool, device=x.device)
    return function(x, y)


def _call_numpy(
    tensor: Tensor, function: Callable[..., Any], inputs: Any, options: dict[str, Any]
) -> Any:
    """Call a NumPy function on the memory of tensors; return the resulting arrays as tensors.

    With the option `out`, return NumPy's result unchanged. Raise InvalidTypeError if an item of
    `out` is a tensor.
    """
    targets = options.get("out", ())
    if any(isinstance(target, Tensor) for target in targets):
        raise InvalidTypeError(
            "out= of a NumPy function must be a NumPy array, not a tensor. Assign the result to"
            " the tensor instead."
        )
    result = function(*(np.asarray(x) if isinstance(x, Tensor) else x for x in inputs), **options)
    if targets or result is None:
        return result
    if isinstance(result, tuple):
        return tuple(tensor.__array_wrap__(np.asarray(array)) for array in result)
    return tensor.__array_wrap__(np.asarray(result))


NAMES = ((torch.Tensor, "__array_ufunc__", apply_ufunc), (torch.Tensor, "__eq__", equal_to))
