"""`SessionRunHook`: base class of callbacks of a session, and the callbacks' arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["SessionRunArgs", "SessionRunContext", "SessionRunHook", "SessionRunValues"]


class SessionRunArgs(NamedTuple):
    """Fetches and feeds of a run.

    Args:
        fetches: As in `Session.run`.
        feed_dict: As in `Session.run`, or None.
        options: Ignored.
    """

    fetches: Any
    feed_dict: Any = None
    options: Any = None


class SessionRunValues(NamedTuple):
    """Results of a run.

    Args:
        results: The values of the hook's fetches, or None.
        options: The options of the run.
        run_metadata: The metadata of the run.
    """

    results: Any
    options: Any = None
    run_metadata: Any = None


class SessionRunContext:
    """Context of one run of a `MonitoredSession`, for hooks.

    Args:
        original_args: The caller's fetches and feeds only, without fetches of hooks.
        session: The session; hooks may call its `run`.
    """

    def __init__(self, original_args: SessionRunArgs, session: object) -> None:
        self._original_args = original_args
        self._session = session
        self._stop_requested = False

    @property
    def original_args(self) -> SessionRunArgs:
        """Fetches and feeds of the caller, without those of hooks."""
        return self._original_args

    @property
    def session(self) -> Any:
        """The session of the run."""
        return self._session

    @property
    def stop_requested(self) -> bool:
        """True if a hook has requested a stop."""
        return self._stop_requested

    def request_stop(self) -> None:
        """Let `should_stop` of the `MonitoredSession` be true after this run."""
        self._stop_requested = True


class SessionRunHook:
    """Base class of session hooks, whose methods do nothing unless overridden.

    A `MonitoredSession` calls `begin` before the graph is finalized and `after_create_session`
    once. Each run calls `before_run` and `after_run`. The end of the session calls `end`, but not
    after an error.

    Example:
        >>> from thalweg import v1
        >>> class Watch(SessionRunHook):
        ...     def before_run(self, run_context):
        ...         return SessionRunArgs({"w": w})
        ...     def after_run(self, run_context, run_values):
        ...         print("before the step:", run_values.results["w"])
        >>> with v1.Graph().as_default():
        ...     w = v1.Variable(1.0, name="w")
        ...     step = w.assign_add(1.0)
        ...     with v1.train.MonitoredTrainingSession(hooks=[Watch()]) as session:
        ...         for _ in range(2):
        ...             value = session.run(step)
        before the step: 1.0
        before the step: 2.0

    Reference: tf.train.SessionRunHook
    """

    def begin(self) -> None:
        """Prepare the hook: the graph is built, but may still be added to."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Prepare the hook for a session whose global variables are initialized.

        Args:
            session: The session.
            coord: The `Coordinator` of its threads, or None.
        """

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Return the additional fetches and feeds of the next run, or None."""

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Handle the end of a run; `run_values.results` has the values fetched for `before_run`."""

    def end(self, session: Any) -> None:
        """Handle the end of the session, which is about to be closed."""
