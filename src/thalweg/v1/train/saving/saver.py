"""`Saver`: writes the variables of a session to files, and restores them."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from typing import NoReturn

from thalweg._base.locks import Lock
from thalweg._base.tracing import untraced
from thalweg._formats import container
from thalweg._formats.bundle import CheckpointState, write_state
from thalweg._formats.retention import Dated, Keeper
from thalweg._formats.stored_tensor import of_tensor
from thalweg._graph import GraphVariable, executing_eagerly
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.v1.train.saving import saveables
from thalweg.v1.train.saving.checkpoint_management import (
    STATE,
    checkpoint_exists,
    get_checkpoint_mtimes,
    remove_checkpoint,
)
from thalweg.v1.train.saving.checkpoint_reader import SUFFIX, CheckpointReader, fitting_values
from thalweg.v1.train.saving.saveables import EagerValues, as_session, values_of

_LOG = logging.getLogger(__name__)
_KIND = "tf.train.Saver"


class SaverDef:
    """Constants of TensorFlow's file formats, for `Saver(write_version=...)`."""

    LEGACY, V1, V2 = 0, 1, 2


class Saver:
    """Writer of a graph's variables to files, which restores them into a session.

    `save(session, "run7/model.ckpt", 5)` writes `run7/model.ckpt-5.safetensors`, with TensorFlow's
    names of tensors and a checksum per tensor. It also writes the text file `run7/checkpoint`,
    which lists the newest checkpoints. Writes are atomic. `restore` reads these files and
    checkpoints of TensorFlow.

    Args:
        var_list: Variables to save: a list, or a dict {name in checkpoints: variable}. The default
            is all variables in GLOBAL_VARIABLES and SAVEABLE_OBJECTS of the default graph.
        reshape: True to reshape restored values with equal numbers of elements to the variable's
            shape.
        sharded: True to allow a checkpoint named like the file `checkpoint`. A checkpoint is one
            file in any case.
        max_to_keep: Number of newest checkpoints to keep; 0 or None keeps all.
        keep_checkpoint_every_n_hours: A period; one old checkpoint per period is kept.
        name: Ignored.
        restore_sequentially: Ignored.
        saver_def: Must be None; see `as_saver_def`.
        builder: Must be None.
        defer_build: True to choose the variables in `build`, not in the constructor.
        allow_empty: True to allow a saver without variables, which does nothing.
        write_version: Ignored.
        pad_step_number: True to write steps in names with at least eight digits.
        save_relative_paths: Ignored: paths in the file `checkpoint` are always relative to the
            folder, which may be moved.
        filename: Ignored.

    All variables must belong to one graph. Several threads may use a saver; checkpoints are listed
    in the order of writing.

    Raises:
        ValueError: There are no variables, or names or variables are repeated.
        TypeError: `var_list` is not a list or dict of variables.
        RuntimeError: In eager mode, without a `var_list`.

    Differs from:
        TensorFlow: here a restore changes all variables or none, there are no meta graphs, and the
        file `checkpoint` does not list checkpoints of other folders.

    Example:
        >>> import tempfile
        >>> from thalweg import v1
        >>> with v1.Graph().as_default(), v1.Session() as session:
        ...     w = v1.Variable([1.0, 2.0], name="w")
        ...     session.run(w.initializer)
        ...     saver = Saver(max_to_keep=2)
        ...     path = saver.save(session, tempfile.mkdtemp() + "/model.ckpt", global_step=5)
        ...     session.run(w.assign([0.0, 0.0]).op)
        ...     saver.restore(session, path)
        ...     print(path.rpartition("/")[2], session.run(w))
        model.ckpt-5 [1. 2.]

    Reference: tf.train.Saver
    """

    def __init__(
        self,
        var_list: object = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: object = None,
        builder: object = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: int = SaverDef.V2,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
    ) -> None:
        if defer_build and var_list is not None:
            raise InvalidArgumentError(
                "If `var_list` is provided then build cannot be deferred. Either set"
                " defer_build=False or var_list=None."
            )
        if saver_def is not None or builder is not None:
            _refuse_protos("saver_def and builder")
        self._var_list = var_list
        self._reshape, self._sharded = reshape, sharded
        self._allow_empty, self._pad_step_number = allow_empty, pad_step_number
        self._variables: dict[str, GraphVariable] | None = None
        self._eager: EagerValues | None = None
        self._span = keep_checkpoint_every_n_hours * 3600
        self._keeper = Keeper(max_to_keep or None, self._span, 0.0, spare=_next_mark)
        self._lock = Lock()
        if not defer_build:
            self.build()

    def build(self) -> None:
        """Choose the variables to save; a second call does nothing.

        Raises:
            ValueError, TypeError, RuntimeError: See the class.
        """
        if self._variables is not None:
            return
        var_list = self._var_list
        if var_list is None:
            if executing_eagerly():
                raise FailedPreconditionError(
                    "When eager execution is enabled, `var_list` must specify a list or dict of"
                    " variables to save"
                )
            var_list = saveables.all_saveable()
        if executing_eagerly() and saveables.are_eager(var_list):
            self._eager = EagerValues()
        with contextlib.nullcontext() if self._eager is None else self._eager.graph.as_default():
            variables = saveables.by_name(var_list)
        if not variables and not self._allow_empty:
            raise InvalidArgumentError("No variables to save")
        self._keeper.mark = time.time() + self._span
        self._variables = variables

    @untraced
    def save(
        self,
        sess: object,
        save_path: str | os.PathLike[str],
        global_step: object = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> str | None:
        """Copy the values of the variables from a session, and write them to a file.

        All values are of one moment. Other threads may train while the file is written.

        Args:
            sess: The session; None for eager variables.
            save_path: Path of the checkpoint, without ending.
            global_step: Optional. A number, a variable or a tensor; its value is appended to the
                path.
            latest_filename: Optional. A name other than "checkpoint" for the list of checkpoints.
            meta_graph_suffix: Suffix of TensorFlow's graph files, which are deleted with old
                checkpoints.
            write_meta_graph: Ignored.
            write_state: True to list the checkpoint in the file `checkpoint` and delete old
                checkpoints.
            strip_default_attrs, save_debug_info: Ignored.

        Returns:
            The prefix of the checkpoint, for `restore`; None if there are no variables.

        Raises:
            TypeError: `sess` is not a session.
            ValueError: A name is not valid, or the folder does not exist.
            FailedPreconditionError: A variable is not initialized, the session is closed, or
                `build` was not called.
            CheckpointWriteError: The file cannot be written; existing files are intact.
        """
        variables = self._require_built("save")
        latest = STATE if latest_filename is None else latest_filename
        if os.path.dirname(latest):
            raise InvalidArgumentError("'latest_filename' must not contain path components")
        path, session = os.fspath(save_path), as_session(sess, self._eager)
        directory = os.path.dirname(path)
        if not os.path.isdir(directory or os.curdir):
            raise InvalidArgumentError(f"Parent directory of {path} doesn't exist, can't save.")
        if not variables:
            return None
        values, step = values_of(session, list(variables.values()), global_step)
        prefix = path if step is None else f"{path}-{step:0{8 if self._pad_step_number else 1}d}"
        prefix = prefix.removesuffix(SUFFIX)
        base = os.path.basename(prefix)
        if base + SUFFIX == latest or (base == latest and not self._sharded):
            raise InvalidArgumentError(
                f"'latest_filename' collides with 'save_path': '{latest}' and '{prefix}'"
            )
        values_by_name = saveables.join_parts(variables, values)
        stored_tensors = {name: of_tensor(tensor) for name, tensor in values_by_name.items()}
        with self._lock:
            container.write(prefix + SUFFIX, stored_tensors, {"kind": _KIND})
            if write_state:
                self._write_list(prefix, directory, latest, meta_graph_suffix)
        return prefix

    def _write_list(self, prefix: str, directory: str, latest: str, meta_graph_suffix: str) -> None:
        """Add the checkpoint `prefix` to the list in file `latest`; delete old checkpoints."""
        # As in TensorFlow, the list has the newest checkpoint only if none is ever deleted.
        keeper = self._keeper.after_saving(prefix) if self._keeper.most else self._keeper
        old = list(keeper.too_old(1))
        # Paths in the list are relative to its folder, and may not leave it.
        sibling_paths = [
            path for path in keeper.paths if _find_directory(path) == _find_directory(prefix)
        ]
        # Before the deletions: the list must not name deleted checkpoints after an interruption.
        write_state(directory, CheckpointState(prefix, sibling_paths or [prefix]), latest)
        self._keeper = keeper
        for old_path in old:
            try:
                remove_checkpoint(old_path, meta_graph_suffix=meta_graph_suffix)
            except OSError as error:
                _LOG.warning("Ignoring: %s", error)

    @untraced
    def restore(self, sess: object, save_path: str | os.PathLike[str] | None) -> None:
        """Set the variables in a session to a checkpoint's values; nothing changes on an error.

        Restored variables count as initialized. The checkpoint may have further values. A
        checkpoint of `tf.train.Checkpoint` is matched by the variables' names.

        Args:
            sess: The session; None for eager variables.
            save_path: A result of `save` or `latest_checkpoint`.

        Raises:
            ValueError: The checkpoint does not exist.
            NotFoundError: A variable is not in the checkpoint.
            CheckpointMismatchError: A value has another shape or dtype than its variable.
            TypeError: `sess` is not a session.
            FailedPreconditionError: The session is closed, or `build` was not called.
            OSError: The checkpoint is damaged, or cannot be read.
        """
        variables, session = self._require_built("restore"), as_session(sess, self._eager)
        if not variables:
            return
        if save_path is None:
            raise InvalidArgumentError("Can't load save_path when it is None.")
        prefix = os.fspath(save_path)
        if not checkpoint_exists(prefix):
            raise InvalidArgumentError(f"The passed save_path is not a valid checkpoint: {prefix}")
        _LOG.info("Restoring parameters from %s", prefix)
        session.load_all(fitting_values(CheckpointReader(prefix), prefix, variables, self._reshape))

    def _require_built(self, purpose: str) -> dict[str, GraphVariable]:
        if self._variables is None:
            raise FailedPreconditionError(
                f"`build()` should be called before {purpose} if defer_build==True"
            )
        return self._variables

    @property
    def last_checkpoints(self) -> list[str]:
        """The prefixes of the kept checkpoints, oldest first."""
        return self._keeper.paths

    def set_last_checkpoints(self, last_checkpoints: Sequence[str]) -> None:
        """Replace the list of kept checkpoints; later saves do not delete these."""
        self.set_last_checkpoints_with_time([(prefix, float("inf")) for prefix in last_checkpoints])

    def set_last_checkpoints_with_time(self, last_checkpoints_with_time: Sequence[Dated]) -> None:
        """Replace the list of kept checkpoints.

        Args:
            last_checkpoints_with_time: (prefix, time in seconds since 1970) pairs, oldest first.
        """
        with self._lock:
            self._keeper.newest = list(last_checkpoints_with_time)

    def recover_last_checkpoints(self, checkpoint_paths: Sequence[str]) -> None:
        """Replace the list of kept checkpoints by those of `checkpoint_paths` that exist."""
        dated = [
            (prefix, time)
            for prefix in checkpoint_paths
            for time in get_checkpoint_mtimes([prefix])
        ]
        self.set_last_checkpoints_with_time(dated)

    def as_saver_def(self) -> NoReturn:
        """Raise NotImplementedError: savers have no protocol buffers."""
        _refuse_protos("as_saver_def")

    def to_proto(self, export_scope: str | None = None) -> NoReturn:
        """Raise NotImplementedError, as `as_saver_def`."""
        _refuse_protos("to_proto")

    @staticmethod
    def from_proto(saver_def: object, import_scope: str | None = None) -> NoReturn:
        """Raise NotImplementedError, as `as_saver_def`."""
        _refuse_protos("from_proto")

    def export_meta_graph(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise NotImplementedError: a graph is built by Python code, not read from a file."""
        _refuse_protos("export_meta_graph")


def _next_mark(saved_time: float, mark: float, span: float) -> float | None:
    return mark + span if saved_time > mark else None


def _find_directory(prefix: str) -> str:
    return os.path.realpath(os.path.dirname(prefix))


def _refuse_protos(method: str) -> NoReturn:
    raise NotImplementedError(
        f"{method}: there are no protocol buffers of savers and graphs, because a graph holds"
        " Python functions. Build the graph by the same Python code, and restore its variables"
        " with a new Saver."
    )
