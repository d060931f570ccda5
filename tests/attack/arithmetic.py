"""A few rules once more in plain NumPy, from the kernels of TensorFlow: no code of the library.

A rule of `RULES` is that of dense gradients. `ROWS` has what sparse Adam does to the rows that a
gradient names, and `OTHERS` what becomes of the rows that it does not name, where they change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
Numbers = Mapping[str, Any]


def gradient_descent(var: Array, grad: Array, args: Numbers) -> tuple[Array, ...]:
    return (var - grad * args["learning_rate"],)


def momentum(var: Array, grad: Array, velocity: Array, args: Numbers) -> tuple[Array, ...]:
    velocity = velocity * args["momentum"] - grad * args["learning_rate"]
    return var + velocity, velocity


def nesterov(var: Array, grad: Array, velocity: Array, args: Numbers) -> tuple[Array, ...]:
    velocity = velocity * args["momentum"] - grad * args["learning_rate"]
    return var + (velocity * args["momentum"] - grad * args["learning_rate"]), velocity


def adagrad(var: Array, grad: Array, total: Array, args: Numbers) -> tuple[Array, ...]:
    total = total + grad * grad
    return var - grad * args["learning_rate"] / (np.sqrt(total) + args["epsilon"]), total


def rmsprop(var: Array, grad: Array, rms: Array, args: Numbers) -> tuple[Array, ...]:
    unit = var.dtype.type(1)
    rms = args["rho"] * rms + (unit - args["rho"]) * (grad * grad)
    return var - args["learning_rate"] * grad / (np.sqrt(rms) + args["epsilon"]), rms


def adam(var: Array, grad: Array, m: Array, v: Array, args: Numbers) -> tuple[Array, ...]:
    unit = var.dtype.type(1)
    m = m + (grad - m) * (unit - args["beta1"])
    v = v + (grad * grad - v) * (unit - args["beta2"])
    alpha = (
        args["learning_rate"] * np.sqrt(unit - args["beta2_power"]) / (unit - args["beta1_power"])
    )
    return var - (m * alpha) / (np.sqrt(v) + args["epsilon"]), m, v


RULES: dict[str, Callable[..., tuple[Array, ...]]] = {
    "SGD": gradient_descent,
    "Momentum": momentum,
    "Nesterov": nesterov,
    "Adagrad": adagrad,
    "RMSprop": rmsprop,
    "Adam": adam,
}


def sparse_adam(var: Array, grad: Array, m: Array, v: Array, args: Numbers) -> tuple[Array, ...]:
    unit = var.dtype.type(1)
    m = m * args["beta1"] + grad * (unit - args["beta1"])
    v = v * args["beta2"] + (grad * grad) * (unit - args["beta2"])
    return _moved_by_adam(var, m, v, args)


def other_rows_of_adam(var: Array, m: Array, v: Array, args: Numbers) -> tuple[Array, ...]:
    return _moved_by_adam(var, m * args["beta1"], v * args["beta2"], args)


def _moved_by_adam(var: Array, m: Array, v: Array, args: Numbers) -> tuple[Array, ...]:
    unit = var.dtype.type(1)
    root = np.sqrt(unit - args["beta2_power"])
    alpha = args["learning_rate"] * (root / (unit - args["beta1_power"]))
    return var - (alpha * m) / (np.sqrt(v) + args["epsilon"]), m, v


def other_rows_of_rmsprop(var: Array, rms: Array, args: Numbers) -> tuple[Array, ...]:
    return var, rms * args["rho"]


ROWS: dict[str, Callable[..., tuple[Array, ...]]] = {**RULES, "Adam": sparse_adam}
OTHERS: dict[str, Callable[..., tuple[Array, ...]]] = {
    "Adam": other_rows_of_adam,
    "RMSprop": other_rows_of_rmsprop,
}
SCATTERED = ("SGD",)  # a row that a gradient names twice moves twice


def sparse(
    rule: str, tensors: list[Array], values: Array, indices: Array, args: Numbers, dtype: str
) -> list[Array]:
    """Return a variable and its slots after a step with a sparse gradient, one row after the other.

    Args:
        rule: Its name.
        tensors: Variable and slots as they are, their first dimension the rows.
        values, indices: The gradient.
        args: The scalars.
        dtype: The variable's, in which a sum of values is stored.
    """
    arrays = [tensor.copy() for tensor in tensors]
    entries = list(zip(indices.tolist(), values, strict=True))
    if rule not in SCATTERED:
        sums: dict[int, Array] = {}
        for row, value in entries:
            sums[row] = sums[row] + value if row in sums else value
        zero = values.dtype.type(0)  # which the kernels begin with: -0 is no sum
        entries = [(row, stored(total, dtype) + zero) for row, total in sums.items()]
    for row, value in entries:
        numbers = ROWS[rule](arrays[0][row], value, *[array[row] for array in arrays[1:]], args)
        for array, number in zip(arrays, numbers, strict=True):
            array[row] = stored(number, dtype)
    if rule in OTHERS:
        named_rows = set(indices.tolist())
        for row in (row for row in range(len(arrays[0])) if row not in named_rows):
            numbers = OTHERS[rule](*[array[row] for array in arrays], args)
            for array, number in zip(arrays, numbers, strict=True):
                array[row] = number
    return arrays


def stored(values: Array, dtype: str) -> Array:
    """Return numbers as they are read again after they were written."""
    return widened(narrowed(np.asarray(values), dtype), dtype).reshape(np.shape(values))


def saturated(values: Array, dtype: str) -> Array:
    """Return numbers within those that a 16-bit type has."""
    largest = values.dtype.type(torch.finfo(getattr(torch, dtype)).max)
    return np.where(values > largest, largest, np.where(values < -largest, -largest, values))


def widened(raw: Array, dtype: str) -> Array:
    """Return bytes, a row for each element, as the numbers that are computed with."""
    if dtype == "bfloat16":
        bits = raw.view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).ravel()
    decoded = raw.view(dtype).ravel()
    return decoded.astype(np.float32) if dtype == "float16" else decoded


def narrowed(values: Array, dtype: str) -> Array:
    """Return numbers as bytes, a row for each element: rounded to the nearest, ties to even."""
    values = values.ravel()
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        upper_bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        upper_bits[np.isnan(values)] = 0x7FC0
        encoded: Array = upper_bits.astype(np.uint16)
    else:
        with np.errstate(over="ignore"):
            encoded = values.astype(dtype)
    return encoded.reshape(-1, 1).view(np.uint8)
