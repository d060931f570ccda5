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


def gradient_descent(var: Array, grad: Array, by: Numbers) -> tuple[Array, ...]:
    return (var - grad * by["learning_rate"],)


def momentum(var: Array, grad: Array, velocity: Array, by: Numbers) -> tuple[Array, ...]:
    velocity = velocity * by["momentum"] - grad * by["learning_rate"]
    return var + velocity, velocity


def nesterov(var: Array, grad: Array, velocity: Array, by: Numbers) -> tuple[Array, ...]:
    velocity = velocity * by["momentum"] - grad * by["learning_rate"]
    return var + (velocity * by["momentum"] - grad * by["learning_rate"]), velocity


def adagrad(var: Array, grad: Array, total: Array, by: Numbers) -> tuple[Array, ...]:
    total = total + grad * grad
    return var - grad * by["learning_rate"] / (np.sqrt(total) + by["epsilon"]), total


def rmsprop(var: Array, grad: Array, rms: Array, by: Numbers) -> tuple[Array, ...]:
    one = var.dtype.type(1)
    rms = by["rho"] * rms + (one - by["rho"]) * (grad * grad)
    return var - by["learning_rate"] * grad / (np.sqrt(rms) + by["epsilon"]), rms


def adam(var: Array, grad: Array, m: Array, v: Array, by: Numbers) -> tuple[Array, ...]:
    one = var.dtype.type(1)
    m = m + (grad - m) * (one - by["beta1"])
    v = v + (grad * grad - v) * (one - by["beta2"])
    alpha = by["learning_rate"] * np.sqrt(one - by["beta2_power"]) / (one - by["beta1_power"])
    return var - (m * alpha) / (np.sqrt(v) + by["epsilon"]), m, v


RULES: dict[str, Callable[..., tuple[Array, ...]]] = {
    "SGD": gradient_descent,
    "Momentum": momentum,
    "Nesterov": nesterov,
    "Adagrad": adagrad,
    "RMSprop": rmsprop,
    "Adam": adam,
}


def sparse_adam(var: Array, grad: Array, m: Array, v: Array, by: Numbers) -> tuple[Array, ...]:
    one = var.dtype.type(1)
    m = m * by["beta1"] + grad * (one - by["beta1"])
    v = v * by["beta2"] + (grad * grad) * (one - by["beta2"])
    return _moved_by_adam(var, m, v, by)


def other_rows_of_adam(var: Array, m: Array, v: Array, by: Numbers) -> tuple[Array, ...]:
    return _moved_by_adam(var, m * by["beta1"], v * by["beta2"], by)


def _moved_by_adam(var: Array, m: Array, v: Array, by: Numbers) -> tuple[Array, ...]:
    one = var.dtype.type(1)
    root = np.sqrt(one - by["beta2_power"])
    alpha = by["learning_rate"] * (root / (one - by["beta1_power"]))
    return var - (alpha * m) / (np.sqrt(v) + by["epsilon"]), m, v


def other_rows_of_rmsprop(var: Array, rms: Array, by: Numbers) -> tuple[Array, ...]:
    return var, rms * by["rho"]


ROWS: dict[str, Callable[..., tuple[Array, ...]]] = {**RULES, "Adam": sparse_adam}
OTHERS: dict[str, Callable[..., tuple[Array, ...]]] = {
    "Adam": other_rows_of_adam,
    "RMSprop": other_rows_of_rmsprop,
}
SCATTERED = ("SGD",)  # a row that a gradient names twice moves twice


def sparse(
    rule: str, tensors: list[Array], values: Array, indices: Array, by: Numbers, dtype: str
) -> list[Array]:
    """A variable and its slots after a step with a sparse gradient, one row after the other.

    Args:
        rule: Its name.
        tensors: Variable and slots as they are, their first dimension the rows.
        values, indices: The gradient.
        by: The scalars.
        dtype: The variable's, in which a sum of values is stored.
    """
    made = [tensor.copy() for tensor in tensors]
    entries = list(zip(indices.tolist(), values, strict=True))
    if rule not in SCATTERED:
        sums: dict[int, Array] = {}
        for row, value in entries:
            sums[row] = sums[row] + value if row in sums else value
        zero = values.dtype.type(0)  # which the kernels begin with: -0 is no sum
        entries = [(row, stored(total, dtype) + zero) for row, total in sums.items()]
    for row, value in entries:
        found = ROWS[rule](made[0][row], value, *[each[row] for each in made[1:]], by)
        for each, number in zip(made, found, strict=True):
            each[row] = stored(number, dtype)
    if rule in OTHERS:
        named = set(indices.tolist())
        for row in (row for row in range(len(made[0])) if row not in named):
            found = OTHERS[rule](*[each[row] for each in made], by)
            for each, number in zip(made, found, strict=True):
                each[row] = number
    return made


def stored(values: Array, dtype: str) -> Array:
    """Numbers as they are read again after they were written."""
    return widened(narrowed(np.asarray(values), dtype), dtype).reshape(np.shape(values))


def saturated(values: Array, dtype: str) -> Array:
    """Numbers within those that a 16-bit type has."""
    largest = values.dtype.type(torch.finfo(getattr(torch, dtype)).max)
    return np.where(values > largest, largest, np.where(values < -largest, -largest, values))


def widened(raw: Array, dtype: str) -> Array:
    """Bytes, a row for each element, as the numbers that are computed with."""
    if dtype == "bfloat16":
        bits = raw.view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).ravel()
    found = raw.view(dtype).ravel()
    return found.astype(np.float32) if dtype == "float16" else found


def narrowed(values: Array, dtype: str) -> Array:
    """Numbers as bytes, a row for each element: rounded to the nearest, ties to even."""
    values = values.ravel()
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded[np.isnan(values)] = 0x7FC0
        stored: Array = rounded.astype(np.uint16)
    else:
        with np.errstate(over="ignore"):
            stored = values.astype(dtype)
    return stored.reshape(-1, 1).view(np.uint8)
