"""Counters that a device moves, and that the host reads without waiting for it.

Where a device decides whether a step is taken, it counts the step, too. A counter, a tensor of
shape (), lies on the device from its first such step on; with each one its value is sent to the
host, where the next step finds it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from thalweg._base.async_fetch import brought
from thalweg.variable import check_number

Move = tuple[Tensor, Any]  # a counter, and by what it is multiplied; None for one more


class _Sent(NamedTuple):
    """The value of a counter on its way to the host.

    Attributes:
        version: That of the counter with this value; if it has another one it has moved since.
        address: Where the counter lies.
        numbers: Holds the value once it has arrived, in float64: whole numbers up to 2^53.
        place: Where.
        arrival: Waits for it.
    """

    version: int
    address: int
    numbers: npt.NDArray[Any]
    place: int
    arrival: Callable[[], object]


_sent: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # of each counter a list of one


def number_of(counter: Tensor) -> Any:
    """Return a tensor of shape () as a number of Python.

    What a device has counted is known once the step before has been computed; the device is not
    waited for otherwise. Of any other tensor it is `item`. Writes that torch does not count, by
    `counter.data` or a collective of `torch.distributed`, are not seen before the next step.

    Raises:
        LayoutError: Its storage was cut.
    """
    cell: list[object] | None = _sent.get(counter) if _sent else None
    sent: _Sent | None = cell[0] if cell else None
    if sent is None or (sent.version, sent.address) != (counter._version, counter.data_ptr()):
        check_number(counter)
        return counter.item()
    sent.arrival()
    number = float(sent.numbers[sent.place])
    return number if counter.is_floating_point() else int(number)


def at(device: torch.device, counter: Tensor) -> Tensor:
    """Return the memory of a counter, which lies on a device from now on."""
    if counter.device != device:
        counter.data = counter.data.to(device)
    return counter.detach()


def moved(moves: Sequence[Move], taken: Tensor) -> list[Callable[[], Any]]:
    """Return calls of C functions that count a step on the device that decides whether it is taken.

    Args:
        moves: Counters, and how they move.
        taken: A bool of shape ().
    """
    if not moves:
        return []
    own = [at(taken.device, counter) for counter, _ in moves]
    found = [
        now + taken if factor is None else torch.where(taken, _product(now, factor), now)
        for now, (_, factor) in zip(own, moves, strict=True)
    ]
    calls: list[Callable[[], Any]] = []
    (numbers,), arrival = brought([torch.stack([each.double() for each in found])])
    for place, (now, value, (counter, factor)) in enumerate(zip(own, found, moves, strict=True)):
        # Other threads may count meanwhile.
        calls.append(partial(now.add_, taken) if factor is None else partial(now.copy_, value))
        if counter.is_inference():  # it has no version
            continue
        sent = _Sent(counter._version + 1, now.data_ptr(), numbers, place, arrival)
        cell: list[Any] | None = _sent.get(counter)
        if cell is None:
            cell = _sent[counter] = [None]
        calls.append(partial(operator.setitem, cell, 0, sent))
    return calls


def _product(counter: Tensor, factor: float) -> Tensor:
    """As `thalweg._base.scalars.product`, in the counter's dtype."""
    kind = torch.float64 if counter.dtype == torch.float64 else torch.float32
    found = counter.to(kind) * float(factor)
    return torch.where(found.abs() < torch.finfo(kind).tiny, 0, found).to(counter.dtype)
