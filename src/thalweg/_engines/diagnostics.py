"""Specification of diagnostics: sums, maxima and counts over spans (ranges of elements).

Measurements are bitwise reproducible. `MEASURED` lists the measurements of a variable. They use the
numbers that the update reads and writes, in the compute dtype. The move of an element is the new
value minus the old value, rounded once. Sums are computed by `diagnostic_sums` per leaf (65,536
elements), and leaves are combined by `reduction_order`. Largest magnitudes are NaN if an element is
NaN. Gradients are counted as stored, before denormals are flushed.
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
from thalweg._base.device_numbers import wide_dtype, widened
from thalweg._engines import layout, reference
from thalweg._engines.codecs.checks import list_codecs
from thalweg._engines.codecs.records import decode_tensor
from thalweg._engines.denormals import set_denormals
from thalweg._engines.diagnostic_sums import sums_of_products
from thalweg._engines.low_precision_copies import resumed
from thalweg._engines.protocol import Columns, Stages, StepRequest
from thalweg._engines.reduction_order import LEAF, Tree, leaf_counts
from thalweg._engines.torch_functions import torch_dtype
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

_TINY = {
    torch.float16: 2.0**-14,
    torch.bfloat16: 2.0**-126,
    torch.float32: 2.0**-126,
    torch.float64: 2.0**-1022,
}

# A NumPy array on the CPU, a tensor elsewhere.
Array = Any
# By name: sums of shape (leaves,), others as one number. Arrays of a span on the CPU, else tensors.
Measurements = dict[str, Any]


class VariableDiagnostics:
    """Measurements of a variable: the constructor reads old values, `finish` reads new values.

    Args:
        index: The index of the variable in the step.
        columns: The scalars of `stages`.
        stages: Formulas that transform the gradient before it is measured.
    """

    def __init__(self, request: StepRequest, index: int, columns: Columns, stages: Stages) -> None:
        self._var, self._slots = request.variables[index], request.slots[index]
        self._codecs = list_codecs(request.rule.codecs, self._slots)
        self._copy = request.copies[index] if request.copies and request.from_copies else None
        self._flush = request.selection.denormals == "flush"
        self._kind = torch_dtype(layout.compute_dtype(self._var.dtype))
        grad = request.gradients[index]
        # A replayed step has sparse gradients as torch tensors.
        is_dense = isinstance(grad, Tensor) and grad.layout == torch.strided
        self._grad = grad.detach() if is_dense else None
        self._found: Measurements = {}
        with no_grad():
            if self._grad is not None:
                self._measure_gradient(
                    self._grad, stages, self._select_scalars(columns, index), request
                )
            self._old_weight = self._read_weight(is_pre_write=True)

    def _select_scalars(self, columns: Columns, index: int) -> dict[str, Any]:
        """Return the scalars of the variable, by name; tensors stay on their device."""
        dtype = layout.compute_dtype(self._var.dtype)
        by_variable = {name: vector[index] for name, vector in columns.by_variable.items()}
        by_variable = {
            name: scalar.to(self._kind) if isinstance(scalar, Tensor) else dtype(scalar)
            for name, scalar in by_variable.items()
        }
        return {**columns.shared[dtype], **by_variable}

    def _read_weight(self, is_pre_write: bool) -> Tensor:
        """Return the variable's elements as a vector in the compute dtype.

        A split weight includes its lower bits. With `is_pre_write`, the result is a new tensor that
        includes what other code has written to the copy (see `StepRequest.from_copies`).
        """
        var = self._var.detach()
        if is_pre_write and self._copy is not None and not layout.is_far(self._copy, var.device):
            var = resumed(var, self._copy)
        for codec, slot in zip(self._codecs, self._slots, strict=True):
            if codec is not None and codec.is_beside:
                var = decode_tensor(codec, slot, var)
        flat = reference.flatten_like(var, self._var).to(self._kind)
        return flat.clone() if is_pre_write and flat.dtype == var.dtype else flat

    def _read_momentum(self, request: StepRequest) -> Tensor | None:
        """Return the rule's momentum in the compute dtype, or None."""
        position, sign = find_momentum(request.rule)
        if position is None:
            return None
        momentum, codec = self._slots[position], self._codecs[position]
        momentum = momentum.detach() if codec is None else decode_tensor(codec, momentum, self._var)
        momentum = reference.flatten_like(momentum, self._var).to(self._kind)
        return momentum if sign > 0 else -momentum

    def _measure_gradient(
        self, grad: Tensor, stages: Stages, scalars: dict[str, Any], request: StepRequest
    ) -> None:
        """Add measurements of the gradient, before and after `stages`, to `self._found`."""
        grad = grad.to(self._var.device)
        staged_grad = reference.transform(stages, grad, scalars, self._flush, self._kind)
        raw = reference.flatten_like(grad, self._var)
        flat, momentum = (
            reference.flatten_like(staged_grad, self._var),
            self._read_momentum(request),
        )
        span_measurements: list[Measurements] = []
        for span in _iterate_spans(raw):
            span_measurements.append(_counts_of(_convert_to_array(raw[span]), _TINY[raw.dtype]))
            arrays = [
                _convert_to_array(x[span].to(self._kind)) for x in (flat, momentum) if x is not None
            ]
            with set_denormals(self._flush), np.errstate(all="ignore"):
                span_measurements[-1] |= _sums_of_gradient(*arrays)
        self._found |= _merge_spans(span_measurements)

    def finish(self) -> Measurements:
        """Return {name: measurement} of the variable; call it after the writes."""
        with no_grad():
            new_weight, raw = self._read_weight(is_pre_write=False), None
            span_measurements: list[Measurements] = []
            if self._grad is not None:
                raw = reference.flatten_like(self._grad.to(self._var.device), self._var)
            for span in _iterate_spans(new_weight):
                new, old = (
                    _convert_to_array(new_weight[span]),
                    _convert_to_array(self._old_weight[span]),
                )
                with set_denormals(self._flush), np.errstate(all="ignore"):
                    span_measurements.append(_sums_of_move(new, old))
                    equal_mask = new == old
                if raw is not None:
                    has_gradient = _convert_to_array(raw[span]) != 0
                    span_measurements[-1]["unchanged"] = (equal_mask & has_gradient).sum()
            return {**self._found, **_merge_spans(span_measurements)}

    @property
    def size(self) -> int:
        """Return the number of elements of the variable."""
        return self._var.numel()


def find_momentum(rule: Rule) -> tuple[int | None, int]:
    """Return the index of the first slot marked as momentum, or None, and its sign."""
    for position, slot in enumerate(rule.element_slots):
        if slot.momentum:
            return position, slot.momentum
    return None, 1


def combine_measurements(per_variable: Sequence[Measurements], sizes: Sequence[int]) -> Any:
    """Return measurements of variables of one device as float64 (variables, len(MEASURED)).

    Return a NumPy array for the CPU, else a tensor. Missing measurements are NaN.
    """
    entries = (entry for measurements in per_variable for entry in measurements.values())
    device = next((entry.device for entry in entries), torch.device("cpu"))
    counts, columns = leaf_counts(sizes).tolist(), list[Tensor]()
    tree = _make_tree(tuple(counts), device)
    missing = torch.full((), np.nan, dtype=wide_dtype(device), device=device)
    for name in MEASURED:
        if name in PRODUCTS:
            leaves = [
                measurements.get(name, missing.expand(count))
                for measurements, count in zip(per_variable, counts, strict=True)
            ]
            columns.append(tree.combine(torch.cat(leaves)))
        else:
            values = [measurements.get(name, missing) for measurements in per_variable]
            columns.append(torch.stack(list(map(widened, values))))
    combined = torch.stack(columns, -1)
    return combined.numpy() if device.type == "cpu" else combined


@lru_cache(maxsize=32)
def _make_tree(counts: tuple[int, ...], device: torch.device) -> Tree:
    """Return a cached tree; a new tree would synchronize with the device to copy its indices."""
    return Tree(np.array(counts, np.int64), device)


def _iterate_spans(flat: Tensor) -> Iterator[slice]:
    # As many elements as fit into caches on the CPU, more on a device.
    size = LEAF * (4 if flat.device.type == "cpu" else 64)
    return (slice(first, first + size) for first in range(0, flat.numel(), size))


def _convert_to_array(flat: Tensor) -> Array:
    """Return a CPU tensor as an array, which can flush denormals; return GPU tensors unchanged."""
    if flat.device.type != "cpu":
        return flat
    source = flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
    return numpy_copy(source)


def _convert_to_tensor(values: Array) -> Tensor:
    """Return an array or number of NumPy as a CPU tensor; return tensors unchanged."""
    return values if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values))


def _counts_of(raw: Array, tiny: float) -> Measurements:
    """Return how many numbers of a gradient are zero, denormal, or not finite."""
    finite = torch.isfinite(raw) if isinstance(raw, Tensor) else np.isfinite(raw)
    return {
        "zero": (raw == 0).sum(),
        "denormal": ((abs(raw) < tiny) & (raw != 0)).sum(),
        "nonfinite": (~finite).sum(),
    }


def _sums_of_gradient(grad: Array, momentum: Array | None = None) -> Measurements:
    """Return sums of products and the largest magnitude of a gradient in a span.

    With `momentum`, also return the count of elements where gradient and momentum have equal signs.
    """
    # A product with 1 flushes the denormals that an update would have flushed.
    values = {"gradient": grad * 1}
    if momentum is not None:
        values["momentum"] = momentum * 1
    pairs = {name: pair for name, pair in PRODUCTS_OF_GRADIENT.items() if {*pair} <= values.keys()}
    measurements = sums_of_products(values, pairs)
    measurements["gradient_max"] = abs(values["gradient"]).max()
    if momentum is not None:
        a, b = values["gradient"], values["momentum"]
        measurements["agreement"] = (((a < 0) & (b < 0)) | ((a > 0) & (b > 0))).sum()
    return measurements


def _sums_of_move(new: Array, old: Array) -> Measurements:
    values = {"update": new - old, "weight": new * 1}
    measurements = sums_of_products(values, PRODUCTS_OF_MOVE)
    return {**measurements, **{f"{name}_max": abs(array).max() for name, array in values.items()}}


def _merge_spans(spans: Sequence[Measurements]) -> dict[str, Tensor]:
    """Merge the measurements of all spans of a variable into measurements of the variable."""
    measurements: dict[str, Tensor] = {}
    for name in spans[0] if spans else ():
        values = list(map(_convert_to_tensor, (span[name] for span in spans)))
        if name in PRODUCTS:
            measurements[name] = torch.cat(values)
        else:
            stacked = torch.stack(values)
            measurements[name] = widened(stacked.max()) if name in PEAKS else stacked.sum()
    return measurements
