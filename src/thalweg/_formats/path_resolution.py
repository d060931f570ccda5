"""Kind of a path, judged by content: the one place that decides it for all readers."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from dataclasses import dataclass
from enum import Enum

from thalweg._formats import atomic_write, container, format_detection
from thalweg.errors import MissingFileError, ThalwegError, UnsupportedCheckpointError, did_you_mean

ENDING = ".safetensors"  # savers call our files by a name without it
_OF_BUNDLES = re.compile(r"\.(index|meta|data-[0-9]{5}-of-[0-9]{5})\Z")
_LISTED = ("variables/variables.index", "*.index", f"*{ENDING}", "*.keras", "*.h5")


class PathKind(Enum):
    """Kind of a path; the values are the file's writer, or the kind itself."""

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
    """Path of a checkpoint with its kind.

    Attributes:
        path: As its reader takes it: of thalweg the file, of TensorFlow the prefix of all its
            files.
        kind: The kind.
    """

    path: str
    kind: PathKind

    @property
    def writer(self) -> str:
        """Writer of the checkpoint: "thalweg", "tensorflow" or "keras"; "" if it is none."""
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
        """The writer, as it writes itself."""
        return {"tensorflow": "TensorFlow", "keras": "Keras"}.get(self.writer, self.writer)

    def check_readable(self) -> ResolvedPath:
        """This.

        Raises:
            MissingFileError: There is nothing, or no more than a folder or a list of checkpoints.
            UnsafeCheckpointError: It is a pickle.
            DataLossError: It is of no kind that is read here; says what it is, as far as it tells.
        """
        if not self.writer:
            raise _REFUSED[self.kind](self.path)
        return self

    def path_if_ours(self) -> str:
        """Return the path of a file of thalweg.

        Raises:
            UnsupportedCheckpointError: It is a checkpoint of TensorFlow or Keras.
            ThalwegError: As `check_readable`.
        """
        if self.check_readable().kind is not PathKind.OURS:
            raise UnsupportedCheckpointError(
                f"{self.path} is a checkpoint of {self.of}: {format_detection.THEIRS}."
            )
        return self.path

    def of_savers(self) -> ResolvedPath:
        """This, as something that `tf.train`'s savers read.

        Raises:
            UnsupportedCheckpointError: It is a file of Keras.
            ThalwegError: As `check_readable`.
        """
        if self.check_readable().writer == "keras":
            raise UnsupportedCheckpointError(
                f"{self.path} is a file of Keras, which thalweg.checkpoint.tensorflow.restore"
                " reads."
            )
        return self


def locate_checkpoint(path: str | os.PathLike[str]) -> ResolvedPath:
    """Return the checkpoint at a path, with its kind.

    The first of these that is there: a thalweg or Keras file of exactly this name; a thalweg file
    with ".safetensors" after it, as savers write them; a checkpoint of TensorFlow; any other file.
    So the file saved last is found where TensorFlow's lies beside it; that is "x.index" then.

    Args:
        path: A file; a checkpoint of TensorFlow without the endings of its files, or one of these;
            or a thalweg file without ".safetensors".

    Raises:
        InvalidArgumentError: It is a device or a pipe.
        OSError: It cannot be read.
    """
    given = os.fsdecode(path)
    prefix = _OF_BUNDLES.sub("", given)
    kind = _by_content(given) if os.path.isfile(given) else PathKind.MISSING
    if kind is PathKind.OURS or (prefix == given and kind in (PathKind.KERAS, PathKind.HDF5)):
        return ResolvedPath(given, kind)
    ours = given + ENDING
    if prefix == given and os.path.lexists(ours) and not os.path.isdir(ours):
        return ResolvedPath(ours, PathKind.OURS)
    for each in dict.fromkeys((given, prefix)):
        if os.path.lexists(f"{each}.index"):
            return ResolvedPath(each, PathKind.BUNDLE)
    if _is_first_bundle(given):
        return ResolvedPath(given, PathKind.FIRST_BUNDLE)
    if os.path.isdir(given):
        return ResolvedPath(given, PathKind.FOLDER)
    if os.path.exists(given) and prefix == given:
        return ResolvedPath(given, _by_content(given))
    return _missing(prefix)


def _missing(path: str) -> ResolvedPath:
    return ResolvedPath(path, PathKind.MISSING)


def _by_content(path: str) -> PathKind:
    if container.is_container(path):
        return PathKind.OURS
    with atomic_write.open_for_reading(path) as file:
        start = file.read(format_detection.SHOWN)
    if start.startswith(format_detection.HDF5):
        return PathKind.HDF5
    if start.startswith(format_detection.ZIP):
        is_keras = (
            path.endswith(".keras") or format_detection.is_keras_archive(start) or _is_keras(path)
        )
        return PathKind.KERAS if is_keras else PathKind.FOREIGN
    return PathKind.STATE if start.startswith(format_detection.STATE) else PathKind.FOREIGN


# The formats of others are imported where a path may be one of theirs.
def _is_first_bundle(path: str) -> bool:
    from thalweg._formats import bundle

    return bundle.is_bundle(path)


def _is_keras(path: str) -> bool:
    from thalweg._formats import keras_files

    return keras_files.is_keras_file(path)


def _no_file(path: str) -> ThalwegError:
    if os.path.islink(path):
        return MissingFileError(f"{path} is a link to {os.readlink(path)!r}, and leads to no file.")
    folder, name = os.path.split(path)
    if glob.glob(f"{glob.escape(path)}.data-*"):
        return MissingFileError(
            f"{path}.index does not exist: without it the data beside it have no names. Copy it,"
            " too."
        )
    others = [
        re.sub(r"\.index\Z", "", os.path.basename(each)) for each in _list_checkpoints(folder)
    ]
    hint = did_you_mean(name, others)
    return MissingFileError(
        f"{path} does not exist: there is no file of this name, nor one with {ENDING} or .index"
        f" after it. {hint}".rstrip()
    )


def _folder_error(path: str) -> ThalwegError:
    return MissingFileError(f"{path} is a folder: give a checkpoint in it{_newest_hint(path)}.")


def _state_file_error(path: str) -> ThalwegError:
    folder, name = os.path.split(path)
    return MissingFileError(
        f"{path} lists the checkpoints of its folder, and holds none: give one of them"
        f"{_newest_hint(folder, name)}."
    )


def _foreign_error(path: str) -> ThalwegError:
    with atomic_write.open_for_reading(path) as file:
        return format_detection.refusal_error(
            path, file, "checkpoint of thalweg, TensorFlow or Keras"
        )


_REFUSED = {
    PathKind.MISSING: _no_file,
    PathKind.FOLDER: _folder_error,
    PathKind.STATE: _state_file_error,
    PathKind.FOREIGN: _foreign_error,
}


def _newest_hint(folder: str, name: str | None = None) -> str:
    """The newest checkpoint of a folder, in words; "" if there is none."""
    from thalweg._formats import bundle

    with contextlib.suppress(ThalwegError, OSError):
        state = bundle.read_state(folder, name or bundle.STATE)
        if state is not None and state.model_checkpoint_path:
            return f", such as {state.model_checkpoint_path}, the newest"
    found = _list_checkpoints(folder)
    return f", such as {re.sub(r'[.]index$', '', found[-1])}" if found else ""


def _list_checkpoints(folder: str) -> list[str]:
    """Files in a folder that look like checkpoints, in order of their names."""
    here = glob.escape(folder)
    return [path for each in _LISTED for path in sorted(glob.glob(os.path.join(here, each)))]
