"""Detection of file formats by their first bytes, with advice about the reader."""

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

PROBE_BYTES = 4096  # bytes at the beginning of a file
HDF5, ZIP = b"\x89HDF\r\n\x1a\n", b"PK\3\4"
PICKLES = (*(b"\x80" + bytes([version]) for version in range(2, 6)),)
TRAINING = "training"  # the kind of files from thalweg.checkpoint.save
STATE = b"model_checkpoint_path:"  # the beginning of a state file

_HEAD = 30  # bytes of a zip member's header before its name
_OF_KERAS = ("metadata.json", "config.json", "model.weights.h5")
_THALWEG_ADVICE = "`thalweg inspect` lists it, and thalweg.checkpoint.restore goes on from it"
CONVERT_ADVICE = (
    "`thalweg inspect` lists it, `thalweg convert` turns it into a file of thalweg, and"
    " thalweg.checkpoint.tensorflow.restore goes on from it"
)
_UNSAFE = (
    "Reading one may execute what is in it. Load it with torch.load(weights_only=True); states of"
    " torch.optim are taken over by thalweg.checkpoint.from_torch"
)
# The index of a bundle begins with an entry without a name, which counts the files of data.
_INDEX = re.compile(rb"\0\0[\1-\x40]\x08.{1,4}?\x1a\x02\x08", re.DOTALL)
_TABLE = bytes.fromhex("57fb808b247547db")  # last bytes of an index
_OLD_PICKLE = re.compile(
    rb"\([dl]p\d|[]}]q\0|c(__builtin__|builtins|os|posix|nt|copy_?reg|numpy|torch|collections)[.\n]"
)


class FormatProbe(NamedTuple):
    """Detected format of a file.

    Attributes:
        kind: A description of the format.
        advice: What the user can do with the file.
        error: The class of the error to raise.
    """

    kind: str
    advice: str
    error: type[ThalwegError] = DataLossError


_SIGNATURES: tuple[tuple[bytes, FormatProbe], ...] = (
    (
        HDF5,
        FormatProbe("an HDF5 file, as Keras writes", CONVERT_ADVICE, UnsupportedCheckpointError),
    ),
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


def first_member(first_bytes: bytes) -> str:
    """Return the name of the first member of a zip archive."""
    length = int.from_bytes(first_bytes[26:28], "little")
    return first_bytes[_HEAD : _HEAD + length].decode("ascii", "replace")


def is_keras_archive(first_bytes: bytes) -> bool:
    """Return True if a file begins as a Keras archive does, even if the rest is missing."""
    return first_bytes.startswith(ZIP) and first_member(first_bytes) in _OF_KERAS


def refusal_error(path: str, stream: BinaryIO, expected: str) -> ThalwegError:
    """Return the error for a file whose format is not the expected format.

    `stream` is the open file, and `path` its path for the message. `expected` describes the
    expected format, such as "file of thalweg".
    """
    size, first_bytes, last_bytes = _read_both_ends(stream)
    if header.nearly_begins(first_bytes):
        return DataLossError(f"{path}: The beginning of its header is damaged. Copy it anew.")
    probe = _identify_bytes(first_bytes, last_bytes)
    if probe is not None:
        return probe.error(f"{path}: It is no {expected}: it is {probe.kind}. {probe.advice}.")
    text = "it is empty: it was never written, or is cut off. Copy it anew"
    if first_bytes:
        quoted = repr(first_bytes[:8]) if size > 8 else f"{first_bytes!r}, and no more"
        text = (
            f"or its first bytes are damaged: {quoted}. `thalweg inspect` reads checkpoints of"
            " thalweg, TensorFlow (by what all names of its files begin with) and Keras"
        )
    return DataLossError(f"{path}: It is no {expected}{',' if first_bytes else ':'} {text}.")


def identify_file(stream: BinaryIO) -> FormatProbe | None:
    """Return the format of an open file; None if it is unknown."""
    size, first_bytes, last_bytes = _read_both_ends(stream)
    if not size:
        return FormatProbe("empty", "It was never written, or is cut off")
    return _identify_bytes(first_bytes, last_bytes)


def _read_both_ends(stream: BinaryIO) -> tuple[int, bytes, bytes]:
    """Return (size of a file, its first `PROBE_BYTES` bytes, its last 8 bytes)."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 8))
    last_bytes = stream.read(8)
    stream.seek(0)
    return size, stream.read(PROBE_BYTES), last_bytes


def _identify_bytes(first_bytes: bytes, last_bytes: bytes) -> FormatProbe | None:
    """Return the format that the first and last bytes of a file indicate; None if unknown."""
    for signature, probe in _SIGNATURES:
        if first_bytes.startswith(signature):
            return probe
    if first_bytes.startswith(PICKLES) or _OLD_PICKLE.match(first_bytes):
        return FormatProbe("a pickle, from offset 0 on", _UNSAFE, UnsafeCheckpointError)
    if first_bytes.startswith(ZIP):
        return _identify_zip(first_member(first_bytes))
    if header.begins_like_ours(first_bytes):
        return FormatProbe("a file of thalweg", _THALWEG_ADVICE, UnsupportedCheckpointError)
    if first_bytes[8:].lstrip().startswith(b'{"'):
        advice = "safetensors.torch.load_file reads it"
        return FormatProbe("a file of safetensors that another library wrote", advice)
    if last_bytes == _TABLE or _INDEX.match(first_bytes):
        return FormatProbe(
            "an index of TensorFlow's under another name, or a part of one",
            "TensorFlow calls it model.index beside model.data-00000-of-00001, of which `thalweg"
            " inspect model` reads both",
        )
    if first_bytes and not first_bytes.strip(b"\0"):
        return FormatProbe(
            "zeros alone", "It was never written, as after a power failure. Copy it anew"
        )
    if re.match(rb"\s*<(!doctype|html|\?xml)", first_bytes, re.IGNORECASE):
        return FormatProbe("a web page", "What was downloaded is not the file. Get it anew")
    if re.match(rb"\s*[{\[]", first_bytes) and first_bytes.isascii():
        return FormatProbe("text, JSON perhaps", "There are no tensors in it")
    return None


def _identify_zip(name: str) -> FormatProbe:
    """Return the format of a zip archive; `name` is its first member."""
    if name in _OF_KERAS:
        return FormatProbe("a `.keras` file", CONVERT_ADVICE, UnsupportedCheckpointError)
    if name.endswith(".npy"):
        return FormatProbe("an archive of NumPy's arrays", "numpy.load reads it")
    if name.endswith((".pkl", "/.format_version", "/version", "/byteorder")):
        return FormatProbe(
            "a pickle in an archive, as torch.save writes", _UNSAFE, UnsafeCheckpointError
        )
    kind = f"a zip archive, or the beginning of one, with {name[:80]!r} in it"
    return FormatProbe(kind, "Unpack it, if there is a checkpoint inside")


def reader_of(kind: object) -> str:
    """Return a sentence that names the function for reading a kind of thalweg file.

    `kind` is the entry "kind" of the file's document.
    """
    readers = {
        TRAINING: "thalweg.checkpoint.restore reads it",
        "tf.train.Saver": "thalweg.v1.train.Saver reads it, in a session",
        "tf.train.Checkpoint": "thalweg.v1.train.Checkpoint reads it",
    }
    reader = readers.get(kind) if isinstance(kind, str) else None
    return reader or "`thalweg inspect` shows what is in it"
