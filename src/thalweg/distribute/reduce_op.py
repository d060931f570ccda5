"""Operations that reduce values of several replicas to one."""

from __future__ import annotations

import enum

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError


class ReduceOp(enum.Enum):
    """The sum or the mean over replicas."""

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def of(cls, given: object) -> ReduceOp:
        """Return the operation for a `ReduceOp`, or for "sum" or "mean" in any case.

        Raises:
            InvalidArgumentError: The argument is neither.
        """
        if isinstance(given, ReduceOp):
            return given
        if isinstance(given, str) and given.upper() in cls.__members__:
            return cls[given.upper()]
        raise InvalidArgumentError(
            "reduce_op must be ReduceOp.SUM, ReduceOp.MEAN, 'sum' or 'mean', not"
            f" {show_value(given)}."
        )
