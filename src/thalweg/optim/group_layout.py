"""Matrix layout of a group of parameters, from its options `layout` and `heads`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from torch import Tensor

from thalweg._base.matrix_layout import MatrixLayout, as_layout
from thalweg._base.showing import show_value
from thalweg.rules.modern.common import check_count


def layout_of(group: Mapping[str, Any]) -> MatrixLayout | None:
    """Return the matrix layout that `layout` or `heads` of a group describes; None without either.

    Raises:
        ValueError: An option is invalid, or both are set.
    """
    option, layout = group.get("heads"), as_layout(group.get("layout"))
    is_array = isinstance(option, np.generic | np.ndarray | Tensor)
    heads: int | list[int] | tuple[int, ...] | None = (
        cast("Any", option).tolist() if is_array else option
    )
    if heads is None:
        return layout
    if layout is not None:
        raise ValueError(
            f"heads={show_value(heads)} and layout={str(layout)!r} both describe the matrices of a"
            " parameter: leave out heads."
        )
    # A loaded file may have a list; layouts need tuples, which are hashable.
    if isinstance(heads, list):
        heads = tuple(heads)
    if not isinstance(heads, tuple):
        check_count("heads", heads)
    return MatrixLayout(rows=heads)
