"""Registry that maps an optimizer to the reducer of its unapplied gradient sums."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from thalweg.distribute.reducer import Reducer

_reducers: WeakKeyDictionary[object, Reducer] = WeakKeyDictionary()


def note_sums(owner: object, reducer: Reducer) -> None:
    """Record the reducer of the last sums of an optimizer, for `commit_sums`."""
    _reducers[owner] = reducer


def commit_sums(owner: object, failed: bool = False) -> None:
    """Mark the last sums of an optimizer as applied; do nothing if it has no unapplied sums.

    Args:
        owner: The optimizer.
        failed: True if this rank failed after the sums were applied, such as in a constraint.
    """
    if _reducers:
        reducer = _reducers.pop(owner, None)
        if reducer is not None:
            reducer.commit_sums(failed)
