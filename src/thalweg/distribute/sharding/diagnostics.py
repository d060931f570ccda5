"""Diagnostics of full DTensors from measurements of local parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thalweg._core.dtensor import is_on_mesh
from thalweg._engines.diagnostics import MEASURED, PEAKS
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding.sharded_reductions import group_by_mesh
from thalweg.distribute.tree_reduction import tree_sum

# State beside 0 (not measured) and 1 (measured): a rank failed, so no rank has the numbers.
_UNAVAILABLE = 2


class RankMeasures(NamedTuple):
    """Measurements of some variables on this rank.

    Attributes:
        variables: The full variables.
        numbers: (variables, measurements) float64, in NumPy or on their device.
        known: Flags of the same shape, True if measured; a part without elements has none.
    """

    variables: Sequence[Tensor]
    numbers: Any
    known: npt.NDArray[np.bool_]


def over_ranks(variables: Sequence[Tensor], measures: Sequence[RankMeasures]) -> list[RankMeasures]:
    """Replace measurements of local parts by those of full variables; return `list(measures)`.

    The measurements change in place. All ranks must call this function, and get equal results. If
    a rank failed, the results of DTensors are NaN on the other ranks.

    Args:
        variables: All variables of the step, in the same order on all ranks.
        measures: The measurements; no variable occurs twice. A rank that failed passes [].
    """
    cut = [var for var in variables if is_on_mesh(var)]
    row_by_id = {id(var): row for row, var in enumerate(cut)}
    shape = len(cut), len(MEASURED)
    numbers = torch.zeros(shape, dtype=torch.float64, device="cpu")
    is_measured = torch.full(
        shape, 0 if measures else _UNAVAILABLE, dtype=torch.int64, device="cpu"
    )
    for measure, rows, measure_rows in _match_rows(measures, row_by_id):
        flags = torch.from_numpy(measure.known[measure_rows])  # pyright: ignore[reportUnknownMemberType]
        values: Any = measure.numbers[measure_rows]
        values = values if isinstance(values, Tensor) else torch.from_numpy(values)  # pyright: ignore
        numbers = numbers.to(values.device)
        numbers[rows] = torch.where(flags.to(values.device), values, 0.0)
        is_measured[rows] = flags.long()
    for (mesh, *dims), rows in group_by_mesh(cut).items():
        for dim in dims:
            measure_rows, flags = _reduce_ranks(
                numbers[rows], is_measured[rows], Ranks(mesh.get_group(dim))
            )
            numbers[rows], is_measured[rows] = measure_rows.to(numbers.device), flags.cpu()
    for measure, rows, measure_rows in _match_rows(measures, row_by_id):
        flags = is_measured[rows].numpy() == 1
        is_missing = torch.from_numpy(~flags).to(numbers.device)  # pyright: ignore[reportUnknownMemberType]
        totals = numbers[rows].masked_fill(is_missing, float("nan"))
        if isinstance(measure.numbers, Tensor):
            measure.numbers[measure_rows] = totals
        else:
            measure.numbers[measure_rows] = totals.cpu().numpy()
        measure.known[measure_rows] = flags
    return list(measures)


def _match_rows(
    measures: Sequence[RankMeasures], row_by_id: dict[int, int]
) -> list[tuple[RankMeasures, list[int], list[int]]]:
    """Find the DTensors of each entry of `measures`.

    Args:
        measures: The measurements.
        row_by_id: {id(DTensor): row in the result}.

    Returns:
        [(entry, rows in the result, rows in the entry)], without entries that have no DTensors.
    """
    matches: list[tuple[RankMeasures, list[int], list[int]]] = []
    for measure in measures:
        candidates = enumerate(map(row_by_id.get, map(id, measure.variables)))
        rows = {measure_row: row for measure_row, row in candidates if row is not None}
        if rows:
            matches.append((measure, [*rows.values()], [*rows]))
    return matches


def _reduce_ranks(values: Tensor, is_measured: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Combine the measurements of local parts over `ranks`; all ranks must call this function.

    Args:
        values: (variables, `MEASURED`) in float64; unchanged.
        is_measured: Integers of the same shape: 0 for not measured, 1 for measured, 2 for failed.

    Returns:
        (values, is_measured) as new tensors. Columns of `values` in `PEAKS` have the largest
        magnitude over ranks, all further columns the sum. `is_measured` has the maximum.
    """
    peaks = [MEASURED.index(name) for name in PEAKS]
    # An all-reduce may add in another order, and give other bits.
    totals = tree_sum(ranks.all_gather(values.to(ranks.device)))
    # As whole numbers, magnitudes have the same order, and NaN is the largest.
    bits = values[:, peaks].to(ranks.device).abs().contiguous().view(torch.int64)
    largest = torch.cat([bits, is_measured.to(ranks.device)], dim=1)
    ranks.take_maximum(largest)
    totals[:, peaks] = largest[:, : len(peaks)].contiguous().view(torch.float64)
    return totals, largest[:, len(peaks) :]
