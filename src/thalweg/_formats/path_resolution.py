"""Resolution of a path to a checkpoint and its format, for all readers."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from dataclasses import dataclass
from enum import Enum

from thalweg._formats import atomic_write, container, format_detection
from thalweg.errors import MissingFileError, ThalwegError, UnsupportedCheckpointError, did_you_mean

ENDING = ".safetensors"  # omitted by savers
_OF_BUNDLES = re.compile(r"\.(index|meta|data-[0-9]{5}-of-[0-9]{5})\Z")
_PATTERNS = ("variables/variables.index", "*.index", f"*{ENDING}", "*.keras", "*.h5")


class PathKind(Enum):
    """Format of the file at a path, or the reason why there is no checkpoint."""

    OURS = "thalweg"
    BUNDLE = "tensorflow"
    FIRST_BUNDLE = "tensorflow before 1.0"
    KERAS = "keras"
    HDF5 = "hdf5"
    FOLDER = "folder"
    STATE = "state"
    MISSING = "missing"
    FOREIGN = "foreign"


@dataclass(frozen=True)
class ResolvedPath:
    """Path of a checkpoint with its format.

    Attributes:
        path: The file, or the prefix of a TensorFlow checkpoint, as the reader expects it.
        kind: The format.
    """

    path: str
    kind: PathKind

    @property
    def writer(self) -> str:
        """Writer of the checkpoint: "thalweg", "tensorflow" or "keras"; "" for other files."""
        writers = {
            PathKind.OURS: "thalweg",
            PathKind.BUNDLE: "tensorflow",
            PathKind.FIRST_BUNDLE: "tensorflow",
            PathKind.KERAS: "keras",
            PathKind.HDF5: "keras",
        }
        return writers.get(self.kind, "")

    @property
    def of(self) -> str:
        """Name of the writer in messages."""
        return {"tensorflow": "TensorFlow", "keras": "Keras"}.get(self.writer, self.writer)

    def check_readable(self) -> ResolvedPath:
        """Return this path; raise unless it is a checkpoint.

        Raises:
            MissingFileError: The path does not exist, or is a directory or list of checkpoints.
            UnsafeCheckpointError: The file is a pickle.
            DataLossError: The format is unknown or not supported; the message names the format.
        """
        if not self.writer:
            raise _ERRORS[self.kind](self.path)
        return self

    def path_if_ours(self) -> str:
        """Return the path as text if it is a thalweg file.

        Raises:
            UnsupportedCheckpointError: The path is a checkpoint of TensorFlow or Keras.
            ThalwegError: See `check_readable`.
        """
        if self.check_readable().kind is not PathKind.OURS:
            raise UnsupportedCheckpointError(
                f"{self.path} is a checkpoint of {self.of}: {format_detection.CONVERT_ADVICE}."
            )
        return self.path

    def of_savers(self) -> ResolvedPath:
        """Return this path; raise unless the savers of `tf.train` can read the file.

        Raises:
            UnsupportedCheckpointError: The path is a file of Keras.
            ThalwegError: See `check_readable`.
        """
        if self.check_readable().writer == "keras":
            raise UnsupportedCheckpointError(
                f"{self.path} is a file of Keras, which thalweg.checkpoint.tensorflow.restore"
                " reads."
            )
        return self


def locate_checkpoint(path: str | os.PathLike[str]) -> ResolvedPath:
    """Return the checkpoint at a path, with its format.

    The first existing file counts: a thalweg or Keras file of exactly this name; a thalweg file
    with ".safetensors" appended; a TensorFlow checkpoint with this prefix; any other file. So "x"
    is the thalweg file "x.safetensors", even beside a TensorFlow checkpoint "x.index".

    If nothing exists, the kind is `PathKind.MISSING`.

    Args:
        path: A file, the prefix of a TensorFlow checkpoint, or a file without ".safetensors".

    Raises:
        InvalidArgumentError: The path is a device or a pipe.
        OSError: The path cannot be read.
    """
    file_path = os.fsdecode(path)
    prefix = _OF_BUNDLES.sub("", file_path)
    kind = _by_content(file_path) if os.path.isfile(file_path) else PathKind.MISSING
    if kind is PathKind.OURS or (prefix == file_path and kind in (PathKind.KERAS, PathKind.HDF5)):
        return ResolvedPath(file_path, kind)
    thalweg_path = file_path + ENDING
    if prefix == file_path and os.path.lexists(thalweg_path) and not os.path.isdir(thalweg_path):
        return ResolvedPath(thalweg_path, PathKind.OURS)
    # The reader raises an error about an index that is a link, even a broken one.
    for candidate in dict.fromkeys((file_path, prefix)):
        if os.path.lexists(f"{candidate}.index"):
            return ResolvedPath(candidate, PathKind.BUNDLE)
    # Readers of other formats are imported at their first use.
    from thalweg._formats import bundle

    if bundle.is_bundle(file_path):
        return ResolvedPath(file_path, PathKind.FIRST_BUNDLE)
    if os.path.isdir(file_path):
        return ResolvedPath(file_path, PathKind.FOLDER)
    if os.path.exists(file_path) and prefix == file_path:
        return ResolvedPath(file_path, _by_content(file_path))
    return ResolvedPath(prefix, PathKind.MISSING)


def _by_content(path: str) -> PathKind:
    """Return the format of an existing file by its content."""
    if container.is_container(path):
        return PathKind.OURS
    with atomic_write.open_for_reading(path) as stream:
        first_bytes = stream.read(format_detection.PROBE_BYTES)
    if first_bytes.startswith(format_detection.HDF5):
        return PathKind.HDF5
    if first_bytes.startswith(format_detection.ZIP):
        from thalweg._formats import keras_files

        is_keras = path.endswith(".keras") or format_detection.is_keras_archive(first_bytes)
        is_keras = is_keras or keras_files.is_keras_file(path)
        return PathKind.KERAS if is_keras else PathKind.FOREIGN
    return PathKind.STATE if first_bytes.startswith(format_detection.STATE) else PathKind.FOREIGN


def _no_file(path: str) -> ThalwegError:
    """Return the error for a path that does not exist, with a hint at a similar name."""
    if os.path.islink(path):
        return MissingFileError(f"{path} is a link to {os.readlink(path)!r}, and leads to no file.")
    directory, name = os.path.split(path)
    if glob.glob(f"{glob.escape(path)}.data-*"):
        return MissingFileError(
            f"{path}.index does not exist: without it the data beside it have no names. Copy it,"
            " too."
        )
    names = map(os.path.basename, _list_checkpoints(directory))
    advice = did_you_mean(name, [name.removesuffix(".index") for name in names])
    return MissingFileError(
        f"{path} does not exist: there is no file of this name, nor one with {ENDING} or .index"
        f" after it. {advice}".rstrip()
    )


def _folder_error(path: str) -> ThalwegError:
    """Return the error for a directory."""
    return MissingFileError(f"{path} is a folder: give a checkpoint in it{_suggest_newest(path)}.")


def _state_file_error(path: str) -> ThalwegError:
    """Return the error for TensorFlow's list "checkpoint", with a hint at the newest checkpoint."""
    directory, name = os.path.split(path)
    return MissingFileError(
        f"{path} lists the checkpoints of its folder, and holds none: give one of them"
        f"{_suggest_newest(directory, name)}."
    )


def _foreign_error(path: str) -> ThalwegError:
    """Return the error for a file that is no checkpoint."""
    with atomic_write.open_for_reading(path) as stream:
        return format_detection.refusal_error(
            path, stream, "checkpoint of thalweg, TensorFlow or Keras"
        )


_ERRORS = {
    PathKind.MISSING: _no_file,
    PathKind.FOLDER: _folder_error,
    PathKind.STATE: _state_file_error,
    PathKind.FOREIGN: _foreign_error,
}


def _suggest_newest(directory: str, name: str | None = None) -> str:
    """Return text such as ", such as x/model-5" about the newest checkpoint of a directory, or "".

    `name` is the name of the state file, which is read first; by default "checkpoint".
    """
    from thalweg._formats import bundle

    with contextlib.suppress(ThalwegError, OSError):
        state = bundle.read_state(directory, name or bundle.STATE)
        if state is not None and state.model_checkpoint_path:
            return f", such as {state.model_checkpoint_path}, the newest"
    checkpoints = _list_checkpoints(directory)
    return f", such as {checkpoints[-1].removesuffix('.index')}" if checkpoints else ""


def _list_checkpoints(directory: str) -> list[str]:
    """Return the paths in a directory that look like checkpoints, sorted by pattern and name."""
    patterns = [os.path.join(glob.escape(directory), pattern) for pattern in _PATTERNS]
    return [path for pattern in patterns for path in sorted(glob.glob(pattern))]
