"""The largest elements of rows: `tf.nn.top_k` and `tf.nn.in_top_k`."""

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
    """The largest elements, and their places as int32."""

    values: Any
    indices: Any


def top_k(input: Any, k: Any = 1, sorted: bool = True, name: str | None = None) -> TopK:
    """Return the `k` largest elements of each row, the largest first; of equal ones the first is
    first.

    They are sorted even where `sorted` is False, which leaves the order open.

    Raises:
        InvalidArgumentError: There are fewer.
    """

    def find(given: Tensor, k: Tensor | int) -> list[Tensor]:
        count = int(k)
        _check_k(count, given.shape)
        values, places = torch.sort(given, stable=True, dim=-1, descending=True)
        return [values[..., :count], places[..., :count].int()]

    given, many = tensor(input), tensor(k) if is_tensor(k) else int(k)
    symbols = [each for each in (given, many) if isinstance(each, _graph.SymbolicTensor)]
    if not symbols:
        return TopK(*find(given, many))
    if isinstance(many, int) and given.shape is not UNKNOWN:
        _check_k(many, given.shape)
    shape = given.shape and [*given.shape[:-1], known_size(many)]
    flows = tuple(each for each in symbols if each is given)
    outputs = [_graph.Output(given.dtype, shape, flows), _graph.Output(torch.int32, shape, ())]
    arguments = ([given, many], name or "TopKV2")
    return TopK(*_graph.operation(find, *arguments, kind="pure", outputs=outputs))


def _check_k(k: int, shape: Any) -> None:
    """Refuse a k that is larger than the last dimension, as far as that is known."""
    most = shape[-1] if len(shape) else 0
    if k < 0 or (most is not None and k > most):
        raise InvalidArgumentError(f"k is {k}, and there are no {k} largest of {most} elements.")


def in_top_k(targets: object, predictions: object, k: int, name: str | None = None) -> Tensor:
    """Return bools that are true where the prediction of a target is among the `k` largest of its
    row.

    Predictions that are equal to the k-th are among them. The two tensors may change places, as
    TensorFlow 1 and 2 have them.
    """

    def find(classes: Tensor, given: Tensor) -> Tensor:
        classes, given = (given, classes) if classes.dim() == 2 else (classes, given)
        classes = classes.long()
        known = (classes >= 0) & (classes < given.shape[-1])
        own = given.gather(-1, torch.where(known, classes, 0).unsqueeze(-1))
        larger = (given > own).sum(-1)
        return known & given.isfinite().all(-1) & (larger < k)

    return call(find, tensor(targets), tensor(predictions), name=name or "InTopK")
