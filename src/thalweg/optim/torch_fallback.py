"""Steps that are left to torch, all of it or nothing where torch may refuse them."""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import compress
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._base.context_managers import writable
from thalweg._core.atomic_section import Call, run
from thalweg._core.param_groups import Group, parameter_names
from thalweg._core.sparse_gradients import check_inside, is_misplaced
from thalweg._engines.layout import all_have_memory, check_parts
from thalweg.errors import LayoutError
from thalweg.optim.native_support import has_plain_dispatch
from thalweg.optim.param_scalars import STEP

_MOST = torch.finfo(torch.float32).max
_OF_TORCH = "The step was torch's own, which may have written a part of it."


def check_memories(optimizer: Any) -> None:
    """See `FusedTorchOptimizer._check_memories`."""
    params = [each for each in optimizer._params() if each.grad is not None and not each.is_meta]
    held = [_tensors(param, param.grad, *(optimizer.state.get(param) or {}).values())
            for param in params]  # fmt: skip
    if all_have_memory([each for own in held for each in own if not each.is_sparse]):
        are_sparse = [any(each.is_sparse for each in own) for own in held]
        params = list(compress(params, are_sparse))
    for param, name in zip(params, parameter_names(optimizer.param_groups, params), strict=True):
        _check_memory(param, optimizer.state.get(param) or {}, name, bool(optimizer._dense))


def _check_memory(param: Tensor, state: dict[str, Any], name: str, coalesces: bool) -> None:
    """Raise if torch's step would write beyond the memory of a parameter or its state.

    Slots in the midst of their storage are copied where torch would add rows elsewhere.

    Args:
        param: The parameter.
        state: Its state.
        name: What it is called.
        coalesces: Whether torch coalesces the gradient, of which one element may be left then.
    """
    gradient = param.grad
    held: dict[str, Any] = {"": param, "The gradient of ": gradient}
    held |= {f"'{key}' of ": each for key, each in state.items()}
    for what, each in held.items():
        # A class with a dispatch of its own keeps its elements elsewhere.
        if isinstance(each, Tensor) and has_plain_dispatch(each):
            check_parts(each.detach(), f"{what}'{name}'")
            if each.is_sparse:
                check_inside(each, f"{what}'{name}'")
    rows = [each for each in _tensors(*held.values()) if each.is_sparse]
    has_sparse = gradient is not None and gradient.is_sparse
    is_beside = all(map(is_misplaced, rows))
    if gradient is not None and has_sparse and coalesces and not gradient.dense_dim():
        is_beside = True
        for key, value in state.items():
            if isinstance(value, Tensor) and not value.is_sparse and value.storage_offset():
                state[key] = value.clone()
    if has_sparse and param.storage_offset() and is_beside:
        raise LayoutError(
            f"'{name}' does not begin where its storage does: torch would add its sparse"
            " gradient elsewhere. Give the optimizer a tensor that is no view."
        )


def _tensors(*values: object) -> list[Tensor]:
    return [each for each in values if isinstance(each, Tensor)]


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
    """Return what torch decides by whether it takes a step; None where it certainly does."""
    found: list[Any] = []
    is_usual = True
    for group, param in members:
        own = optimizer.state.get(param) or {}
        kind, *others = [_kind(each) for each in (param, param.grad, *own.values())]
        tensors = [each for each in own.values() if isinstance(each, Tensor) and each.dim()]
        if not all(map(has_plain_dispatch, (param, cast("Tensor", param.grad), *tensors))):
            return None
        are_plain = _are_plain(optimizer, group)
        # It differentiates no step that writes to a leaf, and captures none on the CPU.
        is_usual = is_usual and are_plain and not group.get("differentiable")
        is_usual = is_usual and not (group.get("capturable") and param.device.type == "cpu")
        is_usual = is_usual and _kind(param.grad) == kind and bool(param.numel())
        is_usual = is_usual and (not own or _is_usual(optimizer, group, param, own))
        options = [(name, _kind(each)) for name, each in group.items() if name != "params"]
        # Whether torch takes a number that is out of range depends on the step: no two are alike.
        found.append((kind, param.is_leaf, *others, *own, *options, are_plain or object()))
    return None if is_usual else tuple(found)


def _is_usual(optimizer: Any, group: Group, param: Tensor, own: Mapping[str, object]) -> bool:
    """Return whether a state is such as torch's steps make it: slots are like their parameter.

    Only names tell slots from numbers, as both have the shape () where a parameter has it.
    """
    rule, kind = optimizer._own_rule(group, param), _kind(param)
    numbers = {slot.name for slot in rule.scalar_slots} | {STEP} & {*own}
    shaped = {slot.name for slot in rule.shaped_slots}
    slots = {slot.name for slot in rule.element_slots}
    lacking = {name for name in optimizer._optional if own.get(name) is None}
    wanted = numbers | shaped | slots | {STEP} if optimizer._counts else numbers | shaped | slots
    return (
        own.keys() >= wanted - lacking
        and all(_is_ordinary(own[name]) for name in numbers)
        and all(_has_dtype_of(own[name], param) for name in shaped)
        and all(_kind(own[name]) == kind for name in slots - lacking)
    )


def _has_dtype_of(value: object, param: Tensor) -> bool:
    return isinstance(value, Tensor) and (value.dtype, value.device) == (param.dtype, param.device)


def _is_ordinary(value: object) -> bool:
    """Return whether a value is a number of a state that torch calculates with."""
    if isinstance(value, Tensor):
        if value.dim() or not value.is_floating_point():
            return False
        return value.device.type != "cpu" or value.item() >= 0
    return isinstance(value, int | float) and value >= 0


def _kind(value: object) -> Hashable:
    if isinstance(value, Tensor):
        layout = value.stride() if value.layout == torch.strided else value.sparse_dim()
        return value.shape, layout, value.dtype, value.device, value.is_neg()
    if isinstance(value, tuple | list):
        return tuple(map(_kind, cast("Sequence[Any]", value)))
    return type(value), isinstance(value, int | float) and bool(value)


def _are_plain(optimizer: Any, group: Group) -> bool:
    """Return whether all options that a step reads are there, and ordinary numbers."""
    return all(
        name in group and _is_plain(group[name], is_share=name.startswith("betas"))
        for name in optimizer._wanted
    )


def _is_plain(option: object, is_share: bool = False) -> bool:
    """Return whether an option is a number that torch calculates with, or numbers, or None."""
    if isinstance(option, tuple | list):
        return all(_is_plain(each, is_share) for each in cast("Sequence[Any]", option))
    if option is None or not isinstance(option, int | float):
        return option is None
    return -1 < option < 1 if is_share else abs(option) <= _MOST or abs(option) == math.inf


def _putting_back(optimizer: Any, param: Tensor) -> list[Call]:
    """Return calls of C functions that restore the present values of a parameter and its state."""
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
