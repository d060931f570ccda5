"""A few rules once more in plain NumPy, from the kernels of TensorFlow: no code of the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

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


def widened(raw: Array, dtype: str) -> Array:
    """Bytes, a row for each element, as the numbers that are computed with."""
    if dtype == "bfloat16":
        bits = raw.view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).ravel()
    found = raw.view(dtype).ravel()
    return found.astype(np.float32) if dtype == "float16" else found


def narrowed(values: Array, dtype: str) -> Array:
    """Numbers as bytes, a row for each element: rounded to the nearest, ties to even."""
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded[np.isnan(values)] = 0x7FC0
        stored: Array = rounded.astype(np.uint16)
    else:
        with np.errstate(over="ignore"):
            stored = values.astype(dtype)
    return stored.reshape(-1, 1).view(np.uint8)
