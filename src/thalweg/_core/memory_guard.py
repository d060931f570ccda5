"""Memory that a function of the user's takes away between the look at it and the writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from thalweg._engines.protocol import StepRequest
from thalweg.errors import LayoutError
from thalweg.indexed_slices import IndexedSlices


class MemoryGuard:
    """Where the tensors of a step lie, and how large their storages are.

    Args:
        asked: The step.
        others: What else it writes to.
    """

    def __init__(self, asked: StepRequest, *others: Sequence[Sequence[Tensor]]) -> None:
        self._named = [
            *zip(asked.variables, asked.titles, strict=True),
            *_name_each(asked.slots, asked.titles, "a slot of "),
            *(named for own in others for named in _name_each(own, asked.titles, "a slot of ")),
            *_name_each(map(_tensors_of, asked.gradients), asked.titles, "the gradient of "),
            *_name_each(map(_pair_copy, asked.copies or ()), asked.titles, "the copy of "),
        ]
        self._places = self._now()

    def _now(self) -> list[tuple[int, int]]:
        return [(each.data_ptr(), each.untyped_storage().nbytes()) for each, _ in self._named]

    def check_in_place(self) -> None:
        """Refuse to go on if one of them lies elsewhere now.

        Raises:
            LayoutError: Names the first.
        """
        for (_, title), was, now in zip(self._named, self._places, self._now(), strict=True):
            if now != was:
                raise LayoutError(
                    f"The memory of {title} was replaced or cut by a function that the step called."
                    " A function that a step calls may change values in place, and nothing else."
                )


def _name_each(several: Any, titles: Sequence[str], prefix: str) -> Iterator[tuple[Tensor, str]]:
    for own, title in zip(several, titles, strict=False):
        yield from ((each, f"{prefix}{title}") for each in own)


def _pair_copy(copy: Tensor | None) -> list[Tensor]:
    return [] if copy is None else [copy]


def _tensors_of(grad: Any) -> list[Tensor]:
    if isinstance(grad, IndexedSlices):
        return [grad.values, grad.indices]
    return [grad._values(), grad._indices()] if grad.is_sparse else [grad]
