"""State entries: the name, value, checks and writes of one tensor or number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass

from thalweg._base.context_managers import ContextSetting
from thalweg._base.showing import holds_elements
from thalweg._core.slots import SlotShards, SlotStore
from thalweg._engines.layout import check_memory
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import check_held, dtype_name, name_of

Call = Callable[[], Any]

_uncopied: ContextVar[bool] = ContextVar("uncopied", default=False)
# Types whose `repr` has no side effects.
_PRINTABLE = (int, float, complex, str, bool, type(None))


def uncopied() -> ContextSetting:
    """Return a context in which states share tensors with the optimizer until its next step."""
    return ContextSetting(
        lambda: ([partial(_uncopied.set, True)], [partial(_uncopied.set, _uncopied.get())])
    )


def taken(tensor: Tensor, label: str = "") -> Tensor:
    """Return the value of a tensor for a state: a detached copy, or an alias inside `uncopied`.

    Raises:
        LayoutError: The storage of the tensor to copy was freed or truncated.
    """
    if not _uncopied.get():
        check_held(tensor, label)
    return tensor.detach() if _uncopied.get() else tensor.detach().clone()


@dataclass(frozen=True)
class Entry:
    """Tensor of an optimizer under its name in a state.

    Attributes:
        name: Name in a state.
        own: The optimizer's tensor, which is read and written.
        dtypes: Accepted dtypes of new values besides the tensor's dtype.
        lowest: Minimum of new values of an integer scalar, or None.
    """

    name: str
    own: Tensor
    dtypes: tuple[torch.dtype, ...] = ()
    lowest: int | None = None

    @property
    def original(self) -> str:
        """TensorFlow's name of the tensor: "Adam/w/m" in Keras, "w/Adam" in `tf.train`."""
        return name_of(self.own).split(":")[0]

    @property
    def shape(self) -> Sequence[int]:
        """Shape of a value that the tensor can be set to."""
        return self.own.shape

    def read(self) -> Tensor:
        """Return a copy of the value, or an alias in `uncopied`.

        Raises:
            LayoutError: The tensor has no memory for its elements.
        """
        check_memory(self.own, f"'{name_of(self.own)}'")
        return taken(self.own)

    def difference(self, candidate: Any) -> str | None:
        """Return a message if the tensor cannot be set to `candidate`, else None.

        Nothing is changed.
        """
        problem = flaw(candidate)
        if problem is not None:
            return f"{self.name!r} is {problem}"
        if candidate.shape != self.shape or candidate.dtype not in (self.own.dtype, *self.dtypes):
            return f"{self.name!r} is {_describe(candidate)}, not {_describe(self.own, self.shape)}"
        if not is_writable(self.own):
            return f"{self.name!r} has no memory of its own here"
        if self.lowest is None:
            return None
        value, highest = int(kept(candidate).item()), torch.iinfo(self.own.dtype).max
        if self.lowest <= value <= highest:
            return None
        return f"{self.name!r} is {value}, not between {self.lowest} and {highest}"

    def calls(self, new_value: Any, is_ours: bool = False) -> list[Call]:
        """Return C functions that set the tensor to a value, which is converted and copied now.

        Args:
            new_value: A value for which `difference` returns None.
            is_ours: True if nothing writes to the value, a plain tensor; then it is not copied.
        """
        value = self.mine(new_value)
        return self._set(value if is_ours else kept(value, self.own.dtype, self.own.device))

    def _set(self, value: Tensor) -> list[Call]:
        return [partial(plain(self.own).copy_, value)]

    def mine(self, value: Tensor) -> Tensor:
        """Return the part of a value that this process keeps."""
        return value


@dataclass(frozen=True, kw_only=True)
class Part(Entry):
    """Entry of a sharded tensor. This process has a part; a state has all elements."""

    var: Tensor
    parts: SlotShards

    @property
    def shape(self) -> Sequence[int]:
        return self.var.shape

    def read(self) -> Tensor:
        """Return the full value; a collective operation of all processes."""
        return self.parts.whole(self.own, self.var)

    def mine(self, value: Tensor) -> Tensor:
        return self.parts.cut(plain(value), self.var)


def of_slots(store: SlotStore, var: Tensor, key: str) -> list[Entry]:
    """Return an entry named "<key>/<slot>" for each slot of a variable.

    Args:
        store: The optimizer's slots.
        key: Prefix of the names.
    """
    entries: list[Entry] = []
    for name, slot in store.all_of(var).items():
        shards = store.parts_of(name)
        if shards is None:
            entries.append(Entry(f"{key}/{name}", slot))
        else:
            entries.append(Part(f"{key}/{name}", slot, var=var, parts=shards))
    return entries


@dataclass(frozen=True)
class Number:
    """Entry of a Python number, with the methods of `Entry`.

    Attributes:
        name: Name in a state.
        value: Current value.
        setting: `setting(value)` returns the calls that set the number; raises InvalidTypeError or
            InvalidArgumentError for an invalid value.
    """

    name: str
    value: int | float
    setting: Callable[[Any], list[Call]]

    def read(self) -> int | float:
        return self.value

    def difference(self, candidate: object) -> str | None:
        """Return why the number cannot be set to a value, as a message; None if it can."""
        try:
            self.setting(candidate)
        except (InvalidTypeError, InvalidArgumentError):
            return f"{self.name!r} is {shown(candidate)}, no number that fits"
        return None

    def calls(self, new_value: object, is_ours: bool = False) -> list[Call]:
        return self.setting(new_value)


Item = Entry | Number


class Compared(Protocol):
    """Interface of an object with a name and the method `difference`."""

    @property
    def name(self) -> str: ...
    def difference(self, candidate: object) -> str | None: ...


def room_for(source: Any) -> Tensor:
    """Return an uninitialized tensor like the source; an empty one if `flaw` rejects the source."""
    if flaw(source) is not None:
        return torch.empty(0, dtype=torch.float32, device="cpu")
    with DisableTorchFunctionSubclass():
        return torch.empty(source.shape, dtype=source.dtype, device=source.device)


def flaw(candidate: object) -> str | None:
    """Return a phrase that says why an object is not a dense tensor with memory; else None."""
    if not isinstance(candidate, Tensor):
        return f"no tensor but {shown(candidate)}"
    with DisableTorchFunctionSubclass():
        if candidate.is_nested:
            return "a nested tensor"
        if candidate.is_meta:
            return f"{_describe(candidate)} on the meta device"
        if candidate.layout != torch.strided:
            return f"{_describe(candidate)}, {candidate.layout}"
        if not _is_whole(candidate):
            return f"{_describe(candidate)} without its storage"
    return None


def readable(tensor: Tensor, label: str) -> Tensor:
    """Return `tensor`, or a plain copy if it belongs to a subclass of Tensor.

    Raises:
        InvalidTypeError: `flaw` rejects the tensor, or reading fails; `label` begins the message.
    """
    try:
        problem = flaw(tensor)
        if problem is None:
            return tensor if type(tensor) is Tensor else kept(tensor)
    # Operations of tensor subclasses may raise anything.
    except Exception as error:
        problem = f"a tensor that cannot be read: {error}"
    raise InvalidTypeError(f"{label} is {problem}.")


def kept(
    tensor: Tensor, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Tensor:
    """Return a copy of a tensor, of any subclass, as a `torch.Tensor` in new memory."""
    plain_tensor = plain(tensor)
    # A subclass with `__torch_dispatch__` is not dropped by `detach`, but by a copy.
    dtype, device = dtype or plain_tensor.dtype, device or plain_tensor.device
    return torch.empty(plain_tensor.shape, dtype=dtype, device=device).copy_(plain_tensor)


def shown(value: Any) -> str:
    """Return a short text of a value for messages.

    It is the `repr` of numbers, strings, bools and None, and the type's name of other values.
    """
    if type(value) not in _PRINTABLE:
        return f"a {type(value).__name__}"
    try:
        text = repr(value)
    # Python limits the number of digits in the text of an int.
    except ValueError:
        return "a very large number"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _describe(tensor: Tensor, shape: Sequence[int] | None = None) -> str:
    """Return the dtype and shape of the tensor for messages; `shape` replaces its shape."""
    with DisableTorchFunctionSubclass():
        dimensions = tensor.shape if shape is None else shape
        return f"{dtype_name(tensor.dtype)} of shape {tuple(dimensions)}"


def plain(tensor: Tensor) -> Tensor:
    """Return an alias of the tensor as a `torch.Tensor`, whose methods run in C only."""
    with DisableTorchFunctionSubclass():
        return tensor.detach()


def has_storage(tensor: Tensor) -> bool:
    """Return True if the tensor has a storage; wrapper subclasses have none."""
    try:
        return tensor.untyped_storage().nbytes() >= 0
    except (RuntimeError, NotImplementedError):
        return False


def is_cut(tensor: Tensor) -> bool:
    """Return True if the tensor's storage was freed or truncated."""
    return not _is_whole(tensor)


def _is_whole(tensor: Tensor) -> bool:
    return tensor.layout != torch.strided or not has_storage(tensor) or holds_elements(tensor)


def is_writable(tensor: Tensor) -> bool:
    """Return True if `copy_` into the tensor succeeds for a source of equal shape."""
    plain_tensor = plain(tensor)
    is_broadcast = any(
        step == 0 and size > 1
        for size, step in zip(plain_tensor.shape, plain_tensor.stride(), strict=True)
    )
    # A subclass with `__torch_dispatch__` has no storage, and its `copy_` runs Python code.
    is_exact = type(plain_tensor) is Tensor
    is_backed = (
        is_exact
        and not plain_tensor.is_meta
        and not tensor.is_inference()
        and _is_whole(plain_tensor)
    )
    return is_backed and not is_broadcast
