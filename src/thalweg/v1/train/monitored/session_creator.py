"""Factories of the session of a `MonitoredSession`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from thalweg._graph import Session, get_default_graph
from thalweg.v1.train.monitored.scaffold import Scaffold
from thalweg.v1.train.monitored.session_manager import Path, SessionManager


class SessionCreator(ABC):
    """Makes a session.

    Reference: tf.train.SessionCreator
    """

    @abstractmethod
    def create_session(self) -> Session:
        """Return a session of the default graph that is ready."""


class ChiefSessionCreator(SessionCreator):
    """Makes a session from a checkpoint, if there is one, or initializes it.

    Args:
        scaffold: Optional. What a session needs.
        master: Ignored, as is `config`.
        checkpoint_dir: Optional. The folder of checkpoints, of which the newest is restored; or
        checkpoint_filename_with_path: the prefix of a checkpoint.

    Reference: tf.train.ChiefSessionCreator
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: object = None,
        checkpoint_dir: Path | None = None,
        checkpoint_filename_with_path: Path | None = None,
    ) -> None:
        self._scaffold = scaffold or Scaffold()
        self._checkpoint_dir = checkpoint_dir
        self._checkpoint_filename_with_path = checkpoint_filename_with_path

    def create_session(self) -> Session:
        """Finalize the default graph, and make a session of it.

        Raises:
            RuntimeError: The scaffold does not make it ready.
            ValueError, NotFoundError, OSError: The checkpoint cannot be restored.
        """
        scaffold = self._scaffold.finalize()
        manager = SessionManager(
            local_init_op=scaffold.local_init_op,
            ready_op=scaffold.ready_op,
            ready_for_local_init_op=scaffold.ready_for_local_init_op,
            graph=get_default_graph(),
            local_init_feed_dict=scaffold.local_init_feed_dict,
        )
        return manager.prepare_session(
            saver=scaffold.saver,
            checkpoint_dir=self._checkpoint_dir,
            checkpoint_filename_with_path=self._checkpoint_filename_with_path,
            init_op=scaffold.init_op,
            init_feed_dict=scaffold.init_feed_dict,
            init_fn=scaffold.init_fn,
        )
