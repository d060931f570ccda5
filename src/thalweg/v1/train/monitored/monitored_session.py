"""`MonitoredSession`: a session with hooks, initialized from the newest checkpoint."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from thalweg._graph import GraphKeys, Session, get_default_graph
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from thalweg.v1.argument_checks import check_seconds
from thalweg.v1.train.coordinator import Coordinator
from thalweg.v1.train.monitored.scaffold import Scaffold
from thalweg.v1.train.monitored.session_manager import ChiefSessionCreator, Path, SessionCreator
from thalweg.v1.train.monitored.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from thalweg.v1.train.queue_runner import start_queue_runners

_CALLER = "caller"


class StepContext:
    """Argument of a `step_fn`, which `MonitoredSession.run_step_fn` calls.

    Args:
        session: The inner session, whose runs do not call hooks.
        run_with_hooks: `run_with_hooks(fetches)` runs and calls hooks.
    """

    def __init__(self, session: Session, run_with_hooks: Callable[..., object]) -> None:
        self._session = session
        self._run_with_hooks = run_with_hooks

    @property
    def session(self) -> Session:
        """The session itself, whose runs call no hooks."""
        return self._session

    def run_with_hooks(self, *args: object, **kwargs: object) -> Any:
        """Run fetches with hooks, with the arguments of `MonitoredSession.run`."""
        return self._run_with_hooks(*args, **kwargs)

    def request_stop(self) -> None:
        """End the training.

        Raises:
            StopIteration: Always; it ends the `with` block of the session.
        """
        raise StopIteration("step_fn has requested the iterations to stop.")


class MonitoredSession:
    """Session that calls hooks: use it in a `with` block, and run until `should_stop()`.

    The constructor calls `begin` of the hooks, finalizes the default graph, creates the session,
    starts threads of queue runners and calls `after_create_session`. The `with` block suppresses
    StopIteration and OutOfRangeError. At its end `end` of the hooks is called, unless an error was
    raised; threads are joined, and the session is closed.

    Args:
        session_creator: Optional. Creates the session; by default a `ChiefSessionCreator`.
        hooks: Optional. Hooks, called in order.
        stop_grace_period_secs: Seconds to wait for threads at the end.

    Differs from:
        TensorFlow creates a new session after the loss of a server; here there are no servers.

    Reference: tf.train.MonitoredSession
    """

    StepContext = StepContext

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Iterable[SessionRunHook] | None = None,
        stop_grace_period_secs: float = 120,
    ) -> None:
        check_seconds("stop_grace_period_secs", stop_grace_period_secs)
        self._graph: Any = get_default_graph()
        self._was_finalized = self._graph.finalized
        self._hooks = list(hooks or ())
        self._grace_period = stop_grace_period_secs
        # No error of a thread is dropped: `__exit__` decides which errors end the block quietly.
        self._coordinator = Coordinator(clean_stop_exception_types=())
        self._session: Session | None = None
        self._stop_requested = False
        # A failed constructor has no `with` block that would end the threads and the session.
        try:
            with self._graph.as_default():
                self._open_session(session_creator or ChiefSessionCreator())
        except BaseException:
            self._close_session()
            raise

    def _open_session(self, session_creator: SessionCreator) -> None:
        for hook in self._hooks:
            hook.begin()
        self._session = session = session_creator.create_session()
        if self._graph.get_collection(GraphKeys.QUEUE_RUNNERS):
            start_queue_runners(sess=session, coord=self._coordinator)
        for hook in self._hooks:
            hook.after_create_session(session, self._coordinator)

    @property
    def graph(self) -> Any:
        """The graph; None once the session is closed."""
        return None if self._session is None else self._graph

    def run(
        self,
        fetches: object,
        feed_dict: object = None,
        options: object = None,
        run_metadata: object = None,
    ) -> Any:
        """Run fetches as `Session.run` does, together with the fetches of hooks.

        Raises:
            RuntimeError: The session is closed, a stop was requested, or a tensor is fed twice.
            BaseException: A thread's error, if the run fails after a thread of the session failed.
        """
        session = self._require_session()
        if self._stop_requested:
            raise FailedPreconditionError("Run called even after should_stop requested.")
        context = SessionRunContext(SessionRunArgs(fetches, feed_dict), session)
        fetches_by_hook: dict[object, object] = {_CALLER: fetches}
        feeds = self._call_before_run(context, fetches_by_hook, feed_dict)
        try:
            results = session.run(fetches_by_hook, feeds, options, run_metadata)
        except Exception:
            # A run often fails because a thread failed, such as one that fills a queue.
            self._coordinator.raise_requested_exception()
            raise
        for hook in self._hooks:
            values = SessionRunValues(results.get(hook), options, run_metadata)
            hook.after_run(context, values)
        if context.stop_requested:
            self._stop_requested = True
        return results[_CALLER]

    def _call_before_run(
        self, context: SessionRunContext, fetches_by_hook: dict[object, object], feed_dict: Any
    ) -> object:
        """Call `before_run` of all hooks; return a new dict with the feeds of hooks and caller.

        Raise FailedPreconditionError if a tensor is fed twice.

        Args:
            fetches_by_hook: A dict; {hook: fetches} of each hook is added in place.
            feed_dict: The caller's feeds, or None.
        """
        feeds: dict[Any, Any] = {}
        for hook in self._hooks:
            request = hook.before_run(context)
            if request is None:
                continue
            if request.fetches is not None:
                fetches_by_hook[hook] = request.fetches
            _check_apart(feeds, request.feed_dict, "Same tensor is fed by two hooks.")
            feeds.update(request.feed_dict or {})
        _check_apart(feeds, feed_dict, "Same tensor is fed by a SessionRunHook and user.")
        return {**feeds, **(feed_dict or {})}

    def run_step_fn(self, step_fn: Callable[..., object]) -> Any:
        """Call `step_fn(step_context)` and return its result.

        Runs of `step_context.run_with_hooks` call hooks; runs of `step_context.session` do not.

        Args:
            step_fn: A function of one argument named `step_context`, a `StepContext`.

        Raises:
            ValueError: `step_fn` has other arguments.
            StopIteration: `step_fn` called `step_context.request_stop()`.
        """
        names = tuple(inspect.signature(step_fn).parameters)
        if names not in (("step_context",), ("self", "step_context")):
            raise InvalidArgumentError(
                "`step_fn` may either have one `step_context` argument, or `self` and"
                " `step_context` arguments if it's an instance method. Got"
                f" {names} instead."
            )
        return step_fn(StepContext(self._require_session(), self.run))

    def should_stop(self) -> bool:
        """Return True if a stop was requested or the session is closed.

        Raises:
            BaseException: The error of a failed thread of the session.
        """
        if self._session is None:
            return True
        self._coordinator.raise_requested_exception()
        return self._stop_requested or self._coordinator.should_stop()

    def close(self) -> None:
        """Call `end` of all hooks, join the threads, and close the session.

        Raises:
            RuntimeError: The session is closed already.
        """
        self._end_session(calls_hooks=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Close the session. Call `end` of the hooks first, unless the block raised an error.

        OutOfRangeError and StopIteration do not count as errors; return True to suppress them.
        """
        is_good = kind is None or issubclass(kind, (OutOfRangeError, StopIteration))
        self._end_session(calls_hooks=is_good)
        return is_good

    def _require_session(self) -> Session:
        if self._session is None:
            raise FailedPreconditionError("Session is already closed.")
        return self._session

    def _end_session(self, calls_hooks: bool) -> None:
        """Call `end` of the hooks if `calls_hooks` is True, then close the session."""
        session = self._require_session()
        try:
            for hook in self._hooks if calls_hooks else ():
                hook.end(session)
        finally:
            try:
                # A hook may have closed the session. This is an error, and the graph is reopened.
                self._require_session()
            finally:
                self._close_session()

    def _close_session(self) -> None:
        """If there is a session, stop and join its threads, and close the session.

        The wait ends after the grace period. Threads that still run then are ignored. If the
        constructor finalized the graph, operations can be added again afterwards.
        """
        # None first: `close` of a session that is being closed must raise.
        session, self._session = self._session, None
        try:
            if session is not None:
                self._coordinator.request_stop()
                with contextlib.closing(session):
                    self._coordinator.join(
                        stop_grace_period_secs=self._grace_period, ignore_live_threads=True
                    )
        finally:
            if not self._was_finalized:
                self._graph._unsafe_unfinalize()


class SingularMonitoredSession(MonitoredSession):
    """`MonitoredSession` that takes the arguments of `ChiefSessionCreator` directly.

    Args:
        hooks: Optional. As in `MonitoredSession`.
        scaffold, master, config, checkpoint_dir: As in `ChiefSessionCreator`.
        stop_grace_period_secs: As in `MonitoredSession`.
        checkpoint_filename_with_path: As in `ChiefSessionCreator`.

    Reference: tf.train.SingularMonitoredSession
    """

    def __init__(
        self,
        hooks: Iterable[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: object = None,
        checkpoint_dir: Path | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: Path | None = None,
    ) -> None:
        creator = ChiefSessionCreator(
            scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path
        )
        super().__init__(creator, hooks, stop_grace_period_secs)

    def raw_session(self) -> Session | None:
        """Return the session itself, whose runs call no hooks; None if it is closed."""
        return self._session


def _check_apart(feeds: dict[Any, Any], feed_dict: Any, message: str) -> None:
    """Raise FailedPreconditionError if `feeds` and `feed_dict` have a common key."""
    duplicate_keys = [key for key in feed_dict or () if key in feeds]
    if duplicate_keys:
        raise FailedPreconditionError(f"{message} Conflict(s): {duplicate_keys}")
