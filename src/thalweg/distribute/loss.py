"""Scaling of a mean loss by optimizers, so that the sum over replicas is the mean again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from thalweg.distribute.reduce_op import ReduceOp
from thalweg.distribute.strategy import get_strategy


class _Record(threading.local):
    """What was said last in this thread."""

    def __init__(self) -> None:
        self.last: ReduceOp | None = None
        self.scales = False


_record = _Record()


def record_loss_reduction(reduce_op: object) -> None:
    """Note how the loss that was computed last came of its elements.

    Args:
        reduce_op: `ReduceOp.SUM` or `MEAN`, "sum" or "mean"; None forgets.
    """
    _record.last = None if reduce_op is None else ReduceOp.of(reduce_op)


@contextlib.contextmanager
def scale_loss_for_estimator() -> Iterator[None]:
    """Return a context manager for a block in which `compute_gradients` of `thalweg.v1` divides
    losses by the replicas.

    One of which `record_loss_reduction` was told that it is a sum is left as it is.
    TensorFlow does so for Estimators alone; elsewhere a script divides by the global batch size.
    """
    before, _record.scales = _record.scales, True
    try:
        yield
    finally:
        _record.scales = before


def loss_factor() -> float | None:
    """Return the factor of a loss before it is differentiated; None if it is not scaled."""
    if not _record.scales or _record.last is ReduceOp.SUM:
        return None
    count = get_strategy().num_replicas_in_sync
    return 1.0 / count if count > 1 else None
