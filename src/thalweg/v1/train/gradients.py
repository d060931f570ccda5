"""Gradients of a loss: of callables in eager mode, and of symbolic tensors in graph mode.

With GATE_NONE, the backward pass applies and frees each complete gradient at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg._core.commit import add_note
from thalweg._core.grads_and_vars import Gradient, check_variables, distinct, flatten
from thalweg.autodiff import GradientTape, has_replicas, variables_of
from thalweg.errors import InvalidTypeError
from thalweg.indexed_slices import as_gradient
from thalweg.variable import (
    TRAINED,
    Variable,
    dtype_name,
    frozen_among,
    is_frozen,
    is_variable,
    name_of,
    to_tensor,
)

GATE_NONE, GATE_OP, GATE_GRAPH = 0, 1, 2
VALID_DTYPES = TRAINED
_DTYPE_NAMES = f"[{', '.join(map(dtype_name, TRAINED))}]"

_LEAF_TYPES = {torch.Tensor, torch.nn.Parameter, Variable}
_is_leaf, _requires_grad, _is_nested = map(attrgetter, ("is_leaf", "requires_grad", "is_nested"))

GradsAndVars = list[tuple[Any, Any]]
Scale = Callable[[Any], Any]


def check_dtypes(tensors: Iterable[Any], valid: Iterable[torch.dtype] = VALID_DTYPES) -> None:
    """Raise InvalidTypeError for the first tensor whose dtype is not in `valid`.

    Skip objects without a torch dtype.
    """
    for tensor in tensors:
        dtype = getattr(tensor, "dtype", None)
        if isinstance(dtype, torch.dtype) and dtype not in valid:
            name = name_of(tensor, "the loss")
            raise InvalidTypeError(f"Invalid type {dtype} for {name}, expected: {_DTYPE_NAMES}.")


def check_gate(gate_gradients: object) -> None:
    """Raise ValueError unless the gate is GATE_NONE, GATE_OP or GATE_GRAPH."""
    if gate_gradients not in (GATE_NONE, GATE_OP, GATE_GRAPH):
        raise ValueError(
            "gate_gradients must be one of: Optimizer.GATE_NONE, Optimizer.GATE_OP,"
            f" Optimizer.GATE_GRAPH. Not {gate_gradients}"
        )


def none_given(variables: Iterable[Any], loss: object) -> ValueError:
    """Return the ValueError for a loss without gradients; the caller raises it."""
    variables = list(variables)
    names = [name_of(var, "Tensor") for var in variables]
    message = (
        "No gradients provided for any variable, check your graph for ops that do not support"
        f" gradients, between variables {names} and loss {loss}.{frozen_among(variables)}"
    )
    if not names:
        message += (
            "\nThere is no variable to train: the loss depends on none. Compute it inside of the"
            " function from variables or parameters, or give them as var_list."
        )
    return ValueError(message)


def of_callable(loss: Any, var_list: Any, grad_loss: object, scale: Scale) -> GradsAndVars:
    """Call `loss()` in eager mode; differentiate `scale(value)`; return (gradient, variable) pairs.

    A gradient is None if the loss does not depend on the variable.

    Args:
        loss: A callable without arguments.
        var_list: Variables in lists, which may be nested. None selects all trainable variables that
            the loss used, in order of creation.
        grad_loss: Weights of the loss's elements, or None.
        scale: `scale(value)` returns the value to differentiate.
    """
    tape = GradientTape()
    # The usual case, without flattening and checking the list.
    if grad_loss is None and _are_followed(var_list):
        with tape:
            output = scale(loss())
        grads = _differentiate_leaves(output, var_list, tape)
        return list(zip(grads, var_list, strict=True))
    leaves = None if var_list is None else flatten(var_list)
    # Plain tensors are accepted: they have gradients, but cannot be updated.
    if leaves is not None:
        check_variables([x for x in leaves if is_variable(x) or not isinstance(x, torch.Tensor)])
    with tape:
        if leaves is not None:
            tape.watch([x for x in leaves if not (is_variable(x) and is_frozen(x))])
        output = scale(loss())
    variables: list[Any] = variables_of(output) if leaves is None else leaves
    if not variables:
        return []
    return list(zip(tape.gradient(output, variables, grad_loss), variables, strict=True))


def _are_followed(var_list: object) -> bool:
    """Return True if `var_list` is a non-empty list of leaf tensors that require gradients.

    Return False if an element is a list or a nested tensor.
    """
    return (
        type(var_list) is list
        and bool(var_list)
        and _LEAF_TYPES.issuperset(map(type, var_list))
        and all(map(_is_leaf, var_list))
        and all(map(_requires_grad, var_list))
        and not any(map(_is_nested, var_list))
    )


def _differentiate_leaves(loss: Any, variables: list[Any], tape: GradientTape) -> Any:
    """Return a list with a gradient or None for each leaf tensor in `variables`.

    Call `torch.autograd.grad` in simple cases, else `tape.gradient`. `tape` has recorded the loss.
    """
    if (
        type(loss) is not torch.Tensor
        or not loss.requires_grad
        or tape._keeps_graph
        or has_replicas()
        # The loss may have frozen or replaced a variable.
        or not _are_followed(variables)
    ):
        return tape.gradient(loss, variables)
    grads = torch.autograd.grad([loss], variables, [torch.ones_like(loss)], allow_unused=True)
    return [
        grad if grad is None or grad.layout is torch.strided else as_gradient(grad)
        for grad in grads
    ]


def of_symbol(
    loss: object,
    var_list: object,
    gate_gradients: int,
    grad_loss: object,
    valid: Iterable[torch.dtype],
    aggregation_method: object = None,
) -> GradsAndVars:
    """Return (symbolic gradient, variable) pairs of a symbolic loss.

    A gradient is None if the loss does not depend on the variable, or if the variable is frozen
    (`requires_grad_(False)`).

    Args:
        loss: A symbolic tensor.
        var_list: Variables in lists, which may be nested; None selects all trainable variables of
            the default graph.
        gate_gradients: GATE_NONE, GATE_OP or GATE_GRAPH; no effect on values.
        grad_loss: Weights of the loss's elements, or None.
        valid: The dtypes that losses and variables may have.
        aggregation_method: Checked only.

    Raises:
        ValueError: The gate is invalid, or there are no variables.
        InvalidTypeError: A dtype is not in `valid`, or a variable is not of the graph.
    """
    check_gate(gate_gradients)
    check_dtypes([loss] if grad_loss is None else [loss, grad_loss], valid)
    frozen: set[int] = set()
    if var_list is None:
        keys = _graph.GraphKeys.TRAINABLE_VARIABLES, _graph.GraphKeys.TRAINABLE_RESOURCE_VARIABLES
        graph = _graph.get_default_graph()
        variables = distinct([variable for key in keys for variable in graph.get_collection(key)])
    else:
        listed_variables = flatten(var_list)
        variables = [_graph.graph_variable_of(var) for var in listed_variables]
        listed_pairs = zip(listed_variables, variables, strict=True)
        frozen = {id(var) for variable, var in listed_pairs if is_frozen(variable)}
    if not variables:
        raise ValueError("No variables to optimize.")
    for var in variables:
        if not _graph.is_symbolic(var):
            raise InvalidTypeError(
                f"var_list holds {show_value(var)}, which is not a variable of the graph."
                " Make variables inside `with graph.as_default():`."
            )
    grads = _graph.gradients(
        loss, variables, grad_loss, gate_gradients=gate_gradients == GATE_OP,
        aggregation_method=aggregation_method,
    )  # fmt: skip
    pairs = [
        (None if id(var) in frozen else grad, var)
        for grad, var in zip(grads, variables, strict=True)
    ]
    check_dtypes((var for grad, var in pairs if grad is not None), valid)
    return pairs


def get_filtered_grad_fn(grad_fn: Callable[..., GradsAndVars]) -> Callable[..., GradsAndVars]:
    """Return a function that calls `grad_fn` and drops the pairs whose gradient is None."""

    def filtered_grad_fn(*args: object, **kwargs: object) -> GradsAndVars:
        return [(grad, var) for grad, var in grad_fn(*args, **kwargs) if grad is not None]

    return filtered_grad_fn


def check_any(pairs: Iterable[tuple[object, Any]]) -> None:
    """Raise ValueError if all gradients are None; the message names the variables."""
    pairs = list(pairs)
    if all(grad is None for grad, _ in pairs):
        variables = [var for _, var in pairs]
        names = [name_of(var, "Tensor") for var in variables]
        hint = frozen_among(variables)
        raise ValueError(f"No gradients provided for any variable: {names}.{hint}")


def forward(loss: Any, var_list: object) -> tuple[Tensor, list[Tensor]]:
    """Call `loss()`; return (value of the loss, variables in `var_list` as a list).

    If `var_list` is None, the list has all trainable variables on which the loss depends.
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
    """Return True if autograd records all variables that are not frozen, even without a tape."""
    return all(var.requires_grad or is_frozen(var) for var in variables)


def backward(
    loss_value: Tensor,
    variables: Sequence[Tensor],
    grad_loss: object,
    apply: Callable[[Gradient, Tensor], None],
) -> list[Tensor]:
    """Run the backward pass; apply and free each gradient as soon as it is complete.

    Args:
        loss_value: The value of the loss.
        variables: The variables of the loss.
        grad_loss: Weights of the loss's elements, of its shape, or None.
        apply: `apply(gradient, variable)` updates the variable.

    Returns:
        The updated variables, in the order of the updates. The attribute `grad` of all variables is
        restored.

    Raises:
        ValueError: No variable has a gradient.

    If `apply` raises, variables updated before remain updated, and a note on the error names them.
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
            add_note(error, [message])
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
