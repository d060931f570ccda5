"""Detection of files that a reader does not take, by their first bytes, with the reader to use."""

from __future__ import annotations

import os
import re
from typing import BinaryIO, NamedTuple

from thalweg._formats import header
from thalweg.errors import (
    DataLossError,
    ThalwegError,
    UnsafeCheckpointError,
    UnsupportedCheckpointError,
)

SHOWN = 4096  # bytes of a file that are looked at
HDF5, ZIP = b"\x89HDF\r\n\x1a\n", b"PK\3\4"
PICKLES = (*(b"\x80" + bytes([version]) for version in range(2, 6)),)
TRAINING = "training"  # the kind of what thalweg.checkpoint.save writes
STATE = b"model_checkpoint_path:"  # of the list of checkpoints of a folder

_HEAD = 30  # bytes of a zip member's header before its name
_OF_KERAS = ("metadata.json", "config.json", "model.weights.h5")
_OURS = "`thalweg inspect` lists it, and thalweg.checkpoint.restore goes on from it"
THEIRS = (
    "`thalweg inspect` lists it, `thalweg convert` turns it into a file of thalweg, and"
    " thalweg.checkpoint.tensorflow.restore goes on from it"
)
_UNSAFE = (
    "Reading one may execute what is in it. Load it with torch.load(weights_only=True); states of"
    " torch.optim are taken over by thalweg.checkpoint.from_torch"
)
# The index of a bundle begins with an entry without a name, which counts the files of data.
_INDEX = re.compile(rb"\0\0[\1-\x40]\x08.{1,4}?\x1a\x02\x08", re.DOTALL)
_TABLE = bytes.fromhex("57fb808b247547db")  # its last bytes
_OLD_PICKLE = re.compile(
    rb"\([dl]p\d|[]}]q\0|c(__builtin__|builtins|os|posix|nt|copy_?reg|numpy|torch|collections)[.\n]"
)


class FormatProbe(NamedTuple):
    """Detected kind of a file.

    Attributes:
        kind: A description.
        hint: Advice.
        error: The class of the error to raise.
    """

    kind: str
    hint: str
    error: type[ThalwegError] = DataLossError


_KNOWN: tuple[tuple[bytes, FormatProbe], ...] = (
    (HDF5, FormatProbe("an HDF5 file, as Keras writes", THEIRS, UnsupportedCheckpointError)),
    (b"\x93NUMPY", FormatProbe("an array of NumPy's", "numpy.load reads it")),
    (b"\x1f\x8b", FormatProbe("compressed by gzip", "Unpack it first")),
    (b"BZh", FormatProbe("compressed by bzip2", "Unpack it first")),
    (b"\xfd7zXZ\0", FormatProbe("compressed by xz", "Unpack it first")),
    (b"\x28\xb5\x2f\xfd", FormatProbe("compressed by zstd", "Unpack it first")),
    (
        b"version https://git-lfs",
        FormatProbe(
            "a pointer of git LFS, which stands for the file", "Get that by `git lfs pull`"
        ),
    ),
    (STATE, FormatProbe("the list of a folder's checkpoints, and holds none", "Give one of them")),
)


def first_member(start: bytes) -> str:
    """Return the name of the first member of a zip archive."""
    length = int.from_bytes(start[26:28], "little")
    return start[_HEAD : _HEAD + length].decode("ascii", "replace")


def is_keras_archive(start: bytes) -> bool:
    """Return True if a file begins as a Keras archive does; it need not be whole."""
    return start.startswith(ZIP) and first_member(start) in _OF_KERAS


def refusal_error(path: str, file: BinaryIO, wanted: str) -> ThalwegError:
    """Return the error of a file that is not what a reader takes.

    Args:
        path: The file, for the message.
        file: The same, open.
        wanted: What the reader takes: "file of thalweg".
    """
    size, start, end = _read_both_ends(file)
    if header.nearly_begins(start):
        return DataLossError(f"{path}: The beginning of its header is damaged. Copy it anew.")
    found = _identify_bytes(start, end)
    if found is not None:
        return found.error(f"{path}: It is no {wanted}: it is {found.kind}. {found.hint}.")
    text = "it is empty: it was never written, or is cut off. Copy it anew"
    if start:
        shown = repr(start[:8]) if size > 8 else f"{start!r}, and no more"
        text = (
            f"or its first bytes are damaged: {shown}. `thalweg inspect` reads checkpoints of"
            " thalweg, TensorFlow (by what all names of its files begin with) and Keras"
        )
    return DataLossError(f"{path}: It is no {wanted}{',' if start else ':'} {text}.")


def identify_file(file: BinaryIO) -> FormatProbe | None:
    """Return the kind of an open file; None if it is unknown."""
    size, start, end = _read_both_ends(file)
    return (
        _identify_bytes(start, end)
        if size
        else FormatProbe("empty", "It was never written, or is cut off")
    )


def _read_both_ends(file: BinaryIO) -> tuple[int, bytes, bytes]:
    """The size of a file, its first bytes and its last."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))
    end = file.read(8)
    file.seek(0)
    return size, file.read(SHOWN), end


def _identify_bytes(start: bytes, end: bytes) -> FormatProbe | None:
    """What a file looks like by its first and its last bytes."""
    for begin, look in _KNOWN:
        if start.startswith(begin):
            return look
    if start.startswith(PICKLES) or _OLD_PICKLE.match(start):
        return FormatProbe("a pickle, from offset 0 on", _UNSAFE, UnsafeCheckpointError)
    if start.startswith(ZIP):
        return _identify_zip(first_member(start))
    if header.begins_like_ours(start):
        return FormatProbe("a file of thalweg", _OURS, UnsupportedCheckpointError)
    if start[8:].lstrip().startswith(b'{"'):
        hint = "safetensors.torch.load_file reads it"
        return FormatProbe("a file of safetensors that another library wrote", hint)
    if end == _TABLE or _INDEX.match(start):
        return FormatProbe(
            "an index of TensorFlow's under another name, or a part of one",
            "TensorFlow calls it model.index beside model.data-00000-of-00001, of which `thalweg"
            " inspect model` reads both",
        )
    if start and not start.strip(b"\0"):
        return FormatProbe(
            "zeros alone", "It was never written, as after a power failure. Copy it anew"
        )
    if re.match(rb"\s*<(!doctype|html|\?xml)", start, re.IGNORECASE):
        return FormatProbe("a web page", "What was downloaded is not the file. Get it anew")
    if re.match(rb"\s*[{\[]", start) and start.isascii():
        return FormatProbe("text, JSON perhaps", "There are no tensors in it")
    return None


def _identify_zip(name: str) -> FormatProbe:
    if name in _OF_KERAS:
        return FormatProbe("a `.keras` file", THEIRS, UnsupportedCheckpointError)
    if name.endswith(".npy"):
        return FormatProbe("an archive of NumPy's arrays", "numpy.load reads it")
    if name.endswith((".pkl", "/.format_version", "/version", "/byteorder")):
        return FormatProbe(
            "a pickle in an archive, as torch.save writes", _UNSAFE, UnsafeCheckpointError
        )
    kind = f"a zip archive, or the beginning of one, with {name[:80]!r} in it"
    return FormatProbe(kind, "Unpack it, if there is a checkpoint inside")


def reader_of(kind: object) -> str:
    """Return a description of the reader of a thalweg file.

    Args:
        kind: The "kind" of its document.
    """
    readers = {
        TRAINING: "thalweg.checkpoint.restore reads it",
        "tf.train.Saver": "thalweg.v1.train.Saver reads it, in a session",
        "tf.train.Checkpoint": "thalweg.v1.train.Checkpoint reads it",
    }
    known = readers.get(kind) if isinstance(kind, str) else None
    return known or "`thalweg inspect` shows what is in it"
