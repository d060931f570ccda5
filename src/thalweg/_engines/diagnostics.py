"""What diagnostics measure in a step, to the last bit: sums, largest magnitudes and counts.

Of each variable, in the order of `MEASURED`. Numbers are those that the update reads and leaves, in
the type of its arithmetic. The move of an element is what was stored minus what was there, rounded
once to that type. Sums of squares and products are those of `diagnostic_sums`, leaf by leaf, and
leaves are added up as those of measures are (`measuring`). Largest magnitudes are NaN where one is.
Counts of the gradient are of its numbers as they came: of the type in which they are stored,
whether the update flushes denormals or not.
"""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._engines import layout, reference
from thalweg._engines.codecs.checks import codecs_of
from thalweg._engines.codecs.records import decode_tensor
from thalweg._engines.denormals import set_denormals
from thalweg._engines.diagnostic_sums import sums_of_products
from thalweg._engines.low_precision_copies import resumed
from thalweg._engines.protocol import Columns, Stages, StepRequest
from thalweg._engines.reduction_order import LEAF, Tree, leaf_counts
from thalweg.formula import Rule
from thalweg.variable import numpy_copy

# Sums of squares and of a product.
PRODUCTS_OF_GRADIENT = {
    "gradient": ("gradient", "gradient"),
    "momentum": ("momentum", "momentum"),
    "product": ("gradient", "momentum"),
}
PRODUCTS_OF_MOVE = {"update": ("update", "update"), "weight": ("weight", "weight")}
PRODUCTS = PRODUCTS_OF_GRADIENT | PRODUCTS_OF_MOVE
PEAKS = ("gradient_max", "update_max", "weight_max")
COUNTS = ("agreement", "unchanged", "zero", "denormal", "nonfinite")
MEASURED = (*PRODUCTS, *PEAKS, *COUNTS)

_SPANS = {"cpu": 4 * LEAF}  # elements that are looked at together: as caches have room for
_SPAN = 64 * LEAF  # on a device
_TINY = {
    torch.float16: 2.0**-14,
    torch.bfloat16: 2.0**-126,
    torch.float32: 2.0**-126,
    torch.float64: 2.0**-1022,
}

Array = Any  # of NumPy on the CPU, of torch elsewhere
Found = dict[str, Any]  # by name: sums as (leaves,), all else as one number


class VariableDiagnostics:
    """What is measured of one variable in two sweeps of its own: before the writes, and after.

    Args:
        asked: The step.
        index: Which of its variables.
        columns: The scalars of `stages`.
        stages: What the gradient goes through before it is measured.
    """

    def __init__(self, asked: StepRequest, index: int, columns: Columns, stages: Stages) -> None:
        self._var, self._slots = asked.variables[index], asked.slots[index]
        self._codecs = codecs_of(asked.rule.codecs, self._slots)
        self._copy = asked.copies[index] if asked.copies and asked.from_copies else None
        self._flush = asked.selection.denormals == "flush"
        self._kind = reference.namespace_of(layout.compute_dtype(self._var.dtype))
        grad = asked.gradients[index]
        # In a step that is repeated those with rows are still torch's.
        is_dense = isinstance(grad, Tensor) and grad.layout == torch.strided
        self._grad = grad.detach() if is_dense else None
        self._found: Found = {}
        with no_grad():
            if self._grad is not None:
                self._measure_gradient(self._grad, stages, self._scalars(columns, index), asked)
            self._before = self._weight(is_before=True)

    def _scalars(self, columns: Columns, index: int) -> dict[str, Any]:
        """The scalars; those that a device alone knows stay there."""
        dtype = layout.compute_dtype(self._var.dtype)
        own = {name: each[index] for name, each in columns.separate.items()}
        own = {n: x.to(self._kind) if isinstance(x, Tensor) else dtype(x) for n, x in own.items()}
        return {**columns.shared[dtype], **own}

    def _weight(self, is_before: bool) -> Tensor:
        """The variable in the type of the arithmetic, all its bits, in the order of its memory."""
        var = self._var.detach()
        if is_before and self._copy is not None and not layout.is_far(self._copy, var.device):
            var = resumed(var, self._copy)
        for codec, slot in zip(self._codecs, self._slots, strict=True):
            if codec is not None and codec.is_beside:
                var = decode_tensor(codec, slot, var)
        flat = reference.flatten_like(var, self._var).to(self._kind)
        return flat.clone() if is_before and flat.dtype == var.dtype else flat

    def _momentum(self, asked: StepRequest) -> Tensor | None:
        """The momentum, in the type of the arithmetic."""
        place, sign = momentum_of(asked.rule)
        if place is None:
            return None
        own, codec = self._slots[place], self._codecs[place]
        own = own.detach() if codec is None else decode_tensor(codec, own, self._var)
        own = reference.flatten_like(own, self._var).to(self._kind)
        return own if sign > 0 else -own

    def _measure_gradient(
        self, grad: Tensor, stages: Stages, scalars: dict[str, Any], asked: StepRequest
    ) -> None:
        grad = grad.to(self._var.device)
        staged = reference.transform(stages, grad, scalars, self._flush, self._kind)
        raw = reference.flatten_like(grad, self._var)
        flat, momentum = reference.flatten_like(staged, self._var), self._momentum(asked)
        found: list[Found] = []
        for own in _spans(raw):
            found.append(_counts_of(_array(raw[own]), _TINY[raw.dtype]))
            given = [_array(x[own].to(self._kind)) for x in (flat, momentum) if x is not None]
            with set_denormals(self._flush), np.errstate(all="ignore"):
                found[-1] |= _sums_of_gradient(*given)
        self._found |= _joined(found)

    def finish(self) -> Found:
        """What is found; the step has been written."""
        with no_grad():
            after, found, raw = self._weight(is_before=False), list[Found](), None
            if self._grad is not None:
                raw = reference.flatten_like(self._grad.to(self._var.device), self._var)
            for own in _spans(after):
                new, old = _array(after[own]), _array(self._before[own])
                with set_denormals(self._flush), np.errstate(all="ignore"):
                    found.append(_sums_of_move(new, old))
                    stays = new == old
                if raw is not None:
                    found[-1]["unchanged"] = _total(stays & (_array(raw[own]) != 0))
            return {**self._found, **_joined(found)}

    @property
    def size(self) -> int:
        """How many elements it has."""
        return self._var.numel()


def momentum_of(rule: Rule) -> tuple[int | None, int]:
    """Which slot of elements is the momentum, the first that says so, and its sign."""
    for place, slot in enumerate(rule.element_slots):
        if slot.momentum:
            return place, slot.momentum
    return None, 1


def combined(parts: Sequence[Found], sizes: Sequence[int]) -> Any:
    """(variables, measured) float64 of what variables of one device have: an array or a tensor.

    What a variable has nothing of is NaN.
    """
    given = [each for own in parts for each in own.values() if isinstance(each, Tensor)]
    device = given[0].device if given else None
    counts, columns = leaf_counts(sizes), list[Any]()
    tree = _tree_of(tuple(counts.tolist()), device)
    for name in MEASURED:
        if name in PRODUCTS:
            leaves = [
                own[name] if name in own else _filled(count, np.nan, device)
                for own, count in zip(parts, counts, strict=True)
            ]
            columns.append(tree.combine(_joining(leaves, device)))
        else:
            numbers = [own.get(name, np.nan) for own in parts]
            columns.append(_stacked(numbers, device))
    return np.stack(columns, -1) if device is None else torch.stack(columns, -1)


@lru_cache(maxsize=32)
def _tree_of(counts: tuple[int, ...], device: torch.device | None) -> Tree:
    """A tree that is kept: while its indices go to a device, the host waits for all work there."""
    return Tree(np.array(counts, np.int64), device)


def _filled(count: int, number: float, device: torch.device | None) -> Array:
    if device is None:
        return np.full(count, number)
    return torch.full((int(count),), number, dtype=torch.float64, device=device)


def _joining(arrays: list[Array], device: torch.device | None) -> Array:
    return np.concatenate(arrays) if device is None else torch.cat(arrays)


def _stacked(numbers: list[Any], device: torch.device | None) -> Array:
    if device is None:
        return np.array(numbers, np.float64)
    own = [x if isinstance(x, Tensor) else _filled(1, x, device)[0] for x in numbers]
    return torch.stack([each.double() for each in own])


def _spans(flat: Tensor) -> Iterator[slice]:
    size = _SPANS.get(flat.device.type, _SPAN)
    return (slice(first, first + size) for first in range(0, flat.numel(), size))


def _array(flat: Tensor) -> Array:
    """What is computed with: NumPy's array on the CPU, where it is exact and flushes if told to."""
    if flat.device.type != "cpu":
        return flat
    own = flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
    return numpy_copy(own)


def _total(flags: Array) -> Any:
    return flags.sum() if isinstance(flags, Tensor) else float(flags.sum())


def _counts_of(raw: Array, tiny: float) -> Found:
    """How many numbers of a gradient are zero, denormal, or not finite."""
    finite = torch.isfinite(raw) if isinstance(raw, Tensor) else np.isfinite(raw)
    return {
        "zero": _total(raw == 0),
        "denormal": _total((abs(raw) < tiny) & (raw != 0)),
        "nonfinite": _total(~finite),
    }


def _sums_of_gradient(grad: Array, momentum: Array | None = None) -> Found:
    one = type_of(grad)(1)  # a product with it flushes what an update would have flushed
    values = {"gradient": grad * one}
    if momentum is not None:
        values["momentum"] = momentum * one
    pairs = {name: pair for name, pair in PRODUCTS_OF_GRADIENT.items() if {*pair} <= values.keys()}
    found = sums_of_products(values, pairs)
    found["gradient_max"] = abs(values["gradient"]).max()
    if momentum is not None:
        a, b = values["gradient"], values["momentum"]
        found["agreement"] = _total(((a < 0) & (b < 0)) | ((a > 0) & (b > 0)))
    return found


def _sums_of_move(new: Array, old: Array) -> Found:
    values = {"update": new - old, "weight": new * type_of(new)(1)}
    found = sums_of_products(values, PRODUCTS_OF_MOVE)
    return {**found, **{f"{name}_max": abs(own).max() for name, own in values.items()}}


def type_of(values: Array) -> Any:
    """What makes a number of the type of an array."""
    return float if isinstance(values, Tensor) else values.dtype.type


def _joined(spans: Sequence[Found]) -> Found:
    """What spans of a variable have, put together."""
    found: Found = {}
    for name in spans[0] if spans else ():
        own = [each[name] for each in spans]
        is_there = isinstance(own[0], Tensor)
        if name in PEAKS:
            whole = torch.stack(own).max() if is_there else np.max(own)
            found[name] = whole.double() if is_there else float(whole)
        elif name in COUNTS:
            found[name] = sum(own[1:], own[0])
        else:
            found[name] = torch.cat(own) if is_there else np.concatenate(own)
    return found
