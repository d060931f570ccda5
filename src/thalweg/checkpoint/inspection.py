"""List, verify and compare files of tensors of all formats."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from thalweg._formats import bundle, container, keras_files
from thalweg._formats.atomic_write import Path, Progress
from thalweg._formats.header import Description
from thalweg._formats.json_text import as_object
from thalweg._formats.path_resolution import PathKind, locate_checkpoint
from thalweg._formats.stored_tensor import CODES, StoredTensor, TensorInfo
from thalweg.checkpoint import json_encoding as kinds
from thalweg.checkpoint import optimizer_config, optimizer_files
from thalweg.checkpoint.step_inference import steps_of
from thalweg.checkpoint.tensorflow.convert import compare_converted
from thalweg.checkpoint.tensorflow.load import load_outline
from thalweg.errors import DataLossError, ThalwegError


@dataclass(frozen=True)
class Listing:
    """Contents of a file.

    Attributes:
        path: The file; for TensorFlow checkpoints the prefix of their file names.
        kind: "thalweg", "tensorflow", "keras", or "torch".
        tensors: The tensors, in the order of the file.
        document: The metadata of a thalweg file, and "step" (None if unknown). For TensorFlow and
            Keras only "step" and "optimizer", if known. If the file has a torch-style optimizer,
            also "param_groups", as in its `state_dict()`.
        optimizers: Descriptions of the optimizers and steps, for TensorFlow and Keras.
    """

    path: str
    kind: str
    tensors: tuple[TensorInfo, ...]
    document: Mapping[str, Any] = field(default_factory=dict[str, Any])
    optimizers: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(tensor.bytes for tensor in self.tensors)


def list_file(path: Path, progress: Progress | None = None) -> Listing:
    """Return a `Listing`: the names, dtypes and shapes of a file's tensors, and metadata.

    Only scalars are read, for the step count and hyperparameters; a file of Keras or `torch.save`
    is read completely. `torch.load` reads the latter with `weights_only=True`.

    Args:
        progress: For a Keras file, `progress(bytes_read, total_bytes)` is called.

    Raises:
        MissingFileError: The file does not exist.
        DataLossError: The format is unknown, or the file is damaged.
        ThalwegError: The file is unsafe to read, or of an unsupported version.
    """
    if optimizer_files.is_package_file(path):
        return _list_torch(path)
    location = locate_checkpoint(path).check_readable()
    file, kind = location.path, location.writer
    if kind == "thalweg":
        description = container.describe(file)
        tensors = [
            TensorInfo(name, header.dtype, header.shape, header.bytes)
            for name, header in description.tensors.items()
        ]
        document = {**description.document, "step": step_of(file, description)}
        document |= _read_groups(file, description)
        return Listing(file, kind, tuple(tensors), document)
    tensors = bundle.describe(file) if kind == "tensorflow" else [
        TensorInfo(name, tensor.dtype, tensor.shape, tensor.data.nbytes)
        for name, tensor in _of_keras(file, progress).items()
    ]  # fmt: skip
    return Listing(file, kind, tuple(tensors), *_describe_optimizer(file))


def _list_torch(path: Path) -> Listing:
    """Return the contents of a file of `torch.save`, or of a folder of DeepSpeed."""
    is_folder = os.path.isdir(path)
    contents = (optimizer_files.read_state if is_folder else optimizer_files.load_file)(path)
    state = optimizer_files.find_state(contents)
    document = {} if state is None else {"param_groups": state["param_groups"]}
    return Listing(os.fsdecode(path), "torch", tuple(_find_tensors(contents, "")), document)


def _find_tensors(nested: Any, name: str) -> Iterator[TensorInfo]:
    """Yield a description of each tensor in dicts, lists and tuples, named "optimizer/state/0"."""
    if isinstance(nested, torch.Tensor):
        dtype = str(nested.dtype).removeprefix("torch.")
        size = nested.numel() * nested.element_size()
        yield TensorInfo(name, CODES.get(dtype, dtype), tuple(nested.shape), size)
        return
    entries = enumerate(cast("list[Any]", nested)) if isinstance(nested, list | tuple) else ()
    for key, entry in as_object(nested).items() or entries:
        yield from _find_tensors(entry, f"{name}/{key}" if name else str(key))


def _read_groups(file: str, description: Description) -> dict[str, Any]:
    """Return {"param_groups": groups of a torch-style optimizer} of a thalweg file; {} if none.

    The optimizer's state is the file's, or in `extra`. Return {} if the groups are damaged, too.
    """
    groups = as_object(description.document.get("state")).get("groups")
    saved: dict[str, Any] = {"state": {}, "param_groups": groups}
    states = map(optimizer_files.find_state, (saved, description.document.get("extra")))
    state = next(filter(None, states), None)
    if state is None:
        return {}
    names = [name for name in description.tensors if re.search(r"/(param_)?groups/[0-9]", name)]
    try:
        stored = container.read(file, names).tensors if names else {}
        tensors = {name: tensor.tensor() for name, tensor in stored.items()}
        return {"param_groups": kinds.JsonReader(tensors)(state["param_groups"])}
    except ThalwegError:
        return {}


def _describe_optimizer(path: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the step and optimizer of a TensorFlow or Keras file.

    Returns:
        A dict with "step" and "optimizer", if known, and lines of text for the user. If the file
        cannot be read, the dict is empty, and the only line is the error.
    """
    try:
        outline = load_outline(path)
    except ThalwegError as error:
        return {}, (f"its optimizer cannot be told: {error}",)
    document: dict[str, Any] = {} if outline.step is None else {"step": outline.step}
    optimizer = outline.optimizers[0] if len(outline.optimizers) == 1 else None
    if optimizer is not None and optimizer.family is not None:
        arguments = {
            name: argument if isinstance(argument, int | float | str) else repr(argument)
            for name, argument in optimizer.hyperparameters.items()
        }
        document["optimizer"] = {"class": optimizer.family.cls, "arguments": arguments}
    return document, tuple(outline.summary().splitlines()[1:])


def has_checksums(path: Path) -> bool:
    """Return True if a checkpoint has checksums of its tensors; HDF5 files have none."""
    return locate_checkpoint(path).kind != PathKind.HDF5


def list_verified(path: Path, progress: Progress | None = None) -> Listing:
    """Verify the checksums of a file, and return its contents as `list_file` does.

    Args:
        progress: `progress(bytes_read, total_bytes)` is called during reading.

    Raises:
        DataLossError: The file is damaged; the message names a damaged tensor.
        ThalwegError: The file does not exist, is unsafe to read, or of an unsupported version.
    """
    location = locate_checkpoint(path).check_readable()
    if location.writer == "thalweg":
        container.verify(location.path, progress)
    elif location.writer == "tensorflow":
        bundle.read(location.path, progress=progress)
    return list_file(location.path, progress)


def differences(
    path_a: Path,
    path_b: Path,
    rules: object = None,
    progress: Callable[[Path], Progress | None] = lambda path: None,
) -> list[str]:
    """Return one line per difference between the tensors of two files; [] if all bits are equal.

    A thalweg file and a file of another format are compared after `convert`. If `convert` fails,
    the only line is the reason.

    Args:
        path_a, path_b: The files, of any format.
        rules: Optional. The rules for `convert`. By default, the rules that `convert` saved in the
            thalweg file.
        progress: `progress(path)` returns None, or a function that is called with (bytes read,
            total bytes) of the file.

    Raises:
        DataLossError: A file is damaged.
        ThalwegError: A file does not exist or cannot be read.
    """
    writers = [locate_checkpoint(path).check_readable().writer for path in (path_a, path_b)]
    if (writers[0] == "thalweg") != (writers[1] == "thalweg"):
        is_first = writers[0] == "thalweg"
        thalweg_path, foreign_path = (path_a, path_b) if is_first else (path_b, path_a)
        file = locate_checkpoint(thalweg_path).path
        try:
            comparison = compare_converted(foreign_path, file, rules, progress(foreign_path))
        except DataLossError:
            raise
        except ThalwegError as error:
            return [f"convert makes neither of the other: {error}"]
        if comparison is not None:
            tensors_a, tensors_b, lines = comparison
            if foreign_path is path_b:
                tensors_a, tensors_b = tensors_b, tensors_a
            return lines + compare_tensors(path_a, tensors_a, path_b, tensors_b)
    tensors_a, tensors_b = (read_tensors(path, progress(path)) for path in (path_a, path_b))
    return compare_tensors(path_a, tensors_a, path_b, tensors_b)


def compare_tensors(
    path_a: Path,
    tensors_a: Mapping[str, StoredTensor],
    path_b: Path,
    tensors_b: Mapping[str, StoredTensor],
) -> list[str]:
    """Return one line per difference between the tensors of two files; [] if all bits are equal.

    Args:
        path_a, path_b: The paths of the files, for the lines.
        tensors_a, tensors_b: {name: tensor} of the files.
    """
    file_a, file_b = os.fspath(path_a), os.fspath(path_b)
    lines = [f"{name!r} is in {file_a} only" for name in tensors_a if name not in tensors_b]
    lines += [f"{name!r} is in {file_b} only" for name in tensors_b if name not in tensors_a]
    for name in tensors_a:
        if name in tensors_b:
            lines += _compare_tensor(name, tensors_a[name], tensors_b[name])
    return lines


def read_tensors(path: Path, progress: Progress | None = None) -> dict[str, StoredTensor]:
    """Return {name: tensor} of all tensors of a file, with verified checksums.

    Raises:
        DataLossError: The file is damaged.
        ThalwegError: The file does not exist or cannot be read.
    """
    location = locate_checkpoint(path).check_readable()
    if location.writer == "thalweg":
        return container.read(location.path, progress=progress).tensors
    if location.writer == "tensorflow":
        return bundle.read(location.path, progress=progress).tensors
    return _of_keras(location.path, progress)


def _of_keras(path: Path, progress: Progress | None = None) -> dict[str, StoredTensor]:
    """Return all arrays of a Keras file by name, variables and optimizer."""
    keras_file = keras_files.read(path, progress)
    return {**keras_file.variables, **keras_file.optimizer}


def _compare_tensor(name: str, tensor_a: StoredTensor, tensor_b: StoredTensor) -> list[str]:
    """Return a list with one line of text if two tensors called `name` differ, else []."""
    if (tensor_a.dtype, tensor_a.shape) != (tensor_b.dtype, tensor_b.shape):
        kinds = [f"{tensor.dtype} {tensor.shape}" for tensor in (tensor_a, tensor_b)]
        return [f"{name!r} is {' and '.join(kinds)}"]
    # Comparing memoryviews would be slow: Python converts each element.
    bytes_a, bytes_b = (np.frombuffer(tensor.data, np.uint8) for tensor in (tensor_a, tensor_b))
    if np.array_equal(bytes_a, bytes_b):
        return []
    try:
        values_a, values_b = tensor_a.tensor(), tensor_b.tensor()
        is_different = values_a != values_b
    except (RuntimeError, TypeError, ValueError):
        digests = (
            hashlib.blake2b(row.data, digest_size=4).hexdigest() for row in (bytes_a, bytes_b)
        )
        return [f"{name!r} has other bits: {' and '.join(digests)}"]
    count = int(is_different.sum())
    if not count:
        return [f"{name!r} has other bits of equal values"]
    distance = _max_difference(values_a[is_different], values_b[is_different])
    total = values_a.numel()
    return [f"{name!r} differs in {count} of {total} elements, by {distance:.3g} at most"]


def _max_difference(values_a: torch.Tensor, values_b: torch.Tensor) -> float:
    """Return the largest difference of two tensors' elements; inf if one is NaN or infinite."""
    if values_a.is_floating_point() or values_a.is_complex():
        dtype = torch.complex128 if values_a.is_complex() else torch.float64
        return float((values_a.to(dtype) - values_b.to(dtype)).abs().nan_to_num(float("inf")).max())
    array_a, array_b = values_a.numpy(), values_b.numpy()
    # Floats are inexact for large integers; modulo 2^64 every difference is exact.
    larger, smaller = np.maximum(array_a, array_b), np.minimum(array_a, array_b)
    return float((larger.astype(np.uint64) - smaller.astype(np.uint64)).max())


_MAX_GROUPS = 10
_INTEGER_DTYPES, _POWER_DTYPES = ("I64", "I32"), {"F32": np.float32, "F64": np.float64}
# The beta that is closer to 1 first: its power underflows later.
_POWERS = {"beta2_power": "beta2", "beta1_power": "beta1"}
_COUNTERS = ("iterations", "global_step")


def step_of(path: Path, description: Description) -> int | None:
    """Return the step count that a file records; None if it is missing or damaged.

    The first of these sources counts: "step" in the header, from a `CheckpointManager`; the integer
    scalar `iterations`, from Keras; the integer scalar `global_step`; a saved power of beta2 or
    beta1. The exponent of a power is computed from the beta in the header.

    Args:
        description: The header of the file.
    """
    document = description.document
    if type(document.get("step")) is int:
        return document["step"]
    state, variables = as_object(document.get("state")), as_object(document.get("variables"))
    names = [_tensor_name(section, name) for name in _COUNTERS for section in (state, variables)]
    counters = [name for name in (*names, *_COUNTERS) if name in description.tensors]
    powers = {_tensor_name(state, power): beta for power, beta in _POWERS.items()}
    scalars = {name for name in (*counters, *powers) if name in description.tensors}
    scalars = {name for name in scalars if not description.tensors[name].shape}
    if not scalars:
        return None
    try:
        tensors = container.read(path, scalars).tensors
    # Listing needs only the header, which is intact.
    except DataLossError:
        return None
    for name in counters:
        if name in tensors and tensors[name].dtype in _INTEGER_DTYPES:
            return int(tensors[name].tensor())
    return _steps_from_powers(document, tensors, powers)


def _steps_from_powers(
    document: Mapping[str, object], scalars: Mapping[str, StoredTensor], powers: Mapping[str, str]
) -> int | None:
    """Return the step count that the first usable beta power implies; None if there is none.

    Args:
        document: The header of a file, with the optimizer's arguments.
        scalars: {name: tensor}; only tensors with names in `powers` are used.
        powers: {name of a power's tensor: name of the beta}, such as {"beta2_power": "beta2"}.
    """
    arguments = as_object(as_object(document.get("optimizer")).get("arguments"))
    for name, beta in powers.items():
        dtype = _POWER_DTYPES.get(scalars[name].dtype) if name in scalars else None
        argument = _find_argument(arguments, beta)
        if dtype is not None and type(argument) in (int, float):
            count = steps_of(dtype(scalars[name].tensor().item()), dtype(argument))
            if count is not None:
                return count
    return None


def _tensor_name(fields: Mapping[str, object], name: str) -> str:
    """Return the name of the tensor under key `name`, also in nested objects; "" if missing."""
    tensor_name = as_object(fields.get(name)).get(kinds.TENSOR)
    if isinstance(tensor_name, str):
        return tensor_name
    names = (_tensor_name(as_object(nested), name) for nested in fields.values())
    return next(filter(None, names), "")


def _find_argument(arguments: Mapping[str, object], name: str) -> Any:
    """Return the argument `name` of an optimizer or of a wrapped optimizer; None if missing."""
    if name in arguments:
        return arguments[name]
    nested_arguments = [
        as_object(as_object(as_object(argument).get(optimizer_config.OPTIMIZER)).get("arguments"))
        for argument in arguments.values()
    ]
    candidates = (_find_argument(arguments, name) for arguments in nested_arguments)
    return next((candidate for candidate in candidates if candidate is not None), None)


def format_arguments(encoded: Any) -> str:
    """Return arguments that are not None as text: "learning_rate=0.1, beta_1=0.9"."""
    arguments = as_object(encoded).items()
    return ", ".join(f"{name}={in_words(x)}" for name, x in arguments if x is not None)


def format_groups(groups: Any) -> Iterator[str]:
    """Yield a line per group, such as "group 0: 2 parameters, lr=0.1"; cut long values and lists.

    `groups` is the entry "param_groups" of a `Listing`.
    """
    for index, group in enumerate(groups[:_MAX_GROUPS]):
        count = len(group["params"])
        line = f"group {index}: {count} parameter{'s' * (count != 1)}"
        for name, option in group.items():
            if option is not None and name not in ("params", "param_names"):
                # A tensor shows its numbers alone.
                text = str(option.tolist() if hasattr(option, "tolist") else option)
                line += f", {name}={text if len(text) <= 80 else f'{text[:77]}...'}"
        yield line
    if len(groups) > _MAX_GROUPS:
        yield f"and {len(groups) - _MAX_GROUPS} more groups; --json shows all"


# Marks of values that are shown without the mark.
_TRANSPARENT = (
    optimizer_config.RULE, optimizer_config.VARIABLE, optimizer_config.YOURS, kinds.FLOAT,
    kinds.TUPLE,
)  # fmt: skip


def in_words(encoded: Any) -> str:
    """Return an optimizer's argument in a file as text, such as "ExponentialDecay(...)"."""
    if isinstance(encoded, list):
        return f"[{', '.join(map(in_words, cast(list[Any], encoded)))}]"
    fields = as_object(encoded)
    mark = next(iter(fields), "")
    content = fields.get(mark)
    inner = as_object(content)
    match mark:
        case optimizer_config.SCHEDULE:
            return f"{inner.get('class_name')}({format_arguments(inner.get('config'))})"
        case optimizer_config.RATE:
            return f"{inner.get('function')}({format_arguments(inner.get('arguments'))})"
        case optimizer_config.OPTIMIZER:
            return f"{inner.get('class')}({format_arguments(inner.get('arguments'))})"
        case optimizer_config.LOSS_SCALER:
            return f"AutomaticLossScaler({format_arguments(content)})"
        case optimizer_config.NUMBER | kinds.SCALAR if isinstance(content, list):
            return in_words(cast(list[Any], content)[-1]) if content else "[]"
        case _ if mark in _TRANSPARENT:
            return in_words(content)
        case _:
            return f"{{{format_arguments(encoded)}}}" if isinstance(encoded, dict) else str(encoded)
