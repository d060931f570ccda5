"""References to the memory of a step's tensors, which other threads can neither move nor free.

An assignment to `data`, `set_` and `torch.utils.swap_tensors` give a tensor other memory, and free
its former memory unless something else refers to it. A detached alias, which only the plan of a
step has, keeps memory and layout. An alias does not protect against `UntypedStorage.resize_`, which
frees the memory of all tensors over the storage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor, UntypedStorage
from torch._C import DisableTorchFunctionSubclass

from thalweg._base.locks import importing
from thalweg._engines import layout
from thalweg._engines.array_types import Int64
from thalweg._engines.protocol import StepRequest
from thalweg.errors import LayoutError


def read_addresses(tensors: Sequence[Tensor]) -> Int64:
    """Return the addresses of tensors as an array; 0 for a tensor without elements."""
    return np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))


def lie_in_storages(addresses: Int64, sizes: Int64, storages: Sequence[UntypedStorage]) -> bool:
    """Return True if each memory range that is not empty lies in its storage.

    Args:
        addresses, sizes: The addresses and the sizes in bytes.
        storages: The storage of each range.
    """
    count = len(storages)
    starts = np.fromiter(map(UntypedStorage.data_ptr, storages), np.int64, count)
    ends = starts + np.fromiter(map(UntypedStorage.nbytes, storages), np.int64, count)
    are_inside = (starts <= addresses) & (addresses + sizes <= ends)
    return bool((are_inside | (sizes == 0)).all())


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


def hold_for_kernels(request: StepRequest) -> StepRequest:
    """Return `hold_memory(request)`, after a check that kernels can access the aliases.

    Args:
        request: A validated step. Another thread may have replaced its tensors since.

    Raises:
        LayoutError: A tensor has lost its memory, or was replaced by one of another layout.
        InvalidTypeError, InvalidArgumentError: An encoded slot was replaced.
    """
    held = hold_memory(request)
    copies = held.copies or [None] * len(held.variables)
    rows = zip(held.variables, held.gradients, held.slots, copies, strict=True)
    for index, (var, grad, slots, copy) in enumerate(rows):
        tensors = [grad, *layout.without_records(slots, request.rule.codecs), copy]
        if not _can_access(var, [tensor for tensor in tensors if isinstance(tensor, Tensor)]):
            raise moved(f"'{request.titles[index]}'" if request.titles else "A variable")
    if request.rule.codecs:
        with importing:
            from thalweg._engines.codecs.checks import check_encoded
        check_encoded(held)
    return held


def _can_access(var: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Return True if kernels can access a dense variable and further tensors like it."""
    tensors = [var, *tensors]
    sizes = np.array([tensor.nbytes for tensor in tensors], np.int64)
    storages = list(map(Tensor.untyped_storage, tensors))
    return (
        layout.is_dense(var)
        and all(tensor.dtype in layout.STORAGE_NAMES for tensor in tensors)
        and all(tensor.shape == var.shape for tensor in tensors)
        and all(layout.same_strides(tensor, var) for tensor in tensors)
        and lie_in_storages(read_addresses(tensors), sizes, storages)
    )


def moved(label: str) -> LayoutError:
    """Return the error about a variable whose tensors were replaced during the step."""
    return LayoutError(
        f"{label}, its gradient or its state was given other memory by another thread while the"
        " step was planned. Have the thread wait until the step has ended."
    )
