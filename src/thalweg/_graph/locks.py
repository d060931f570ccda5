"""Lock that many readers or one writer may hold.

A `Holder` records the mode in which a thread holds the lock. The record and the lock's counters are
set by successive statements, between which Python does not raise KeyboardInterrupt. So an
interrupted thread can always release the mode that `Holder.lock` records.
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
        # Taken in C by `with`; the methods of `Condition` are Python code and may be interrupted.
        self._guard = threading.RLock()
        self._condition = threading.Condition(self._guard)
        self._readers = 0
        self._writing = False
        # The thread that writes, or that was the last to write.
        self._writer = 0
        self._waiting_readers = 0
        self._waiting_writers = 0
        # Number of waiting readers that get the lock before the next writer.
        self._admitted = 0

    def acquire(self, mode: str, holder: Holder) -> None:
        """Wait for the lock in mode `SHARED` or `EXCLUSIVE`; set `holder.lock` to the mode.

        The caller must call `release`, even if an interruption ends this call.
        """
        with self._guard:
            if mode == SHARED:
                self._acquire_shared(holder)
            else:
                self._acquire_exclusive(holder)

    def _acquire_shared(self, holder: Holder) -> None:
        """Wait while a writer holds the lock or is next; then set `holder.lock`."""
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
            # This reader was interrupted, and gives up its turn.
            if self._admitted > self._waiting_readers:
                self._admitted = self._waiting_readers
                self._condition.notify_all()

    def _acquire_exclusive(self, holder: Holder) -> None:
        """Wait until no thread holds the lock and no reader is next; then set `holder.lock`."""
        thread = threading.get_ident()
        self._waiting_writers += 1
        try:
            while self._writing or self._readers or self._admitted:
                self._condition.wait()
            self._writing, self._writer = True, thread
            holder.lock = EXCLUSIVE
        finally:
            self._waiting_writers -= 1
            # If this writer was interrupted, readers that let it go first must wake up.
            self._condition.notify_all()

    def release(self, holder: Holder) -> None:
        """Release the lock in the mode `holder.lock`, if any, and set `holder.lock` to None.

        A KeyboardInterrupt during the release is raised at the end. After an interruption before
        the first statement the lock is still held: call `release` again.
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
        """Reset the lock in a forked child, which has only the forking thread.

        `mode` is the mode in which this thread holds the lock, or None. If another thread held the
        lock exclusively, return the id of that thread, otherwise 0.
        """
        lost_writer = self._writer if self._writing and mode != EXCLUSIVE else 0
        # New objects, since a lost thread may hold the guard.
        self.__init__()
        self._readers, self._writing = int(mode == SHARED), mode == EXCLUSIVE
        self._writer = threading.get_ident()
        return lost_writer
