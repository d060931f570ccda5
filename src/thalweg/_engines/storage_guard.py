"""Detection of slots whose memory or layout changed since the step was planned."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from thalweg._engines.metadata_guard import MetadataGuard
from thalweg.variable import StateVariable


class StorageGuard:
    """Guard of the memory of a plan's slots.

    Slots count assignments to `data`, but not calls of `set_`, `t_`, `torch.utils.swap_tensors` and
    similar functions. A call needs a reference to the slot. Therefore slots that callers have
    received are compared one by one.

    Args:
        slots: The slots of the plan.
    """

    def __init__(self, slots: Sequence[Tensor]) -> None:
        self._slots = slots
        # The slots of a store share one record.
        moves_by_id = {
            id(slot.moves): slot.moves for slot in slots if isinstance(slot, StateVariable)
        }
        self._moves = list(moves_by_id.values())
        self._move_counts = [moves.count for moves in self._moves]

    def record_memory(self, aliases: Sequence[Tensor]) -> None:
        """Record the memory and layout of aliases of the slots, made after this object."""
        self._addresses = list(map(Tensor.data_ptr, aliases))
        self._layouts = list(map(_read_layout, aliases))
        self._watch_storages()

    def slot_addresses(self) -> list[tuple[Tensor, int]]:
        """Return (slot, address) pairs."""
        return list(zip(self._slots, self._addresses, strict=True))

    def _watch_storages(self) -> None:
        """Select the slots whose address and layout `confirm_places` compares.

        These are slots that callers have received, and tensors that are not a `StateVariable`.
        """
        self._handed_counts = [len(moves.handed) for moves in self._moves]
        handed_ids = {key for moves in self._moves for key in moves.handed}
        self._watched_indices = [
            index
            for index, slot in enumerate(self._slots)
            # Plain tensors, and slots that were swapped, count no changes.
            if id(slot) in handed_ids or type(slot) is not StateVariable
        ]
        self._watched_slots = [self._slots[index] for index in self._watched_indices]
        self._watched_addresses = [self._addresses[index] for index in self._watched_indices]
        self._metadata_guard = MetadataGuard()

    def confirm_places(self) -> bool:
        """Return True if all slots have the memory and layout that `record_memory` recorded.

        Raises:
            RuntimeError: A slot has no memory.
        """
        if [moves.count for moves in self._moves] != self._move_counts:
            return False
        if [len(moves.handed) for moves in self._moves] != self._handed_counts:
            self._watch_storages()
        if not self._watched_slots:
            return True
        if list(map(Tensor.data_ptr, self._watched_slots)) != self._watched_addresses:
            return False
        if not self._metadata_guard.holds(self._watched_slots):
            if list(map(_read_layout, self._watched_slots)) != [
                self._layouts[index] for index in self._watched_indices
            ]:
                return False
            self._metadata_guard = MetadataGuard(self._watched_slots)
        return True


def _read_layout(tensor: Tensor) -> tuple[object, ...]:
    """Return dtype, shape and strides."""
    return tensor.dtype, tensor.shape, tensor.stride()
