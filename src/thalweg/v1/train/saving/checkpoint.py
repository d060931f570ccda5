"""`Checkpoint`: saves objects to files and restores them, matched by attribute names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from thalweg._base.locks import Lock
from thalweg._base.tracing import untraced
from thalweg._core.state import flaw, kept
from thalweg._core.trackable import Trackable
from thalweg._formats.bundle import ObjectGraph
from thalweg._formats.path_resolution import ENDING
from thalweg._graph import GraphVariable, executing_eagerly, get_default_graph
from thalweg._graph.nodes import session_for
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.v1.train.saving.checkpoint_management import Path, update_checkpoint_state
from thalweg.v1.train.saving.objects import files
from thalweg.v1.train.saving.objects.members import (
    ObjectMember,
    check_trackable,
    child_of,
    children_of,
    describe_members,
    graphs_of,
    held_by,
    hold_steps,
    is_variable,
    members_of,
    optimizers_in,
)
from thalweg.v1.train.saving.objects.restoration import Restoration
from thalweg.v1.train.saving.objects.status import CheckpointLoadStatus, InitializationOnlyStatus
from thalweg.variable import Variable

_COUNTER = "save_counter"


class Checkpoint(Trackable):
    """Group of objects to save and restore: variables, modules, optimizers.

    A value is matched by its path of attribute names, such as "optimizer/iter". A slot is matched
    by variable, optimizer and name of the slot. Names of variables do not matter. `save`
    writes `ckpt-1.safetensors`, then `ckpt-2.safetensors`, with a checksum per tensor. `restore`
    reads these files and checkpoints of TensorFlow's `Checkpoint`.

    `restore` sets the values of all existing objects, or none. Values of missing objects are kept
    until the object is created: a slot by the first step, an attribute of a `Checkpoint` when it is
    set. If a kept value does not fit, that step raises and changes nothing.

    In graph mode, `restore` returns a status, whose `run_restore_ops` or `initialize_or_restore`
    load the values into a session. `save` reads the values from a session. Variables that an
    optimizer creates later have restored values as initial values. An optimizer has separate
    variables in each graph and in eager mode.

    Args:
        root: Optional. An object whose children are saved like attributes of the `Checkpoint`.
        **objects: Objects to set as attributes. Attributes set later are saved, too, unless their
            names begin with "_".

    Raises:
        InvalidTypeError: An object cannot be saved, such as a Python number.

    Differs from:
        TensorFlow wraps lists and dicts. Here they are not wrapped: elements added after a restore
        are not restored, and Python numbers in them raise errors. In graph mode, `save_counter` is
        an eager variable, which no session must initialize.

    Example:
        >>> import tempfile
        >>> from thalweg import Variable
        >>> from thalweg.keras.optimizers import SGD
        >>> w, opt = Variable([1.0, 2.0], name="w"), SGD(0.25, momentum=0.5)
        >>> _ = opt.minimize(lambda: (w * w).sum(), [w])
        >>> path = Checkpoint(model=[w], optimizer=opt).save(tempfile.mkdtemp() + "/ckpt")
        >>> again, other = Variable([0.0, 0.0]), SGD(0.5, momentum=0.5)
        >>> status = Checkpoint(model=[again], optimizer=other).restore(path)
        >>> again.numpy(), float(other.learning_rate)
        (array([0.5, 1. ], dtype=float32), 0.25)
        >>> status.waiting
        ['optimizer/iter', 'model/0/.OPTIMIZER_SLOT/optimizer/momentum']

    Reference: tf.train.Checkpoint
    """

    def __init__(self, root: object = None, **objects: object) -> None:
        self._maybe_initialize_trackable()
        self._lock = Lock()
        self._root = root
        if root is not None:
            check_trackable(root, "root")
            if is_variable(held_by(root, None)):
                raise InvalidTypeError("root is a variable: give it by name, as w=w.")
        for name, child in objects.items():
            setattr(self, name, child)

    def __setattr__(self, name: str, value: object) -> None:
        # Checked before the attribute is set: an error changes nothing.
        if not name.startswith("_"):
            check_trackable(value, name)
            self._track_trackable(value, name, overwrite=name in self._tracked)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._tracked.pop(name, None)

    def _checkpointed(self) -> object:
        return self if self._root is None else held_by(self._root, None)

    def _own_children(self) -> dict[str, object]:
        return {} if self._root is None else children_of(self._root)

    def _lookup_dependency(self, name: str) -> object:
        child = self._tracked.get(name)
        if child is None and self._root is not None:
            return child_of(self._root, name)
        return child

    @property
    def save_counter(self) -> Variable:
        """Variable that counts calls of `save`, numbers the files, and is saved and restored."""
        self._maybe_create_save_counter()
        return self._tracked[_COUNTER]

    def _maybe_create_save_counter(self) -> None:
        with self._lock:
            if _COUNTER not in self._tracked:
                initial_value = self._begun(_COUNTER, np.int64(0))
                self._track_trackable(Variable(initial_value, _COUNTER, trainable=False), _COUNTER)

    @untraced
    def save(self, file_prefix: Path, session: object = None, options: object = None) -> str:
        """Save all objects to a numbered file; list the file in the folder's file `checkpoint`.

        Args:
            file_prefix: Beginning of the path: "run7/ckpt" for "run7/ckpt-1.safetensors".
            session: In graph mode, the session with the values; None selects the default session.
            options: Accepted for compatibility.

        Returns:
            The path without ".safetensors", for `restore`.

        Raises:
            The errors of `write`; `save_counter` is then unchanged.
        """
        with self._lock:
            with count_save(self) as counter:
                path = self.write(f"{os.fspath(file_prefix)}-{int(counter)}", session)
            update_checkpoint_state(os.path.dirname(path) or ".", path, [path])
            return path

    @untraced
    def write(self, file_prefix: Path, session: object = None, options: object = None) -> str:
        """Save all objects to a path. Steps in other threads wait until the values are copied.

        Args:
            file_prefix: The path, with or without ".safetensors".
            session: As in `save`.
            options: Accepted for compatibility.

        Returns:
            The path without ".safetensors".

        Raises:
            InvalidTypeError: An object cannot be saved; the message names it.
            InvalidArgumentError: There are graph variables, but no session.
            FailedPreconditionError: A graph variable is not initialized.
            CheckpointWriteError: The file could not be written; an existing file is intact.
        """
        path = os.fspath(file_prefix).removesuffix(ENDING)
        files.write(path, *self._snapshot(session))
        return path

    @untraced
    def restore(
        self, save_path: Path | None, options: object = None
    ) -> CheckpointLoadStatus | InitializationOnlyStatus:
        """Restore a checkpoint of `save` into all existing objects; change nothing on an error.

        Values of missing objects are kept until the objects are created.

        Args:
            save_path: A path that `save` returned, or the path of TensorFlow's checkpoint without
                ".index". None, as from `latest_checkpoint`, restores nothing.
            options: Accepted for compatibility.

        Returns:
            A status. Methods report unused values, or load values into a session (graph mode).

        Raises:
            MissingFileError: The checkpoint does not exist.
            DataLossError: The file is damaged.
            CheckpointMismatchError: Shapes or dtypes of existing objects differ.
            UnsupportedCheckpointError: The file has no object graph.
        """
        status = self.read(save_path)
        self._maybe_create_save_counter()
        return status

    @untraced
    def read(
        self, save_path: Path | None, options: object = None
    ) -> CheckpointLoadStatus | InitializationOnlyStatus:
        """Restore a checkpoint of `write`, like `restore`, but without creating `save_counter`."""
        if save_path is None:
            return InitializationOnlyStatus(lambda: self._members_in(self._choose_graph()))
        path = os.fspath(save_path).removesuffix(files.ENDING)
        graph, values = files.read(path)
        building = self._choose_graph()
        with _as_default_graph(building):
            restoration = Restoration(path, graph, values, building)
            restoration.bind(0, self)
        return CheckpointLoadStatus(restoration, lambda: self._members_in(building))

    def _choose_graph(self, session: Any = None) -> object:
        """Return the graph whose variables are saved or restored; None if there is no graph.

        That is the graph of `session`. Without `session`, it is the default graph in graph mode,
        and the graph of the objects in eager mode. Raise InvalidArgumentError for several graphs.
        """
        if session is not None:
            return session.graph
        if not executing_eagerly():
            return get_default_graph()
        graphs = graphs_of(members_of(self))
        if len(graphs) > 1:
            raise InvalidArgumentError(
                "The objects are of several graphs: call this in the `with` block of one of them."
            )
        return graphs[0] if graphs else None

    def _members_in(self, graph: object = None) -> Sequence[ObjectMember]:
        with _as_default_graph(graph):
            return members_of(self, graph)

    def _snapshot(self, session: object = None) -> tuple[ObjectGraph, dict[str, Tensor]]:
        """Return (object graph, {key: copy of a variable's value}), all of one moment."""
        graph = self._choose_graph(session)
        keepers = optimizers_in(self._members_in(graph))
        # No optimizer takes a step between two copies, so all values are of one moment.
        with hold_steps(keepers):
            for keeper in keepers:
                with _as_default_graph(graph):
                    keeper._make_whole()
            # Listed again: `_make_whole` may have created slots.
            members = self._members_in(graph)
            object_graph = describe_members(members)
            values = {
                member.key: _copy_value(member)
                for member in members
                if isinstance(member.held, Tensor)
            }
        symbolic = [member for member in members if isinstance(member.held, GraphVariable)]
        if symbolic:
            open_session = session_for(session, "save a checkpoint")
            copies = open_session.snapshot([member.held for member in symbolic])
            values |= {member.key: copy for member, copy in zip(symbolic, copies, strict=True)}
        return object_graph, values


@contextlib.contextmanager
def count_save(checkpoint: Checkpoint) -> Iterator[Variable]:
    """Return a context manager that adds 1 to `save_counter` and yields the counter.

    After an error in the block, subtract 1 again.
    """
    counter = checkpoint.save_counter
    counter.assign_add(1)
    try:
        yield counter
    except BaseException:
        counter.assign_sub(1)
        raise


@contextlib.contextmanager
def _as_default_graph(graph: Any) -> Iterator[None]:
    """Return a context manager that makes `graph` the default graph; without effect for None."""
    is_default = not executing_eagerly() and get_default_graph() is graph
    with contextlib.nullcontext() if graph is None or is_default else graph.as_default():
        yield


def _copy_value(member: ObjectMember) -> Tensor:
    problem = flaw(member.held)
    if problem is not None:
        raise InvalidTypeError(f"'{member.path}' is {problem}, which cannot be saved.")
    return kept(member.held)
