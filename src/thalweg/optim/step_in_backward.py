"""Gradients that are applied and freed in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd import Variable

from thalweg._base.locks import importing
from thalweg._core.dtensor import check_whole
from thalweg.errors import InvalidArgumentError


def register_hooks(optimizer: Any) -> None:
    """Register hooks that update each trainable parameter in the backward pass.

    A frozen parameter gets its hook in the first step after it is unfrozen.

    Raises:
        InvalidArgumentError: A rule sums over all parameters.
        NotImplementedError: A parameter is a DTensor.
    """
    heard = optimizer.step_cache.heard
    # Groups may have changed; `find_group_index` fills the cache again.
    optimizer.step_cache.places.clear()
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
                hook = _make_hook(ref(optimizer))
                heard[id(param)] = param.register_post_accumulate_grad_hook(hook)


def _make_hook(optimizer: ref[Any]) -> Callable[[Tensor], None]:
    """Return the hook `apply(param)`, which refers weakly to the optimizer."""

    # A parameter may outlive its optimizer, and would keep it alive by the hook.
    def apply(param: Tensor) -> None:
        """Update a parameter. If its state is offloaded, only start to copy its gradient."""
        updater = optimizer()
        if updater is None:
            return
        # Parameters on several devices have as many autograd threads.
        with updater.step_cache.lock:
            # A second hook of one parameter, after an interruption, finds no gradient.
            if param.grad is None or find_group_index(updater, param) is None:
                return
            if updater.step_options.kinds.is_away(param) and param.grad.layout == torch.strided:
                _fetch(updater, param)
            else:
                updater._apply_alone(param)

    return apply


def _fetch(optimizer: Any, param: Tensor) -> None:
    """Start to copy a gradient to the CPU and set `param.grad` to None.

    Also update parameters whose earlier copies have arrived. Parameters with later copies are
    updated at the end of the backward pass.
    """
    with importing:
        from thalweg._engines.offload import Prefetch
    grad: Any = param.grad
    waiting = optimizer.step_cache.fetching
    # Appended first: an interruption between both lines loses no gradient.
    waiting.append((param, grad, Prefetch(grad, param)))
    param.grad = None
    Variable._execution_engine.queue_callback(partial(apply_fetched, optimizer))  # pyright: ignore
    while waiting and waiting[0][2].has_arrived():
        _apply_first(optimizer)


def apply_fetched(optimizer: Any) -> None:
    """Apply all gradients that are being transferred, in order."""
    cache = optimizer.step_cache
    with cache.lock:
        while cache.fetching:
            _apply_first(optimizer)


def _apply_first(optimizer: Any) -> None:
    """Apply the gradient that was fetched first; if that fails, it becomes `param.grad` again."""
    waiting = optimizer.step_cache.fetching
    # In this order an interruption leaves the gradient in the parameter, the queue, or both.
    param, param.grad, _ = waiting[0]
    waiting.popleft()
    optimizer._apply_alone(param)


def find_group_index(optimizer: Any, param: Tensor) -> int | None:
    """Return the index of a parameter's group; None if it is in no group any more."""
    group_indices = optimizer.step_cache.places
    if not group_indices:
        for index, group in enumerate(optimizer.param_groups):
            group_indices |= {id(param): index for param in group["params"]}
    return group_indices.get(id(param))
