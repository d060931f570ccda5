"""`SessionRunHook`: what is called around the life of a session."""

from __future__ import annotations

from typing import Any


class SessionRunHook:
    """Base class of hooks; override what is needed.

    Nothing calls the hooks here: a training loop calls `begin` when the graph is built,
    `after_create_session` when the session is there, `before_run` and `after_run` around each run
    and `end` before the session is closed.

    Reference: tf.train.SessionRunHook
    """

    def begin(self) -> None:
        """The graph is built, but may still be added to."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """The session is there and global variables are initialized.

        Args:
            session: The session.
            coord: The `Coordinator` of its threads, or None.
        """

    def before_run(self, run_context: Any) -> Any:
        """A run comes; what is returned are fetches to add to it, or None."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """A run is done; `run_values` is what `before_run` asked for."""

    def end(self, session: Any) -> None:
        """The session is about to be closed."""
