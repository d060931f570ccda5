"""Locks, and what a fork does to them.

A forked child has one thread, the one that forked. What another thread held at that moment it would
hold there for ever; so in a child such locks are made anew. What they guard may be half written:
whoever has a `Guard` is set aside then until it is given a state.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet, ref

from thalweg.errors import FailedPreconditionError

_T = TypeVar("_T")
_RLock: Any = type(threading.RLock())  # in C, with more methods than are documented

_PATIENCE = 30.0  # seconds that a fork waits for an `Awaited` lock at most

_locks: WeakSet[Lock] = WeakSet()
_holders: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()
_excused: set[int] = set()  # threads whose half-done work somebody else answers for


class Lock(_RLock):
    """A lock that its thread may take again, and that no fork leaves locked for ever.

    It is taken and given back in C, as `threading.RLock` is: no interruption comes between.
    """

    def __init__(self) -> None:
        super().__init__()
        _locks.add(self)

    def is_mine(self) -> bool:
        """Return True if this thread holds the lock."""
        return self._is_owned()

    def is_abandoned(self) -> bool:
        """Return True, in a newly forked child, if a thread that does not exist here holds the
        lock.
        """
        if self._is_owned():
            return False  # by the thread that forked
        free = self.acquire(blocking=False)
        if free:
            self.release()
        return not free

    def _renew(self) -> None:
        if self.is_abandoned():
            self._at_fork_reinit()


class Awaited(Lock):
    """A lock that a fork waits for.

    It guards what no child could take up again: an import under way, the insides of a compiler.
    """


importing = Awaited()  # held while a step imports what only some steps need


class Guard(Lock):
    """The lock of an object that remembers, for each use of what it remembers.

    Where another thread is at that when the process is forked, the child has a `Mark` as the
    object's `_lock` instead.

    Args:
        owner: The object, which has this as its attribute `_lock`.
        forget: Called in a child then, with the object: drops what only that thread's step needed.
    """

    def __init__(self, owner: Any, forget: Callable[[Any], object] | None = None) -> None:
        super().__init__()
        self._owner = ref(owner)
        self._forget = forget

    def to_load(self) -> Guard:
        """Return the object to hold while all guarded values are set, before `loaded` is called."""
        return self

    def loaded(self) -> None:
        """Record that all guarded values are whole."""

    def _renew(self) -> None:
        if not self.is_abandoned():
            return
        thread = int((re.findall(r"owner=(\d+)", repr(self)) or "0")[0])
        self._at_fork_reinit()
        owner = self._owner()
        if owner is None:
            return
        if self._forget is not None:
            self._forget(owner)
        if thread not in _excused and owner._lock is self:
            vars(owner)["_lock"] = Mark(self, owner)


class Mark(Guard):
    """Stands for the `Guard` of an object that may be half written, and refuses its use.

    Args:
        guard: The guard.
        owner: The object.
    """

    def __init__(self, guard: Guard, owner: Any) -> None:
        super().__init__(owner)
        self._guard = guard
        self._parent = os.getppid()

    def __enter__(self) -> bool:
        if self._guard._is_owned():  # it is being loaded
            return self._guard.__enter__()
        raise FailedPreconditionError(self._reason())

    def __exit__(self, *error: object) -> None:
        self._guard.__exit__(*error)

    def to_load(self) -> Guard:
        return self._guard

    def loaded(self) -> None:
        owner = self._owner()
        if owner is not None:
            vars(owner)["_lock"] = self._guard

    def _reason(self) -> str:
        owner = self._owner()
        kind, name = type(owner).__name__, getattr(owner, "_name", None)
        title = f"{kind} '{name}'" if name else kind
        ways = [way for way in ("load_state_dict", "set_weights") if hasattr(type(owner), way)]
        remedy = "Make another one."
        if ways:
            remedy = f"Set the variables, and load a state by {' or '.join(ways)}."
        return (
            f"Another thread was in a step of {title}, or was reading or loading its state, when"
            f" process {self._parent} forked this one. That thread is not here to end it, so the"
            f" variables and the state may be half written, and {title} neither steps nor saves."
            f" {remedy}"
        )


def on_fork(holder: _T, renew: Callable[[_T], None]) -> None:
    """Have `renew(holder)` called in each forked child, while the locks are as they were."""
    _holders[holder] = renew


def excuse(thread: int) -> None:
    """Record, in `on_fork`, that other code handles the incomplete writes of a thread."""
    _excused.add(thread)


class _Forking(threading.local):
    """What a thread that is forking holds meanwhile."""

    def __init__(self) -> None:
        self.awaited: list[Lock] = []


_forking = _Forking()


def _before() -> None:
    for lock in list(_locks):
        # Not for ever: the other thread may be waiting for something that this one holds.
        if isinstance(lock, Awaited) and lock.acquire(timeout=_PATIENCE):
            _forking.awaited.append(lock)


def _after() -> None:
    held, _forking.awaited = _forking.awaited, []
    for lock in held:
        lock.release()


def _in_child() -> None:
    _after()
    for holder, renew in list(_holders.items()):
        renew(holder)
    for lock in list(_locks):
        lock._renew()
    _excused.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
