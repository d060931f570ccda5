"""Sharding of existing slots."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from thalweg._base.context_managers import writable
from thalweg.distribute.sharding.shards import Shards
from thalweg.formula import Slot
from thalweg.indexed_slices import IndexedSlices


def arrange_slots(
    owner: Any, shards: Shards, pairs: Sequence[tuple[Any, Any]], slots: Sequence[Slot]
) -> None:
    """Replace the slots of an optimizer by sharded ones, unless they are; all ranks call this.

    A variable whose sparse gradient has rows that cross the end of a part is assigned to one rank.

    Args:
        owner: The optimizer; its slots are replaced.
        shards: The assignment of elements to ranks.
        pairs: Gradients and variables of a step.
        slots: The optimizer's slots without those of shape ().
    """
    store = owner._slots
    cut = [
        var for grad, var in pairs if isinstance(grad, IndexedSlices) and not shards.has_rows(var)
    ]
    variables = store.owners() if store.parts is None else cut
    if store.parts is not None and not cut:
        return
    shards.cut_new(variables)

    def keep_whole() -> None:
        """Assign variables with sparse rows that parts would divide to one rank each."""
        for var in cut:
            shards.keep_whole(var)

    with writable():
        new_store = copy.copy(store)
        owner._take_store(new_store, new_store.remake(variables, slots, shards, keep_whole))
