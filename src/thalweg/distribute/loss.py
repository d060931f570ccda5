"""Scaling of losses by optimizers, so that the sum over replicas is a mean."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from thalweg.distribute.reduce_op import ReduceOp
from thalweg.distribute.strategy import get_strategy


class _Record(threading.local):
    """State of a thread: the reduction of its last loss; `scales` is True if losses are scaled."""

    def __init__(self) -> None:
        self.reduce_op: ReduceOp | None = None
        self.scales = False


_record = _Record()


def record_loss_reduction(reduce_op: object) -> None:
    """Store the reduction of this thread's last loss, for `loss_factor`.

    Args:
        reduce_op: `ReduceOp.SUM` or `MEAN`, "sum" or "mean"; None deletes the stored reduction.
    """
    _record.reduce_op = None if reduce_op is None else ReduceOp.of(reduce_op)


@contextlib.contextmanager
def scale_loss_for_estimator() -> Iterator[None]:
    """Divide losses of `thalweg.v1` by the number of replicas in a `with` block, in this thread.

    A loss that `record_loss_reduction` marks as a sum is not divided.
    """
    previous, _record.scales = _record.scales, True
    try:
        yield
    finally:
        _record.scales = previous


def loss_factor() -> float | None:
    """Return 1 / number of ranks, the factor of a loss before differentiation; None for 1."""
    if not _record.scales or _record.reduce_op is ReduceOp.SUM:
        return None
    count = get_strategy().num_replicas_in_sync
    return 1.0 / count if count > 1 else None
