"""Numbers that an optimizer keeps for each parameter, such as that of its steps.

Torch keeps each in a tensor of shape () of its own. Here these are views of one tensor, so that all
are read and written at once, and one version tells whether anybody else wrote to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.core.section import Call

CPU = torch.device("cpu")
STEP = "step"
_SCALARS: dict[torch.dtype, Callable[[Any], Any]] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
}


def _plainly(value: Any) -> Any:
    return value


class Column:
    """One such number of each parameter of a step.

    Args:
        name: Its key in the state of a parameter.
        views: The state's tensors, each an element of `block`.
        block: A tensor of one dimension.

    Attributes:
        common: The number that all parameters have; None if they differ.
    """

    def __init__(self, name: str, views: Sequence[Tensor], block: Tensor) -> None:
        self.name = name
        self.dtype = block.dtype
        self._views = views
        self._block = block
        self._pointers = list(map(Tensor.data_ptr, views))
        first, size = block.data_ptr(), block.element_size()
        places = [(pointer - first) // size for pointer in self._pointers]
        self._places = (
            None if places == list(range(len(block))) else torch.tensor(places).to(block.device)
        )
        kind = _SCALARS.get(block.dtype, float)
        self._scalar = _plainly if name == STEP else kind
        self._version = -1
        self._values: list[Any] = []
        self.common: Any = None
        self.read()

    def stands(self) -> bool:
        """Whether the tensors lie where they lay."""
        return list(map(Tensor.data_ptr, self._views)) == self._pointers

    def read(self) -> None:
        """Look at the numbers, if any was written by others."""
        if self._version != self._block._version:
            own = self._block if self._places is None else self._block[self._places]
            # A step's number is Python's, as torch has it; others keep the type of their state.
            self._know(list(map(self._scalar, own.tolist())))
            self._version = self._block._version

    def _know(self, values: list[Any]) -> None:
        self._values = values
        self.common = values[0] if values.count(values[0]) == len(values) else None

    @property
    def values(self) -> list[Any]:
        """The numbers, as they were last read or written."""
        if self.common is not None:
            return [self.common] * len(self._views)
        return self._values

    def writing(self, values: Sequence[Any]) -> list[Call]:
        """What writes a number for each parameter, or one for all, as functions in C."""
        if len(values) == 1 and self._places is None:
            return [partial(self._block.fill_, values[0])]
        made = torch.tensor(values, dtype=self._block.dtype, device=self._block.device)
        made = made.expand(len(self._views))
        if self._places is None:
            return [partial(self._block.copy_, made)]
        return [partial(self._block.index_copy_, 0, self._places, made)]

    def wrote(self, values: Sequence[Any]) -> None:
        """Those were written. What the type of the state rounds is read again."""
        if self.name == STEP:
            self._know([*values])
            self._version += 1  # last: what is interrupted before is read again


class DeviceColumn:
    """The same on a device, which alone knows the numbers; the host never waits to read one.

    Args:
        name: The key.
        views: The state's tensors.
        block: A tensor of one dimension, whose elements they are, in their order.

    Attributes:
        common: The numbers, one for each parameter.
    """

    def __init__(self, name: str, views: Sequence[Tensor], block: Tensor) -> None:
        self.name, self.dtype, self.common = name, block.dtype, block
        self._views = views
        self._pointers = list(map(Tensor.data_ptr, views))

    def stands(self) -> bool:
        """Whether the tensors lie where they lay."""
        return list(map(Tensor.data_ptr, self._views)) == self._pointers

    def read(self) -> None:
        """Nothing: whoever asks for the numbers gets those of the device."""

    def counting(self, taken: Tensor | None) -> Call:
        """What adds 1 to each number, where the step is taken, as a function in C."""
        return partial(self.common.add_, 1 if taken is None else taken.to(self.dtype))

    def moving(self, values: Tensor, taken: Tensor | None) -> Call:
        """What writes a number for each parameter, where the step is taken, likewise."""
        made = values.to(self.dtype)
        made = made if taken is None else torch.where(taken, made, self.common)
        return partial(self.common.copy_, made)


class PlainColumn:
    """The same for an optimizer that keeps Python's numbers in its state.

    Args:
        name: Their key.
        owners: The states of the parameters.
        values: What they are before their first step.
    """

    def __init__(self, name: str, owners: Sequence[dict[str, Any]], values: Sequence[Any]) -> None:
        self.name = name
        self.dtype = torch.int64
        self._owners = owners
        self._know(values)

    def stands(self) -> bool:
        """Whether there is nothing that could have moved."""
        return True

    def read(self) -> None:
        """Look at the numbers."""
        self._know([own.get(self.name, 0) for own in self._owners])

    def _know(self, values: Sequence[Any]) -> None:
        self.values = values = [*values]
        self.common = values[0] if values.count(values[0]) == len(values) else None

    def writing(self, values: Sequence[Any]) -> list[Call]:
        """What writes a number for each parameter, or one for all, as functions in C."""
        made = [*values] * len(self._owners) if len(values) == 1 else values
        setters = [own.__setitem__ for own in self._owners]
        return [partial(each, self.name, value) for each, value in zip(setters, made, strict=True)]

    def wrote(self, values: Sequence[Any]) -> None:
        """Those were written."""
