"""Steps that are left to torch, all of it or nothing where torch may refuse them."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from thalweg.core.groups import Group
from thalweg.core.section import Call, run
from thalweg.ground.switches import writable
from thalweg.optim.fitting import has_plain_dispatch

_OF_TORCH = "The step was torch's own, which may have written a part of it."


@contextmanager
def whole(optimizer: Any) -> Generator[None]:
    """Have torch take a step in a `with` block, all of it or nothing.

    Torch updates one parameter after the other, and refuses a gradient when it comes to it. So what
    a step changes is copied before, and put back. Nothing is copied where torch does not refuse,
    which is where gradients and state are like their parameters, and options are numbers; nor after
    a step of the same kinds: what torch refuses depends on them alone. Tensors with a dispatch of
    their own are left to their class.

    Args:
        optimizer: A `FusedTorchOptimizer`. What it says of a step that failed is set in `begun`.
    """
    members = [
        (group, param)
        for group in optimizer.param_groups
        for param in group["params"]
        if param.grad is not None
    ]
    own, kinds = optimizer._own, _kinds(optimizer, members)
    if kinds is None or kinds == own.kinds_of_torch:
        own.begun = (_OF_TORCH,)
        yield
        return
    with writable():
        new = [param for _, param in members if param not in optimizer.state]
        back = [call for _, param in members for call in _putting_back(optimizer, param)]
        back += [partial(optimizer.state.pop, param, None) for param in new]
    try:
        yield
        own.begun = (_OF_TORCH,)
    except BaseException:
        own.begun = (_OF_TORCH,)
        with writable():
            run(back)
        own.begun = ()
        raise
    own.kinds_of_torch = kinds


def _kinds(optimizer: Any, members: Sequence[tuple[Group, Tensor]]) -> Hashable:
    """What torch decides by whether it takes a step; None where it certainly does."""
    found: list[Any] = []
    is_usual = True
    for group, param in members:
        own = optimizer.state.get(param) or {}
        kind, *others = [_kind(each) for each in (param, param.grad, *own.values())]
        tensors = [each for each in own.values() if isinstance(each, Tensor) and each.dim()]
        if not all(map(has_plain_dispatch, (param, cast("Tensor", param.grad), *tensors))):
            return None
        # It differentiates no step that writes to a leaf.
        is_usual = is_usual and not group.get("differentiable")
        is_usual = is_usual and all(_is_plain(group.get(name)) for name in optimizer._wanted)
        is_usual = is_usual and all(_kind(each) == kind for each in (param.grad, *tensors))
        options = [(name, _kind(each)) for name, each in group.items() if name != "params"]
        found.append((kind, param.is_leaf, *others, *own, *options))
    return None if is_usual else tuple(found)


def _kind(value: object) -> Hashable:
    if isinstance(value, Tensor):
        layout = value.stride() if value.layout == torch.strided else value.sparse_dim()
        return value.shape, layout, value.dtype, value.device, value.is_neg()
    if isinstance(value, tuple | list):
        return tuple(map(_kind, cast("Sequence[Any]", value)))
    return type(value), isinstance(value, int | float) and bool(value)


def _is_plain(option: object) -> bool:
    """Whether an option is a number, or numbers, or is left out."""
    if isinstance(option, tuple | list):
        return all(map(_is_plain, cast("Sequence[Any]", option)))
    return option is None or isinstance(option, int | float)


def _putting_back(optimizer: Any, param: Tensor) -> list[Call]:
    """What gives a parameter and its state the values that they have now, as functions in C."""
    own: dict[str, Any] = optimizer.state.get(param) or {}
    tensors = [param, *(each for each in own.values() if isinstance(each, Tensor))]
    plain = [_each_once(tensor) for tensor in tensors]
    calls: list[Call] = [partial(each.copy_, each.clone()) for each in plain]
    return [own.clear, partial(own.update, dict(own)), *calls]


def _each_once(tensor: Tensor) -> Tensor:
    """The elements of a tensor, those of expanded dimensions once: nothing copies to them else."""
    if tensor.layout != torch.strided:
        return tensor  # a detached one would be given other elements alone
    return tensor.detach()[tuple(slice(None if step else 1) for step in tensor.stride())]
