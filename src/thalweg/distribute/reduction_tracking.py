"""Registry of the reducer whose sums an optimizer is about to apply."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from thalweg.distribute.reducer import Reducer

_reducers: WeakKeyDictionary[object, Reducer] = WeakKeyDictionary()


def note_sums(owner: object, reducer: Reducer) -> None:
    """Record the reducer of an optimizer's last sums, for `commit_sums`."""
    _reducers[owner] = reducer


def commit_sums(owner: object, failed: bool = False) -> None:
    """Commit the last sums of an optimizer as applied, if there are any.

    Args:
        owner: The optimizer.
        failed: Whether this rank has failed since, such as in a constraint.
    """
    if _reducers:
        reducer = _reducers.pop(owner, None)
        if reducer is not None:
            reducer.commit_sums(failed)
