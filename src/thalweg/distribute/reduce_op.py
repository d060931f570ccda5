"""Reductions of values over replicas."""

from __future__ import annotations

import enum

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError


class ReduceOp(enum.Enum):
    """Sum or mean over replicas."""

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def of(cls, reduce_op: object) -> ReduceOp:
        """Return the operation for a `ReduceOp`, or for "sum" or "mean" in upper or lower case.

        Raises:
            InvalidArgumentError: `reduce_op` has another value.
        """
        if isinstance(reduce_op, ReduceOp):
            return reduce_op
        if isinstance(reduce_op, str) and reduce_op.upper() in cls.__members__:
            return cls[reduce_op.upper()]
        raise InvalidArgumentError(
            "reduce_op must be ReduceOp.SUM, ReduceOp.MEAN, 'sum' or 'mean', not"
            f" {show_value(reduce_op)}."
        )
