"""State file `checkpoint`: TensorFlow's list of checkpoints in a directory.

It is a CheckpointState of tensorflow/python/training/checkpoint_state.proto, as text.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from thalweg._formats import atomic_write
from thalweg._formats.bundle.checkpoint_directory import Folder
from thalweg._formats.bundle.errors import CorruptFileError, locate_flaws, raise_flaws
from thalweg._formats.bundle.proto import decode_text
from thalweg._formats.bundle.text_format import parse_fields, quote_text
from thalweg.errors import UnsafeCheckpointError

NAME = "checkpoint"
LIMIT = 1 << 21  # bytes of such a file: some ten thousand checkpoints
_MAX_PATH = 4096  # characters of a path

_FIELDS: dict[str, type] = {
    "model_checkpoint_path": str,
    "all_model_checkpoint_paths": str,
    "all_model_checkpoint_timestamps": float,
    "last_preserved_timestamp": float,
}


@dataclass(frozen=True)
class CheckpointState:
    """List of the checkpoints of a directory.

    Attributes:
        model_checkpoint_path: The prefix of the last checkpoint; "" if none is named.
        all_model_checkpoint_paths: The prefixes of all existing checkpoints, the oldest first.
        all_model_checkpoint_timestamps: The time of each save, in seconds since 1970.
        last_preserved_timestamp: The time of the last save that is never deleted.
    """

    model_checkpoint_path: str
    all_model_checkpoint_paths: list[str] = field(default_factory=list[str])
    all_model_checkpoint_timestamps: list[float] = field(default_factory=list[float])
    last_preserved_timestamp: float | None = None


def read_state(folder: str | os.PathLike[str], name: str = NAME) -> CheckpointState | None:
    """Read the state file of a directory.

    Args:
        folder: The directory of the checkpoints.
        name: The name of the file.

    Returns:
        The state, with paths that begin with `folder`; None if there is no such file.

    Raises:
        DataLossError: The file is damaged, or has another format.
        UnsafeCheckpointError: The file is a link, or names a checkpoint in another directory.
    """
    directory = os.fspath(folder)
    title = os.path.join(directory, name)
    try:
        with raise_flaws(title), Folder(title) as opened_folder:
            with closing(opened_folder.open_file("")) as file:
                if file.size > LIMIT:
                    raise CorruptFileError(
                        f"it has {file.size} bytes, no more than {LIMIT} are read"
                    )
                state = _parse_state(decode_text(file.read(0, file.size)))
            return _with_absolute_paths(directory, state)
    except FileNotFoundError:
        return None


def write_state(folder: str | os.PathLike[str], state: CheckpointState, name: str = NAME) -> None:
    """Write the state file, with paths relative to `folder`, so that `folder` can be moved.

    Args:
        folder: The directory of the checkpoints.
        state: The state; its paths begin with `folder`.
        name: The name of the file.

    Raises:
        UnsafeCheckpointError: A checkpoint is outside of the directory.
        CheckpointWriteError: The file cannot be written.
    """
    directory = os.fspath(folder)
    title = os.path.join(directory, name)
    with raise_flaws(title):
        latest = _relative_to(directory, state.model_checkpoint_path)
        all_paths = [_relative_to(directory, path) for path in state.all_model_checkpoint_paths]
    lines = [f"model_checkpoint_path: {quote_text(latest)}"]
    lines += [f"all_model_checkpoint_paths: {quote_text(path)}" for path in all_paths]
    times = state.all_model_checkpoint_timestamps
    lines += [f"all_model_checkpoint_timestamps: {time!r}" for time in times]
    if state.last_preserved_timestamp is not None:
        lines.append(f"last_preserved_timestamp: {state.last_preserved_timestamp!r}")
    content = "".join(f"{line}\n" for line in lines).encode()
    atomic_write.replace(title, [content], len(content))


def _parse_state(text: str) -> CheckpointState:
    """Return the checkpoints that the text of a state file lists, with paths as they are written.

    A text without fields gives an empty path, empty lists and None.

    Raises:
        CorruptFileError: The text is malformed, a field is unknown or of another type, or a field
            with a single value is repeated.
    """
    fields: dict[str, list[Any]] = {name: [] for name in _FIELDS}
    for name, values in parse_fields(text):
        with locate_flaws(name[:80]):
            if name not in _FIELDS:
                raise CorruptFileError("there is no such field")
            if not all(type(content) is _FIELDS[name] for content in values):
                raise CorruptFileError(f"its value is no {_FIELDS[name].__name__}")
            fields[name] += values
    latest, all_paths, times, preserved = fields.values()
    if len(latest) > 1 or len(preserved) > 1:
        raise CorruptFileError("it names more than one checkpoint as the last one")
    return CheckpointState("".join(latest), all_paths, times, preserved[0] if preserved else None)


def _with_absolute_paths(directory: str, state: CheckpointState) -> CheckpointState:
    """Return a state with paths that begin with the directory; raise if one leads out of it."""
    latest, *all_paths = (
        os.path.join(directory, path) if path else ""
        for path in (state.model_checkpoint_path, *state.all_model_checkpoint_paths)
    )
    for path in (latest, *all_paths):
        _relative_to(directory, path)
    return replace(state, model_checkpoint_path=latest, all_model_checkpoint_paths=all_paths)


def _relative_to(directory: str, path: str) -> str:
    """Return a path relative to a directory; raise CorruptFileError if it leads out of it."""
    if not path:
        return ""
    if "\0" in path or len(path) > _MAX_PATH:
        raise CorruptFileError(f"it names {path[:200]!r}, which is no path", UnsafeCheckpointError)
    parent, base = os.path.split(path)
    root, real_parent = _real_path(directory), _real_path(parent)
    is_inside = os.path.join(real_parent, "").startswith(os.path.join(root, ""))
    if base in ("", ".", "..") or not is_inside:
        raise CorruptFileError(
            f"it names {path!r}, which is not in its folder; if you trust it, give that path"
            " instead of the folder",
            UnsafeCheckpointError,
        )
    return os.path.relpath(os.path.join(real_parent, base), root)


def _real_path(folder: str) -> str:
    """Return the absolute path of a directory, with links resolved."""
    return os.path.realpath(folder or ".")
