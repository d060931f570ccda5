"""GATE_NONE: each gradient is applied inside the backward pass, and freed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from thalweg.autodiff import GradientTape, variables_of
from thalweg.core.outcome import raise_first
from thalweg.core.pairs import check_variables, distinct, flatten
from thalweg.core.step import check_pairs
from thalweg.indexed_slices import as_gradient
from thalweg.v1.train.gradients import none_given
from thalweg.variable import name_of, to_tensor

if TYPE_CHECKING:
    from thalweg.v1.train.optimizer import Optimizer


def minimize(
    optimizer: Optimizer, loss: Any, global_step: Any, var_list: Any, grad_loss: Any
) -> None:
    """Take a step in which no two gradients of variables need exist at the same time.

    Raises:
        ValueError: No variable has a gradient.

    An error while a gradient is applied leaves the variables before it updated; a note on the
    error names them.
    """
    value, variables = _forward(loss, var_list)
    updated: list[Tensor] = []
    errors: list[BaseException] = []

    def complete(var: Tensor) -> None:
        grad, var.grad = as_gradient(var.grad), None
        if grad is None:
            return
        with torch.inference_mode(False), torch.no_grad():
            check_pairs([(grad, var)], [name_of(var)], scatter=optimizer._scatters())
            optimizer._create_slots([var])
            errors.extend(optimizer._apply_alone(grad, var))
        updated.append(var)

    sources = [var for var in variables if var.requires_grad]
    kept = [var.grad for var in sources]
    with optimizer._locked():
        optimizer._prepare()
        handles = []
        try:
            for var in sources:
                var.grad = None
                handles.append(var.register_post_accumulate_grad_hook(complete))
            if value.requires_grad and sources:
                weight = torch.ones_like(value) if grad_loss is None else to_tensor(grad_loss)
                torch.autograd.backward(value, weight, inputs=sources)
        except BaseException as error:
            names = [name_of(var) for var in updated]
            error.add_note(f"With GATE_NONE these variables had been updated before: {names}.")
            raise
        finally:
            for handle in handles:
                handle.remove()
            for var, grad in zip(sources, kept, strict=True):
                var.grad = grad
        if not updated:
            raise none_given(map(name_of, variables), value)
        optimizer._forget_others(updated)
        errors += optimizer._finished(optimizer.get_name(), global_step)
    raise_first(errors)


def _forward(loss: Any, var_list: Any) -> tuple[Tensor, list[Tensor]]:
    if var_list is None:
        value = loss()
        return value, variables_of(value)
    variables = distinct(flatten(var_list))
    check_variables(variables)
    tape = GradientTape()
    with tape:
        tape.watch(variables)
        value = loss()
    return value, variables
