"""Offsets of the fields of torch's tensor objects, measured on tensors with known fields.

The native replay reads torch's objects in memory (`cpu/replay_kernel.py`), because reading each
property of each tensor in Python takes longer than a small step. No header defines the offsets
for Python. Each field is searched in tensors that differ in it, and must be found at exactly one
offset, the same in all of them. The offset is then compared with the results of torch's functions
for other tensors. If a field is not found or not confirmed, no step is replayed natively.

No address is followed that was not found to be a pointer first: a word counts as one where it
equals what torch calls the address, or appears when torch makes the object.
"""

# Torch types none of what is private, and sizes as what they are while it traces.
# pyright: reportPrivateUsage=false
from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

WORD = 8
_INLINE = 5  # sizes and strides of so many dimensions lie in the tensor itself
_IMPL = 24  # words of a TensorImpl that are looked at; it has 25 in torch 2.6
_STORAGE = 10  # words of a StorageImpl
_AUTOGRAD = 12  # words of an AutogradMeta
_MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT, since Python 3.11


class UnknownLayoutError(Exception):
    """Something does not lie where one could read it; says what."""


@dataclass(frozen=True)
class Layout:
    """Offsets in bytes.

    Attributes:
        impl: The TensorImpl, in the Python object of a tensor.
        storage, autograd, version: The StorageImpl, AutogradMeta and VersionCounter, in a
            TensorImpl.
        dims: How many dimensions there are, likewise; five sizes and five strides follow.
        offset, count: The storage's offset and the number of elements, likewise.
        flags: A word with dtype and device, likewise.
        flags_mask: Its bits that mean something.
        keys: The set of dispatch keys, likewise.
        data, deleter, context, nbytes: In a StorageImpl.
        grad: The TensorImpl of a gradient, in an AutogradMeta.
        count_word: The 32 bits that count writes, in a VersionCounter.
    """

    impl: int
    storage: int
    autograd: int
    version: int
    dims: int
    offset: int
    count: int
    flags: int
    flags_mask: int
    keys: int
    data: int
    deleter: int
    context: int
    nbytes: int
    grad: int
    count_word: int


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address))


def _only(places: Iterable[int], what: str) -> int:
    found = list(places)
    if len(found) != 1:
        raise UnknownLayoutError(f"{what} is found in {len(found)} places")
    return found[0] * WORD


def _where(words: Sequence[int], value: int) -> set[int]:
    return {place for place, word in enumerate(words) if word == value % 2**64}


def _in_all(
    tensors: Sequence[Tensor], of: Callable[[Tensor], list[int]], value: Callable[[Tensor], int]
) -> set[int]:
    """Places in the words of tensors where each has its own value."""
    found: set[int] | None = None
    for tensor in tensors:
        places = _where(of(tensor), value(tensor))
        found = places if found is None else found & places
    return found or set()


def _impl(tensor: Tensor) -> int:
    return tensor._cdata


def _impl_words(tensor: Tensor) -> list[int]:
    return _words(_impl(tensor), _IMPL)


def _storage_words(tensor: Tensor) -> list[int]:
    return _words(tensor.untyped_storage()._cdata, _STORAGE)


def _keys(tensor: Tensor) -> int:
    return int(torch._C._dispatch_keys(tensor).raw_repr())  # pyright: ignore


def _zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return zeros on the CPU, whatever torch's default device and dtype are."""
    return torch.zeros(shape, dtype=dtype, device="cpu")


def _samples() -> list[Tensor]:
    """Tensors that differ in everything a place is looked for by."""
    arange = partial(torch.arange, dtype=torch.float32, device="cpu")
    base = arange(4096)
    return [
        base.as_strided((3, 5, 7), (311, 53, 4), 29),
        arange(9973).as_strided((11, 13), (401, 17), 83),
        _zeros(64, 127, dtype=torch.float64).as_strided((6, 9, 2, 3), (601, 61, 14, 5), 101),
        _zeros(8191, dtype=torch.bfloat16).as_strided((19, 23), (67, 3), 47),
    ]


def _others() -> list[Tensor]:
    """Twenty tensors of other kinds, of which everything is asked once more."""
    made: list[Tensor] = []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        ones = partial(torch.ones, dtype=dtype, device="cpu")
        made += [
            ones(()),
            torch.nn.Parameter(ones(17)),
            ones(4, 6).t(),
            ones(2, 3, 4, 5, 6)[1:],
            ones(0, 3),
        ]
    return made


def _find() -> Layout:
    samples = _samples()
    size = object.__sizeof__(samples[0]) // WORD
    impl = _only(
        _in_all(samples, lambda each: _words(id(each), min(size, 16)), _impl), "the tensor"
    )
    storage = _only(
        _in_all(samples, _impl_words, lambda each: each.untyped_storage()._cdata), "the storage"
    )
    dims = _find_dims(samples)
    offset = _only(
        _in_all(samples, _impl_words, lambda each: int(each.storage_offset())),
        "the storage's offset",
    )
    count = _only(_in_all(samples, _impl_words, Tensor.numel), "the number of elements")
    keys = _only(_in_all(samples, _impl_words, _keys), "the set of dispatch keys")
    flags, mask = _find_flags()
    version, count_word = _find_version(storage)
    autograd, grad = _find_autograd()
    data, deleter, context, nbytes = _find_memory()
    return Layout(
        impl, storage, autograd, version, dims, offset, count, flags, mask, keys, data, deleter,
        context, nbytes, grad, count_word,
    )  # fmt: skip


def _find_dims(samples: Sequence[Tensor]) -> int:
    found: set[int] | None = None
    for each in samples:
        words = _impl_words(each)
        n = each.dim()
        places = {
            place
            for place in range(_IMPL - 2 * _INLINE)
            if words[place] == n
            and words[place + 1 : place + 1 + n] == list(each.shape)
            and words[place + 1 + _INLINE : place + 1 + _INLINE + n] == list(each.stride())
        }
        found = places if found is None else found & places
    return _only(found or (), "sizes and strides")


def _over(storage: object, dtype: torch.dtype) -> Tensor:
    made: Any = torch.empty(0, dtype=dtype, device="cpu")
    return made.set_(storage, 0, (4,))


def _find_flags() -> tuple[int, int]:
    """The one word that two tensors have in common if their dtype is the same, and else not."""
    dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32)
    storage = _zeros(64, dtype=torch.float64).untyped_storage()
    twins = [[_impl_words(_over(storage, dtype)) for _ in range(2)] for dtype in dtypes]
    mask = 2**56 - 1  # nobody sets all bits of the highest byte
    place = _only(
        (
            place
            for place in range(_IMPL)
            if all(one[place] & mask == other[place] & mask for one, other in twins)
            and len({one[place] & mask for one, _ in twins}) == len(dtypes)
        ),
        "the dtype",
    )
    return place, mask


def _is_address(word: int) -> bool:
    """Whether a word may be the address of an object, and is no number and no unwritten memory."""
    return 2**16 < word < 2**47 and word % WORD == 0


def _find_version(storage: int) -> tuple[int, int]:
    """The counter that a tensor shares with `detach()` of it, which counts what is written."""
    trials = [(_zeros(4), writes) for writes in (3, 5, 8)]
    shared: set[int] | None = None
    for own, _ in trials:
        words, views = _impl_words(own), _impl_words(own.detach())
        others = [_impl_words(other) for other, _ in trials if other is not own]
        places = {
            place
            for place, word in enumerate(words)
            if _is_address(word) and word == views[place] and place * WORD != storage
            and all(word != each[place] for each in others)
        }  # fmt: skip
        shared = places if shared is None else shared & places
    place = _only(shared or (), "the version counter")
    found: set[int] | None = None
    for own, writes in trials:
        for _ in range(writes):
            own.add_(1)
        counter = _words(_impl_words(own)[place // WORD], 3)
        counts = {k for k, word in enumerate(counter) if word & 0xFFFFFFFF == own._version}
        found = counts if found is None else found & counts
    return place, _only(found or (), "the number of writes")


def _find_autograd() -> tuple[int, int]:
    """What a tensor is given when it is to have a gradient, and where that has it."""
    found: set[tuple[int, int]] | None = None
    for shape in ((3,), (2, 5), ()):
        param = _zeros(*shape)
        before = _impl_words(param)
        param.requires_grad_()
        after = _impl_words(param)
        new = [place for place in range(_IMPL) if not before[place] and _is_address(after[place])]
        if len(new) != 1:
            raise UnknownLayoutError(f"what autograd keeps is found in {len(new)} places")
        param.grad = torch.ones_like(param)
        places = _where(_words(after[new[0]], _AUTOGRAD), param.grad._cdata)
        own = {(new[0] * WORD, place * WORD) for place in places}
        found = own if found is None else found & own
    if not found or len(found) != 1:
        raise UnknownLayoutError("the gradient is not found")
    return found.pop()


def _find_memory() -> tuple[int, int, int, int]:
    """Where a storage has its address, what frees it, and its size.

    Memory of NumPy's is freed by way of the array, so that its context is another address.
    """
    import numpy as np

    from_numpy: Any = torch.from_numpy  # pyright: ignore
    made: list[Tensor] = [from_numpy(np.zeros(size)) for size in (1021, 2039, 4093)]
    data = _only(_in_all(made, _storage_words, Tensor.data_ptr), "the address of the memory")
    sizes = [_zeros(size, dtype=torch.uint8) for size in (10007, 20011, 30011)]
    nbytes = _only(_in_all(sizes, _storage_words, lambda each: each.numel()), "the memory's size")
    plain = [_zeros(size) for size in (100, 3000)]
    places = _in_all(plain, _storage_words, Tensor.data_ptr) - {data // WORD}
    context = _only(places, "the context of the memory")
    # What frees memory is a function: the same for all that torch allocated, another for NumPy's.
    theirs, others = list(map(_storage_words, plain)), list(map(_storage_words, made))
    deleter = _only(
        (
            place
            for place in range(data // WORD, context // WORD)
            if theirs[0][place] == theirs[1][place] != others[0][place] == others[1][place]
        ),
        "what frees the memory",
    )
    return data, deleter, context, nbytes


def confirm(layout: Layout) -> None:
    """Compare what lies there with what torch says of tensors that nothing was looked for in.

    Raises:
        UnknownLayoutError: Something is not there.
    """

    for tensor in _others():
        own, storage = tensor._cdata, tensor.untyped_storage()
        # What is to be a pointer is compared before it is followed.
        _agree(_at(id(tensor), layout.impl), own, "a tensor")
        _agree(_at(own, layout.storage), storage._cdata, "the storage")
        for written in range(2):
            _agree(_at(own, layout.dims), tensor.dim(), "the number of dimensions")
            for axis in range(tensor.dim()):
                place = layout.dims + WORD * (1 + axis)
                _agree(_at(own, place), tensor.size(axis), "a size")
                _agree(_at(own, place + WORD * _INLINE), tensor.stride(axis), "a stride")
            _agree(_at(own, layout.offset), int(tensor.storage_offset()), "the offset")
            _agree(_at(own, layout.count), tensor.numel(), "the number of elements")
            _agree(_at(own, layout.keys) % 2**64, _keys(tensor), "the set of dispatch keys")
            _agree(_at(storage._cdata, layout.data), storage.data_ptr(), "the memory")
            _agree(_at(storage._cdata, layout.nbytes), storage.nbytes(), "its size")
            counted = _at(_at(own, layout.version), layout.count_word) & 0xFFFFFFFF
            _agree(counted, tensor._version, "the number of writes")
            if not written:
                with torch.no_grad():
                    tensor.add_(1)
    _confirm_gradients(layout)


def _at(address: int, offset: int) -> int:
    return ctypes.c_int64.from_address(address + offset).value


def _agree(found: int, said: int, what: str) -> None:
    if found != said:
        raise UnknownLayoutError(f"{what} is not where it was found")


def _confirm_gradients(layout: Layout) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        param = torch.nn.Parameter(_zeros(3, 2, dtype=dtype))
        own = _at(param._cdata, layout.autograd)
        for _ in range(3):
            param.grad = torch.ones_like(param)
            grad = param.grad._cdata
            _agree(_at(own, layout.grad), grad, "a gradient")
            own_flags, its_flags = (_at(each, layout.flags) for each in (param._cdata, grad))
            what = "what gradients and parameters have in common"
            _agree(own_flags & layout.flags_mask, its_flags & layout.flags_mask, what)
            param.grad = None
            none = _at(own, layout.grad)  # of which torch has an object, too
            _agree(_at(none, layout.storage) if none else 0, 0, "the storage of no gradient")


def find_attributes_pointer(owner: object) -> int:
    """Return the address of an object's pointer to its `__dict__`; 0 if it is not found.

    Where the type has Python manage it, the pointer lies in one of the words before the object,
    as soon as `vars` has been called. Which one depends on Python's version.
    """
    attributes, offset = vars(owner), type(owner).__dictoffset__
    if type(owner).__flags__ & _MANAGED_DICT:
        places = [-WORD * place for place in range(1, 5)]
    else:
        places = [offset] if offset > 0 else []
    found = [id(owner) + place for place in places if _at(id(owner), place) == id(attributes)]
    return found[0] if len(found) == 1 else 0


@cache
def float_offset() -> int:
    """Return where objects of the classes float and np.float64 have their number.

    Raises:
        UnknownLayoutError: It is not found.
    """
    import numpy as np

    offset = object.__basicsize__
    for number in (0.1, -2.5e300, 3.0):
        for made in (number, np.float64(number)):
            if ctypes.c_double.from_address(id(made) + offset).value != number:
                raise UnknownLayoutError("the number of a float")
    return offset


@cache
def no_gradient() -> int:
    """Return the address of the TensorImpl that torch keeps in place of a gradient set to None."""
    param = torch.nn.Parameter(torch.zeros(1, dtype=torch.float32, device="cpu"))
    param.grad = torch.ones_like(param)
    param.grad = None
    found = layout()
    if isinstance(found, str):
        raise UnknownLayoutError(found)
    return _at(_at(param._cdata, found.autograd), found.grad)


@cache
def layout() -> Layout | str:
    """The layout of this torch's objects, or why it is not known."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python has no lock that keeps its objects as they are"
    if ctypes.sizeof(ctypes.c_void_p) != WORD or sys.byteorder != "little":
        return "this machine has other words"
    try:
        found = _find()
        confirm(found)
        float_offset()
    except Exception as error:
        return f"{error} in torch {torch.__version__}"
    return found
