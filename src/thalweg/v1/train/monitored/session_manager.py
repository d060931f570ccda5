"""Factories of sessions. They restore a checkpoint, or initialize the variables.

A session is *ready* if an operation that returns the names of uninitialized variables (`ready_op`)
returns no names.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from thalweg._base.showing import show_value
from thalweg._graph import Session, get_default_graph
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.v1.argument_checks import check_seconds, wait_seconds
from thalweg.v1.train.monitored.scaffold import Scaffold
from thalweg.v1.train.saving.checkpoint_management import Path, get_checkpoint_state


class SessionManager:
    """Factory of sessions that are ready for training.

    Args:
        local_init_op: Optional. Run in each new session if `ready_for_local_init_op` returns no
            names.
        ready_op: Optional. Returns the names of uninitialized variables.
        ready_for_local_init_op: Optional. Like `ready_op`, but checked before `local_init_op`.
        graph: The graph; None selects the default graph.
        recovery_wait_secs: Seconds between two searches for a checkpoint.
        local_init_run_options: Ignored.
        local_init_feed_dict: Optional. Feeds of `local_init_op`.

    Raises:
        InvalidArgumentError: `ready_for_local_init_op` is given without `local_init_op`.

    Reference: tf.train.SessionManager
    """

    def __init__(
        self,
        local_init_op: object = None,
        ready_op: object = None,
        ready_for_local_init_op: object = None,
        graph: Any = None,
        recovery_wait_secs: float = 30,
        local_init_run_options: object = None,
        local_init_feed_dict: object = None,
    ) -> None:
        check_seconds("recovery_wait_secs", recovery_wait_secs, non_negative=True)
        if ready_for_local_init_op is not None and local_init_op is None:
            raise InvalidArgumentError(
                "If you pass a ready_for_local_init_op you must also pass a local_init_op"
                f" (ready_for_local_init_op is {show_value(ready_for_local_init_op)})."
            )
        self._local_init_op = local_init_op
        self._ready_op = ready_op
        self._ready_for_local_init_op = ready_for_local_init_op
        self._graph = get_default_graph() if graph is None else graph
        self._recovery_wait_secs = recovery_wait_secs
        self._local_init_feed_dict = local_init_feed_dict

    def prepare_session(
        self,
        master: str = "",
        init_op: object = None,
        saver: object = None,
        checkpoint_dir: Path | None = None,
        checkpoint_filename_with_path: Path | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: object = None,
        init_feed_dict: object = None,
        init_fn: Callable[[Any], object] | None = None,
    ) -> Session:
        """Return a new session, restored from a checkpoint or else initialized.

        Args:
            master, config: Ignored.
            init_op: Optional. Initializes the variables if there is no checkpoint.
            saver: Optional. Restores the checkpoint.
            checkpoint_dir: Optional. A folder, whose newest checkpoint is restored.
            checkpoint_filename_with_path: Optional. The prefix of a checkpoint, instead of a
                folder.
            wait_for_checkpoint: True to wait for a checkpoint in the folder.
            max_wait_secs: Maximum wait in seconds.
            init_feed_dict: Optional. Feeds of `init_op`.
            init_fn: Optional. `init_fn(session)` is called after `init_op`.

        Raises:
            RuntimeError: Variables remain uninitialized, or there is neither a checkpoint nor a way
                to initialize.
            ValueError: Both a folder and a prefix are given.
        """
        session, from_checkpoint = self._restore_session(
            saver, checkpoint_dir, checkpoint_filename_with_path, wait_for_checkpoint, max_wait_secs
        )
        with _closed_on_error(session):
            if not from_checkpoint:
                if init_op is None and init_fn is None and self._local_init_op is None:
                    raise FailedPreconditionError(
                        "Model is not initialized and no init_op or init_fn or local_init_op was"
                        " given"
                    )
                if init_op is not None:
                    session.run(init_op, init_feed_dict)
                if init_fn is not None:
                    init_fn(session)
            problem = self._initialize_locally(session)
            stage = "model ready for local_init" if problem else "model ready"
            problem = problem or _explain_not_ready(session, self._ready_op)
            if problem:
                names = [getattr(op, "name", None) for op in (init_op, self._local_init_op)]
                raise FailedPreconditionError(
                    f"Init operations did not make {stage}. Init op: {names[0]}, init fn:"
                    f" {init_fn}, local_init_op: {names[1]}, error: {problem}"
                )
        return session

    def recover_session(
        self,
        master: str = "",
        saver: object = None,
        checkpoint_dir: Path | None = None,
        checkpoint_filename_with_path: Path | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: object = None,
    ) -> tuple[Session, bool]:
        """Return a new session, restored from a checkpoint if it exists; see `prepare_session`.

        In both cases, run `local_init_op` if `ready_for_local_init_op` returns no names.

        Returns:
            (session, ready). `ready` is True if a checkpoint was restored and the session is ready.
        """
        session, from_checkpoint = self._restore_session(
            saver, checkpoint_dir, checkpoint_filename_with_path, wait_for_checkpoint, max_wait_secs
        )
        with _closed_on_error(session):
            problem = self._initialize_locally(session)
            if from_checkpoint and not problem:
                problem = _explain_not_ready(session, self._ready_op)
        return session, from_checkpoint and not problem

    def _restore_session(
        self,
        saver: Any,
        directory: Path | None,
        prefix: Path | None,
        may_wait: bool,
        seconds: float,
    ) -> tuple[Session, bool]:
        """Return (new session, True if a checkpoint was restored).

        No checkpoint is restored if `saver` is None, if both `directory` and `prefix` are None, or
        if `directory` has no file `checkpoint`. After an error of the restoration, close the
        session. Raise InvalidArgumentError if both `directory` and `prefix` are set.

        Args:
            saver: The `Saver` that restores the checkpoint, or None.
            directory: The folder whose newest checkpoint is restored, or None. The saver also takes
                over the folder's list of older checkpoints.
            prefix: The prefix of a checkpoint, or None.
            may_wait: True to wait up to `seconds` for the file `checkpoint`; False to look once.
        """
        if directory and prefix:
            raise InvalidArgumentError(
                "Can not provide both checkpoint_dir and checkpoint_filename_with_path."
            )
        if saver is None or not (directory or prefix):
            return Session(graph=self._graph), False
        paths: list[str] = []
        if directory:
            state = self._wait_for_state(directory, seconds if may_wait else 0)
            if state is None:
                return Session(graph=self._graph), False
            prefix, paths = state.model_checkpoint_path, list(state.all_model_checkpoint_paths)
        session = Session(graph=self._graph)
        with _closed_on_error(session):
            saver.restore(session, prefix)
            if paths:
                saver.recover_last_checkpoints(paths)
        return session, True

    def _wait_for_state(self, directory: Path, seconds: float) -> Any:
        """Wait until a folder has a file `checkpoint`; return its `CheckpointState`.

        Return None if the file does not exist after `seconds`.
        """
        check_seconds("max_wait_secs", seconds)
        end = time.monotonic() + wait_seconds(seconds)
        while (state := get_checkpoint_state(directory)) is None:
            remaining_seconds = end - time.monotonic()
            if remaining_seconds <= 0:
                return None
            time.sleep(wait_seconds(min(remaining_seconds, self._recovery_wait_secs)))
        return state

    def _initialize_locally(self, session: Session) -> str | None:
        """Run `local_init_op` if the session is ready for it; else return the reason as text.

        The session is not ready if `ready_for_local_init_op` returns names of variables. Return
        None if `local_init_op` was run or is None.
        """
        if self._local_init_op is None:
            return None
        problem = _explain_not_ready(session, self._ready_for_local_init_op)
        if problem is None:
            session.run(self._local_init_op, self._local_init_feed_dict)
        return problem


@contextmanager
def _closed_on_error(session: Session) -> Iterator[None]:
    """Close `session` if the block raises."""
    try:
        yield
    except BaseException:
        session.close()
        raise


def _explain_not_ready(session: Session, op: object) -> str | None:
    """Run `op` in a session; return None if the session is ready, else the reason as text.

    `op` returns the names of uninitialized variables; its FailedPreconditionError is a reason, too.
    If `op` is None, the session is ready.
    """
    if op is None:
        return None
    # `op` may itself read a variable that is not initialized.
    try:
        names = session.run(op)
    except FailedPreconditionError as error:
        return str(error)
    array = np.asarray(names)
    # Old programs return an int32 array if all variables are initialized.
    if names is None or not array.size or array.dtype == np.int32:
        return None
    return f"Variables not initialized: {', '.join(map(_as_text, array.reshape(-1)))}"


def _as_text(name: object) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


class SessionCreator(ABC):
    """Interface of factories of sessions.

    Reference: tf.train.SessionCreator
    """

    @abstractmethod
    def create_session(self) -> Session:
        """Return a session of the default graph that is ready."""


class ChiefSessionCreator(SessionCreator):
    """Factory of a session that is restored from a checkpoint, or else initialized.

    Args:
        scaffold: Optional. A `Scaffold` with the operations that prepare the session.
        master, config: Ignored.
        checkpoint_dir: Optional. A folder, whose newest checkpoint is restored.
        checkpoint_filename_with_path: Optional. The prefix of a checkpoint, instead of a folder.

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
        """Finalize the default graph, and return a new session that is ready.

        Raises:
            RuntimeError: The scaffold's operations do not initialize all variables.
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
