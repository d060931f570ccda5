"""`Coordinator`: stops threads together. `LooperThread`: a thread that repeats a function."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from thalweg._base.locks import Lock, on_fork
from thalweg._base.showing import show_value
from thalweg.errors import (
    CancelledError,
    FailedPreconditionError,
    InvalidTypeError,
    OutOfRangeError,
)
from thalweg.v1.argument_checks import check_seconds, wait_seconds

# Errors that stop threads without being raised by `join`.
CLEAN_STOPS = (CancelledError, OutOfRangeError)
# Seconds between two checks for ended threads.
_PAUSE = 0.05


class Coordinator:
    """Coordinator that requests all its threads to stop, and joins the threads.

    Args:
        clean_stop_exception_types: Types of exceptions that request a stop, but are not raised by
            `join`. The default is CancelledError (a wait ended by a stop) and OutOfRangeError (end
            of input).

    Example:
        >>> import threading
        >>> coordinator, done = Coordinator(), []
        >>> def work():
        ...     with coordinator.stop_on_exception():
        ...         while not coordinator.should_stop():
        ...             done.append(len(done))
        ...             if len(done) == 3:
        ...                 coordinator.request_stop()
        >>> thread = threading.Thread(target=work)
        >>> thread.start()
        >>> coordinator.join([thread])
        >>> done
        [0, 1, 2]

    Reference: tf.train.Coordinator
    """

    def __init__(
        self, clean_stop_exception_types: tuple[type[BaseException], ...] | None = None
    ) -> None:
        types = clean_stop_exception_types
        self._clean = CLEAN_STOPS if types is None else types
        self._lock = Lock()
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._callbacks: list[Callable[[BaseException | None], None]] = []
        self._has_joined_threads = False
        on_fork(self, Coordinator._renew_event)

    def _renew_event(self) -> None:
        """Replace the event in a forked child, where a lost thread may hold its lock."""
        was_set, self._stopped = self._stopped.is_set(), threading.Event()
        if was_set:
            self._stopped.set()

    def should_stop(self) -> bool:
        """Return True if a stop was requested."""
        return self._stopped.is_set()

    def request_stop(self, ex: object = None) -> None:
        """Request all threads to stop; only the first request counts.

        Call the callbacks of `on_stop`.

        Args:
            ex: Optional. An exception or `sys.exc_info()`. `join` raises the exception, unless its
                type is in `clean_stop_exception_types`.

        Raises:
            TypeError: `ex` is not an exception.
            BaseException: `ex` itself, if `join` has already returned.
        """
        error = ex[1] if isinstance(ex, tuple) and len(ex) == 3 else ex
        if error is not None and not isinstance(error, BaseException):
            raise InvalidTypeError(
                f"request_stop takes an exception or None, not {show_value(ex)}."
            )
        if isinstance(error, self._clean):
            error = None
        with self._lock:
            if self._has_joined_threads and error is not None:
                raise error
            if self._stopped.is_set():
                return
            self._error = error
            callbacks, self._callbacks = self._callbacks, []
            self._stopped.set()
        # Outside of the lock: a callback may wait for threads that use the coordinator.
        for callback in callbacks:
            callback(error)

    def on_stop(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call `callback(error)` at the stop request, or now if a stop was already requested.

        `error` is None for a stop without an error.
        """
        with self._lock:
            if not self._stopped.is_set():
                self._callbacks.append(callback)
                return
        callback(self._error)

    def clear_stop(self) -> None:
        """Forget that a stop was requested, and its error."""
        with self._lock:
            self._has_joined_threads, self._error = False, None
            self._stopped.clear()

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Return a context manager that passes any error of its block to `request_stop`.

        The error is suppressed.
        """
        try:
            yield
        except BaseException as error:
            self.request_stop(error)

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds for a stop; return True if a stop is requested.

        Raises:
            TypeError, ValueError: `timeout` is not a number, or NaN.
        """
        if timeout is None:
            return self._stopped.wait()
        check_seconds("timeout", timeout)
        return self._stopped.wait(wait_seconds(timeout))

    @property
    def _registered_threads(self) -> set[threading.Thread]:
        """The threads of `register_thread`, under TensorFlow's name."""
        return set(self._threads)

    def register_thread(self, thread: threading.Thread) -> None:
        """Let `join` wait for a thread."""
        with self._lock:
            self._threads.append(thread)

    @property
    def joined(self) -> bool:
        """True if `join` has returned or raised."""
        return self._has_joined_threads

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait until all threads have ended; raise the error passed to `request_stop`, if any.

        Args:
            threads: Threads to wait for, in addition to registered threads.
            stop_grace_period_secs: Seconds that threads may run after a stop was requested.
            ignore_live_threads: True to return without an error if threads still run then.

        Raises:
            BaseException: The exception passed to `request_stop`.
            FailedPreconditionError: Threads still run after the grace period.
            TypeError, ValueError: `stop_grace_period_secs` is not a number, or NaN.
        """
        check_seconds("stop_grace_period_secs", stop_grace_period_secs)
        with self._lock:
            threads_to_join = dict.fromkeys([*self._threads, *(threads or ())])
        # A thread that joins itself gets a RuntimeError from Python.
        alive = [thread for thread in threads_to_join if thread is not threading.current_thread()]
        # Threads may end without a stop, so waiting for the stop alone could last forever.
        while alive and not self._stopped.wait(_PAUSE):
            alive = [thread for thread in alive if thread.is_alive()]
        end = time.monotonic() + wait_seconds(stop_grace_period_secs)
        for thread in alive:
            thread.join(wait_seconds(end - time.monotonic()))
        names = [thread.name for thread in alive if thread.is_alive()]
        with self._lock:
            self._has_joined_threads, self._threads = True, []
        self.raise_requested_exception()
        if names and not ignore_live_threads:
            raise FailedPreconditionError(
                f"Coordinator stopped with threads still running: {' '.join(names)}"
            )

    def raise_requested_exception(self) -> None:
        """Raise the error with which a stop was requested, if there is one."""
        if self._error is not None:
            raise self._error


class LooperThread(threading.Thread):
    """Thread that calls a function until its coordinator stops; an error requests a stop.

    Args:
        coord: The coordinator.
        timer_interval_secs: Seconds between the starts of two calls; None or 0 does not wait.
        target: The function. If None, a subclass must override `run_loop`.
        args, kwargs: Arguments of `target`.

    Raises:
        TypeError: `coord` is not a `Coordinator`, or the interval is not a number.
        ValueError: The interval is NaN.

    Reference: tf.train.LooperThread
    """

    def __init__(
        self,
        coord: object,
        timer_interval_secs: float | None,
        target: Callable[..., object] | None = None,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> None:
        if not isinstance(coord, Coordinator):
            raise InvalidTypeError(f"coord must be a Coordinator, not {show_value(coord)}.")
        if timer_interval_secs is not None:
            check_seconds("timer_interval_secs", timer_interval_secs)
        super().__init__(daemon=True)
        self._coord = coord
        self._interval = timer_interval_secs
        self._call, self._call_args = target, (tuple(args or ()), dict(kwargs or {}))

    @staticmethod
    def loop(
        coord: object,
        timer_interval_secs: float | None,
        target: Callable[..., object],
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> LooperThread:
        """Return a new, started `LooperThread`."""
        looper = LooperThread(coord, timer_interval_secs, target, args, kwargs)
        looper.start()
        return looper

    def run(self) -> None:
        """Call `run_loop` at the interval until the coordinator stops; an error requests a stop."""
        with self._coord.stop_on_exception():
            self.start_loop()
            next_call_time = time.monotonic()
            while not self._coord.should_stop():
                self.run_loop()
                next_call_time += wait_seconds(self._interval or 0.0)
                if self._interval and self._coord.wait_for_stop(next_call_time - time.monotonic()):
                    break
            self.stop_loop()

    def start_loop(self) -> None:
        """Do nothing; a subclass overrides this for the start of the thread."""

    def stop_loop(self) -> None:
        """Do nothing; a subclass overrides this for the end of the thread."""

    def run_loop(self) -> None:
        """Call the target once; the thread repeats this."""
        if self._call is not None:
            self._call(*self._call_args[0], **self._call_args[1])
