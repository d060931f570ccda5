"""Which strategy a thread is in, and on which side of it: in a replica or across all of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from thalweg.distribute.replica import ReplicaContext
    from thalweg.distribute.strategy import Strategy


class Entered(NamedTuple):
    """What a thread has entered.

    Attributes:
        strategy: The strategy.
        replica: The context of a replica, or None across replicas.
    """

    strategy: Strategy
    replica: ReplicaContext | None


class _Here(threading.local):
    def __init__(self) -> None:
        self.entered: list[Entered] = []


_here = _Here()


@contextlib.contextmanager
def across(strategy: Strategy) -> Iterator[Strategy]:
    """Be across the replicas of a strategy until the block ends."""
    _here.entered.append(Entered(strategy, None))
    try:
        yield strategy
    finally:
        _here.entered.pop()


@contextlib.contextmanager
def within(replica: ReplicaContext) -> Iterator[ReplicaContext]:
    """Be in a replica until the block ends."""
    _here.entered.append(Entered(replica.strategy, replica))
    try:
        yield replica
    finally:
        _here.entered.pop()


def innermost() -> Entered | None:
    """What this thread has entered last."""
    return _here.entered[-1] if _here.entered else None


def has_strategy() -> bool:
    """Whether this thread is in the scope of a strategy that somebody made."""
    return bool(_here.entered)


def in_cross_replica_context() -> bool:
    """Whether this thread is across replicas: in `scope`, in `merge_call`, not in `run`."""
    here = innermost()
    return here is not None and here.replica is None
