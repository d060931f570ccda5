"""Reader of checkpoints of this library and of TensorFlow, and values for graph variables."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from torch import Tensor

from thalweg._core import state
from thalweg._formats import bundle, container
from thalweg._formats.path_resolution import ENDING as SUFFIX
from thalweg._formats.path_resolution import PathKind, locate_checkpoint
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor, dtype_of
from thalweg._graph import GraphVariable
from thalweg.errors import (
    DataLossError,
    MissingFileError,
    NotFoundError,
    UnsupportedCheckpointError,
    listed,
)
from thalweg.v1.train.saving.objects import files
from thalweg.v1.train.saving.saveables import whole_name
from thalweg.variable import dtype_name

# TensorFlow's names of dtypes that have other names in torch.
_DTYPE_NAMES = {"float16": "half", "float32": "float", "float64": "double"}
# Ending of the file by which a TensorFlow checkpoint is recognized.
INDEX = ".index"


class CheckpointReader:
    """Reader of a checkpoint: the constructor reads names, shapes and dtypes, methods read values.

    Args:
        filename: The checkpoint's prefix, such as "run7/model.ckpt-5". This library's file has
            ".safetensors" after the prefix. TensorFlow's files have ".index" and
            ".data-00000-of-00001"; before 1.0, the file has the prefix as name.

    Raises:
        NotFoundError: The checkpoint does not exist.
        OSError: The file is damaged, is not a checkpoint, or cannot be read.
        UnsafeCheckpointError, UnsupportedCheckpointError: The checkpoint is of an unsafe or
            unsupported kind.

    Reference: tf.train.NewCheckpointReader
    """

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        self._prefix = os.fspath(filename).removesuffix(SUFFIX)
        resolved = locate_checkpoint(self._prefix)
        if resolved.kind is PathKind.MISSING:
            raise MissingFileError(
                "Unsuccessful TensorSliceReader constructor: Failed to find any matching files for"
                f" {self._prefix}"
            )
        resolved = resolved.of_savers()
        self._path, self._is_native = resolved.path, resolved.kind is PathKind.OURS
        self._document: dict[str, object] = {}
        if self._is_native:
            description = container.describe(self._path)
            self._document = description.document
            named_entries: Any = description.tensors.items()
        else:
            named_entries = [(entry.name, entry) for entry in bundle.describe(self._path)]
        self._entries = {name: (entry.dtype, tuple(entry.shape)) for name, entry in named_entries}

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Return the shape of each tensor by its name."""
        return {name: list(shape) for name, (_, shape) in self._entries.items()}

    def get_variable_to_dtype_map(self) -> dict[str, Any]:
        """Return the dtype of each tensor by its name.

        It is a torch dtype; where torch has none, TensorFlow's name as a str, such as "string".
        """
        return {
            name: dtype_of(dtype) if dtype in ITEM_BYTES else dtype
            for name, (dtype, _) in self._entries.items()
        }

    def has_tensor(self, tensor_str: str) -> bool:
        """Return True if the checkpoint has a tensor of this name."""
        return tensor_str in self._entries

    def get_tensor(self, tensor_str: str) -> Any:
        """Return a value as a NumPy array or scalar, or as a torch tensor if NumPy lacks the dtype.

        Raises:
            NotFoundError: The checkpoint has no value named `tensor_str`.
            OSError: The value is damaged.
        """
        if tensor_str not in self._entries:
            raise NotFoundError(f"Key {tensor_str} not found in checkpoint {self._prefix}")
        dtype, shape = self._entries[tensor_str]
        if dtype not in ITEM_BYTES:
            texts = bundle.read(self._path, {tensor_str}).strings[tensor_str]
            # `[()]` makes a scalar of an array of shape ().
            return np.array(texts, dtype=object).reshape(shape)[()]
        stored_tensor = self._read_tensors({tensor_str})[tensor_str]
        try:
            return stored_tensor.array()[()]
        except UnsupportedCheckpointError:
            return stored_tensor.tensor()

    def debug_string(self) -> bytes:
        """Return a line for each tensor, such as "layer/kernel (DT_FLOAT) [2,3]"."""
        lines = list[str]()
        for name, dtype in self.get_variable_to_dtype_map().items():
            label = str(dtype).removeprefix("torch.")
            label = _DTYPE_NAMES.get(label, label).upper()
            sizes = ",".join(map(str, self._entries[name][1]))
            lines.append(f"{name} (DT_{label}) [{sizes}]")
        return "\n".join(lines).encode()

    def tensors(self, names: Collection[str]) -> dict[str, Tensor]:
        """Read values and verify their checksums; return {name: tensor}.

        Raises:
            OSError: A value is damaged, or the file was replaced since the reader was created.
        """
        loaded = self._read_tensors(names)
        for name in names:
            tensor = loaded.get(name)
            if tensor is None or (tensor.dtype, tensor.shape) != self._entries[name]:
                raise DataLossError(f"{self._prefix}: {name!r} was changed while it was read.")
        return {name: loaded[name].tensor() for name in names}

    def keys_by_name(self) -> dict[str, str]:
        """Return {variable's name: name of its tensor} of an object checkpoint; else {}."""
        if not self._is_native:
            graph = bundle.read(self._path, ()).graph
        else:
            encoded = self._document.get("object_graph")
            graph = None if encoded is None else files.decode_graph(encoded, self._prefix)
        nodes = () if graph is None else graph.nodes
        return {entry.full_name: entry.key for node in nodes for entry in node.attributes}

    def _read_tensors(self, names: Collection[str]) -> dict[str, StoredTensor]:
        if self._is_native:
            return container.read(self._path, names).tensors
        return bundle.read(self._path, names).tensors


def is_checkpoint(prefix: str) -> bool:
    """Return True if `prefix` is the prefix of a checkpoint or the path of a file."""
    return locate_checkpoint(prefix).kind not in (PathKind.MISSING, PathKind.FOLDER)


def fitting_values(
    reader: CheckpointReader,
    prefix: str,
    variables: Mapping[str, GraphVariable],
    reshape: bool = False,
) -> dict[GraphVariable, Tensor]:
    """Read the values of graph variables from a checkpoint; return {variable: value}.

    Args:
        reader: The reader of the checkpoint.
        prefix: The prefix of the checkpoint, for errors.
        variables: {name in the checkpoint: variable}. A part of a partitioned variable gets a slice
            of the whole variable's value if the checkpoint has no value for the part.
        reshape: True to reshape values with equal numbers of elements to the variable's shape.

    Raises:
        NotFoundError: Names are not in the checkpoint.
        CheckpointMismatchError: Shapes or dtypes differ.
        OSError: The checkpoint is damaged, or cannot be read.
    """
    keys = {
        name: name if reader.has_tensor(name) else whole_name(name, variable)
        for name, variable in variables.items()
    }
    # In a checkpoint of objects, keys are paths of attributes, and names are stored beside them.
    if not all(reader.has_tensor(key) for key in keys.values()):
        keys_by_name = reader.keys_by_name()
        keys = {name: keys_by_name.get(key, key) for name, key in keys.items()}
    missing = [name for name, key in keys.items() if not reader.has_tensor(key)]
    if missing:
        names = listed(f"'{name}'" for name in missing)
        raise NotFoundError(
            f"Key {missing[0]} not found in checkpoint\n{prefix} has no value for {len(missing)} of"
            f" {len(keys)} variables: {names}. Nothing was loaded. Give the"
            " Saver a list without them, or a dict of the variables by the names that the"
            " checkpoint has; list_variables lists these."
        )
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    misfits = {
        name: _describe_misfit(variable, shapes[keys[name]], dtypes[keys[name]], prefix, reshape)
        for name, variable in variables.items()
    }
    flaws = [f"'{name}' {misfit}" for name, misfit in misfits.items() if misfit]
    if flaws:
        raise state.mismatch(flaws)
    values = reader.tensors(set(keys.values()))
    return {var: _fit_value(values[keys[name]], var) for name, var in variables.items()}


def _describe_misfit(
    variable: GraphVariable, shape: Sequence[int], dtype: Any, prefix: str, reshape: bool
) -> str | None:
    """Return why a saved shape and dtype do not fit a variable, or None if both fit.

    With `reshape`, a shape with the variable's number of elements fits. `prefix` is for the text.
    """
    expected, info = variable.shape, variable._save_slice_info
    is_full = info is not None and tuple(shape) == tuple(info.full_shape)
    if not (is_full or expected.accepts(shape) or (reshape and _has_as_many(expected, shape))):
        return f"has shape {tuple(shape)} in {prefix} but the variable has shape {tuple(expected)}"
    if variable.dtype not in (None, dtype):
        actual = dtype if isinstance(dtype, str) else dtype_name(dtype)
        return f"is {actual} in {prefix} but the variable is {dtype_name(variable.dtype)}"
    return None


def _has_as_many(expected: Sequence[int | None], shape: Sequence[int]) -> bool:
    sizes = [size for size in expected if size is not None]
    return len(sizes) == len(expected) and prod(sizes) == prod(shape)


def _fit_value(tensor: Tensor, variable: GraphVariable) -> Tensor:
    """Return the part of `tensor` that belongs to the variable, in its shape."""
    info, expected = variable._save_slice_info, variable.shape
    if info is not None and tuple(tensor.shape) == tuple(info.full_shape):
        return info.cut(tensor).clone()
    return tensor if expected.accepts(tensor.shape) else tensor.reshape(tuple(expected))  # pyright: ignore
