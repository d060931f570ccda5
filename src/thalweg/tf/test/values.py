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
    """Return True if a session has to compute the value, or a part of it."""
    kinds = _graph.SymbolicTensor | _graph.SymbolicSlices | _graph.Operation
    return any(isinstance(leaf, kinds) for leaf in leaves_of(value))


def computed(value: object) -> Any:
    """Return the nest with arrays in place of eager tensors; call it first if it is a function."""
    if callable(value) and not isinstance(value, torch.Tensor):
        value = value()
    return mapped(lambda leaf: exported(tensor_of(leaf)), value)


def array(value: object) -> np.ndarray[Any, Any]:
    """Numbers as an array; those of a dtype that NumPy lacks as float32."""
    if isinstance(value, list | tuple):
        return np.array([array(each) for each in value])
    value = tensor_of(value)
    if isinstance(value, torch.Tensor):
        value = exported(value.float() if value.dtype == torch.bfloat16 else value)
    return np.asarray(value)
