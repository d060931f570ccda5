"""`QueueRunner`: threads that run operations of a session again and again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from thalweg.errors import (
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
)
from thalweg.graph import GraphKeys, get_default_graph
from thalweg.graph.nodes import session_for
from thalweg.locks import Lock, on_fork
from thalweg.v1.train.coordinator import Coordinator
from thalweg.v1.train.queues import QueueBase


class QueueRunner:
    """Runs each of some operations in a thread of its own until the coordinator or session stops.

    Args:
        queue: What the operations fill; its name names the threads.
        enqueue_ops: One operation for each thread.
        close_op: Is run when the last thread has ended because there is nothing more, or the queue
            was closed. By default it closes a `FIFOQueue` or `RandomShuffleQueue`.
        cancel_op: Is run when the coordinator stops or a thread fails; it should end the waits of
            the other operations. By default it closes such a queue.
        queue_closed_exception_types: Exceptions that end a thread without being an error; by
            default CancelledError and OutOfRangeError.

    Attributes:
        queue, enqueue_ops, close_op, cancel_op, queue_closed_exception_types: As given.
        exceptions_raised: Errors of threads without a coordinator.

    Reference: tf.train.QueueRunner
    """

    def __init__(
        self,
        queue: Any = None,
        enqueue_ops: Sequence[Any] = (),
        close_op: Any = None,
        cancel_op: Any = None,
        queue_closed_exception_types: tuple[type[BaseException], ...] | None = None,
    ) -> None:
        if not enqueue_ops:
            raise InvalidArgumentError("Must provide queue and enqueue_ops.")
        self.queue = queue
        self.enqueue_ops = list(enqueue_ops)
        is_queue = isinstance(queue, QueueBase)
        self.close_op = queue.close() if is_queue and close_op is None else close_op
        self.cancel_op = queue.close(True) if is_queue and cancel_op is None else cancel_op
        self.queue_closed_exception_types = queue_closed_exception_types or (
            CancelledError,
            OutOfRangeError,
        )
        self.exceptions_raised: list[BaseException] = []
        self._lock = Lock()
        self._running: dict[Any, int] = {}  # how many threads each session has
        on_fork(self, QueueRunner._renew)

    def _renew(self) -> None:
        """In a forked child: its threads are not here."""
        self._running.clear()

    @property
    def name(self) -> str:
        """The name of the queue."""
        return getattr(self.queue, "name", None) or "queue"

    def create_threads(
        self,
        sess: Any,
        coord: Coordinator | None = None,
        daemon: bool = False,
        start: bool = False,
    ) -> list[threading.Thread]:
        """Threads that run the operations in a session; none if some do already.

        With a coordinator they end when it stops, and it is told of their errors. Without one they
        end when the session is closed, and an error of theirs is raised in the thread.

        Args:
            sess: The session.
            coord: Optional. The coordinator.
            daemon: Whether the process may end before they do.
            start: Whether they are started at once.
        """
        with self._lock:
            if self._running.get(sess):
                return []
            self._running[sess] = len(self.enqueue_ops)
        threads = [
            threading.Thread(
                target=self._run, args=(sess, op, coord), name=f"{self.name}-{op.name}"
            )
            for op in self.enqueue_ops
        ]
        if coord is not None:
            coord.on_stop(lambda error: self._cancel(sess, error))
        for thread in threads:
            thread.daemon = daemon
            if coord is not None:
                coord.register_thread(thread)
            if start:
                thread.start()
        return threads

    def _run(self, sess: Any, op: Any, coord: Coordinator | None) -> None:
        closed = False
        try:
            while not (coord is not None and coord.should_stop()):
                sess.run(op)
        except self.queue_closed_exception_types:
            closed = True
        except BaseException as error:
            if sess.closed and isinstance(error, FailedPreconditionError):
                return
            if coord is not None:
                coord.request_stop(error)
                return
            self.exceptions_raised.append(error)
            self._cancel(sess, error)
            raise
        finally:
            with self._lock:
                others = self._running.pop(sess, 1) - 1  # none in a forked child
                if others:
                    self._running[sess] = others
                is_last = not others
            if closed and is_last and self.close_op is not None:
                with _unless_closed(sess):
                    sess.run(self.close_op)

    def _cancel(self, sess: Any, error: BaseException | None) -> None:
        with _unless_closed(sess):
            self._end_waits(sess, error)

    def _end_waits(self, sess: Any, error: BaseException | None) -> None:
        """Let nobody wait for these threads; `error` is the reason if it is not None."""
        if self.cancel_op is not None:
            sess.run(self.cancel_op)


@contextlib.contextmanager
def _unless_closed(sess: Any) -> Iterator[None]:
    """Take the error of a run in a closed session for success: nothing waits there any more."""
    try:
        yield
    except (FailedPreconditionError, CancelledError):
        if not sess.closed:
            raise


def add_queue_runner(qr: QueueRunner, collection: str = GraphKeys.QUEUE_RUNNERS) -> None:
    """Let `start_queue_runners` start this one, too."""
    get_default_graph().add_to_collection(collection, qr)


def start_queue_runners(
    sess: Any = None,
    coord: Coordinator | None = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = GraphKeys.QUEUE_RUNNERS,
) -> list[threading.Thread]:
    """Make, and start, the threads of all queue runners of the session's graph.

    Args:
        sess: The session; the default one if None.
        coord, daemon, start: As in `QueueRunner.create_threads`.
        collection: Where the queue runners are.

    Raises:
        InvalidArgumentError: There is no session.
    """
    sess = session_for(sess, "start queue runners", "sess")
    runners = sess.graph.get_collection(collection)
    return [thread for qr in runners for thread in qr.create_threads(sess, coord, daemon, start)]
