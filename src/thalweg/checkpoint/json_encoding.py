"""Values as plain JSON and named tensors, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._core.state import flaw, kept
from thalweg._formats.json_text import as_object
from thalweg.errors import InvalidConfigError, InvalidTypeError, NotFoundError

# What is no JSON is a dict of one such key.
TENSOR = "$tensor"  # the name of a tensor
SCALAR = "$scalar"  # [dtype, number]: a NumPy scalar
FLOAT = "$float"  # "nan", "inf" or "-inf"
TUPLE = "$tuple"
DICT = "$dict"  # [[key, value], ...]: where a key is no string, or begins with "$"

_SCALARS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64",
)  # fmt: skip

Special = Callable[[Any, str], Any]


class Writer:
    """Makes plain JSON of values, and gathers their tensors by name.

    Args:
        special: Optional. Called first, with a value and its name; NotImplemented leaves it to
            this class.
        copies: Whether tensors are copied; they may change afterwards then.

    Attributes:
        tensors: The tensors so far.
    """

    def __init__(self, special: Special | None = None, copies: bool = True) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._special = special
        self._copies = copies

    def __call__(self, value: Any, name: str) -> Any:
        """The value in JSON; its tensors are called `name`, or begin with it and "/".

        Raises:
            InvalidTypeError: It holds what is neither number, text, tensor, array nor a container
                of those.
        """
        found = NotImplemented if self._special is None else self._special(value, name)
        if found is not NotImplemented:
            return found
        given: type[Any] = value.__class__
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {FLOAT: repr(value)}
        is_numpy = isinstance(value, np.generic | np.ndarray)
        dtype = cast("np.ndarray[Any, Any]", value).dtype.name if is_numpy else ""
        if isinstance(value, np.generic) and dtype in _SCALARS:
            return {SCALAR: [dtype, self(value.item(), name)]}
        if isinstance(value, Tensor) or dtype in _SCALARS:
            return {TENSOR: self._add_tensor(value, name)}
        if isinstance(value, Mapping):
            return self._write_mapping(cast(Mapping[Any, Any], value), name)
        if isinstance(value, list | tuple):
            own = enumerate(cast(Sequence[Any], value))
            items = [self(each, f"{name}/{index}") for index, each in own]
            return {TUPLE: items} if isinstance(value, tuple) else items
        raise InvalidTypeError(
            f"{name!r} is a {given.__name__}, which no file holds: numbers, text, None,"
            " tensors, arrays, and lists, tuples and dicts of those can be saved."
        )

    def _write_mapping(self, value: Mapping[object, object], name: str) -> object:
        items = {key: self(each, f"{name}/{key}") for key, each in value.items()}
        if all(type(key) is str and not key.startswith("$") for key in items):
            return items
        return {DICT: [[self(key, name), each] for key, each in items.items()]}

    def _add_tensor(self, value: Any, name: str) -> str:
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))  # pyright: ignore[reportUnknownMemberType]
        problem = flaw(tensor)
        if problem is not None:
            raise InvalidTypeError(f"{name!r} is {problem}, which cannot be saved.")
        title, count = name, 0
        while title in self.tensors:
            count += 1
            title = f"{name}#{count}"
        self.tensors[title] = kept(tensor) if self._copies else tensor.detach()
        return title


class JsonReader:
    """Makes values of plain JSON and named tensors.

    Args:
        tensors: The tensors by name.
        special: Optional. Called first, with the mark of a dict, such as "$schedule", and what it
            holds; NotImplemented leaves it to this class.
        copies: Whether tensors are copied.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], special: Special | None = None, copies: bool = False
    ) -> None:
        self.tensors = tensors
        self._special = special
        self._copies = copies

    def __call__(self, plain: Any) -> Any:
        """The value.

        Raises:
            InvalidConfigError: It is nothing that `Writer` makes.
            NotFoundError: A tensor is not there.
        """
        if isinstance(plain, list):
            return [self(each) for each in cast(list[Any], plain)]
        if not isinstance(plain, dict):
            return plain
        own = as_object(plain)
        mark = next(iter(own), "")
        if not mark.startswith("$"):
            return {key: self(each) for key, each in own.items()}
        try:
            return self._read_marked(mark, own[mark])
        except (
            TypeError,
            ValueError,
            KeyError,
            IndexError,
            OverflowError,
            AttributeError,
        ) as error:
            if isinstance(error, InvalidConfigError | NotFoundError):
                raise
            raise InvalidConfigError(f"{mark} of {str(own[mark])[:80]} is nothing.") from error

    def _read_marked(self, mark: str, content: Any) -> object:
        found = NotImplemented if self._special is None else self._special(mark, content)
        if found is not NotImplemented:
            return found
        if mark == TENSOR:
            if content not in self.tensors:
                raise NotFoundError(f"Key {content} not found in checkpoint")
            found = self.tensors[content]
            return found.clone() if self._copies else found
        if mark == SCALAR:
            dtype, number = content
            if dtype not in _SCALARS:
                raise InvalidConfigError(f"{dtype} is the type of no number.")
            return np.dtype(dtype).type(self(number))
        if mark == FLOAT:
            return float(content)
        if mark == TUPLE:
            return tuple(self(each) for each in content)
        if mark == DICT:
            return {self(key): self(each) for key, each in content}
        raise InvalidConfigError(f"{mark} is unknown here.")
