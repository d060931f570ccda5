"""One thing that is remembered: its name, its value, what fits it, and how it is set."""

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
from thalweg._core.slots import Parts, SlotStore
from thalweg._engines.layout import check_memory
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import check_held, dtype_name, name_of

Call = Callable[[], Any]

_uncopied: ContextVar[bool] = ContextVar("uncopied", default=False)
_SHOWN = (int, float, complex, str, bool, type(None))  # types whose repr is harmless


def uncopied() -> ContextSetting:
    """Have states in this block hold the tensors themselves; to be read before a next step."""
    return ContextSetting(
        lambda: ([partial(_uncopied.set, True)], [partial(_uncopied.set, _uncopied.get())])
    )


def taken(own: Tensor, what: str = "") -> Tensor:
    """What a state holds of a tensor: a copy, or in `uncopied` the tensor itself.

    Raises:
        LayoutError: It was to be copied, and its storage was cut.
    """
    if not _uncopied.get():
        check_held(own, what)
    return own.detach() if _uncopied.get() else own.detach().clone()


@dataclass(frozen=True)
class Entry:
    """A tensor.

    Attributes:
        name: Its name in a state.
        own: The tensor that is read and set.
        dtypes: Those that a state may have besides the tensor's own.
        lowest: The least that an integer of shape () may be.
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
        """A copy of the value.

        Raises:
            LayoutError: There is no memory that holds it.
        """
        check_memory(self.own, f"'{name_of(self.own)}'")
        return taken(self.own)

    def difference(self, given: Any) -> str | None:
        """Return the reason why the tensor cannot be set to a value, or None; change nothing."""
        problem = flaw(given)
        if problem is not None:
            return f"{self.name!r} is {problem}"
        if given.shape != self.shape or given.dtype not in (self.own.dtype, *self.dtypes):
            return f"{self.name!r} is {_kind(given)}, not {_kind(self.own, self.shape)}"
        if not is_writable(self.own):
            return f"{self.name!r} has no memory of its own here"
        if self.lowest is None:
            return None
        number, highest = int(kept(given).item()), torch.iinfo(self.own.dtype).max
        if self.lowest <= number <= highest:
            return None
        return f"{self.name!r} is {number}, not between {self.lowest} and {highest}"

    def calls(self, given: Any, is_ours: bool = False) -> list[Call]:
        """Return the calls of C functions that set the tensor; all conversions are made now.

        Args:
            given: The value.
            is_ours: Whether it is plain, and nothing writes to it: it need not be copied.
        """
        value = self.mine(given)
        return self._set(value if is_ours else kept(value, self.own.dtype, self.own.device))

    def _set(self, value: Tensor) -> list[Call]:
        return [partial(plain(self.own).copy_, value)]

    def mine(self, value: Tensor) -> Tensor:
        """Return the part of a value that this process keeps."""
        return value


@dataclass(frozen=True, kw_only=True)
class Part(Entry):
    """This process' part of a tensor, all of which is in a state.

    Attributes:
        var: The variable that has as many elements.
        parts: What this process has of them.
    """

    var: Tensor
    parts: Parts

    @property
    def shape(self) -> Sequence[int]:
        return self.var.shape

    def read(self) -> Tensor:
        """The value; all processes call this."""
        return self.parts.whole(self.own, self.var)

    def mine(self, value: Tensor) -> Tensor:
        return self.parts.cut(plain(value), self.var)


def of_slots(store: SlotStore, var: Tensor, key: str) -> list[Entry]:
    """The slots of a variable.

    Args:
        store: All slots.
        var: The variable.
        key: What their names begin with.
    """
    found: list[Entry] = []
    for name, slot in store.all_of(var).items():
        parts = store.parts_of(name)
        if parts is None:
            found.append(Entry(f"{key}/{name}", slot))
        else:
            found.append(Part(f"{key}/{name}", slot, var=var, parts=parts))
    return found


@dataclass(frozen=True)
class Number:
    """A plain number; as an `Entry` otherwise.

    Attributes:
        name: Its name in a state.
        value: What it is now.
        setting: The calls that set it to a value; InvalidTypeError or InvalidArgumentError if it
            cannot be that.
    """

    name: str
    value: int | float
    setting: Callable[[Any], list[Call]]

    def read(self) -> int | float:
        return self.value

    def difference(self, given: object) -> str | None:
        try:
            self.setting(given)
        except (InvalidTypeError, InvalidArgumentError):
            return f"{self.name!r} is {shown(given)}, no number that fits"
        return None

    def calls(self, given: object, is_ours: bool = False) -> list[Call]:
        return self.setting(given)


Item = Entry | Number


class Compared(Protocol):
    """What tells, as an `Entry`, why a value is not that of its name."""

    @property
    def name(self) -> str: ...
    def difference(self, given: object) -> str | None: ...


def room_for(given: Any) -> Tensor:
    """A tensor that can be set to another one; to none, if that has flaws."""
    if flaw(given) is not None:
        return torch.empty(0, dtype=torch.float32, device="cpu")
    with DisableTorchFunctionSubclass():
        return torch.empty(given.shape, dtype=given.dtype, device=given.device)


def flaw(given: object) -> str | None:
    """What is wrong with a value where a tensor is wanted, whatever its shape and dtype."""
    if not isinstance(given, Tensor):
        return f"no tensor but {shown(given)}"
    with DisableTorchFunctionSubclass():
        if given.is_nested:
            return "a nested tensor"
        if given.is_meta:
            return f"{_kind(given)} on the meta device"
        if given.layout != torch.strided:
            return f"{_kind(given)}, {given.layout}"
        if not _is_whole(given):
            return f"{_kind(given)} without its storage"
    return None


def readable(given: Tensor, what: str) -> Tensor:
    """A tensor to read from: the same, or a plain copy of one of another class.

    Raises:
        InvalidTypeError: It has flaws, or fails whatever is done with it.
    """
    try:
        problem = flaw(given)
        if problem is None:
            return given if type(given) is Tensor else kept(given)
    except Exception as error:
        problem = f"a tensor that cannot be read: {error}"
    raise InvalidTypeError(f"{what} is {problem}.")


def kept(
    given: Tensor, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Tensor:
    """A plain copy of a tensor without flaws, whatever its class; it shares no memory."""
    found = plain(given)
    dtype, device = dtype or found.dtype, device or found.device
    return torch.empty(found.shape, dtype=dtype, device=device).copy_(found)


def shown(value: Any) -> str:
    """A value in a message: of unknown types only the name, for their `repr` may be anything."""
    if type(value) not in _SHOWN:
        return f"a {type(value).__name__}"
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python prints
        return "a very large number"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _kind(tensor: Tensor, shape: Sequence[int] | None = None) -> str:
    with DisableTorchFunctionSubclass():
        found = tensor.shape if shape is None else shape
        return f"{dtype_name(tensor.dtype)} of shape {tuple(found)}"


def plain(tensor: Tensor) -> Tensor:
    """The tensor's memory as a `torch.Tensor`, whose methods run in C alone."""
    with DisableTorchFunctionSubclass():
        return tensor.detach()


def has_storage(tensor: Tensor) -> bool:
    """Whether it has memory of its own, and does not stand for other tensors."""
    try:
        return tensor.untyped_storage().nbytes() >= 0
    except (RuntimeError, NotImplementedError):
        return False


def is_cut(tensor: Tensor) -> bool:
    """Whether its storage holds no longer what it held."""
    return not _is_whole(tensor)


def _is_whole(tensor: Tensor) -> bool:
    """Whether the storage holds all elements, of a tensor that has them in one."""
    if tensor.layout != torch.strided or not tensor.numel():
        return True
    ends = ((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + sum(ends) + 1) * tensor.element_size()
    return not has_storage(tensor) or tensor.untyped_storage().nbytes() >= needed


def is_writable(own: Tensor) -> bool:
    """Whether `copy_` of a tensor of the same shape succeeds."""
    found = plain(own)
    spread = any(
        step == 0 and size > 1 for size, step in zip(found.shape, found.stride(), strict=True)
    )
    # A class with its own dispatch keeps the elements elsewhere, and its `copy_` is Python.
    is_plain = type(found) is Tensor
    whole = is_plain and not found.is_meta and not own.is_inference() and _is_whole(found)
    return whole and not spread
