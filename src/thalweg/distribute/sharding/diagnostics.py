"""Diagnostics of whole variables from measurements of the ranks' parts of DTensors."""

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
from thalweg.distribute.tree_reduction import in_pairs

_LOST = 2  # beside 1 for what was measured and 0 for what was not: a rank could not, so none has it


class RankMeasures(NamedTuple):
    """Measurements of some variables on this rank.

    Attributes:
        variables: The variables, whole.
        numbers: (variables, measured) float64, in NumPy or on their device.
        known: Which of them were measured; a part without elements has none.
    """

    variables: Sequence[Tensor]
    numbers: Any
    known: npt.NDArray[np.bool_]


def over_ranks(variables: Sequence[Tensor], parts: Sequence[RankMeasures]) -> list[RankMeasures]:
    """Return the measurements of whole variables; all ranks call this, one that failed with no
    parts.

    Where a rank failed, the others have no numbers of variables that are cut: theirs are parts.

    Sums and counts are added in the order of the ranks along those dimensions of a mesh that a
    variable is cut along, so that all ranks have the same bits.

    Args:
        variables: All of the step, in one order on all ranks.
        parts: The measurements, of each variable at most once.
    """
    cut = [var for var in variables if is_on_mesh(var)]
    place = {id(var): row for row, var in enumerate(cut)}
    shape = len(cut), len(MEASURED)
    numbers = torch.zeros(shape, dtype=torch.float64, device="cpu")
    known = torch.full(shape, 0 if parts else _LOST, dtype=torch.int64, device="cpu")
    for part, rows, own in _rows_of(parts, place):
        flags = torch.from_numpy(part.known[own])  # pyright: ignore[reportUnknownMemberType]
        given: Any = part.numbers[own]
        given = given if isinstance(given, Tensor) else torch.from_numpy(given)  # pyright: ignore
        numbers = numbers.to(given.device)
        numbers[rows] = torch.where(flags.to(given.device), given, 0.0)
        known[rows] = flags.long()
    for (mesh, *dims), rows in _alike(cut).items():
        for dim in dims:
            own, flags = _joined(numbers[rows], known[rows], Ranks(mesh.get_group(dim)))
            numbers[rows], known[rows] = own.to(numbers.device), flags.cpu()
    for part, rows, own in _rows_of(parts, place):
        flags = known[rows].numpy() == 1
        there = torch.from_numpy(~flags).to(numbers.device)  # pyright: ignore[reportUnknownMemberType]
        whole = numbers[rows].masked_fill(there, float("nan"))
        if isinstance(part.numbers, Tensor):
            part.numbers[own] = whole
        else:
            part.numbers[own] = whole.cpu().numpy()
        part.known[own] = flags
    return list(parts)


def _rows_of(
    parts: Sequence[RankMeasures], place: dict[int, int]
) -> list[tuple[RankMeasures, list[int], list[int]]]:
    """Each part, where its variables that are cut are among all of these, and in the part."""
    found: list[tuple[RankMeasures, list[int], list[int]]] = []
    for part in parts:
        own = [k for k, var in enumerate(part.variables) if id(var) in place]
        if own:
            found.append((part, [place[id(part.variables[k])] for k in own], own))
    return found


def _alike(cut: Sequence[Tensor]) -> dict[tuple[Any, ...], list[int]]:
    """The variables that are cut along the same dimensions of the same mesh."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for row, var in enumerate(cut):
        placed: Any = var
        dims = [k for k, each in enumerate(placed.placements) if not each.is_replicate()]
        found.setdefault((placed.device_mesh, *dims), []).append(row)
    return found


def _joined(numbers: Tensor, known: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """What all of these ranks have together."""
    peaks = [MEASURED.index(name) for name in PEAKS]
    whole = in_pairs(ranks.all_gather(numbers.to(ranks.device)))
    # As whole numbers, magnitudes have the same order, and NaN is the largest.
    bits = numbers[:, peaks].to(ranks.device).abs().contiguous().view(torch.int64)
    largest = torch.cat([bits, known.to(ranks.device)], dim=1)
    ranks.take_maximum(largest)
    whole[:, peaks] = largest[:, : len(peaks)].contiguous().view(torch.float64)
    return whole, largest[:, len(peaks) :]
