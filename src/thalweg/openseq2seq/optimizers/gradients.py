"""Gradients as concrete tensors, and functions of gradients, deferred in graph mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.execution_context import is_deferred
from thalweg._core.gradient_stats import transform_gradients
from thalweg._core.gradient_transforms import Decision, GradientTransforms
from thalweg._core.grads_and_vars import concrete as concrete
from thalweg._engines import current
from thalweg._graph import made_of_gradients
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import Gradient as Gradient
from thalweg.indexed_slices import values_of
from thalweg.variable import name_of

Function = Callable[..., Sequence[Gradient]]


def concretes(gradients: Iterable[Any]) -> list[Gradient]:
    """Return each gradient as `concrete` does."""
    gradients = list(gradients)
    # Plain tensors, the usual case, are returned without a call for each.
    for grad in gradients:
        if type(grad) is not Tensor or grad.layout is not torch.strided or grad.requires_grad:
            return list(map(concrete, gradients))
    return gradients


def check_given(grads_and_vars: Iterable[tuple[object, object]]) -> list[tuple[Any, Any]]:
    """Return (gradient, variable) pairs as a list; raise InvalidArgumentError if it is empty."""
    pairs = list(grads_and_vars)
    if not pairs:
        raise InvalidArgumentError("No variables provided.")
    return pairs


def check_dtypes(gradients: Sequence[Gradient], variables: Sequence[Tensor]) -> None:
    """Raise InvalidTypeError about the first variable whose gradient has a different dtype."""
    for grad, var in zip(gradients, variables, strict=True):
        if type(grad) is Tensor and grad.dtype is var.dtype:
            continue
        if grad is not None and values_of(grad).dtype != var.dtype:
            raise InvalidTypeError(
                f"Gradient of '{name_of(var)}' is {values_of(grad).dtype} but the variable"
                f" is {var.dtype}. Cast the gradient."
            )


def floating(values: Tensor) -> Tensor:
    """Return values unchanged if floating-point, else as float32."""
    return values if values.is_floating_point() else values.float()


def transform_present(
    gradients: Sequence[Gradient], variables: Sequence[object], transforms: GradientTransforms
) -> tuple[list[Gradient], Decision]:
    """Return (list of transformed gradients, `Decision` whether the step is taken).

    Args:
        gradients: Gradients; None stays None. They are not changed.
        variables: One variable per gradient. A new gradient has the dtype of its variable.
    """
    present = [index for index, grad in enumerate(gradients) if grad is not None]
    pairs: Any = [(gradients[index], variables[index]) for index in present]
    new_pairs, decision = transform_gradients(pairs, transforms, current().denormals == "flush")
    new_gradients = list(gradients)
    for index, (grad, _) in zip(present, new_pairs, strict=True):
        new_gradients[index] = grad
    return new_gradients, decision


def refuse_none(pairs: Iterable[tuple[object, Any]], reason: str) -> None:
    """Raise InvalidArgumentError about the first pair without gradient, with a reason."""
    for grad, var in pairs:
        if grad is None:
            raise InvalidArgumentError(
                f"'{name_of(var)}' has no gradient, but {reason}. Leave it out of var_list."
            )


def map_gradients(
    function: Function,
    gradients: Sequence[object],
    variables: Sequence[object],
    *others: object,
    name: str,
    dtypes: Sequence[object],
    dense: bool = False,
) -> list[Any]:
    """Return `function(gradients, variables, *others)`, the new gradients, as a list.

    In graph mode return symbolic gradients; each run calls the function.

    Args:
        function: A function of concrete tensors.
        gradients: Concrete or symbolic gradients, or None.
        variables: One variable per gradient.
        *others: Further arguments, concrete or symbolic.
        name: Name of the operation in graph mode.
        dtypes: The dtypes of the results.
        dense: True if results are dense even for sparse gradients.
    """
    if not is_deferred(*gradients, *variables, *others):
        with no_grad():
            return list(function(concretes(gradients), variables, *others))

    def run(gradients: list[object], *given: object) -> list[Any]:
        with no_grad():
            return list(function(concretes(gradients), *given))

    return made_of_gradients(
        run, gradients, variables, *others, name=name, dtypes=dtypes, dense=dense
    )


def map_pairs(
    function: Function, pairs: Sequence[tuple[Any, Any]], *others: object, **options: Any
) -> list[tuple[Any, Any]]:
    """Return (new gradient, variable) pairs; see `map_gradients` for the arguments.

    By default a new gradient has the dtype of the variable.
    """
    gradients, variables = [grad for grad, _ in pairs], [var for _, var in pairs]
    options.setdefault("dtypes", [var.dtype for var in variables])
    new_gradients = map_gradients(function, gradients, variables, *others, **options)
    return list(zip(new_gradients, variables, strict=True))
