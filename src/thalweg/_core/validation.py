"""What a step is refused for before anything is made ready."""

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
    """Whether TensorFlow has scatter kernels for the rule, with their own words for a bad index."""
    return rule.update_untouched is not None or rule.duplicates == "successive"


def check_pairs(
    pairs: Sequence[Pair],
    titles: Sequence[str],
    *,
    scatter: bool,
    narrow: bool = False,
    devices: Sequence[torch.device] | None = None,
) -> None:
    """Refuse a step that cannot be taken as a whole; nothing has changed then.

    Args:
        pairs: The step, gradients converted.
        titles: The variables' names for messages.
        scatter, narrow, devices: As in `check_gradients` of the engines, which raises most.

    Raises:
        RuntimeError: For a sparse gradient of a constrained variable.
    """
    gradients, variables = [grad for grad, _ in pairs], [var for _, var in pairs]
    check_gradients(variables, gradients, titles, scatter=scatter, narrow=narrow, devices=devices)
    for grad, var, title in zip(gradients, variables, titles, strict=True):
        if has_rows(grad) and variable_constraint(var) is not None:
            raise sparse_and_constrained(title)


def check_memories(tensors: Sequence[Tensor]) -> None:
    """Refuse what has no memory that holds its elements, before it is read.

    Raises:
        LayoutError: Names the first one.
    """
    for tensor in tensors:
        check_memory(tensor, f"'{name_of(tensor)}'")


def check_readable(gradients: Sequence[Gradient | None], titles: Sequence[str]) -> None:
    """Refuse gradients that have no memory that holds their elements, before they are read.

    Args:
        gradients: None is no gradient.
        titles: The names of their variables.

    Raises:
        LayoutError: Names the variable of the first one.
    """
    for grad, title in zip(gradients, titles, strict=True):
        if grad is not None:
            check_memory(values_of(grad), f"The gradient of '{title}'")
            if isinstance(grad, IndexedSlices):
                check_memory(grad.indices, f"The indices of the gradient of '{title}'")


def counting(counter: Tensor) -> Call:
    """What raises a counter of shape () by 1, as a function in C.

    Raises:
        LayoutError: It has no memory, or memory that may only be read.
    """
    check_number(counter)
    check_numbers_writable([counter], lambda _: name_of(counter))
    return partial(counter.detach().add_, 1)


def check_numerics(max_abs: Float64, titles: Sequence[str]) -> None:
    """Refuse gradients that are not finite.

    Args:
        peaks: The largest magnitude of each gradient; NaN if it holds one.
        titles: The variables' names.
    """
    for peak, title in zip(max_abs.tolist(), titles, strict=True):
        if not isfinite(peak):
            kind = "Inf" if peak == inf else "NaN"
            raise InvalidArgumentError(f"gradient of '{title}' : Tensor had {kind} values")


def sparse_and_constrained(title: str) -> RuntimeError:
    return RuntimeError(f"Cannot use a constraint function on a sparse variable: '{title}'.")
