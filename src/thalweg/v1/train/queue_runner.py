"""`QueueRunner`: threads that repeat operations of a session to fill a queue."""

from __future__ import annotations

import contextlib
import posixpath
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg._base.locks import Lock, on_fork
from thalweg._base.showing import show_value
from thalweg._graph import GraphKeys, Session, get_default_graph
from thalweg._graph.nodes import session_for
from thalweg.errors import (
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    OutOfRangeError,
)
from thalweg.v1.train.coordinator import CLEAN_STOPS, Coordinator
from thalweg.v1.train.queues import QueueBase

# TensorFlow's numbers of errors.
_CODES: dict[type[BaseException], int] = {
    OutOfRangeError: 11, CancelledError: 1, InvalidArgumentError: 3, NotFoundError: 5,
    FailedPreconditionError: 9,
}  # fmt: skip


@dataclass
class QueueRunnerDef:
    """Description of a queue runner by the names of its operations.

    Attributes:
        queue_name: Name of the queue.
        enqueue_op_name: Names of the enqueue operations.
        close_op_name, cancel_op_name: Names of the operations that close the queue.
        queue_closed_exception_types: TensorFlow's codes of errors that end a thread; an empty list
            means OutOfRangeError.

    Reference: the message of this name in TensorFlow's queue_runner.proto
    """

    queue_name: str
    enqueue_op_name: list[str]
    close_op_name: str
    cancel_op_name: str
    queue_closed_exception_types: list[int]


class QueueRunner:
    """Threads that repeat one operation each until the coordinator or session stops.

    Args:
        queue: The queue to fill; threads are named after it.
        enqueue_ops: One operation per thread.
        close_op: Run after the last thread ended because the input ended or the queue was closed.
            The default closes a `FIFOQueue` or `RandomShuffleQueue`.
        cancel_op: Run when the coordinator stops or a thread fails, to end waits of other threads.
            The default closes a `FIFOQueue` or `RandomShuffleQueue` and cancels waits.
        queue_closed_exception_types: Types of exceptions that end a thread without an error; by
            default CancelledError and OutOfRangeError.

    Attributes:
        queue, enqueue_ops, close_op, cancel_op, queue_closed_exception_types: The arguments or
            defaults.
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
        self.queue_closed_exception_types = queue_closed_exception_types or CLEAN_STOPS
        self.exceptions_raised: list[BaseException] = []
        self._lock = Lock()
        # How many threads each session has.
        self._running: dict[object, int] = {}
        on_fork(self, QueueRunner._forget_threads)

    def _forget_threads(self) -> None:
        """Forget all threads in a forked child, which does not run them."""
        self._running.clear()

    def to_proto(self, export_scope: str | None = None) -> QueueRunnerDef | None:
        """Return a description of this runner: the names of its queue and operations.

        Args:
            export_scope: Optional. A name scope that is removed from the names.

        Returns:
            A `QueueRunnerDef`; None if the queue is outside of `export_scope`.

        Raises:
            InvalidArgumentError: `close_op` or `cancel_op` is missing, or an exception type has no
                TensorFlow code.
        """
        prefix = f"{export_scope}/" if export_scope else ""
        if not self.name.startswith(prefix):
            return None
        names = [end_op.name for end_op in (self.close_op, self.cancel_op) if end_op is not None]
        if len(names) < 2:
            raise InvalidArgumentError(f"Queue runner '{self.name}' has no close_op or cancel_op.")
        queue, close, cancel, *adding = (
            name.removeprefix(prefix)
            for name in (self.name, *names, *(op.name for op in self.enqueue_ops))
        )
        for kind in self.queue_closed_exception_types:
            if kind not in _CODES:
                raise InvalidArgumentError(f"{kind.__name__} is no error of TensorFlow's.")
        kinds = [_CODES[kind] for kind in self.queue_closed_exception_types]
        return QueueRunnerDef(queue, adding, close, cancel, kinds)

    @staticmethod
    def from_proto(
        queue_runner_def: QueueRunnerDef, import_scope: str | None = None
    ) -> QueueRunner:
        """Return a new queue runner of operations found by name in the default graph.

        Args:
            queue_runner_def: A result of `to_proto`.
            import_scope: Optional. A name scope that is prepended to the names.

        Raises:
            ValueError: The graph lacks the queue or an operation.
        """
        find, scope = get_default_graph().as_graph_element, import_scope or ""
        names = queue_runner_def.queue_name, *queue_runner_def.enqueue_op_name
        names += queue_runner_def.close_op_name, queue_runner_def.cancel_op_name
        queue, *adding, close, cancel = (find(posixpath.join(scope, name)) for name in names)
        codes = queue_runner_def.queue_closed_exception_types
        kinds = tuple(
            kind for kind, code in _CODES.items() for listed_code in codes if listed_code == code
        )
        return QueueRunner(queue, adding, close, cancel, kinds or (OutOfRangeError,))

    @property
    def name(self) -> str:
        """The name of the queue."""
        return getattr(self.queue, "name", None) or "queue"

    def create_threads(
        self, sess: Any, coord: Coordinator | None = None, daemon: bool = False, start: bool = False
    ) -> list[threading.Thread]:
        """Return new threads, one per operation; [] if threads of the session still run.

        With a coordinator, the threads end when the coordinator stops, and an error of a thread
        stops the coordinator. A further thread, `close_on_stop`, runs `cancel_op` after the stop.
        Without a coordinator, the threads end when the session is closed. An error ends its thread
        and is appended to `exceptions_raised`.

        Args:
            sess: The session.
            coord: Optional. The coordinator.
            daemon: True for daemon threads, which do not keep the process alive.
            start: True to start the threads.
        """
        with self._lock:
            if self._running.get(sess):
                return []
            if not self._running:
                self.exceptions_raised = []
            self._running[sess] = len(self.enqueue_ops)
        threads = [
            self._make_thread(op.name, self._run_until_stopped, sess, op, coord)
            for op in self.enqueue_ops
        ]
        if coord is not None and self._has_cancel:
            threads.append(self._make_thread("close_on_stop", self._close_on_stop, sess, coord))
        for thread in threads:
            thread.daemon = daemon
            if coord is not None:
                coord.register_thread(thread)
            if start:
                thread.start()
        return threads

    @property
    def _has_cancel(self) -> bool:
        """True if something ends the waits of these threads."""
        return self.cancel_op is not None

    def _make_thread(
        self, does: str, target: Callable[..., None], *args: object
    ) -> threading.Thread:
        name = f"QueueRunnerThread-{self.name}-{does}"
        return threading.Thread(target=target, args=args, name=name)

    def _close_on_stop(self, sess: object, coord: Coordinator) -> None:
        """Wait for a stop of the coordinator, then run `cancel_op`; body of a thread."""
        coord.wait_for_stop()
        # The coordinator has stopped, so this calls the function now.
        coord.on_stop(lambda error: self._cancel_waits(sess, error))

    def _run_until_stopped(self, sess: Any, op: Any, coord: Coordinator | None) -> None:
        """Run `op` repeatedly until the coordinator stops or a run fails; the body of a thread.

        After an error of `queue_closed_exception_types`, the last thread of the session runs
        `close_op`. Any other error stops the coordinator. Without a coordinator, append the error
        to `exceptions_raised`, run `cancel_op`, and raise the error.
        """
        queue_closed = False
        try:
            while not (coord is not None and coord.should_stop()):
                sess.run(op)
        except self.queue_closed_exception_types:
            queue_closed = True
        except BaseException as error:
            # Closing the session ends its threads without an error.
            if sess.closed and isinstance(error, FailedPreconditionError):
                return
            if coord is not None:
                coord.request_stop(error)
                return
            self.exceptions_raised.append(error)
            self._cancel_waits(sess, error)
            raise
        finally:
            with self._lock:
                # A forked child has no entry.
                running_count = self._running.pop(sess, 1) - 1
                if running_count:
                    self._running[sess] = running_count
                is_last_thread = not running_count
            if queue_closed and is_last_thread and self.close_op is not None:
                with _ignore_if_closed(sess):
                    sess.run(self.close_op)

    def _cancel_waits(self, sess: object, error: BaseException | None) -> None:
        with _ignore_if_closed(sess):
            self._end_waits(sess, error)

    def _end_waits(self, sess: Any, error: BaseException | None) -> None:
        """End all waits for these threads; `error` is the reason if it is not None."""
        if self.cancel_op is not None:
            sess.run(self.cancel_op)


@contextlib.contextmanager
def _ignore_if_closed(sess: Any) -> Iterator[None]:
    """Return a context manager that ignores errors of a run if the session is closed."""
    try:
        yield
    except (FailedPreconditionError, CancelledError):
        if not sess.closed:
            raise


def add_queue_runner(qr: QueueRunner, collection: str = GraphKeys.QUEUE_RUNNERS) -> None:
    """Add a queue runner to a collection of the default graph, for `start_queue_runners`."""
    get_default_graph().add_to_collection(collection, qr)


def start_queue_runners(
    sess: object = None,
    coord: Coordinator | None = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = GraphKeys.QUEUE_RUNNERS,
) -> list[threading.Thread]:
    """Create, and by default start, the threads of all queue runners of the session's graph.

    Args:
        sess: The session; None selects the default session. For a monitored session, return [],
            because its threads are already started.
        coord, daemon, start: As in `QueueRunner.create_threads`.
        collection: The graph collection of the queue runners.

    Returns:
        A list of the new threads.

    Raises:
        InvalidArgumentError: There is no session.
        InvalidTypeError: `sess` is not a session.
    """
    sess = session_for(sess, "start queue runners", "sess")
    if not isinstance(sess, Session):
        if hasattr(sess, "run"):
            return []
        raise InvalidTypeError(f"sess must be a tf.Session, not {show_value(sess)}.")
    runners = sess.graph.get_collection(collection)
    return [thread for qr in runners for thread in qr.create_threads(sess, coord, daemon, start)]
