"""A fused stage by torch's functions, as on a GPU, has the bits of NumPy's, as on the CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rulebook import assert_same
from thalweg._engines.fused_stage import bind_stage
from thalweg._engines.layout import compute_dtype
from thalweg.formula import (
    absolute,
    like_update,
    mean_over_columns,
    mean_over_rows,
    minimum,
    narrow,
    sign,
    where,
    wide,
)
from thalweg.rules.modern.sm3 import keep
from thalweg.rules.torch.adafactor import factor


@like_update
def mixed(*, rows: Any, columns: Any, least: Any) -> Any:
    """All that a formula may call and the rules of the library do not."""
    scale = mean_over_columns(columns) / 3.0
    rows = where(rows > least, minimum(rows * rows, 7.0), sign(rows) * absolute(rows))
    return rows + scale, narrow(wide(columns) * 0.1, columns) - mean_over_rows(rows)


CASES: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "factor": (
        factor, ("row", "row_var"), ("column", "col_var"),
        ("row_count", "column_count", "weight", "eps1"),
    ),
    "keep": (keep, ("rows", "accumulator_0"), ("columns", "accumulator_1"), ("floor",)),
    "mixed": (mixed, ("rows",), ("columns",), ("least",)),
    "bound": (partial(mixed, least=0.3), ("rows",), ("columns",), ()),
}  # fmt: skip


def values_of(shape: tuple[int, ...], kind: torch.dtype, seed: int) -> Tensor:
    dice = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=dice, dtype=torch.float64).abs()
    values = values * 10.0 ** torch.randint(-8, 9, shape, generator=dice)
    values.view(-1)[::7] = torch.tensor(float("nan") if seed % 2 else 0.0, dtype=torch.float64)
    return values.to(kind)


# But for roots of float64: on the CPU torch's is not always the nearest number.
KINDS = [(name, torch.float32) for name in CASES]
KINDS += [(name, torch.float64) for name in CASES if name != "factor"]


@pytest.mark.parametrize(("name", "kind"), KINDS, ids=str)
@pytest.mark.parametrize("sides", [(1, 1), (3, 3), (7, 64), (65, 130)], ids=str)
def test_stage_gives_equal_numpy_and_torch_results(
    name: str, sides: tuple[int, int], kind: torch.dtype
) -> None:
    function, of_rows, of_columns, of_scalars = CASES[name]
    lines = {x: values_of((2, 5, sides[0], 1), kind, k) for k, x in enumerate(of_rows)}
    lines |= {x: values_of((2, 5, 1, sides[1]), kind, 3 + k) for k, x in enumerate(of_columns)}
    numbers = {x: 0.3 + k for k, x in enumerate(of_scalars)}
    scalars = {x: torch.full((), number, dtype=kind) for x, number in numbers.items()}
    expected = bind_stage(function, kind, torch.device("cpu"))(**lines, **scalars)
    args = {x: compute_dtype(kind)(number) for x, number in numbers.items()}
    with np.errstate(all="ignore"):
        actual = bind_stage(function, kind, None)(
            **{x: y.numpy() for x, y in lines.items()}, **args
        )
    assert len(actual) == len(expected)
    nan = torch.tensor(torch.nan, dtype=kind)
    arrays = [torch.from_numpy(np.ascontiguousarray(array)) for array in actual]
    assert_same(*([torch.where(x.isnan(), nan, x) for x in row] for row in (arrays, expected)))
