"""Keras variables that share memory with an optimizer of thalweg."""

# Keras has no types, and `wrapped` is an optimizer of this library.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch
from torch import Tensor


def share(variable: Any, tensor: Tensor) -> None:
    """Make a variable of Keras hold `tensor` itself, of its shape; the dtype may differ."""
    if not isinstance(tensor, torch.nn.Parameter):
        tensor = torch.nn.Parameter(tensor.detach(), requires_grad=False)
    variable._initialize(tensor)
    variable._dtype = keras.backend.standardize_dtype(tensor.dtype)


def slot_variables(
    optimizer: Any, variables: Sequence[Any], tensors: Sequence[Tensor]
) -> list[tuple[Any, Tensor]]:
    """Create Keras variables that share memory with the weights of the wrapped optimizer.

    Args:
        optimizer: The optimizer of Keras, to which the variables are added.
        variables: Keras variables that the optimizer trains.
        tensors: The tensor of each of `variables`.

    Returns:
        (new Keras variable, weight) pairs in the order of `get_weights`. `iterations` and slots of
        variables outside `variables` are left out.
    """
    wrapped = optimizer.wrapped
    vars_by_tensor = {id(tensor): var for var, tensor in zip(variables, tensors, strict=True)}
    slots = {id(slot): (owner, name) for owner, name, slot in wrapped._slots.triples()}
    pairs: list[tuple[Any, Tensor]] = []
    for weight in [*wrapped.weights[1:], *wrapped._added_weights]:
        title = weight.name.split(":")[0].split("/")[-1]
        owner, name = slots.get(id(weight), (None, title))
        # The wrapped optimizer may train further variables, outside of Keras.
        if owner is not None and id(owner) not in vars_by_tensor:
            continue
        if owner is not None:
            name = f"{vars_by_tensor[id(owner)].path.replace('/', '_')}_{name}"
        variable = optimizer.add_variable(
            tuple(weight.shape),
            initializer=_initializer(weight),
            dtype=keras.backend.standardize_dtype(weight.dtype),
            name=name,
        )
        share(variable, weight)
        pairs.append((variable, weight))
    return pairs


def _initializer(weight: Tensor) -> Callable[[Any, Any], Tensor]:
    """Return an initializer of Keras that returns `weight` itself for any shape and dtype."""
    return lambda shape, dtype: weight
