"""Lists of checkpoints: a folder's file `checkpoint` has *prefixes*, paths without endings."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from thalweg._formats.atomic_write import NOWHERE
from thalweg._formats.bundle import CheckpointState, read_state, write_state
from thalweg.errors import InvalidArgumentError
from thalweg.v1.train.saving.checkpoint_reader import INDEX, SUFFIX, is_checkpoint

__all__ = [
    "checkpoint_exists", "checkpoints_iterator", "generate_checkpoint_state_proto",
    "get_checkpoint_mtimes", "get_checkpoint_state", "latest_checkpoint", "remove_checkpoint",
    "update_checkpoint_state",
]  # fmt: skip

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
# The name of the file that lists the checkpoints of a folder.
STATE = "checkpoint"

Path = str | os.PathLike[str]


def generate_checkpoint_state_proto(
    save_dir: Path,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Iterable[str] | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
) -> CheckpointState:
    """Return the content for a file `checkpoint`, which lists the checkpoints of a folder.

    Args:
        save_dir: The folder.
        model_checkpoint_path: The prefix of the newest checkpoint. With a relative `save_dir`, a
            relative prefix starts at the working directory, and is made relative to `save_dir`.
        all_model_checkpoint_paths: Optional. The prefixes of all kept checkpoints, oldest first.
            `model_checkpoint_path` is appended if it is not the last.
        all_model_checkpoint_timestamps: Optional. The time of each checkpoint, in seconds since
            1970.
        last_preserved_timestamp: Optional. The time of the newest checkpoint that is never deleted.

    Raises:
        ValueError: The numbers of times and checkpoints differ.
    """
    paths = list(all_model_checkpoint_paths or ())
    if not paths or paths[-1] != model_checkpoint_path:
        paths.append(model_checkpoint_path)
    times = list(all_model_checkpoint_timestamps or ())
    if times and len(times) != len(paths):
        raise InvalidArgumentError(
            "Checkpoint timestamps, if provided, must match checkpoint paths (got paths"
            f" {paths} and timestamps {times})"
        )
    directory = os.fspath(save_dir)
    if not os.path.isabs(directory):
        model_checkpoint_path = _relative_to(model_checkpoint_path, directory)
        paths = [_relative_to(path, directory) for path in paths]
    return CheckpointState(model_checkpoint_path, paths, times, last_preserved_timestamp)


def update_checkpoint_state(
    save_dir: Path,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Iterable[str] | None = None,
    latest_filename: str | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
) -> None:
    """Write the file `checkpoint` of a folder; see `generate_checkpoint_state_proto`.

    The write is atomic. Paths in the file are relative to the folder, which may be moved.

    Args:
        save_dir, model_checkpoint_path, all_model_checkpoint_paths: As in
            `generate_checkpoint_state_proto`.
        latest_filename: Optional. A name other than "checkpoint" for the file.
        all_model_checkpoint_timestamps, last_preserved_timestamp: As in
            `generate_checkpoint_state_proto`.

    Raises:
        RuntimeError: A checkpoint has the name of the file.
        ValueError: The numbers of times and checkpoints differ.
        UnsafeCheckpointError: A checkpoint is outside of the folder.
        CheckpointWriteError: The file cannot be written.
    """
    state = generate_checkpoint_state_proto(
        save_dir,
        model_checkpoint_path,
        all_model_checkpoint_paths,
        all_model_checkpoint_timestamps,
        last_preserved_timestamp,
    )
    directory, name = os.fspath(save_dir), STATE if latest_filename is None else latest_filename
    newest, *paths = (
        os.path.join(directory, path)
        for path in (state.model_checkpoint_path, *state.all_model_checkpoint_paths)
    )
    if newest == os.path.join(directory, name):
        raise RuntimeError(
            f"Save path '{model_checkpoint_path}' conflicts with path used for checkpoint state. "
            " Please use a different save path."
        )
    # `write_state` takes paths that begin with the folder, and makes them relative itself.
    state = replace(state, model_checkpoint_path=newest, all_model_checkpoint_paths=paths)
    write_state(directory, state, name)


def get_checkpoint_state(
    checkpoint_dir: Path, latest_filename: str | None = None
) -> CheckpointState | None:
    """Return the content of a folder's file `checkpoint`, or None if the file does not exist.

    Paths in the result begin with the folder.

    Raises:
        ValueError: The file names no checkpoint.
        DataLossError: The file is damaged.
        UnsafeCheckpointError: A path leads out of the folder.

    Differs from:
        TensorFlow treats a damaged file as missing, so a continued training starts anew.
    """
    directory = os.fspath(checkpoint_dir)
    state = read_state(directory, STATE if latest_filename is None else latest_filename)
    if state is not None and not state.model_checkpoint_path:
        raise InvalidArgumentError(f"Invalid checkpoint state loaded from {directory}")
    return state


def latest_checkpoint(checkpoint_dir: Path, latest_filename: str | None = None) -> str | None:
    """Return the prefix of a folder's newest checkpoint, read from the file `checkpoint`.

    Args:
        checkpoint_dir: The folder.
        latest_filename: Optional. A name other than "checkpoint" for the file.

    Returns:
        The prefix, which begins with the folder. None if the file `checkpoint` does not exist. If
        the checkpoint's files do not exist, log an error and return None.

    Raises:
        ValueError: The file names no checkpoint.
        DataLossError: The file is damaged.
        UnsafeCheckpointError: A path in the file leads out of the folder.
    """
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None:
        return None
    if not is_checkpoint(state.model_checkpoint_path):
        _LOG.error("Couldn't match files for checkpoint %s", state.model_checkpoint_path)
        return None
    return state.model_checkpoint_path


def checkpoints_iterator(
    checkpoint_dir: Path,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], object] | None = None,
) -> Iterator[str]:
    """Yield the prefix of a folder's newest checkpoint whenever a new checkpoint appears.

    Args:
        checkpoint_dir: The folder; it may not exist yet.
        min_interval_secs: Minimum number of seconds between two results.
        timeout: Optional. Seconds to wait for a checkpoint.
        timeout_fn: Optional. `timeout_fn()` is called after each timeout; a true result ends the
            iteration. Without `timeout_fn`, the first timeout ends the iteration.

    Raises:
        ValueError, DataLossError, UnsafeCheckpointError: See `get_checkpoint_state`.
    """
    previous = None
    while True:
        newest = _wait_for_another(checkpoint_dir, previous, timeout)
        if newest is not None:
            start = time.monotonic()
            previous = newest
            yield newest
            time.sleep(max(0.0, start + min_interval_secs - time.monotonic()))
        elif timeout_fn is None or timeout_fn():
            return


def _wait_for_another(directory: Path, previous: str | None, timeout: float | None) -> str | None:
    """Wait until the newest prefix is not `previous`; return the prefix, None after `timeout`."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        newest = latest_checkpoint(directory)
        if newest not in (None, previous):
            return newest
        # A further pause would last beyond the end.
        if end is not None and time.monotonic() + _POLL_SECONDS > end:
            return None
        time.sleep(_POLL_SECONDS)


def checkpoint_exists(checkpoint_prefix: Path) -> bool:
    """Return True if a checkpoint of this library or of TensorFlow has the prefix."""
    return is_checkpoint(os.fspath(checkpoint_prefix))


def get_checkpoint_mtimes(checkpoint_prefixes: Iterable[Path]) -> list[float]:
    """Return the modification times of existing checkpoints, in seconds since 1970.

    Missing checkpoints have no entry.
    """
    times: list[float] = []
    for prefix in [os.fspath(checkpoint_prefix) for checkpoint_prefix in checkpoint_prefixes]:
        for path in (prefix + SUFFIX, prefix + INDEX, prefix):
            # `break` is reached only if the file exists.
            with _ignore_missing():
                times.append(os.stat(path).st_mtime)
                break
    return times


def remove_checkpoint(
    checkpoint_prefix: Path, checkpoint_format_version: int = 2, meta_graph_suffix: str = "meta"
) -> None:
    """Delete the files of a checkpoint of this library or of TensorFlow; skip missing files.

    Args:
        checkpoint_prefix: The prefix.
        checkpoint_format_version: 1 for TensorFlow's format before 0.12, whose file is named like
            the prefix.
        meta_graph_suffix: Suffix of the file with TensorFlow's graph.

    Raises:
        OSError: A file cannot be deleted.
    """
    prefix = os.fspath(checkpoint_prefix)
    meta_graph = f"{re.sub(r'-[0-9?]+-of-[0-9]+$', '', prefix)}.{meta_graph_suffix}"
    # This library's format is the same for all format versions.
    paths = [meta_graph, prefix + SUFFIX]
    if checkpoint_format_version == 1:
        paths.append(prefix)
    else:
        # The index first: a checkpoint is recognized by its index, so none is left incomplete.
        paths.append(prefix + INDEX)
        paths += glob.glob(f"{glob.escape(prefix)}.data-?????-of-?????")
    for path in paths:
        with _ignore_missing():
            os.unlink(path)


@contextlib.contextmanager
def _ignore_missing() -> Iterator[None]:
    """Return a context manager that ignores the error for a missing file."""
    try:
        yield
    except OSError as error:
        if error.errno not in NOWHERE:
            raise


def _relative_to(path: str, directory: str) -> str:
    return path if os.path.isabs(path) else os.path.relpath(path, directory)
