"""`tf.nn.top_k` and `tf.nn.in_top_k`: the largest elements of rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.static_shape import UNKNOWN
from thalweg._graph import known_size
from thalweg.errors import InvalidArgumentError
from thalweg.tf.convert import call, is_tensor, tensor

__all__ = ["in_top_k", "top_k"]


class TopK(NamedTuple):
    """Largest elements and their indices as int32."""

    values: Any
    indices: Any


def top_k(input: Any, k: Any = 1, sorted: bool = True, name: str | None = None) -> TopK:
    """Return the `k` largest elements of each row in descending order; ties keep their order.

    Elements are sorted even if `sorted` is False. Raise InvalidArgumentError if rows have fewer
    than `k` elements.
    """

    def find(operand: Tensor, k: Tensor | int) -> list[Tensor]:
        count = int(k)
        _check_k(count, operand.shape)
        # torch.topk leaves the order of equal elements open.
        values, positions = torch.sort(operand, stable=True, dim=-1, descending=True)
        return [values[..., :count], positions[..., :count].int()]

    rows, size = tensor(input), tensor(k) if is_tensor(k) else int(k)
    symbols = [operand for operand in (rows, size) if isinstance(operand, _graph.SymbolicTensor)]
    if not symbols:
        return TopK(*find(rows, size))
    if isinstance(size, int) and rows.shape is not UNKNOWN:
        _check_k(size, rows.shape)
    shape = rows.shape and [*rows.shape[:-1], known_size(size)]
    flows = tuple(symbol for symbol in symbols if symbol is rows)
    outputs = [_graph.Output(rows.dtype, shape, flows), _graph.Output(torch.int32, shape, ())]
    arguments = ([rows, size], name or "TopKV2")
    return TopK(*_graph.operation(find, *arguments, kind="pure", outputs=outputs))


def _check_k(k: int, shape: Any) -> None:
    """Raise for a negative k, or one above the last dimension if known."""
    row_size = shape[-1] if len(shape) else 0
    if k < 0 or (row_size is not None and k > row_size):
        raise InvalidArgumentError(
            f"k is {k}, and there are no {k} largest of {row_size} elements."
        )


def in_top_k(targets: object, predictions: object, k: int, name: str | None = None) -> Tensor:
    """Return for each row True if the target's prediction is one of the `k` largest.

    Predictions equal to the k-th largest are included. The result is False for a target that
    is not a class, and for a row with NaN or infinity. `targets` and `predictions` may be swapped,
    since the order differs between TensorFlow 1 and 2.
    """

    def find(classes: Tensor, scores: Tensor) -> Tensor:
        classes, scores = (scores, classes) if classes.dim() == 2 else (classes, scores)
        classes = classes.long()
        is_class = (classes >= 0) & (classes < scores.shape[-1])
        target_scores = scores.gather(-1, torch.where(is_class, classes, 0).unsqueeze(-1))
        larger = (scores > target_scores).sum(-1)
        return is_class & scores.isfinite().all(-1) & (larger < k)

    return call(find, tensor(targets), tensor(predictions), name=name or "InTopK")
