"""Shapes as arguments, partly symbolic; *trials* evaluate shapes with invented unknown sizes.

A number that is equal in all trials is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from thalweg._base.context_managers import no_grad
from thalweg._base.execution_context import eagerly
from thalweg._base.static_shape import UNKNOWN
from thalweg._core.nest import leaves_of, mapped
from thalweg._graph.nodes import SymbolicTensor
from thalweg._graph.shape_mismatch import common_sizes
from thalweg.errors import InvalidArgumentError

# Invented sizes: 0, 1, and large numbers without a common divisor.
_TRIALS = (0, 1, 1000, 1361, 1_000_003)
_INTEGERS = (torch.int32, torch.int64)


def sizes_of(shape: object) -> Any:
    """Return a shape as a tuple of ints. If a size is symbolic, return a copy of `shape`.

    Args:
        shape: A number, a list, an array or a tensor of sizes, or a static shape.

    Raises:
        InvalidArgumentError: A size is None, or the shape is unknown.
    """
    leaves = list(leaves_of(shape))
    if any(isinstance(leaf, SymbolicTensor) for leaf in leaves):
        # A copy, since the caller may change a list before the run.
        return mapped(lambda size: size, shape)
    if any(leaf is None for leaf in leaves):
        raise InvalidArgumentError(f"{shape} does not say all sizes: tf.shape says them in a run.")
    return ints(shape)


def ints(shape: Any) -> tuple[int, ...]:
    """Return the numbers in a nest of tensors, arrays and numbers as a flat tuple of ints."""
    if isinstance(shape, torch.Tensor | np.ndarray):
        return tuple(int(size) for size in shape.reshape(-1).tolist())
    # A string consists of strings without end.
    if isinstance(shape, Iterable) and not isinstance(shape, str):
        return tuple(size for item in shape for size in ints(item))
    return (int(shape),)


def known_sizes(shape: object) -> list[int | None] | None:
    """Return a list of sizes, None for each unknown size; return None if the rank is unknown."""
    with eagerly(), no_grad():
        try:
            trials = [_trial_sizes(shape, _Trial(size)) for size in _TRIALS]
        # The computation rejects an invented size, or needs more than sizes.
        except Exception:
            return None
    sizes = common_sizes(trials)
    return None if sizes is None else list(sizes)


def known_size(value: object) -> int | None:
    """Return a number if it is known before a run, else None."""
    sizes = known_sizes(value)
    return sizes[0] if sizes is not None and len(sizes) == 1 else None


def _trial_sizes(nest: object, trial: _Trial) -> list[int]:
    """Return the numbers in a nest, with the trial's values for symbols."""
    leaves = [trial[x] if isinstance(x, SymbolicTensor) else x for x in leaves_of(nest)]
    return [value for leaf in leaves for value in ints(leaf)]


class _Trial(dict[SymbolicTensor, Any]):
    """Dict {integer tensor: value in a trial}; an unknown number has the value `size`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __missing__(self, tensor: SymbolicTensor) -> torch.Tensor:
        """Compute, store and return the value of `tensor` in this trial.

        Raises:
            InvalidArgumentError: `tensor` has no integer dtype, or a user's Python function
                computes it. Or the value depends on a tensor of unknown shape.
        """
        op, device = tensor.op, torch.get_default_device()
        if op.type == "Shape":
            sizes = self._trial_shape(op.inputs[0])
            tensor_value = torch.tensor(sizes, dtype=tensor.dtype, device=device)
        # A user's Python function must not be called while the graph is built.
        elif tensor.dtype not in _INTEGERS or op.type == "PyFunc":
            raise InvalidArgumentError(f"'{tensor.name}' is no tensor of sizes.")
        elif op.type == "Const" or (op.kind == "pure" and op.inputs and not op.subgraphs):
            result = op.function(*op.fill(self))  # pyright: ignore[reportOptionalCall]
            picks = op.picks or (0,)
            leaves = [result] if op.picks is None else list(leaves_of(result))
            tensor_value = leaves[picks[tensor.value_index]]
        else:
            shape = self._trial_shape(tensor)
            tensor_value = torch.full(shape, self.size, dtype=tensor.dtype, device=device)
        self[tensor] = tensor_value
        return tensor_value

    def _trial_shape(self, tensor: SymbolicTensor) -> list[int]:
        """Return the static shape of a tensor with `size` for unknown sizes."""
        if tensor.shape is UNKNOWN:
            raise InvalidArgumentError(f"The shape of '{tensor.name}' is not known.")
        return [self.size if size is None else size for size in tensor.shape]
