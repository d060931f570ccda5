"""Slots that others hold: whoever was handed one may have given it other memory since."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from thalweg._engines.metadata_guard import MetadataGuard
from thalweg.variable import StateVariable


class StorageGuard:
    """The slots of a plan, whose addresses it holds.

    An assignment to `data` is counted by the slot. `set_`, `t_`, `torch.utils.swap_tensors` and
    their like are not, but need the slot in hand: only those that were ever handed out are looked
    at, and the others cost nothing.

    Args:
        slots: As they are now.
    """

    def __init__(self, slots: Sequence[Tensor]) -> None:
        self._slots = slots
        self._addresses = list(map(Tensor.data_ptr, slots))
        self._layouts = list(map(_layout_of, slots))
        # The slots of a store share one record.
        found = {id(slot.moves): slot.moves for slot in slots if isinstance(slot, StateVariable)}
        self._moves = list(found.values())
        self._moved = [each.count for each in self._moves]
        self._watch_storages()

    def _watch_storages(self) -> None:
        self._handed = [len(each.handed) for each in self._moves]
        handed = {key for each in self._moves for key in each.handed}
        self._places = [
            place
            for place, slot in enumerate(self._slots)
            if id(slot) in handed or _is_strange(slot)
        ]
        self._watched = [self._slots[place] for place in self._places]
        self._watched_at = [self._addresses[place] for place in self._places]
        self._seen = MetadataGuard()

    def confirm_places(self) -> bool:
        """Whether they all lie where they lay, and as they did.

        Raises:
            RuntimeError: One has no memory.
        """
        if [each.count for each in self._moves] != self._moved:
            return False
        if [len(each.handed) for each in self._moves] != self._handed:
            self._watch_storages()
        if not self._watched:
            return True
        if list(map(Tensor.data_ptr, self._watched)) != self._watched_at:
            return False
        if not self._seen.holds(self._watched):
            if list(map(_layout_of, self._watched)) != [self._layouts[k] for k in self._places]:
                return False
            self._seen = MetadataGuard(self._watched)
        return True


def _is_strange(slot: Tensor) -> bool:
    """Whether nobody counts what is done to it: a plain tensor, or one that was swapped."""
    return type(slot) is not StateVariable


def _layout_of(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()
