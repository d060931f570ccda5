"""Lock that many readers or one writer may hold.

What a thread holds is noted in a `Holder` by the very statements that count it, between which
Python lets no interruption in. So whoever gives back what its holder notes leaves nothing locked,
whenever it is interrupted.
"""

from __future__ import annotations

import threading
from typing import Protocol

SHARED, EXCLUSIVE = "shared", "exclusive"


class Holder(Protocol):
    """Object that records the mode in which a thread holds a lock.

    Attributes:
        lock: `SHARED`, `EXCLUSIVE`, or None if the thread does not hold the lock.
    """

    lock: str | None


class ReadWriteLock:
    """Lock for many readers or one writer; readers and writers take turns."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # taken in C, as Condition's own methods are not
        self._condition = threading.Condition(self._guard)
        self._readers = 0
        self._writing = False
        self._writer = 0  # the thread that writes, or wrote last
        self._waiting_readers = 0
        self._waiting_writers = 0
        self._admitted = 0  # readers that go before the next writer

    def acquire(self, mode: str, holder: Holder) -> None:
        """Wait for the lock in mode `SHARED` or `EXCLUSIVE`; set `holder.lock` to the mode.

        Call `release` even if this call is interrupted.
        """
        with self._guard:
            if mode == SHARED:
                self._acquire_shared(holder)
            else:
                self._acquire_exclusive(holder)

    def _acquire_shared(self, holder: Holder) -> None:
        """Wait while a writer holds the lock or goes first; then set `holder.lock`."""
        self._waiting_readers += 1
        try:
            while self._writing or (self._waiting_writers and not self._admitted):
                self._condition.wait()
            self._readers += 1
            holder.lock = SHARED
            if self._admitted:
                self._admitted -= 1
        finally:
            self._waiting_readers -= 1
            if self._admitted > self._waiting_readers:  # the wait failed: it takes no turn
                self._admitted = self._waiting_readers
                self._condition.notify_all()

    def _acquire_exclusive(self, holder: Holder) -> None:
        """Wait until no thread holds the lock and it is a writer's turn; then set `holder.lock`."""
        thread = threading.get_ident()
        self._waiting_writers += 1
        try:
            while self._writing or self._readers or self._admitted:
                self._condition.wait()
            self._writing, self._writer = True, thread
            holder.lock = EXCLUSIVE
        finally:
            self._waiting_writers -= 1
            self._condition.notify_all()  # had the wait failed, readers would wait on

    def release(self, holder: Holder) -> None:
        """Release the lock in the mode `holder.lock`, if any, and set `holder.lock` to None.

        Raise an interruption after the release. An interruption before the first statement
        leaves the lock held: call again.
        """
        interruption: BaseException | None = None
        notified = False
        while not notified:
            try:
                with self._guard:
                    if holder.lock == SHARED:
                        self._readers -= 1
                        holder.lock = None
                    elif holder.lock == EXCLUSIVE:
                        self._writing = False
                        # Readers that wait now go first, or successive writers would starve them.
                        self._admitted = self._waiting_readers
                        holder.lock = None
                    self._condition.notify_all()
                    notified = True
            except BaseException as error:
                interruption = error
        if interruption is not None:
            raise interruption

    def renew(self, mode: str | None) -> int:
        """Reset the lock in a forked child, where only the forking thread is left.

        `mode` is the mode in which the forking thread holds the lock, or None. Return the id of
        another thread that held the lock exclusively, or 0.
        """
        lost_writer = self._writer if self._writing and mode != EXCLUSIVE else 0
        self.__init__()
        self._readers, self._writing = int(mode == SHARED), mode == EXCLUSIVE
        self._writer = threading.get_ident()
        return lost_writer
