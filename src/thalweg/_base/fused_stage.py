"""`FusedStage`: a `Stage` of a rule, written as a formula; and averages for such formulas."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import Tensor

from thalweg._base.divisors import as_divisor
from thalweg._base.exports import exported_from
from thalweg._base.matrix_layout import ONE_MATRIX
from thalweg._base.pairwise_sum import join_pairs, pairs_of
from thalweg._base.rule_passes import Stage
from thalweg._base.showing import show_value
from thalweg.errors import RuleError


@exported_from("thalweg.formula")
@dataclass(frozen=True, eq=False)
class FusedStage(Stage):
    """Stage of a rule over rows and columns of matrices: a formula without torch functions.

    On the CPU, kernels compute the stage and the measures before it for small matrices, such as
    convolution kernels, in one pass over memory. NumPy computes it for large matrices, and torch on
    a GPU, with equal bits.

    Args:
        function: A formula `(*, names...) -> values`, in float64 or `like_update`. It receives
            measures of "row" and "column", slots with per="row" and per="column", and scalars.
            `mean_over_rows` and `mean_over_columns` average over a matrix. `exp`, `log` and `power`
            are not allowed, because their last bits differ in torch. A `functools.partial` binds
            scalars to finite numbers by keyword.
        makes: The names of the values, from the names that the function receives.

    Raises:
        RuleError: The function cannot be called or has an invalid bound argument, or a name is not
            a string.
    """

    makes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        bound = partial(self.function)
        if bound.args or not all(map(_is_finite, bound.keywords.values())):
            raise RuleError(
                f"A FusedStage binds finite numbers by keyword, not {show_value(self.function)}."
            )
        names = (self.makes,) if isinstance(self.makes, str) else tuple(self.makes)
        if not names or not all(isinstance(name, str) and name for name in names):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RuleError(f"makes of a FusedStage must be names, not {show_value(self.makes)}.")
        if len(set(names)) < len(names):
            raise RuleError(f"makes of a FusedStage has a name twice: {', '.join(names)}.")
        has_layout = self.layout not in (None, ONE_MATRIX)
        if self.every != 1 or has_layout or self.of_matrices or self.seed:
            raise RuleError("A FusedStage has no every=, heads=, layout=, of_matrices= or seed=.")
        object.__setattr__(self, "makes", names)

    def call(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """See `Stage`."""
        outputs = self.function(**arguments)
        values = cast("tuple[Any, ...]", outputs) if isinstance(outputs, tuple) else (outputs,)
        return dict(zip(self.makes, values, strict=True))


def _is_finite(value: object) -> bool:
    """Return True if a value is an int or a float that is finite as a float64."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


@exported_from("thalweg.formula")
def mean_over_rows(values: Any) -> Any:
    """Return the mean over the rows of a matrix, (..., rows, 1), as (..., 1, 1).

    The sum is pairwise: of neighbours, then of their sums. For use in a `FusedStage`.
    """
    return _mean_over(values, -2)


@exported_from("thalweg.formula")
def mean_over_columns(values: Any) -> Any:
    """Return the mean over columns, (..., 1, columns), as `mean_over_rows` does over rows."""
    return _mean_over(values, -1)


def _mean_over(values: Any, dim: int) -> Any:
    """Return the mean of a tensor or array over `dim`, a negative number, keeping size 1 there."""
    dim += values.ndim
    count = values.shape[dim]
    if isinstance(values, Tensor):
        total, count = values.clone(), as_divisor(count, values)
    else:
        total, count = values.copy(), values.dtype.type(count)
    join_pairs(pairs_of(total, dim), "sum")
    # As in the kernels, `+ 0.0` turns a sum of -0.0 into 0.0.
    return (total[*(slice(None),) * dim, :1] + 0.0) / count
