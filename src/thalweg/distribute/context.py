"""Strategy context of a thread: in a replica, or across all replicas."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from thalweg._base.context_managers import ContextSetting
from thalweg._base.execution_context import replicas, thread

if TYPE_CHECKING:
    from thalweg.distribute.buckets import Sending
    from thalweg.distribute.process_group import Ranks


class Replicas(Protocol):
    """Interface of a strategy for the modules of this package.

    Attributes:
        ranks: The ranks.
        sending: The settings of the transfer of gradients.
        is_default: True if it is the default, used where the user made no strategy.
    """

    ranks: Ranks
    sending: Sending
    is_default: bool


class Replica(Protocol):
    """Interface of a replica of a strategy."""

    @property
    def strategy(self) -> Replicas: ...


class StrategyContext(NamedTuple):
    """Strategy context of a thread.

    Attributes:
        strategy: The strategy.
        replica: The replica inside `run`; None in cross-replica context (`scope`, `merge_call`).
    """

    strategy: Replicas
    replica: Replica | None


def enter_cross_replica(strategy: Replicas) -> ContextSetting:
    """Return a context manager that enters cross-replica context and yields the strategy."""
    return _enter_scope(StrategyContext(strategy, None), strategy)


def enter_replica(replica: Replica) -> ContextSetting:
    """Return a context manager that enters the context of a replica."""
    return _enter_scope(StrategyContext(replica.strategy, replica))


def _enter_scope(context: StrategyContext, target: object = None) -> ContextSetting:
    enter_calls = [partial(thread.strategies.append, context)]
    return ContextSetting(lambda: (enter_calls, [thread.strategies.pop]), target)


def innermost_context() -> StrategyContext | None:
    """Return the innermost context of this thread, or None."""
    return thread.strategies[-1] if thread.strategies else None


def enter_update() -> AbstractContextManager[Any]:
    """Return a context manager for updates by hooks: the cross-replica context of several ranks."""
    if replicas() == 1:
        return contextlib.nullcontext()
    return enter_cross_replica(thread.strategies[-1].strategy)


def has_strategy() -> bool:
    """Return True if this thread is in the scope of a strategy that the user made."""
    context = innermost_context()
    return context is not None and not (context.replica is None and context.strategy.is_default)


def in_cross_replica_context() -> bool:
    """Return True in `scope` and in `merge_call`, False in `run`."""
    context = innermost_context()
    return context is not None and context.replica is None
