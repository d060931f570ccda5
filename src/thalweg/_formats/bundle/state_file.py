"""The file `checkpoint`, in which TensorFlow notes which checkpoints a folder has.

It is a CheckpointState of tensorflow/python/training/checkpoint_state.proto, as text.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from thalweg._formats import atomic_write
from thalweg._formats.bundle.checkpoint_directory import Folder
from thalweg._formats.bundle.errors import CorruptFileError, locate_flaws, raise_flaws
from thalweg._formats.bundle.proto import decode_text
from thalweg._formats.bundle.text_format import parse_fields, quote_text
from thalweg.errors import UnsafeCheckpointError

NAME = "checkpoint"
LIMIT = 1 << 21  # bytes of such a file: some ten thousand checkpoints
_LONGEST = 4096  # characters of a path

_FIELDS: dict[str, type] = {
    "model_checkpoint_path": str,
    "all_model_checkpoint_paths": str,
    "all_model_checkpoint_timestamps": float,
    "last_preserved_timestamp": float,
}


@dataclass(frozen=True)
class CheckpointState:
    """List of the checkpoints of a folder.

    Attributes:
        model_checkpoint_path: The prefix of the last one; "" if none is named.
        all_model_checkpoint_paths: Those of all that are kept, the oldest first.
        all_model_checkpoint_timestamps: The time of each save, in seconds since 1970.
        last_preserved_timestamp: The time of the last save that is never deleted.
    """

    model_checkpoint_path: str
    all_model_checkpoint_paths: tuple[str, ...] = ()
    all_model_checkpoint_timestamps: tuple[float, ...] = ()
    last_preserved_timestamp: float | None = None


def read_state(folder: str | os.PathLike[str], name: str = NAME) -> CheckpointState | None:
    """Read the state file of a folder.

    Args:
        folder: The folder of the checkpoints.
        name: The name of the file.

    Returns:
        The state, with paths that begin with `folder`; None if there is no such file.

    Raises:
        DataLossError: It is damaged, or another file.
        UnsafeCheckpointError: It is a link, or a checkpoint that it names lies elsewhere.
    """
    home = os.fspath(folder)
    title = os.path.join(home, name)
    try:
        with raise_flaws(title), Folder(title) as opened:
            file = opened.open_file("")
            try:
                if file.size > LIMIT:
                    raise CorruptFileError(
                        f"it has {file.size} bytes, no more than {LIMIT} are read"
                    )
                found = _parse_state(decode_text(file.read(0, file.size)))
            finally:
                file.close()
            return _with_absolute_paths(home, found)
    except FileNotFoundError:
        return None


def write_state(folder: str | os.PathLike[str], state: CheckpointState, name: str = NAME) -> None:
    """Write the file; paths are written as they are seen from the folder, so that it can be moved.

    Args:
        folder: The folder of the checkpoints.
        state: What is written. Its paths begin with `folder`.
        name: The name of the file.

    Raises:
        UnsafeCheckpointError: A checkpoint lies outside of the folder.
        CheckpointWriteError: The file could not be written.
    """
    home = os.fspath(folder)
    title = os.path.join(home, name)
    with raise_flaws(title):
        last = _relative_to(home, state.model_checkpoint_path)
        every = [_relative_to(home, path) for path in state.all_model_checkpoint_paths]
    lines = [f"model_checkpoint_path: {quote_text(last)}"]
    lines += [f"all_model_checkpoint_paths: {quote_text(path)}" for path in every]
    times = state.all_model_checkpoint_timestamps
    lines += [f"all_model_checkpoint_timestamps: {time!r}" for time in times]
    if state.last_preserved_timestamp is not None:
        lines.append(f"last_preserved_timestamp: {state.last_preserved_timestamp!r}")
    data = "".join(f"{line}\n" for line in lines).encode()
    atomic_write.replace(title, [data], len(data))


def _parse_state(source: str) -> CheckpointState:
    found: dict[str, list[Any]] = {name: [] for name in _FIELDS}
    for name, values in parse_fields(source):
        with locate_flaws(name[:80]):
            if name not in _FIELDS:
                raise CorruptFileError("there is no such field")
            if not all(type(value) is _FIELDS[name] for value in values):
                raise CorruptFileError(f"its value is no {_FIELDS[name].__name__}")
            found[name] += values
    last, every, times, preserved = found.values()
    if len(last) > 1 or len(preserved) > 1:
        raise CorruptFileError("it names more than one checkpoint as the last one")
    return CheckpointState(
        "".join(last), tuple(every), tuple(times), preserved[0] if preserved else None
    )


def _with_absolute_paths(home: str, found: CheckpointState) -> CheckpointState:
    """The same with paths that begin with the folder."""
    last, *every = (
        os.path.join(home, path) if path else ""
        for path in (found.model_checkpoint_path, *found.all_model_checkpoint_paths)
    )
    for path in (last, *every):
        _relative_to(home, path)
    return replace(found, model_checkpoint_path=last, all_model_checkpoint_paths=tuple(every))


def _relative_to(home: str, path: str) -> str:
    """A path as it is seen from a folder that it must not leave, whatever links are on its way."""
    if not path:
        return ""
    if "\0" in path or len(path) > _LONGEST:
        raise CorruptFileError(f"it names {path[:200]!r}, which is no path", UnsafeCheckpointError)
    above, base = os.path.split(path)
    root, own = _real_path(home), _real_path(above)
    if base in ("", ".", "..") or not os.path.join(own, "").startswith(os.path.join(root, "")):
        raise CorruptFileError(
            f"it names {path!r}, which is not in its folder; if you trust it, give that path"
            " instead of the folder",
            UnsafeCheckpointError,
        )
    return os.path.relpath(os.path.join(own, base), root)


def _real_path(folder: str) -> str:
    return os.path.realpath(folder or ".")
