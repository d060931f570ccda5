"""GATE_NONE: each gradient is applied inside the backward pass, and freed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._core.commit import add_note
from thalweg._core.grads_and_vars import Gradient, check_variables, distinct, flatten
from thalweg.autodiff import GradientTape, variables_of
from thalweg.indexed_slices import as_gradient
from thalweg.v1.train.gradients import none_given
from thalweg.variable import is_frozen, name_of, to_tensor


def forward(loss: Any, var_list: object) -> tuple[Tensor, list[Tensor]]:
    """Return a loss and its variables: those given, or all that it depends on."""
    if var_list is None:
        loss_value = loss()
        return loss_value, variables_of(loss_value)
    variables = distinct(flatten(var_list))
    check_variables(variables)
    with GradientTape():
        loss_value = loss()
    return loss_value, variables


def need_no_tape(variables: Sequence[Tensor]) -> bool:
    """Return True if all variables require gradients or are frozen, so that no tape has to watch
    them.
    """
    return all(var.requires_grad or is_frozen(var) for var in variables)


def backward(
    loss_value: Tensor,
    variables: Sequence[Tensor],
    grad_loss: object,
    apply: Callable[[Gradient, Tensor], None],
) -> list[Tensor]:
    """Apply gradients so that no two of them need exist at the same time.

    Args:
        loss_value: The loss.
        variables: Its variables.
        grad_loss: Weights of its elements, of its shape, or None.
        apply: Called with each gradient and its variable, as soon as the gradient is complete.

    Returns:
        The variables that have a gradient.

    Raises:
        ValueError: No variable has one.

    An error while a gradient is applied leaves the variables before it updated; a note on the
    error names them.
    """
    updated: list[Tensor] = []

    def apply_and_release(var: Tensor) -> None:
        grad, var.grad = as_gradient(var.grad), None
        if grad is not None:
            apply(grad, var)
            updated.append(var)

    sources = [var for var in variables if var.requires_grad]
    previous_grads = [var.grad for var in sources]
    handles = []
    try:
        for var in sources:
            var.grad = None
            handles.append(var.register_post_accumulate_grad_hook(apply_and_release))
        if loss_value.requires_grad and sources:
            weight = torch.ones_like(loss_value) if grad_loss is None else to_tensor(grad_loss)
            torch.autograd.backward(loss_value, weight, inputs=sources)
    except BaseException as error:
        names = [name_of(var) for var in updated]
        message = f"With GATE_NONE these variables had been updated before: {names}."
        if names:
            add_note(error, [message])  # not that no variable has changed
        else:
            error.add_note(message)
        raise
    finally:
        for handle in handles:
            handle.remove()
        for var, grad in zip(sources, previous_grads, strict=True):
            var.grad = grad
    if not updated:
        raise none_given(variables, loss_value)
    return updated
