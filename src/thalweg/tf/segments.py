"""Reductions of segments of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg._base.static_shape import UNKNOWN
from thalweg._graph import known_size
from thalweg.errors import InvalidArgumentError
from thalweg.tf.convert import call, set_static, tensor
from thalweg.tf.operators import name_function

__all__ = [
    "segment_max", "segment_mean", "segment_min", "segment_prod", "segment_sum",
    "unsorted_segment_max", "unsorted_segment_mean", "unsorted_segment_min",
    "unsorted_segment_prod", "unsorted_segment_sum",
]  # fmt: skip

_REDUCTIONS = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin", "prod": "prod"}


def _reduce_segments(kind: str, rows: Tensor, ids: Tensor, count: int, empty: float) -> Tensor:
    flat = rows.reshape(ids.numel(), *rows.shape[ids.dim() :])
    # TensorFlow leaves rows of negative segments out.
    is_member = ids.reshape(-1) >= 0
    flat, segment_ids = flat[is_member], ids.reshape(-1)[is_member].long()
    if segment_ids.device.type == "cpu" and len(segment_ids) and int(segment_ids.max()) >= count:
        raise InvalidArgumentError(f"There is no segment {int(segment_ids.max())} among {count}.")
    start = flat.new_full((count, *flat.shape[1:]), empty)
    if kind == "sum":
        return start.index_add(0, segment_ids, flat)
    index = segment_ids.reshape(-1, *[1] * (flat.dim() - 1)).expand_as(flat)
    return start.scatter_reduce(0, index, flat, _REDUCTIONS[kind], include_self=False)


def _empty_value(kind: str, dtype: torch.dtype) -> float:
    """Return the value of a segment without rows."""
    if kind not in ("max", "min"):
        return int(kind == "prod")
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return limits.max if kind == "min" else limits.min


def _unsorted_reduction(kind: str) -> Callable[..., Tensor]:
    label = f"unsorted_segment_{kind}"

    def apply(
        data: object, segment_ids: Any, num_segments: object, name: str | None = None
    ) -> Tensor:
        def reduce(rows: Tensor, ids: Tensor, count: Tensor) -> Tensor:
            return _reduce_segments(kind, rows, ids, int(count), _empty_value(kind, rows.dtype))

        rows, ids = tensor(data), tensor(segment_ids)
        reduction = call(reduce, rows, ids, num_segments, name=name or label)

        def static_shape() -> list[int | None] | None:
            if rows.shape is UNKNOWN or ids.shape is UNKNOWN:
                return None
            return [known_size(num_segments), *rows.shape[len(ids.shape) :]]

        return set_static(reduction, rows.dtype, static_shape)

    doc = f"The {kind} of the rows of each of `num_segments` segments, in any order."
    return name_function(apply, label, doc)


def _sorted_reduction(kind: str) -> Callable[..., Tensor]:
    label = f"segment_{kind}"

    def apply(data: object, segment_ids: object, name: str | None = None) -> Tensor:
        def reduce(rows: Tensor, ids: Tensor) -> Tensor:
            if ids.device.type == "cpu" and bool((ids.diff() < 0).any() or (ids < 0).any()):
                raise InvalidArgumentError(
                    f"segment_ids of {label} must begin at 0 or above and not decrease; otherwise"
                    f" use unsorted_{label}."
                )
            count = int(ids[-1]) + 1 if len(ids) else 0
            return _reduce_segments(kind, rows, ids, count, int(kind == "prod"))

        rows = tensor(data)
        reduction = call(reduce, rows, tensor(segment_ids), name=name or label)
        return set_static(reduction, rows.dtype, lambda: rows.shape and [None, *rows.shape[1:]])

    doc = f"The {kind} of the rows of each segment; their numbers do not decrease."
    return name_function(apply, label, doc)


segment_max = _sorted_reduction("max")
segment_mean = _sorted_reduction("mean")
segment_min = _sorted_reduction("min")
segment_prod = _sorted_reduction("prod")
segment_sum = _sorted_reduction("sum")
unsorted_segment_max = _unsorted_reduction("max")
unsorted_segment_mean = _unsorted_reduction("mean")
unsorted_segment_min = _unsorted_reduction("min")
unsorted_segment_prod = _unsorted_reduction("prod")
unsorted_segment_sum = _unsorted_reduction("sum")
