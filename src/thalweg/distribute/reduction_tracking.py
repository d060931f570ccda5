"""Record of the reducer of the gradients that an optimizer is about to apply."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from thalweg.distribute.reducer import Reducer

_reducers: WeakKeyDictionary[object, Reducer] = WeakKeyDictionary()


def note_sums(owner: object, reducer: Reducer) -> None:
    """Note who has summed the gradients of an optimizer; `commit_sums` may follow."""
    _reducers[owner] = reducer


def commit_sums(owner: object, failed: bool = False) -> None:
    """Say that an optimizer has applied the sums that it was given last, if there were any.

    Args:
        owner: The optimizer.
        failed: Whether something has failed since, such as a constraint, on this rank at least.
    """
    if _reducers:
        reducer = _reducers.pop(owner, None)
        if reducer is not None:
            reducer.commit_sums(failed)
