"""Validation of a step before it is planned."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf, isfinite

import torch
from torch import Tensor

from thalweg._core.atomic_section import Call
from thalweg._core.grads_and_vars import Pair, has_rows
from thalweg._engines import check_gradients
from thalweg._engines.array_types import Float64
from thalweg._engines.layout import check_memory
from thalweg._engines.memory_protection import check_numbers_writable
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Rule
from thalweg.indexed_slices import Gradient, IndexedSlices, values_of
from thalweg.variable import check_number, name_of, variable_constraint


def scatters(rule: Rule) -> bool:
    """Return True if TensorFlow has scatter kernels for a rule; errors of indices follow them."""
    return rule.update_untouched is not None or rule.duplicates == "successive"


def check_pairs(
    pairs: Sequence[Pair],
    labels: Sequence[str],
    *,
    scatter: bool,
    narrow: bool = False,
    devices: Sequence[torch.device] | None = None,
) -> None:
    """Raise an error unless the variables can be updated by their gradients.

    Args:
        pairs: Converted gradients with their variables.
        labels: The variables' names, for messages.
        scatter: True to word errors about indices like TensorFlow's scatter kernels.
        narrow: True to accept 16-bit gradients of float32 variables.
        devices: The expected device of each dense gradient; by default the variable's.

    Raises:
        RuntimeError: The gradient of a constrained variable is sparse.
        InvalidTypeError, InvalidArgumentError, LayoutError: See `check_gradients` of the engines.
    """
    gradients, variables = [grad for grad, _ in pairs], [var for _, var in pairs]
    check_gradients(variables, gradients, labels, scatter=scatter, narrow=narrow, devices=devices)
    for grad, var, label in zip(gradients, variables, labels, strict=True):
        if has_rows(grad) and variable_constraint(var) is not None:
            raise sparse_and_constrained(label)


def check_memories(tensors: Sequence[Tensor]) -> None:
    """Raise LayoutError for the first tensor whose memory does not hold its elements."""
    for tensor in tensors:
        check_memory(tensor, f"'{name_of(tensor)}'")


def check_readable(gradients: Sequence[Gradient | None], labels: Sequence[str]) -> None:
    """Raise LayoutError for the first gradient whose memory does not hold its elements.

    Args:
        gradients: The gradients; None for a missing gradient.
        labels: The variables' names, for the message.
    """
    for grad, label in zip(gradients, labels, strict=True):
        if grad is not None:
            check_memory(values_of(grad), f"The gradient of '{label}'")
            if isinstance(grad, IndexedSlices):
                check_memory(grad.indices, f"The indices of the gradient of '{label}'")


def counting(counter: Tensor) -> Call:
    """Return a C function that adds 1 to a counter of shape ().

    Raises:
        LayoutError: The counter has no memory, or it is read-only.
    """
    check_number(counter)
    check_numbers_writable([counter], lambda _: name_of(counter))
    return partial(counter.detach().add_, 1)


def check_numerics(max_abs: Float64, labels: Sequence[str]) -> None:
    """Raise InvalidArgumentError for the first gradient with an infinity or NaN.

    Args:
        max_abs: The largest magnitude of each gradient; NaN for a gradient with a NaN.
    """
    for peak, label in zip(max_abs.tolist(), labels, strict=True):
        if not isfinite(peak):
            kind = "Inf" if peak == inf else "NaN"
            raise InvalidArgumentError(f"gradient of '{label}' : Tensor had {kind} values")


def sparse_and_constrained(label: str) -> RuntimeError:
    return RuntimeError(f"Cannot use a constraint function on a sparse variable: '{label}'.")
