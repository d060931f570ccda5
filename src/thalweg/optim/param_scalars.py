"""Per-parameter numbers such as step counts: a *column* has those of one state key.

Torch keeps each number in a separate tensor of shape (). Here these are views of one tensor, the
*block*, so that all are read and written at once, and one version counter detects writes by other
code. Tensors that other code put into the state, or that processes share, stay in place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, ClassVar, Literal
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from thalweg._base.context_managers import writable
from thalweg._core.atomic_section import Call, run
from thalweg._core.param_groups import states_of
from thalweg.errors import InvalidArgumentError
from thalweg.variable import dtype_name

CPU = torch.device("cpu")
STEP = "step"
NUMPY_TYPES: dict[torch.dtype, type[Any]] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
}
_HIGHEST = 3.4028234663852886e38  # of float32


def _stored(value: object, dtype: torch.dtype) -> Any:
    """Return a number as a tensor's dtype stores it: infinite beyond the range of float32.

    Torch would raise for such a number in the middle of a step.
    """
    if dtype == torch.float32 and isinstance(value, float) and abs(value) > _HIGHEST:
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    return value


def _check_count(name: str, value: object, dtype: torch.dtype) -> None:
    """Raise InvalidArgumentError if a count exceeds the range of its dtype."""
    if dtype.is_floating_point or not isinstance(value, int):
        return
    if value > torch.iinfo(dtype).max:
        raise InvalidArgumentError(f"'{name}' would become {value}, beyond {dtype_name(dtype)}.")


def _unchanged(value: object) -> object:
    """Return the value unchanged: the conversion of step counts."""
    return value


class _StoredNumbers:
    """Base class of columns whose numbers are elements of tensors that the host reads.

    Args:
        storages: The memory of the tensors.
    """

    is_on_device: ClassVar[Literal[False]] = False  # see `device_param_scalars`

    def __init__(
        self, name: str, views: Sequence[Tensor], storages: list[torch.UntypedStorage]
    ) -> None:
        self.name = name
        self._state_tensors = views
        self.pointers = list(map(Tensor.data_ptr, views))  # the address of each number
        # Held, so that no other storage gets the address of a freed one.
        self._storages = storages
        self._sizes = list(map(torch.UntypedStorage.nbytes, storages))

    def stands(self) -> bool:
        """Return True if address and memory size of all state tensors are as at construction."""
        has_sizes = list(map(torch.UntypedStorage.nbytes, self._storages)) == self._sizes
        return has_sizes and list(map(Tensor.data_ptr, self._state_tensors)) == self.pointers


class Column(_StoredNumbers):
    """Per-parameter numbers of one state key, stored as elements of one tensor.

    Args:
        name: The key in the state of a parameter.
        views: The tensors in the state, each an element of `block`.
        block: A tensor of one dimension.

    Attributes:
        common: The number of all parameters if their numbers are equal; else None.
        reads: The number of times that `read` found numbers written by other code.
    """

    def __init__(self, name: str, views: Sequence[Tensor], block: Tensor) -> None:
        super().__init__(name, views, [block.untyped_storage()])
        self.reads = 0
        self.dtype = block.dtype
        self.views = views
        self.block = block
        self._is_on_host = block.is_cpu
        first, size = block.data_ptr(), block.element_size()
        positions = [(pointer - first) // size for pointer in self.pointers]
        self.places = None
        # Without an index, one operation reads or writes the whole block.
        if positions != list(range(len(block))):
            self.places = torch.tensor(positions, dtype=torch.int64, device=block.device)
        kind = NUMPY_TYPES.get(block.dtype, float)
        self._scalar = _unchanged if name == STEP else kind
        self._version = -1
        self._values: list[object] = []
        self.common: Any = None
        self.read()

    def read(self) -> None:
        """Read all numbers. If other code changed them, update `values`, `common` and `reads`.

        Numbers on a GPU are read only if the version counter of `block` changed.
        """
        # Writes through NumPy, `.data` and collectives change no version; a GPU is not waited for.
        if self.is_known and not self._is_on_host:
            return
        elements = self.block if self.places is None else self.block[self.places]
        scalars: list[Any] = elements.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if not self.is_known or scalars != self.values:
            self.reads += 1
            # Torch computes with step counts as Python numbers; others keep the type of the block.
            self._set_values(list(map(self._scalar, scalars)))
            self._version = self.block._version

    def _set_values(self, values: list[Any]) -> None:
        """Store the present numbers, one per parameter; set `common`."""
        self._values = values
        self.common = values[0] if values.count(values[0]) == len(values) else None

    @property
    def values(self) -> list[Any]:
        """Numbers of all parameters, as last read or written."""
        if self.common is not None:
            return [self.common] * len(self.views)
        return self._values

    def of(self, index: int) -> Any:
        """Return the number of the parameter at an index, as last read or written."""
        return self._values[index] if self.common is None else self.common

    @property
    def is_known(self) -> bool:
        """True if no other code has written to `block` since the last read or write of numbers."""
        return self._version == self.block._version

    def writing(self, values: Sequence[object]) -> list[Call]:
        """Return a list of one callable that writes new numbers into the tensor `block`.

        Args:
            values: One number per parameter, or a single number for all.

        Raises:
            InvalidArgumentError: A count is beyond the range of its dtype.
        """
        for value in values:
            _check_count(self.name, value, self.dtype)
        if len(values) == 1 and self.places is None:
            return [partial(self.block.fill_, _stored(values[0], self.block.dtype))]
        dtype = self.block.dtype
        stored_numbers = [_stored(value, dtype) for value in values]
        tensor = torch.tensor(stored_numbers, dtype=dtype, device=self.block.device)
        tensor = tensor.expand(len(self.views))
        if self.places is None:
            return [partial(self.block.copy_, tensor)]
        return [partial(self.block.index_copy_, 0, self.places, tensor)]

    def wrote(self, values: Sequence[object]) -> None:
        """Update `values` after a callable of `writing` has written these numbers to `block`.

        Other dtypes than float32 and float64 are left to the next `read`, except for step counts.
        """
        kind = NUMPY_TYPES.get(self.dtype)
        if kind is not None:
            values = [kind(_stored(value, self.dtype)).item() for value in values]
        if self.name == STEP or kind is not None:
            self._set_values(list(map(self._scalar, values)))
            # The last assignment: after an interruption before it, `read` reads the numbers again.
            self._version += 1


class ForeignColumn(_StoredNumbers):
    """Per-parameter numbers in state tensors of other code, read in every step.

    Args:
        name: The key in the state of a parameter.
        views: The tensors in the state, of one element each.

    Attributes:
        kinds: The dtypes of the tensors if they differ, else None. Equal numbers round differently
            in different dtypes.
    """

    def __init__(self, name: str, views: Sequence[Tensor]) -> None:
        super().__init__(name, views, list(map(Tensor.untyped_storage, views)))
        self.dtype = reduce(torch.promote_types, [view.dtype for view in views])
        self.views = [view.detach().reshape(()) for view in views]
        dtypes = [view.dtype for view in views]
        self.kinds = dtypes if name != STEP and len({*dtypes}) > 1 else None
        self._scalars: list[Callable[[Any], Any]] = [_unchanged] * len(views)
        if name != STEP:
            self._scalars = [NUMPY_TYPES.get(dtype, float) for dtype in dtypes]
        self.read()

    def read(self) -> None:
        devices = {view.device for view in self.views}
        if len(devices) > 1 or any(view.dtype != self.dtype for view in self.views):
            scalars: list[Any] = list(map(Tensor.item, self.views))
        else:
            scalars = torch.stack(self.views).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        self.values = [kind(x) for kind, x in zip(self._scalars, scalars, strict=True)]
        self.common = self.values[0] if len({*scalars}) == 1 and self.kinds is None else None

    def writing(self, values: Sequence[object]) -> list[Call]:
        """Return callables that write numbers into the state tensors.

        A step count is not overwritten. Its callable adds the difference between the new count and
        the last read count, so that increments by other code stay. A tensor that several
        parameters share is increased once.

        Args:
            values: One number per parameter, or a single number for all.
        """
        scalars = [*values] * len(self.views) if len(values) == 1 else values
        # Torch increases counts in place, too; other code may do so between `read` and the write.
        if self.name == STEP:
            increments = map(operator.sub, scalars, self.values)
            # `add_` of a float to an integer tensor raises.
            kinds = [float if view.is_floating_point() else int for view in self.views]
            updates = zip(self.pointers, self.views, kinds, increments, strict=True)
            # Keys are addresses: a tensor that several parameters share has one entry.
            calls = {address: partial(view.add_, kind(x)) for address, view, kind, x in updates}
            return [*calls.values()]
        pairs = zip(self.views, scalars, strict=True)
        return [partial(view.fill_, _stored(value, view.dtype)) for view, value in pairs]

    def wrote(self, values: Sequence[object]) -> None:
        """Do nothing: the numbers are read again in every step."""


class PlainColumn:
    """Per-parameter numbers that are Python numbers in the state.

    Args:
        owners: The states of the parameters.
        values: The numbers of the parameters before their first step.
    """

    is_on_device: ClassVar[Literal[False]] = False  # see `device_param_scalars`

    def __init__(
        self, name: str, owners: Sequence[dict[str, object]], values: Sequence[object]
    ) -> None:
        self.name = name
        self.dtype = torch.int64
        self._owners = owners
        self._set_values(values)

    def stands(self) -> bool:
        """Return True: Python numbers have no address that could change."""
        return True

    def read(self) -> None:
        self._set_values([entries.get(self.name, 0) for entries in self._owners])

    def _set_values(self, scalars: Sequence[Any]) -> None:
        self.values = values = [x.item() if isinstance(x, Tensor) else x for x in scalars]
        self.common = values[0] if values.count(values[0]) == len(values) else None

    def writing(self, values: Sequence[Any]) -> list[Call]:
        scalars = [*values] * len(self._owners) if len(values) == 1 else values
        # A loaded state may have tensors in place of Python numbers.
        return [
            partial(tensor.fill_, value)
            if isinstance(tensor := entries.get(self.name), Tensor)
            else partial(entries.__setitem__, self.name, value)
            for entries, value in zip(self._owners, scalars, strict=True)
        ]

    def wrote(self, values: Sequence[object]) -> None:
        """Do nothing: the numbers are read again in every step."""


class Blocks:
    """Registry of blocks: tensors that an optimizer created and whose elements are its numbers."""

    def __init__(self) -> None:
        # Weak: a block lives as long as a view of it is in a state.
        self._blocks: dict[int, ref[Tensor]] = {}

    def views(self, block: Tensor) -> list[Tensor]:
        """Register a new block; return each element as a tensor of shape ()."""
        self._blocks = {key: weak for key, weak in self._blocks.items() if weak() is not None}
        self._blocks[id(block)] = ref(block)
        return [block[index] for index in range(len(block))]

    def have(self, scalar: Tensor) -> bool:
        """Return True if a tensor of one number is an element of a registered block."""
        return self._block_of(scalar) is not None

    def of(self, scalars: Sequence[object], device: torch.device) -> Tensor | None:
        """Return the block on a device of which all numbers are elements; None if there is none."""
        blocks = [self._block_of(x) if isinstance(x, Tensor) else None for x in scalars]
        first = blocks[0] if blocks else None
        is_shared = first is not None and first.device == device and all(b is first for b in blocks)
        return first if is_shared else None

    def _block_of(self, scalar: Tensor) -> Tensor | None:
        """Return the registered block that has `scalar` as an element, or None."""
        block: Tensor | None = scalar._base
        weak = self._blocks.get(id(block))
        # Its storage is another one after `scalar.data = other` or `scalar.set_(other)`.
        if block is None or weak is None or weak() is not block or scalar.dim():
            return None
        # Writes by other processes do not change the version counter of this process.
        if _is_shared(block):
            return None
        shares_storage = scalar.untyped_storage()._cdata == block.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]
        return block if shares_storage and scalar.dtype == block.dtype else None

    def gather(
        self, state: Mapping[Any, Any], names: Iterable[str], are_in_blocks: bool = False
    ) -> None:
        """Move numbers in `state` from single tensors to new blocks, one per key, dtype and device.

        Shared tensors and tensors of subclasses stay.

        Args:
            state: The state of an optimizer, whose entries are replaced by views of the blocks.
            names: The keys of the numbers.
            are_in_blocks: True to move numbers of several registered blocks into one block. Single
                tensors then stay.
        """
        for name in names:
            owners_by_kind: dict[Any, list[dict[str, Any]]] = {}
            for _, entries in states_of(state):
                value = entries.get(name)
                if not isinstance(value, Tensor) or not _is_plain(value):
                    continue
                if self.have(value) == are_in_blocks:
                    owners_by_kind.setdefault((value.dtype, value.device), []).append(entries)
            for (_, device), owners in owners_by_kind.items():
                if are_in_blocks and self.of([x[name] for x in owners], device) is not None:
                    continue
                with writable():
                    block = torch.stack([entries[name].detach() for entries in owners])
                    views = self.views(block)
                run([partial(o.__setitem__, name, v) for o, v in zip(owners, views, strict=True)])


def scalar_dtype() -> torch.dtype:
    """Return torch's dtype for numbers of a state: float64 if that is the default, else float32."""
    return torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32


def _is_plain(tensor: Tensor) -> bool:
    """Return True if a number is a tensor that no other code or process shares."""
    is_number = type(tensor) is Tensor and not tensor.dim() and not tensor.requires_grad
    is_private = tensor.layout == torch.strided and not tensor.is_meta and not _is_shared(tensor)
    return is_number and is_private


def _is_shared(tensor: Tensor) -> bool:
    """Return True for CPU memory shared by processes; torch calls GPU memory always shared."""
    return tensor.device.type == "cpu" and tensor.is_shared()  # pyright: ignore[reportUnknownVariableType]
