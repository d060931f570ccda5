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
    """Compute a loss; return (loss, variables).

    The variables are those of `var_list`, or without it all trainable ones that the loss depends
    on.
    """
    if var_list is None:
        loss_value = loss()
        return loss_value, variables_of(loss_value)
    variables = distinct(flatten(var_list))
    check_variables(variables)
    with GradientTape():
        loss_value = loss()
    return loss_value, variables


def need_no_tape(variables: Sequence[Tensor]) -> bool:
    """Return True if autograd records all variables that are not frozen without a tape."""
    return all(var.requires_grad or is_frozen(var) for var in variables)


def backward(
    loss_value: Tensor,
    variables: Sequence[Tensor],
    grad_loss: object,
    apply: Callable[[Gradient, Tensor], None],
) -> list[Tensor]:
    """Run the backward pass, and apply and free each gradient as soon as it is complete.

    Args:
        loss_value: The loss.
        variables: The variables of the loss.
        grad_loss: Weights of the loss's elements, of its shape, or None.
        apply: Called with each gradient and its variable.

    Returns:
        The variables that had a gradient, in the order in which they were updated.

    Raises:
        ValueError: No variable has a gradient.

    If `apply` raises, earlier variables stay updated, and a note on the error names them.
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
