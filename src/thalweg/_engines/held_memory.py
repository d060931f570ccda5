"""References to the memory of a step's tensors, which other threads can neither move nor free.

An assignment to `data`, `set_` and `torch.utils.swap_tensors` give a tensor other memory, and free
its former memory unless something else refers to it. A detached alias, which only the plan of a
step has, keeps memory and layout. An alias does not protect against `UntypedStorage.resize_`, which
frees the memory of all tensors over the storage: `check_call` detects that before a kernel begins.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import chain, compress, count
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from torch import Tensor, UntypedStorage
from torch._C import DisableTorchFunctionSubclass

from thalweg._base.context_managers import when
from thalweg._base.locks import importing
from thalweg._engines.array_types import Int64
from thalweg._engines.layout import STORAGE_NAMES, is_dense, same_strides, without_records
from thalweg._engines.protocol import Call, StepRequest
from thalweg.errors import LayoutError

_DTYPE: Any = Tensor.dtype.__get__  # pyright: ignore
_NBYTES: Any = Tensor.nbytes.__get__  # pyright: ignore


def read_addresses(tensors: Sequence[Tensor]) -> Int64:
    """Return the addresses of tensors as an array; 0 for a tensor without elements."""
    return np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))


def are_in_storages(
    addresses: Int64, sizes: Int64, storages: Sequence[UntypedStorage], starts: Sequence[int]
) -> npt.NDArray[np.bool_]:
    """Return for each memory range True if it is empty or lies in its storage.

    Args:
        addresses, sizes: The addresses and the sizes in bytes.
        storages, starts: The storage of each range, and the address of the storage.
    """
    first = np.array(starts, np.int64)
    ends = first + np.fromiter(map(UntypedStorage.nbytes, storages), np.int64, len(storages))
    return (first <= addresses) & (addresses + sizes <= ends) | (sizes == 0)


def hold_memory(request: StepRequest) -> StepRequest:
    """Return the request over detached aliases of variables, slots, copies and dense gradients."""
    with DisableTorchFunctionSubclass():
        return request._replace(
            variables=list(map(Tensor.detach, request.variables)),
            gradients=[x.detach() if isinstance(x, Tensor) else x for x in request.gradients],
            slots=[list(map(Tensor.detach, var_slots)) for var_slots in request.slots],
            copies=request.copies
            and [copy if copy is None else copy.detach() for copy in request.copies],
        )


def check_access(aliases: StepRequest) -> None:
    """Raise an error if another thread has replaced a tensor since the step was validated.

    Read the addresses for `check_call` before this check.

    Args:
        aliases: A result of `hold_memory`.

    Raises:
        LayoutError: A tensor has lost its memory, or was replaced by one of another layout.
        InvalidTypeError, InvalidArgumentError: An encoded slot was replaced.
    """
    codecs, copies = aliases.rule.codecs, aliases.copies or [None] * len(aliases.variables)
    rows = zip(aliases.variables, aliases.gradients, aliases.slots, copies, strict=True)
    tensors_by_variable = [
        [var, *(x for x in (grad, copy) if isinstance(x, Tensor)), *without_records(slots, codecs)]
        for var, grad, slots, copy in rows
    ]
    if not _can_access(tensors_by_variable):
        # Another thread may have given the memory back; the first variable is named then.
        can_access = [_can_access([tensors]) for tensors in tensors_by_variable]
        raise moved_error(aliases.titles, can_access.index(False) if not all(can_access) else 0)
    if codecs:
        with importing:
            from thalweg._engines.codecs.checks import check_encoded
        check_encoded(aliases)


def _can_access(tensors_by_variable: Sequence[Sequence[Tensor]]) -> bool:
    """Return True if the tensors of each variable have memory, and the layout of the first one."""
    tensors = list(chain.from_iterable(tensors_by_variable))
    owners = [group[0] for group in tensors_by_variable for _ in group]
    if not {*map(_DTYPE, tensors)} <= STORAGE_NAMES.keys():
        return False
    if list(map(Tensor.size, tensors)) != list(map(Tensor.size, owners)):
        return False
    if not all(map(Tensor.is_contiguous, tensors)) and not (
        all(map(same_strides, tensors, owners)) and all(map(is_dense, owners))
    ):
        return False
    sizes = np.fromiter(map(_NBYTES, tensors), np.int64, len(tensors))
    storages = list(map(Tensor.untyped_storage, tensors))
    starts = list(map(UntypedStorage.data_ptr, storages))
    return bool(are_in_storages(read_addresses(tensors), sizes, storages, starts).all())


def check_call(present: Iterable[int], addresses: Sequence[int], fail: Call) -> Call:
    """Return a function in C, to be called once, that calls `fail` if addresses have changed.

    No other thread runs between the check and a kernel that follows in C with Python's lock held.

    Args:
        present: Iterator in C over the present addresses, which the function reads.
        addresses: The expected addresses.
    """
    are_same = map(operator.eq, present, addresses)
    return when(map(operator.not_, map(all, (are_same,))), fail)


def raise_cut(titles: Sequence[str], tensors_by_variable: Iterable[Iterable[Any]]) -> NoReturn:
    """Raise LayoutError for the first variable with a tensor whose storage is empty.

    If no storage is empty, raise the error for the first variable.

    Args:
        tensors_by_variable: The tensors of each variable; objects of other types are ignored.
    """
    are_cut = (any(map(_is_cut, tensors)) for tensors in tensors_by_variable)
    raise moved_error(titles, next(compress(count(), are_cut), 0))


def _is_cut(tensor: object) -> bool:
    if not isinstance(tensor, Tensor):
        return False
    return tensor.numel() > 0 and not tensor.untyped_storage().nbytes()


def moved_error(titles: Sequence[str], index: int) -> LayoutError:
    """Return the error about a variable whose tensors another thread has replaced."""
    label = f"'{titles[index]}'" if titles else "a variable"
    return LayoutError(
        f"cannot update {label}: another thread has replaced the memory of it, its gradient or its"
        " state during the step. Have that thread wait until the step has ended."
    )
