"""Conversion of the arguments of tests to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from thalweg import _graph
from thalweg._core.nest import leaves_of, mapped
from thalweg._graph.feeds_and_fetches import exported
from thalweg.variable import tensor_of


def is_symbolic(value: object) -> bool:
    """Return True if a session must compute a part of the value."""
    kinds = _graph.SymbolicTensor | _graph.SymbolicSlices | _graph.Operation
    return any(isinstance(leaf, kinds) for leaf in leaves_of(value))


def computed(value: object) -> Any:
    """Return a nest, or a function's result, with arrays for eager tensors."""
    if callable(value) and not isinstance(value, torch.Tensor):
        value = value()
    return mapped(lambda leaf: exported(tensor_of(leaf)), value)


def array(value: object) -> np.ndarray[Any, Any]:
    """Return numbers as an array, bfloat16 as float32."""
    if isinstance(value, list | tuple):
        return np.array([array(element) for element in value])
    value = tensor_of(value)
    if isinstance(value, torch.Tensor):
        value = exported(value.float() if value.dtype == torch.bfloat16 else value)
    return np.asarray(value)
