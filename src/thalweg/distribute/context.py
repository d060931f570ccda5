"""Which strategy a thread is in, and on which side of it: in a replica or across all of them."""

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
    """What the parts of a strategy know of it.

    Attributes:
        ranks: The ranks.
        sending: How they send gradients.
        is_default: Whether it stands where nobody made one.
    """

    ranks: Ranks
    sending: Sending
    is_default: bool


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
    """What this thread has entered last."""
    return thread.strategies[-1] if thread.strategies else None


def enter_update() -> AbstractContextManager[Any]:
    """A block in which a hook updates variables: across replicas, if there are several."""
    if replicas() == 1:
        return contextlib.nullcontext()
    return enter_cross_replica(thread.strategies[-1].strategy)


def has_strategy() -> bool:
    """Whether this thread is in the scope of a strategy that somebody made."""
    here = innermost_context()
    return here is not None and not (here.replica is None and here.strategy.is_default)


def in_cross_replica_context() -> bool:
    """Whether this thread is across replicas: in `scope`, in `merge_call`, not in `run`."""
    here = innermost_context()
    return here is not None and here.replica is None
