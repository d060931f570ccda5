"""Locks that stay usable in forked processes.

A forked child has only the thread that forked. A lock that another thread of the parent held would
stay locked for ever, so the child unlocks it. State that such a lock guards may be incomplete: an
object with a `Guard` is unusable until its state is set.
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
# The class in C has more methods than are documented.
_RLock: Any = type(threading.RLock())

# Seconds that a fork waits for an `Awaited` lock at most.
_PATIENCE = 30.0

_locks: WeakSet[Lock] = WeakSet()
_holders: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()
# Threads whose incomplete writes are handled by other code.
_excused: set[int] = set()


class Lock(_RLock):
    """Reentrant lock that a fork does not leave locked.

    It is acquired and released in C, so that no interruption comes between.
    """

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        _locks.add(self)

    def is_mine(self) -> bool:
        """Return True if this thread holds the lock."""
        return self._is_owned()

    def is_abandoned(self) -> bool:
        """Return True in a new child process if another thread of the parent held the lock."""
        if self._is_owned():
            # The thread that forked holds the lock.
            return False
        free = self.acquire(blocking=False)
        if free:
            self.release()
        return not free

    def _renew(self) -> None:
        if self.is_abandoned():
            self._at_fork_reinit()


class Awaited(Lock):
    """Lock that a fork waits to acquire.

    The lock guards work that a child cannot resume: an import, or the internals of a compiler.
    """


# Held while a step imports modules that only some steps need.
importing = Awaited()


class Guard(Lock):
    """Lock of an object with state, held for each access to the state.

    If another thread holds the lock during a fork, the child replaces the lock by a `Mark`.

    Args:
        owner: The object, which has this lock as an attribute.
        forget: Optional. The child calls `forget(owner)`, which drops caches of an unfinished step.
    """

    def __init__(self, owner: Any, forget: Callable[[Any], object] | None = None) -> None:
        super().__init__()
        self._owner: Callable[[], object] = ref(owner)
        self._forget = forget

    def to_load(self) -> Guard:
        """Return the lock to hold while all guarded state is set, before `loaded` is called."""
        return self

    def loaded(self) -> None:
        """Record that all guarded state is complete."""

    def _renew(self) -> None:
        """In a forked child, unlock the lock if another thread of the parent held it.

        In this case also call the constructor's `forget(owner)`. Replace the lock in the owner's
        attributes by a `Mark`, unless `excuse` was called with the other thread.
        """
        if not self.is_abandoned():
            return
        # Python shows the holder of an `RLock` only in the repr, until the lock is reinitialized.
        thread = int((re.findall(r"owner=(\d+)", repr(self)) or "0")[0])
        self._at_fork_reinit()
        owner = self._owner()
        if owner is None:
            return
        if self._forget is not None:
            self._forget(owner)
        if thread not in _excused:
            mark = Mark(self, owner)
            vars(owner).update({name: mark for name, x in vars(owner).items() if x is self})


class Mark(Guard):
    """Lock that replaces the `Guard` of an object with incomplete state. `with` raises an error."""

    def __init__(self, guard: Guard, owner: Any) -> None:
        super().__init__(owner)
        self._guard = guard
        self._parent = os.getppid()

    def __enter__(self) -> bool:
        # This thread is loading new values.
        if self._guard._is_owned():
            return self._guard.__enter__()
        raise FailedPreconditionError(self._reason())

    def __exit__(self, *error: object) -> None:
        self._guard.__exit__(*error)

    def to_load(self) -> Guard:
        return self._guard

    def loaded(self) -> None:
        owner = self._owner()
        if owner is not None:
            names = [name for name, x in vars(owner).items() if x is self]
            vars(owner).update(dict.fromkeys(names, self._guard))

    def _reason(self) -> str:
        """Return the error message: the owner, the fork, and what to do."""
        owner = self._owner()
        kind, name = type(owner).__name__, getattr(owner, "_name", None)
        label = f"{kind} '{name}'" if name else kind
        loaders = "load_state_dict", "set_weights"
        methods = [method for method in loaders if hasattr(type(owner), method)]
        remedy = "Make another one."
        if methods:
            remedy = f"Set the variables, and load a state by {' or '.join(methods)}."
        return (
            f"Another thread was in a step of {label}, or was reading or loading its state, when"
            f" process {self._parent} forked this one. That thread is not here to end it, so the"
            f" variables and the state may be half written, and {label} neither steps nor saves."
            f" {remedy}"
        )


def on_fork(holder: _T, renew: Callable[[_T], None]) -> None:
    """Register a call of `renew(holder)` in each forked child, before locks are renewed."""
    _holders[holder] = renew


def excuse(thread: int) -> None:
    """Record, within `on_fork`, that other code handles the incomplete writes of a thread."""
    _excused.add(thread)


# The attribute `locks` has the `Awaited` locks that a thread acquired before a fork.
_forking = threading.local()


def _acquire_before_fork() -> None:
    acquired: list[Lock] = []
    _forking.locks = acquired
    for lock in list(_locks):
        # The wait is limited: the other thread may wait for a lock of this thread.
        if isinstance(lock, Awaited) and lock.acquire(timeout=_PATIENCE):
            acquired.append(lock)


def _release_after_fork() -> None:
    for lock in vars(_forking).pop("locks", ()):
        lock.release()


def _renew_in_child() -> None:
    """Renew all holders and locks in a forked child."""
    _release_after_fork()
    # Holders come first: they call `excuse`, whose result `Guard._renew` reads.
    for holder, renew in list(_holders.items()):
        renew(holder)
    for lock in list(_locks):
        lock._renew()  # pyright: ignore[reportPrivateUsage]
    _excused.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_acquire_before_fork,
        after_in_parent=_release_after_fork,
        after_in_child=_renew_in_child,
    )
