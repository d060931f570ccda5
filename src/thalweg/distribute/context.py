"""Strategy of a thread, and its position: in a replica or across all of them."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from thalweg._base.context_managers import ContextSetting, Sections
from thalweg._base.execution_context import replicas, thread

if TYPE_CHECKING:
    from thalweg.distribute.buckets import Sending
    from thalweg.distribute.process_group import Ranks


class Replicas(Protocol):
    """Interface of a strategy for its parts.

    Attributes:
        ranks: The ranks.
        sending: The settings of their sending of gradients.
        is_default: Whether it is the default, used where the user made no strategy.
    """

    ranks: Ranks
    sending: Sending
    is_default: bool


class Replica(Protocol):
    """Interface of a replica of a strategy."""

    @property
    def strategy(self) -> Replicas: ...


class Entered(NamedTuple):
    """Context that a thread has entered.

    Attributes:
        strategy: The strategy.
        replica: The context of a replica, or None across replicas.
    """

    strategy: Replicas
    replica: Replica | None


def enter_cross_replica(strategy: Replicas) -> ContextSetting:
    """Be across the replicas of a strategy, which the block is given, until it ends."""
    return _enter_scope(Entered(strategy, None), strategy)


def enter_replica(replica: Replica) -> ContextSetting:
    """Be in a replica until the block ends."""
    return _enter_scope(Entered(replica.strategy, replica))


def _enter_scope(entered: Entered, given: object = None) -> ContextSetting:
    def enter_section() -> Sections:
        return [partial(thread.strategies.append, entered)], [thread.strategies.pop]

    return ContextSetting(enter_section, given)


def innermost_context() -> Entered | None:
    """Return the context that this thread has entered last, or None."""
    return thread.strategies[-1] if thread.strategies else None


def enter_update() -> AbstractContextManager[Any]:
    """Return a context manager for a block in which a hook updates variables: across replicas, if
    there are several.
    """
    if replicas() == 1:
        return contextlib.nullcontext()
    return enter_cross_replica(thread.strategies[-1].strategy)


def has_strategy() -> bool:
    """Return True if this thread is in the scope of a strategy that the user made."""
    here = innermost_context()
    return here is not None and not (here.replica is None and here.strategy.is_default)


def in_cross_replica_context() -> bool:
    """Return True if this thread is across replicas: in `scope`, in `merge_call`, not in `run`."""
    here = innermost_context()
    return here is not None and here.replica is None
