"""Complex variables: a rule that is linear updates them as pairs of real numbers; another computes
with complex numbers, as TensorFlow's kernels do, if it has nothing but arithmetic and roots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._core.grads_and_vars import Gradient, Pair, as_real
from thalweg._core.validation import check_pairs
from thalweg._engines.formula_graph import ROUNDED
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.layout import check_kind
from thalweg.errors import InvalidTypeError
from thalweg.formula import Formula, Rule
from thalweg.indexed_slices import IndexedSlices, values_of
from thalweg.variable import dtype_name


def real_pair(grad: Gradient, var: Tensor) -> Pair:
    """Gradient and variable as real numbers."""
    if isinstance(grad, IndexedSlices):
        return IndexedSlices(as_real(grad.values), grad.indices, (*var.shape, 2)), as_real(var)
    return as_real(grad), as_real(var)


def check_complex(pairs: Sequence[Pair], titles: Sequence[str], rule: Rule, clips: bool) -> None:
    """Refuse complex variables that the rule cannot update.

    Raises:
        InvalidTypeError: The rule is neither linear nor analytic, gradients are to be clipped, or a
            gradient is of another dtype.
        InvalidArgumentError, LayoutError: As for real variables.
    """
    for (grad, var), title in zip(pairs, titles, strict=True):
        if not (rule.linear or is_analytic(rule)):
            raise not_defined(rule, var, title)
        if clips:
            kind = f"'{title}' is {dtype_name(var.dtype)}."
            raise InvalidTypeError(f"Clipping is not defined for complex gradients; {kind}")
        check_kind(values_of(grad), var, title)
    check_pairs([real_pair(*pair) for pair in pairs], titles, scatter=True)


def not_defined(rule: Rule, var: Tensor, title: str) -> InvalidTypeError:
    """The error for a complex variable of a rule of real numbers."""
    return InvalidTypeError(
        f"{rule.name} is not defined for complex variables; '{title}' is {dtype_name(var.dtype)}."
    )


_ANALYTIC = {*ROUNDED, "neg", "sqrt", "square", "stream", "scalar", "const"}


@cache
def is_analytic(rule: Rule) -> bool:
    """Return True if a rule consists of arithmetic and square roots, so that it can run on complex
    tensors.
    """
    other_functions = rule.before, rule.update_single, rule.per_variable
    if any(other_functions) or rule.whole or rule.duplicates != "sum":
        return False
    formulas = rule.update, rule.update_sparse, rule.update_untouched
    return all(_has_arithmetic_alone(formula) for formula in formulas if formula is not None)


def _has_arithmetic_alone(formula: Formula) -> bool:
    return all(node.op in _ANALYTIC for node in trace_formula(formula).nodes)


def update_analytic(
    rule: Rule, grad: Gradient, tensors: Sequence[Tensor], scalars: Mapping[str, object]
) -> None:
    """Write a step of an analytic rule.

    Args:
        rule: The rule.
        grad: The gradient.
        tensors: The variable and its slots.
        scalars: What the formulas read.
    """
    with importing:
        from thalweg._engines.torch_functions import torch_evaluate
    detached, numbers = [tensor.detach() for tensor in tensors], dict(scalars)
    if not isinstance(grad, IndexedSlices):
        inputs = [detached[0], grad.detach().resolve_conj(), *detached[1:]]
        results = torch_evaluate(rule.update, inputs, numbers)
        for tensor, result in zip(detached, results, strict=True):
            tensor.copy_(result)
        return
    untyped = cast(Any, torch)
    rows, places = untyped.unique(grad.indices.long(), return_inverse=True)
    values = grad.values.detach().resolve_conj()
    row_sums = values.new_zeros((len(rows), *values.shape[1:])).index_add_(0, places, values)
    var, *slots = (tensor[rows] for tensor in detached)
    formula = rule.update_sparse or rule.update
    for tensor, result in zip(
        detached, torch_evaluate(formula, [var, row_sums, *slots], numbers), strict=True
    ):
        tensor[rows] = result
    if rule.update_untouched is not None:
        is_untouched = torch.ones(len(detached[0]), dtype=torch.bool, device=rows.device)
        is_untouched.index_fill_(0, rows, False)
        untouched_rows = [tensor[is_untouched] for tensor in detached]
        results = torch_evaluate(rule.update_untouched, untouched_rows, numbers)
        for tensor, result in zip(detached, results, strict=True):
            tensor[is_untouched] = result
