"""Offsets of the fields of torch's tensor objects, measured on tensors with known fields.

The native replay reads torch's objects in memory (`cpu/replay_guards.py`), because reading each
property of each tensor in Python takes longer than a small step. No header defines the offsets for
Python. Each field is searched in tensors with different values of the field. The field must be at
exactly one offset, equal in all tensors. Then the offset is confirmed with other tensors and
torch's functions. If a field is not found or not confirmed, no step is replayed natively.

A word is dereferenced only if it must be a pointer: if it equals the address that torch returns for
the object, or if it appears when torch creates the object.
"""

# torch has no types for private functions, and types sizes as symbolic integers.
# pyright: reportPrivateUsage=false
from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

WORD = 8
# The TensorImpl stores sizes and strides of at most this many dimensions itself.
_INLINE = 5
# Words of a TensorImpl (25 in torch 2.6), a StorageImpl and an AutogradMeta that are searched.
_IMPL_WORDS = 24
_STORAGE_WORDS = 10
_AUTOGRAD_WORDS = 12
_MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT, since Python 3.11


class UnknownLayoutError(Exception):
    """A field was not found at exactly one offset; the message names the field."""


class _Sample:
    """Object with attributes."""


@dataclass(frozen=True)
class Layout:
    """Offsets of fields of torch's objects, in bytes.

    Attributes:
        impl: Pointer to the TensorImpl, in the Python object of a tensor.
        storage, autograd, version: Pointers to StorageImpl, AutogradMeta and VersionCounter, in a
            TensorImpl.
        dims: Number of dimensions, followed by five sizes and five strides, in a TensorImpl.
        offset, count: Storage offset and number of elements, in a TensorImpl.
        flags: Word with dtype and device, in a TensorImpl.
        flags_mask: The bits of the word at `flags` that have a meaning.
        keys: Set of dispatch keys, in a TensorImpl.
        data, deleter, context, nbytes: The memory's address, deleter, deleter's context and size,
            in a StorageImpl.
        grad: Pointer to the TensorImpl of the gradient, in an AutogradMeta.
        count_word: 32 bits that count writes, in a VersionCounter.
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
    """Return 64-bit words at an address, as unsigned integers."""
    return list((ctypes.c_uint64 * count).from_address(address))


def _select_offset(matches: Sequence[set[int]], field_name: str) -> int:
    """Return the byte offset of the only word index that all sets of `matches` contain.

    Raise UnknownLayoutError with the field's name if there is no or more than one index.
    """
    indices = matches[0].intersection(*matches[1:])
    if len(indices) != 1:
        raise UnknownLayoutError(f"{field_name} is found in {len(indices)} places")
    return indices.pop() * WORD


def _find_indices(memory: Sequence[int], expected: int) -> set[int]:
    """Return the indices of words that are equal to a number modulo 2**64."""
    return {index for index, word in enumerate(memory) if word == expected % 2**64}


def _find_offset(
    field_name: str,
    tensors: Sequence[Tensor],
    read_words: Callable[[Tensor], list[int]],
    expected_of: Callable[[Tensor], int],
    excluded: Collection[int] = (),
) -> int:
    """Return the only byte offset whose word is `expected_of(tensor)` in every tensor.

    Args:
        excluded: Indices of words that are not searched.
    """
    matches = [_find_indices(read_words(tensor), expected_of(tensor)) for tensor in tensors]
    return _select_offset([indices.difference(excluded) for indices in matches], field_name)


def _read_impl(tensor: Tensor) -> list[int]:
    """Return the words of a tensor's TensorImpl."""
    return _words(tensor._cdata, _IMPL_WORDS)


def _read_storage(tensor: Tensor) -> list[int]:
    """Return the words of a tensor's StorageImpl."""
    return _words(tensor.untyped_storage()._cdata, _STORAGE_WORDS)


def _dispatch_keys(tensor: Tensor) -> int:
    return int(torch._C._dispatch_keys(tensor).raw_repr())  # pyright: ignore


def _zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return zeros on the CPU, independent of torch's default device and dtype."""
    return torch.zeros(shape, dtype=dtype, device="cpu")


def _make_samples() -> list[Tensor]:
    """Return tensors with different objects, storages, sizes, strides, offsets and numel."""
    arange = partial(torch.arange, dtype=torch.float32, device="cpu")
    base = arange(4096)
    return [
        base.as_strided((3, 5, 7), (311, 53, 4), 29),
        arange(9973).as_strided((11, 13), (401, 17), 83),
        _zeros(64, 127, dtype=torch.float64).as_strided((6, 9, 2, 3), (601, 61, 14, 5), 101),
        _zeros(8191, dtype=torch.bfloat16).as_strided((19, 23), (67, 3), 47),
    ]


def _make_other_tensors() -> list[Tensor]:
    """Return twenty further tensors of various dtypes and shapes, to confirm offsets with."""
    tensors: list[Tensor] = []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        ones = partial(torch.ones, dtype=dtype, device="cpu")
        tensors += [
            ones(()),
            torch.nn.Parameter(ones(17)),
            ones(4, 6).t(),
            ones(2, 3, 4, 5, 6)[1:],
            ones(0, 3),
        ]
    return tensors


def _measure_layout() -> Layout:
    """Return the offsets of all fields; raise `UnknownLayoutError` if one is not found."""
    samples = _make_samples()
    size = object.__sizeof__(samples[0]) // WORD
    impl = _find_offset(
        "the tensor", samples, lambda x: _words(id(x), min(size, 16)), lambda x: x._cdata
    )
    storage = _find_offset("the storage", samples, _read_impl, lambda x: x.untyped_storage()._cdata)
    dims = _find_dims(samples)
    offset = _find_offset(
        "the storage's offset", samples, _read_impl, lambda x: int(x.storage_offset())
    )
    count = _find_offset("the number of elements", samples, _read_impl, Tensor.numel)
    keys = _find_offset("the set of dispatch keys", samples, _read_impl, _dispatch_keys)
    flags, flags_mask = _find_flags()
    version, count_word = _find_version(storage)
    autograd, grad = _find_autograd()
    data, deleter, context, nbytes = _find_memory()
    return Layout(
        impl, storage, autograd, version, dims, offset, count, flags, flags_mask, keys, data,
        deleter, context, nbytes, grad, count_word,
    )  # fmt: skip


def _find_dims(samples: Sequence[Tensor]) -> int:
    """Return the offset of the number of dimensions, which is followed by sizes and strides."""
    matches: list[set[int]] = []
    for tensor in samples:
        memory, dim_count = _read_impl(tensor), tensor.dim()
        indices = {
            index
            for index in range(_IMPL_WORDS - 2 * _INLINE)
            if memory[index] == dim_count
            and memory[index + 1 : index + 1 + dim_count] == list(tensor.shape)
            and memory[index + 1 + _INLINE : index + 1 + _INLINE + dim_count]
            == list(tensor.stride())
        }
        matches.append(indices)
    return _select_offset(matches, "sizes and strides")


def _view_of_storage(storage: object, dtype: torch.dtype) -> Tensor:
    """Return a new tensor of four elements over a storage."""
    tensor: Any = torch.empty(0, dtype=dtype, device="cpu")
    return tensor.set_(storage, 0, (4,))


def _find_flags() -> tuple[int, int]:
    """Return (offset of the word with dtype and device, mask of the word's initialized bits).

    It is the only word that depends on the dtype alone, in tensors over one storage.
    """
    dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32)
    storage = _zeros(64, dtype=torch.float64).untyped_storage()
    twins = [[_read_impl(_view_of_storage(storage, dtype)) for _ in range(2)] for dtype in dtypes]
    # torch does not initialize all bits of the highest byte.
    mask = 2**56 - 1
    indices = {
        index
        for index in range(_IMPL_WORDS)
        if all(twin1[index] & mask == twin2[index] & mask for twin1, twin2 in twins)
        and len({twin1[index] & mask for twin1, _ in twins}) == len(dtypes)
    }
    return _select_offset([indices], "the dtype"), mask


def _is_address(word: int) -> bool:
    """Return True if a word can be an address, rather than a number or unwritten memory."""
    return 2**16 < word < 2**47 and word % WORD == 0


def _find_version(storage_offset: int) -> tuple[int, int]:
    """Return (offset of the version counter's pointer, offset of the write count in the counter).

    The TensorImpls of `x` and `x.detach()` have equal pointers; unrelated tensors have different
    pointers. The write count equals `_version`.

    Args:
        storage_offset: The offset of the pointer to the storage, which `detach()` also shares.

    Raises:
        UnknownLayoutError: Not exactly one word has this property.
    """
    # Different numbers of writes, so that no constant word matches all trials.
    trials = [(_zeros(4), writes) for writes in (3, 5, 8)]
    shared: list[set[int]] = []
    for tensor, _ in trials:
        memory, views = _read_impl(tensor), _read_impl(tensor.detach())
        other_memories = [
            _read_impl(other_tensor) for other_tensor, _ in trials if other_tensor is not tensor
        ]
        indices = {
            index
            for index, word in enumerate(memory)
            if _is_address(word) and word == views[index] and index * WORD != storage_offset
            and all(word != other_memory[index] for other_memory in other_memories)
        }  # fmt: skip
        shared.append(indices)
    offset = _select_offset(shared, "the version counter")
    matches: list[set[int]] = []
    for tensor, writes in trials:
        for _ in range(writes):
            tensor.add_(1)
        counter = _words(_read_impl(tensor)[offset // WORD], 3)
        version = tensor._version
        matches.append({k for k, word in enumerate(counter) if word & 0xFFFFFFFF == version})
    return offset, _select_offset(matches, "the number of writes")


def _find_autograd() -> tuple[int, int]:
    """Return (offset of the AutogradMeta's pointer, offset of the gradient in the AutogradMeta).

    torch creates the AutogradMeta when a tensor begins to require a gradient.
    """
    matches: list[set[tuple[int, int]]] = []
    for shape in ((3,), (2, 5), ()):
        param = _zeros(*shape)
        memory_before = _read_impl(param)
        param.requires_grad_()
        memory_after = _read_impl(param)
        new_indices = [
            index
            for index in range(_IMPL_WORDS)
            if not memory_before[index] and _is_address(memory_after[index])
        ]
        if len(new_indices) != 1:
            raise UnknownLayoutError(f"what autograd keeps is found in {len(new_indices)} places")
        param.grad = torch.ones_like(param)
        gradient_indices = _find_indices(
            _words(memory_after[new_indices[0]], _AUTOGRAD_WORDS), param.grad._cdata
        )
        matches.append({(new_indices[0] * WORD, index * WORD) for index in gradient_indices})
    common = matches[0].intersection(*matches[1:])
    if len(common) != 1:
        raise UnknownLayoutError("the gradient is not found")
    return common.pop()


def _find_memory() -> tuple[int, int, int, int]:
    """Return the offsets of data, deleter, context and size in a StorageImpl.

    For memory from torch, context and data are equal. For memory from NumPy they differ.
    """
    import numpy as np

    from_numpy: Any = torch.from_numpy  # pyright: ignore
    numpy_tensors: list[Tensor] = [from_numpy(np.zeros(size)) for size in (1021, 2039, 4093)]
    data = _find_offset("the memory's address", numpy_tensors, _read_storage, Tensor.data_ptr)
    sizes = [_zeros(size, dtype=torch.uint8) for size in (10007, 20011, 30011)]
    nbytes = _find_offset("the memory's size", sizes, _read_storage, Tensor.numel)
    torch_tensors = [_zeros(size) for size in (100, 3000)]
    context = _find_offset(
        "the context of the memory", torch_tensors, _read_storage, Tensor.data_ptr, {data // WORD}
    )
    # The deleter is one function for all memory that torch allocated, and another for NumPy's.
    torch1, torch2 = map(_read_storage, torch_tensors)
    numpy1, numpy2, _ = map(_read_storage, numpy_tensors)
    indices = {
        index
        for index in range(data // WORD, context // WORD)
        if torch1[index] == torch2[index] != numpy1[index] == numpy2[index]
    }
    deleter = _select_offset([indices], "the deleter of the memory")
    return data, deleter, context, nbytes


def confirm(layout: Layout) -> None:
    """Compare fields of further tensors, read at the offsets of `layout`, with torch's results.

    Raises:
        UnknownLayoutError: A field differs.
    """
    for tensor in _make_other_tensors():
        impl, storage = tensor._cdata, tensor.untyped_storage()
        # Pointers are compared before they are dereferenced.
        _confirm_equal(_read_word(id(tensor), layout.impl), impl, "a tensor")
        _confirm_equal(_read_word(impl, layout.storage), storage._cdata, "the storage")
        for trial in range(2):
            counter = _read_word(impl, layout.version)
            for address, offset, expected, field_name in (
                (impl, layout.dims, tensor.dim(), "the number of dimensions"),
                *(
                    (impl, layout.dims + WORD * (1 + axis + skipped), value, field_name)
                    for axis in range(tensor.dim())
                    for skipped, value, field_name in (
                        (0, tensor.size(axis), "a size"),
                        (_INLINE, tensor.stride(axis), "a stride"),
                    )
                ),
                (impl, layout.offset, int(tensor.storage_offset()), "the offset"),
                (impl, layout.count, tensor.numel(), "the number of elements"),
                (storage._cdata, layout.data, storage.data_ptr(), "the memory"),
                (storage._cdata, layout.nbytes, storage.nbytes(), "its size"),
            ):
                _confirm_equal(_read_word(address, offset), expected, field_name)
            keys = _read_word(impl, layout.keys) % 2**64
            _confirm_equal(keys, _dispatch_keys(tensor), "the set of dispatch keys")
            write_count = _read_word(counter, layout.count_word) & 0xFFFFFFFF
            _confirm_equal(write_count, tensor._version, "the number of writes")
            if not trial:
                with torch.no_grad():
                    tensor.add_(1)
    _confirm_gradients(layout)


def _read_word(address: int, offset: int) -> int:
    """Return the signed 64-bit word at an address plus an offset in bytes."""
    return ctypes.c_int64.from_address(address + offset).value


def _confirm_equal(actual: int, expected: int, field_name: str) -> None:
    """Raise `UnknownLayoutError` if a field read from memory differs from torch's result."""
    if actual != expected:
        raise UnknownLayoutError(f"{field_name} is not where it was found")


def _confirm_gradients(layout: Layout) -> None:
    """Compare present and absent gradients of parameters, read at the offsets; see `confirm`."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        param = torch.nn.Parameter(_zeros(3, 2, dtype=dtype))
        autograd = _read_word(param._cdata, layout.autograd)
        for _ in range(3):
            param.grad = torch.ones_like(param)
            grad = param.grad._cdata
            _confirm_equal(_read_word(autograd, layout.grad), grad, "a gradient")
            param_flags, grad_flags = (
                _read_word(impl, layout.flags) for impl in (param._cdata, grad)
            )
            field_name = "what gradients and parameters have in common"
            _confirm_equal(
                param_flags & layout.flags_mask, grad_flags & layout.flags_mask, field_name
            )
            param.grad = None
            # torch may store an undefined TensorImpl.
            undefined_impl = _read_word(autograd, layout.grad)
            _confirm_equal(
                _read_word(undefined_impl, layout.storage) if undefined_impl else 0,
                0,
                "the storage of no gradient",
            )


def find_attributes_pointer(owner: object) -> int:
    """Return the address of an object's pointer to its `__dict__`; 0 if it is not found.

    For a class with managed dictionaries, the pointer is one of the four words before the object,
    depending on Python's version.
    """
    attributes, offset = vars(owner), type(owner).__dictoffset__
    if type(owner).__flags__ & _MANAGED_DICT:
        offsets = [-WORD * position for position in range(1, 5)]
    else:
        offsets = [offset] if offset > 0 else []
    pointers = [
        id(owner) + position
        for position in offsets
        if _read_word(id(owner), position) == id(attributes)
    ]
    return pointers[0] if len(pointers) == 1 else 0


@cache
def float_offset() -> int:
    """Return the offset of the C double in objects of the classes float and np.float64.

    Raises:
        UnknownLayoutError: The number is not at that offset.
    """
    import numpy as np

    offset = object.__basicsize__
    for value in (0.1, -2.5e300, 3.0):
        for float_object in (value, np.float64(value)):
            if ctypes.c_double.from_address(id(float_object) + offset).value != value:
                raise UnknownLayoutError("the number of a float")
    return offset


@cache
def dict_version_offset() -> int:
    """Return the offset of a dict's version number, which every change of the dict renews.

    Return 0 if dicts have no version. Python 3.11 and 3.12 have versions (PEP 509, PEP 699).
    """
    offset = object.__basicsize__ + WORD
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        return 0
    sample: dict[Any, Any] = {"first": 0, "second": 1}
    attributes = vars(_Sample())
    changes: tuple[Callable[[], object], ...] = (
        lambda: sample.update(first=1),
        lambda: sample.pop("second"),
        lambda: sample.setdefault("third", 2),
        sample.popitem,
        sample.clear,
        lambda: attributes.update(field=1),
    )
    versions: list[int] = []
    for change in (lambda: None, *changes):
        change()
        versions += [_read_word(id(x), offset) for x in (sample, attributes)]
    # Each change renews the version of one of both.
    return offset if len(set(versions)) == len(changes) + 2 else 0


@cache
def no_gradient() -> int:
    """Return the address of the undefined TensorImpl, torch's representation of `grad = None`."""
    param = torch.nn.Parameter(torch.zeros(1, dtype=torch.float32, device="cpu"))
    param.grad = torch.ones_like(param)
    param.grad = None
    probed_layout = layout()
    if isinstance(probed_layout, str):
        raise UnknownLayoutError(probed_layout)
    return _read_word(_read_word(param._cdata, probed_layout.autograd), probed_layout.grad)


@cache
def layout() -> Layout | str:
    """Return the offsets in the installed torch. If they are unknown, return the reason as text."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python has no lock that keeps its objects as they are"
    if ctypes.sizeof(ctypes.c_void_p) != WORD or sys.byteorder != "little":
        return "this machine has other words"
    try:
        offsets = _measure_layout()
        confirm(offsets)
        float_offset()
    # After any failure, steps are planned in Python.
    except Exception as error:
        return f"{error} in torch {torch.__version__}"
    return offsets
