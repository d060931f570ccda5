"""Gradients that are applied and freed in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from torch import Tensor

from thalweg._core.dtensor import check_whole
from thalweg.errors import InvalidArgumentError


def listen(optimizer: Any) -> None:
    """Register hooks that update each parameter as soon as its gradient is complete.

    One that is frozen has none; it is listened to from the step after which it is no longer.
    """
    heard = optimizer.step_cache.heard
    optimizer.step_cache.places.clear()  # groups may have changed
    for group in optimizer.param_groups:
        for rule in optimizer.rules_around(group):
            if rule.per_optimizer is not None:
                raise InvalidArgumentError(
                    f"in_backward=True updates parameters one by one, and {rule.name} adds up over"
                    " all of a step."
                )
        check_whole(group["params"], "in_backward")
        for param in group["params"]:
            if id(param) not in heard and param.requires_grad:
                hook = _applying(ref(optimizer))
                heard[id(param)] = param.register_post_accumulate_grad_hook(hook)


def _applying(optimizer: ref[Any]) -> Callable[[Tensor], None]:
    # A parameter outlives its optimizer.
    def apply(param: Tensor) -> None:
        updater = optimizer()
        # A second hook of one parameter, after an interruption, finds no gradient.
        if updater is not None and param.grad is not None and place_of(updater, param) is not None:
            updater._apply_alone(param)

    return apply


def place_of(optimizer: Any, param: Tensor) -> int | None:
    """Return the index of a parameter's group; None if it is in none any more."""
    places = optimizer.step_cache.places
    if not places:
        for index, group in enumerate(optimizer.param_groups):
            places |= {id(param): index for param in group["params"]}
    return places.get(id(param))
