"""Counters that a device updates and that the host reads without synchronization.

A counter is a tensor of shape (). If a device decides whether a step is applied, the counter is on
that device. Each step sends the new value to the host, where the next step reads it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from thalweg._base.async_fetch import brought
from thalweg.variable import check_number

# A counter and its factor; None adds one instead.
Move = tuple[Tensor, Any]


class _Transfer(NamedTuple):
    """Transfer of a counter's value to the host.

    Attributes:
        version: The counter's version with this value; a later write gives another version.
        address: The counter's address.
        numbers: Receives the values of all counters of one dtype.
        position: The index of the value in `numbers`.
        arrival: Waits for the transfer.
    """

    version: int
    address: int
    numbers: npt.NDArray[Any]
    position: int
    arrival: Callable[[], object]


# For each counter a list of its last transfer, so that C code can replace it.
_transfers: MutableMapping[Tensor, list[Any]] = WeakTensorKeyDictionary()


def number_of(counter: Tensor) -> Any:
    """Return the value of a counter as a Python number.

    Wait for the transfer to the host that `moved` has started. Without a transfer, or after another
    write to the counter, synchronize by `counter.item()`. A write to `counter.data` or by a
    collective is not detected: the old value is returned until the next step.

    Raises:
        LayoutError: The tensor has no memory.
    """
    cell = _transfers.get(counter) if _transfers else None
    transfer: _Transfer | None = cell[0] if cell else None
    # An inference tensor has no transfer, and reading its version would raise.
    state = transfer and (counter._version, counter.data_ptr())
    if transfer is None or (transfer.version, transfer.address) != state:
        check_number(counter)
        return counter.item()
    transfer.arrival()
    return transfer.numbers[transfer.position].item()


def at(device: torch.device, counter: Tensor) -> Tensor:
    """Move a counter to a device and return a detached view."""
    if counter.device != device:
        counter.data = counter.data.to(device)
    return counter.detach()


def moved(moves: Sequence[Move], flag: Tensor) -> list[Callable[[], Any]]:
    """Move counters to the device of `flag`. Return C functions that update the counters there.

    New values are computed now, and copied to the host asynchronously. The caller calls all
    functions in the commit of a step.

    Args:
        moves: (counter, factor) multiplies the counter by the factor. (counter, None) adds 1.
        flag: A bool tensor of shape (). If False, the functions leave the counters unchanged.
    """
    if not moves:
        return []
    counters = [at(flag.device, counter) for counter, _ in moves]
    new_values = [
        local + flag if factor is None else torch.where(flag, _multiply(local, factor), local)
        for local, (_, factor) in zip(counters, moves, strict=True)
    ]
    calls: list[Callable[[], Any]] = []
    # One transfer for each dtype: some devices lack float64, which could hold all numbers.
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for count in new_values:
        by_dtype.setdefault(count.dtype, []).append(count)
    # NumPy lacks bfloat16.
    stacks = [torch.stack(counts) for counts in by_dtype.values()]
    stacks = [stack.float() if stack.dtype == torch.bfloat16 else stack for stack in stacks]
    arrays, arrival = brought(stacks)
    places = {
        id(count): (values, index)
        for values, counts in zip(arrays, by_dtype.values(), strict=True)
        for index, count in enumerate(counts)
    }
    for local, count, (counter, factor) in zip(counters, new_values, moves, strict=True):
        # Other threads may count meanwhile.
        calls.append(partial(local.add_, flag) if factor is None else partial(local.copy_, count))
        # An inference tensor has no version.
        if counter.is_inference():
            continue
        transfer = _Transfer(counter._version + 1, local.data_ptr(), *places[id(count)], arrival)
        cell = _transfers.get(counter)
        if cell is None:
            cell = _transfers[counter] = [None]
        calls.append(partial(operator.setitem, cell, 0, transfer))
    return calls


def _multiply(counter: Tensor, factor: float) -> Tensor:
    """Return `counter * factor`, rounded as by `thalweg._base.scalars.product`."""
    dtype = torch.float64 if counter.dtype == torch.float64 else torch.float32
    product = counter.to(dtype) * float(factor)
    return torch.where(product.abs() < torch.finfo(dtype).tiny, 0, product).to(counter.dtype)
