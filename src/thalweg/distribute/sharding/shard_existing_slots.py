"""Slots that there are already, in the parts that the ranks have of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from thalweg._base.context_managers import writable
from thalweg.distribute.sharding.shards import Shards
from thalweg.formula import Slot
from thalweg.indexed_slices import IndexedSlices


def arrange_slots(
    owner: Any, shards: Shards, pairs: Sequence[tuple[Any, Any]], kinds: Sequence[Slot]
) -> None:
    """Share out the slots of an optimizer, if they are not; all ranks call this.

    A variable whose gradient has rows that end within a part is given to one rank.

    Args:
        owner: The optimizer.
        shards: Who has what.
        pairs: A step.
        kinds: The optimizer's kinds of slot, without those of shape ().
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
        for var in cut:
            shards.keep_whole(var)

    with writable():
        made = copy.copy(store)
        owner._take_store(made, made.remake(variables, kinds, shards, keep_whole))
