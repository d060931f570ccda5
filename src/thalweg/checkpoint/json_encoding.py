"""Encoding of Python values as JSON and named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._core.state import flaw, kept
from thalweg._formats.json_text import as_object
from thalweg.errors import InvalidConfigError, InvalidTypeError, NotFoundError

# Values that JSON does not have are dicts with one of these keys.
TENSOR = "$tensor"  # the name of a tensor
SCALAR = "$scalar"  # [dtype, number]: a NumPy scalar
FLOAT = "$float"  # "nan", "inf" or "-inf"
TUPLE = "$tuple"
DICT = "$dict"  # [[key, value], ...]: if a key is not a string, or begins with "$"

_SCALARS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64",
)  # fmt: skip


class Writer:
    """Encoder of Python values as JSON. Tensors in the values are collected by name.

    Args:
        copies: True to copy tensors. Tensors that are not copied must not change before they are
            written.

    Attributes:
        tensors: {name: tensor}, extended by each call.
    """

    def __init__(self, copies: bool = True) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._copies = copies

    def __call__(self, python_value: Any, name: str) -> Any:
        """Return a value as JSON. Add each tensor in it to `tensors`, as `name` or `name` + "/...".

        Raises:
            InvalidTypeError: The value contains anything but numbers, text, None, tensors, arrays,
                lists, tuples and dicts.
        """
        value_type: type[Any] = python_value.__class__
        # Exact types: JSON would turn a value of a subclass, such as an enum, into a plain value.
        if python_value is None or type(python_value) in (bool, int, str):
            return python_value
        if type(python_value) is float:
            return python_value if math.isfinite(python_value) else {FLOAT: repr(python_value)}
        is_numpy = isinstance(python_value, np.generic | np.ndarray)
        dtype = cast("np.ndarray[Any, Any]", python_value).dtype.name if is_numpy else ""
        if isinstance(python_value, np.generic) and dtype in _SCALARS:
            return {SCALAR: [dtype, self(python_value.item(), name)]}
        if isinstance(python_value, Tensor) or dtype in _SCALARS:
            return {TENSOR: self._add_tensor(python_value, name)}
        if isinstance(python_value, Mapping):
            return self._write_mapping(cast(Mapping[Any, Any], python_value), name)
        if isinstance(python_value, list | tuple):
            entries = enumerate(cast(Sequence[Any], python_value))
            json_items = [self(entry, f"{name}/{index}") for index, entry in entries]
            return {TUPLE: json_items} if isinstance(python_value, tuple) else json_items
        raise InvalidTypeError(
            f"{name!r} is a {value_type.__name__}, which no file holds: numbers, text, None,"
            " tensors, arrays, and lists, tuples and dicts of those can be saved."
        )

    def _write_mapping(self, mapping: Mapping[object, object], name: str) -> object:
        """Return a mapping as JSON; keys that are not plain strings are encoded as pairs."""
        json_values = {key: self(entry, f"{name}/{key}") for key, entry in mapping.items()}
        if all(type(key) is str and not key.startswith("$") for key in json_values):
            return json_values
        return {DICT: [[self(key, name), encoded] for key, encoded in json_values.items()]}

    def _add_tensor(self, array: Any, name: str) -> str:
        """Add a tensor to `tensors`; return its unique key, such as `name` or `name` + "#1"."""
        # `from_numpy` rejects negative strides and warns of read-only arrays; a copy has neither.
        tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.array(array))  # pyright: ignore[reportUnknownMemberType]
        problem = flaw(tensor)
        if problem is not None:
            raise InvalidTypeError(f"{name!r} is {problem}, which cannot be saved.")
        unique_name, count = name, 0
        while unique_name in self.tensors:
            count += 1
            unique_name = f"{name}#{count}"
        self.tensors[unique_name] = kept(tensor) if self._copies else tensor.detach()
        return unique_name


class JsonReader:
    """Decoder of the JSON that `Writer` returns.

    Args:
        tensors: {name: tensor}.
        copies: True to return copies of the tensors.
    """

    def __init__(self, tensors: Mapping[str, Tensor], copies: bool = False) -> None:
        self.tensors = tensors
        self._copies = copies

    def __call__(self, encoded: Any) -> Any:
        """Return the Python value that `Writer` encoded.

        Raises:
            InvalidConfigError: A marked dict, such as {"$tuple": [...]}, is invalid.
            NotFoundError: A tensor is missing in `tensors`.
        """
        if isinstance(encoded, list):
            return [self(entry) for entry in cast(list[Any], encoded)]
        if not isinstance(encoded, dict):
            return encoded
        fields = as_object(encoded)
        mark = next(iter(fields), "")
        if not mark.startswith("$"):
            return {key: self(entry) for key, entry in fields.items()}
        # Damaged content raises any of these errors in `read_marked`.
        try:
            return self.read_marked(mark, fields[mark])
        except (TypeError, ValueError, LookupError, OverflowError, AttributeError) as error:
            if isinstance(error, InvalidConfigError | NotFoundError):
                raise
            raise InvalidConfigError(f"{mark} of {str(fields[mark])[:80]} is nothing.") from error

    def read_marked(self, mark: str, content: Any) -> object:
        """Return the Python value of the dict {mark: content}, such as a tensor or a tuple.

        Raises:
            NotFoundError: A tensor is missing in `tensors`.
            InvalidConfigError: The mark or a dtype is unknown.
            Exception: `content` is malformed.
        """
        if mark == TENSOR:
            if content not in self.tensors:
                raise NotFoundError(f"Key {content} not found in checkpoint")
            tensor = self.tensors[content]
            return tensor.clone() if self._copies else tensor
        if mark == SCALAR:
            dtype, scalar = content
            if dtype not in _SCALARS:
                raise InvalidConfigError(f"{dtype} is the type of no number.")
            return np.dtype(dtype).type(self(scalar))
        if mark == FLOAT:
            return float(content)
        if mark == TUPLE:
            return tuple(self(entry) for entry in content)
        if mark == DICT:
            return {self(key): self(entry) for key, entry in content}
        raise InvalidConfigError(f"{mark} is unknown here.")
