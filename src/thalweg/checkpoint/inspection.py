"""List, verify and compare files of tensors of all formats."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from thalweg._formats import bundle, container, keras_files
from thalweg._formats.path_resolution import PathKind, locate_checkpoint
from thalweg._formats.stored_tensor import StoredTensor, TensorInfo
from thalweg.checkpoint.summary import step_of
from thalweg.checkpoint.tensorflow.convert import compare_converted
from thalweg.checkpoint.tensorflow.load import load_outline
from thalweg.errors import DataLossError, ThalwegError

Path = str | os.PathLike[str]
Progress = Callable[[int, int], None]


def _report_nothing(_: Path) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class Listing:
    """Contents of a file.

    Attributes:
        path: The file; for TensorFlow checkpoints the prefix of their names.
        kind: "thalweg", "tensorflow", or "keras".
        tensors: The tensors, in the order of the file.
        document: The metadata of a thalweg file and its "step", or None; for others "step" and
            "optimizer", if present.
        optimizers: Descriptions of the optimizers and steps in other files.
    """

    path: str
    kind: str
    tensors: tuple[TensorInfo, ...]
    document: Mapping[str, Any] = field(default_factory=dict[str, Any])
    optimizers: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(each.bytes for each in self.tensors)


def list_file(path: Path, progress: Progress | None = None) -> Listing:
    """Return the contents of a file.

    In thalweg and TensorFlow files only tensors that count steps are read.

    Args:
        path: The file.
        progress: Called with the bytes read of a Keras file and their total.

    Raises:
        MissingFileError: There is no such file.
        DataLossError: The format is unknown, or the file is damaged.
        ThalwegError: See `container.describe`, `bundle.describe` and `keras_files.read`.
    """
    place = locate_checkpoint(path).check_readable()
    title, kind = place.path, place.writer
    if kind == "thalweg":
        found = container.describe(title)
        tensors = [
            TensorInfo(name, each.dtype, each.shape, each.bytes)
            for name, each in found.tensors.items()
        ]
        document = {**found.document, "step": step_of(title, found)}
        return Listing(title, kind, tuple(tensors), document)
    tensors = (
        bundle.describe(title)
        if kind == "tensorflow"
        else _list_tensors(_of_keras(title, progress))
    )
    return Listing(title, kind, tuple(tensors), *_describe_optimizer(title))


def _describe_optimizer(path: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """The optimizer of a file of TensorFlow or Keras, in the form of our files and in words."""
    try:
        found = load_outline(path)
    except ThalwegError as error:
        return {}, (f"its optimizer cannot be told: {error}",)
    document: dict[str, Any] = {} if found.step is None else {"step": found.step}
    only = found.optimizers[0] if len(found.optimizers) == 1 else None
    if only is not None and only.family is not None:
        plain = {
            name: value if isinstance(value, int | float | str) else repr(value)
            for name, value in only.hyperparameters.items()
        }
        document["optimizer"] = {"class": only.family.cls, "arguments": plain}
    return document, tuple(found.summary().splitlines()[1:])


def has_checksums(path: Path) -> bool:
    """Return True if a checkpoint has checksums of its tensors; HDF5 files have none."""
    return locate_checkpoint(path).kind != PathKind.HDF5


def list_verified(path: Path, progress: Progress | None = None) -> Listing:
    """Return the contents of a file after all of it was read and compared with its checksums.

    Args:
        path: The file.
        progress: Called with the bytes read and their total.

    Raises:
        ThalwegError: As `list_file`, and DataLossError where a tensor is damaged; names it.
    """
    place = locate_checkpoint(path).check_readable()
    if place.writer == "thalweg":
        container.verify(place.path, progress)
    elif place.writer == "tensorflow":
        bundle.read(place.path, progress=progress)
    return list_file(place.path, progress)


def differences(
    one: Path,
    other: Path,
    rules: object = None,
    progress: Callable[[Path], Progress | None] = _report_nothing,
) -> list[str]:
    """Return descriptions of the differences of the tensors of two files, compared bit by bit.

    A thalweg file equals a TensorFlow or Keras file if `convert` makes the former of the latter.

    Args:
        one, other: The files, of any format.
        rules: Optional. The rules that were given to `convert`; a file that `convert` made has
            them.
        progress: Returns, for a path, the function called with the bytes read and their total.

    Raises:
        ThalwegError: See `read_tensors`.
    """
    writers = [locate_checkpoint(each).check_readable().writer for each in (one, other)]
    if (writers[0] == "thalweg") != (writers[1] == "thalweg"):
        ours, theirs = (one, other) if writers[0] == "thalweg" else (other, one)
        place = locate_checkpoint(ours).path
        try:
            found = compare_converted(theirs, place, rules, progress(theirs))
        except DataLossError:
            raise
        except ThalwegError as error:
            return [f"convert makes neither of the other: {error}"]
        if found is not None:
            a, b, only = found
            if theirs is other:
                a, b = b, a
            return only + compare_tensors(one, a, other, b)
    return compare_tensors(
        one, read_tensors(one, progress(one)), other, read_tensors(other, progress(other))
    )


def compare_tensors(
    one: Path, a: Mapping[str, StoredTensor], other: Path, b: Mapping[str, StoredTensor]
) -> list[str]:
    """Return descriptions of the differences of the tensors of two files, compared bit by bit.

    Args:
        one, other: The files, of any format, for the descriptions.
        a, b: Their tensors; see `read_tensors`.
    """
    found = [f"{name!r} is in {os.fspath(one)} only" for name in a if name not in b]
    found += [f"{name!r} is in {os.fspath(other)} only" for name in b if name not in a]
    for name in a:
        if name in b:
            found += _compare_tensor(name, a[name], b[name])
    return found


def read_tensors(path: Path, progress: Progress | None = None) -> dict[str, StoredTensor]:
    """Read and verify all tensors of a file; return them by name."""
    place = locate_checkpoint(path).check_readable()
    if place.writer == "thalweg":
        return container.read(place.path, progress=progress).tensors
    if place.writer == "tensorflow":
        return bundle.read(place.path, progress=progress).tensors
    return _of_keras(place.path, progress)


def _of_keras(path: Path, progress: Progress | None = None) -> dict[str, StoredTensor]:
    found = keras_files.read(path, progress)
    return {**found.variables, **found.optimizer}


def _list_tensors(tensors: Mapping[str, StoredTensor]) -> list[TensorInfo]:
    return [
        TensorInfo(name, each.dtype, each.shape, each.data.nbytes) for name, each in tensors.items()
    ]


def _compare_tensor(name: str, one: StoredTensor, other: StoredTensor) -> list[str]:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return [f"{name!r} is {one.dtype} {one.shape} and {other.dtype} {other.shape}"]
    if np.array_equal(
        _bytes_of(one), _bytes_of(other)
    ):  # a memoryview compares by Python's objects
        return []
    try:
        a, b = one.tensor(), other.tensor()
        differs = a != b
    except (RuntimeError, TypeError, ValueError):
        return [f"{name!r} has other bits: {_hash_of(one)} and {_hash_of(other)}"]
    count = int(differs.sum())
    if not count:
        return [f"{name!r} has other bits of equal values"]
    most = _max_difference(a[differs], b[differs])
    return [f"{name!r} differs in {count} of {a.numel()} elements, by {most:.3g} at most"]


def _max_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference between elements that differ; inf where one is no number."""
    if a.is_floating_point() or a.is_complex():
        wide = torch.complex128 if a.is_complex() else torch.float64
        return float((a.to(wide) - b.to(wide)).abs().nan_to_num(float("inf")).max())
    one, other = a.numpy(), b.numpy()
    # Floats cannot tell large integers apart; modulo 2^64 the difference of any two is right.
    apart = np.maximum(one, other).astype(np.uint64) - np.minimum(one, other).astype(np.uint64)
    return float(apart.max())


def _bytes_of(value: StoredTensor) -> np.ndarray:
    return np.frombuffer(value.data, np.uint8)


def _hash_of(value: StoredTensor) -> str:
    return hashlib.blake2b(value.data, digest_size=4).hexdigest()
