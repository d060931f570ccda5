"""Detection of user functions that reallocate memory between validation and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from thalweg._engines.protocol import StepRequest
from thalweg.errors import LayoutError
from thalweg.indexed_slices import IndexedSlices


class MemoryGuard:
    """Guard that remembers the addresses and storage sizes of a step's tensors.

    Args:
        request: The step, whose variables, slots, gradients and copies are guarded.
        others: Further tensors that the step writes to: lists with an entry for each variable.
    """

    def __init__(self, request: StepRequest, *others: Sequence[Sequence[Tensor]]) -> None:
        copies = [[] if copy is None else [copy] for copy in request.copies or ()]
        self._tensors = [
            (tensor, f"{prefix}{title}")
            for prefix, lists in (
                ("", [[var] for var in request.variables]),
                *(("a slot of ", slots) for slots in (request.slots, *others)),
                ("the gradient of ", map(_list_tensors, request.gradients)),
                ("the copy of ", copies),
            )
            # A list is () if the rule has no slots of this kind.
            for tensors, title in zip(lists, request.titles, strict=False)
            for tensor in tensors
        ]
        self._old_locations = self._read_locations()

    def _read_locations(self) -> list[tuple[int, int]]:
        return [(t.data_ptr(), t.untyped_storage().nbytes()) for t, _ in self._tensors]

    def check_in_place(self) -> None:
        """Raise an error if an address or storage size has changed since construction.

        Raises:
            LayoutError: An address or a size differs; the message names the first such tensor.
        """
        locations = zip(self._tensors, self._old_locations, self._read_locations(), strict=True)
        for (_, label), old, new in locations:
            if new != old:
                raise LayoutError(
                    f"The memory of {label} was replaced or cut by a function that the step called."
                    " A function that a step calls may change values in place, and nothing else."
                )


def _list_tensors(grad: Any) -> list[Tensor]:
    if isinstance(grad, IndexedSlices):
        return [grad.values, grad.indices]
    return [grad._values(), grad._indices()] if grad.is_sparse else [grad]
