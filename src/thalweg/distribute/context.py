"""Which strategy a thread is in, and on which side of it: in a replica or across all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple, Protocol, TypeVar

from thalweg.distribute.buckets import Sending
from thalweg.distribute.ranks import Ranks
from thalweg.running import thread


class Replicas(Protocol):
    """What the parts of a strategy know of it.

    Attributes:
        ranks: The ranks.
        sending: How they send gradients.
        is_default: Whether it stands where nobody made one.
    """

    ranks: Ranks
    sending: Sending
    is_default: bool


Which = TypeVar("Which", bound=Replicas)


class Replica(Protocol):
    """One of the replicas of a strategy."""

    @property
    def strategy(self) -> Replicas: ...


class Entered(NamedTuple):
    """What a thread has entered.

    Attributes:
        strategy: The strategy.
        replica: The context of a replica, or None across replicas.
    """

    strategy: Replicas
    replica: Replica | None


@contextlib.contextmanager
def across(strategy: Which) -> Iterator[Which]:
    """Be across the replicas of a strategy until the block ends."""
    thread.strategies.append(Entered(strategy, None))
    try:
        yield strategy
    finally:
        thread.strategies.pop()


@contextlib.contextmanager
def within(replica: Replica) -> Iterator[None]:
    """Be in a replica until the block ends."""
    thread.strategies.append(Entered(replica.strategy, replica))
    try:
        yield
    finally:
        thread.strategies.pop()


def innermost() -> Entered | None:
    """What this thread has entered last."""
    return thread.strategies[-1] if thread.strategies else None


def has_strategy() -> bool:
    """Whether this thread is in the scope of a strategy that somebody made."""
    here = innermost()
    return here is not None and not (here.replica is None and here.strategy.is_default)


def in_cross_replica_context() -> bool:
    """Whether this thread is across replicas: in `scope`, in `merge_call`, not in `run`."""
    here = innermost()
    return here is not None and here.replica is None
