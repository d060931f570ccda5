"""Updates of complex variables.

A linear rule updates the real and imaginary parts of a variable as real numbers. Another rule is
evaluated on complex tensors, as by TensorFlow's kernels, if it is analytic: arithmetic and square
roots only.
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
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices, values_of
from thalweg.variable import dtype_name


def real_pair(grad: Gradient, var: Tensor) -> Pair:
    """Return gradient and variable as views of real numbers, with a last dimension of 2."""
    if isinstance(grad, IndexedSlices):
        return IndexedSlices(as_real(grad.values), grad.indices, (*var.shape, 2)), as_real(var)
    return as_real(grad), as_real(var)


def check_complex(pairs: Sequence[Pair], labels: Sequence[str], rule: Rule, clips: bool) -> None:
    """Raise an error unless the rule can update these complex variables.

    Args:
        pairs, labels: The gradients and variables, and the variables' names.
        clips: True if gradients are clipped, which is an error.

    Raises:
        InvalidTypeError: The rule is neither linear nor analytic; or gradients are clipped; or a
            gradient and its variable have different dtypes.
        InvalidArgumentError, LayoutError: Shapes or memory are invalid; see `check_pairs`.
    """
    for (grad, var), label in zip(pairs, labels, strict=True):
        if not (rule.linear or is_analytic(rule)):
            raise not_defined(rule, var, label)
        if clips:
            kind = f"'{label}' is {dtype_name(var.dtype)}."
            raise InvalidTypeError(f"Clipping is not defined for complex gradients; {kind}")
        check_kind(values_of(grad), var, label)
    check_pairs([real_pair(*pair) for pair in pairs], labels, scatter=True)


def not_defined(rule: Rule, var: Tensor, label: str) -> InvalidTypeError:
    """Return the error that a rule does not support complex variables."""
    return InvalidTypeError(
        f"{rule.name} is not defined for complex variables; '{label}' is {dtype_name(var.dtype)}."
    )


_ANALYTIC = {*ROUNDED, "neg", "sqrt", "square", "stream", "scalar", "const"}


@cache
def is_analytic(rule: Rule) -> bool:
    """Return True if a rule's formulas consist of arithmetic and square roots only.

    Such a rule can be evaluated on complex tensors.
    """
    other_functions = rule.before, rule.update_single, rule.per_variable
    if any(other_functions) or rule.whole or rule.duplicates != "sum":
        return False
    formulas = rule.update, rule.update_sparse, rule.update_untouched
    traced = [trace_formula(formula) for formula in formulas if formula is not None]
    return all(node.op in _ANALYTIC for formula in traced for node in formula.nodes)


def update_analytic(
    rule: Rule, grad: Gradient, tensors: Sequence[Tensor], scalars: Mapping[str, object]
) -> None:
    """Update a complex variable and its slots in place by an analytic rule.

    Args:
        grad: The gradient. Rows of a sparse gradient with equal indices are summed first.
        tensors: The variable, then its slots in the order of the rule.
        scalars: The scalars of the rule's formulas, by name.
    """
    with importing:
        from thalweg._engines.torch_functions import torch_evaluate
    detached, scalar_values = [tensor.detach() for tensor in tensors], dict(scalars)
    if not isinstance(grad, IndexedSlices):
        # A conjugate view is lazy; formulas read memory.
        inputs = [detached[0], grad.detach().resolve_conj(), *detached[1:]]
        results = torch_evaluate(rule.update, inputs, scalar_values)
        for tensor, result in zip(detached, results, strict=True):
            tensor.copy_(result)
        return
    # Each row must occur once: an indexed write keeps only one of several results.
    untyped = cast(Any, torch)
    rows, row_indices = untyped.unique(grad.indices.long(), return_inverse=True)
    values = grad.values.detach().resolve_conj()
    row_sums = values.new_zeros((len(rows), *values.shape[1:])).index_add_(0, row_indices, values)
    var, *slots = (tensor[rows] for tensor in detached)
    formula = rule.update_sparse or rule.update
    for tensor, result in zip(
        detached, torch_evaluate(formula, [var, row_sums, *slots], scalar_values), strict=True
    ):
        tensor[rows] = result
    if rule.update_untouched is not None:
        is_untouched = torch.ones(len(detached[0]), dtype=torch.bool, device=rows.device)
        is_untouched.index_fill_(0, rows, False)
        untouched_rows = [tensor[is_untouched] for tensor in detached]
        results = torch_evaluate(rule.update_untouched, untouched_rows, scalar_values)
        for tensor, result in zip(detached, results, strict=True):
            tensor[is_untouched] = result
