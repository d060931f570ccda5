"""Steps of `torch.optim`, taken completely or not at all."""

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
from thalweg._core.param_groups import Group, parameter_names, params_of
from thalweg._core.sparse_gradients import check_inside, is_misplaced
from thalweg._engines.layout import all_have_memory, check_parts
from thalweg.errors import LayoutError
from thalweg.optim.native_support import has_plain_dispatch
from thalweg.optim.param_scalars import STEP

_FLOAT32_MAX = torch.finfo(torch.float32).max
_OF_TORCH = "The step was torch's own, which may have written a part of it."


def check_memories(optimizer: Any) -> None:
    """Raise if torch's step would access memory outside a tensor's storage.

    Raises:
        LayoutError: A parameter, gradient or slot has no memory for its elements, or torch would
            add sparse rows to the wrong elements.
        InvalidArgumentError: An index of a sparse tensor is out of range.
    """
    params = [p for p in params_of(optimizer.param_groups) if p.grad is not None and not p.is_meta]
    tensor_lists = [_select_tensors(param, param.grad, *(optimizer.state.get(param) or {}).values())  # pyright: ignore[reportUnknownArgumentType]
            for param in params]  # fmt: skip
    if all_have_memory([x for tensors in tensor_lists for x in tensors if not x.is_sparse]):
        are_sparse = [any(tensor.is_sparse for tensor in tensors) for tensors in tensor_lists]
        params = list(compress(params, are_sparse))
    for param, name in zip(params, parameter_names(optimizer.param_groups, params), strict=True):
        _check_memory(param, optimizer.state.get(param) or {}, name, bool(optimizer._dense))


def _check_memory(param: Tensor, state: dict[str, Any], name: str, coalesces: bool) -> None:
    """Raise if torch's step of one parameter would access memory outside a tensor's storage.

    Args:
        state: The parameter's state, which this function may change. Torch's step may write to
            a wrong address if a slot has a storage offset; a copy then replaces the slot.
        coalesces: True if torch's step coalesces sparse gradients.
    """
    gradient = param.grad
    named_tensors: dict[str, Any] = {"": param, "The gradient of ": gradient}
    named_tensors |= {f"'{key}' of ": entry for key, entry in state.items()}
    for prefix, tensor in named_tensors.items():
        # A class with a dispatch of its own keeps its elements elsewhere.
        if isinstance(tensor, Tensor) and has_plain_dispatch(tensor):
            check_parts(tensor.detach(), f"{prefix}'{name}'", param)
            if tensor.is_sparse:
                check_inside(tensor, f"{prefix}'{name}'")
    rows = [tensor for tensor in _select_tensors(*named_tensors.values()) if tensor.is_sparse]
    has_sparse = gradient is not None and gradient.is_sparse
    writes_elsewhere = all(map(is_misplaced, rows))
    if gradient is not None and has_sparse and coalesces and not gradient.dense_dim():
        writes_elsewhere = True
        for key, value in state.items():
            if isinstance(value, Tensor) and not value.is_sparse and value.storage_offset():
                state[key] = value.clone()
    if has_sparse and param.storage_offset() and writes_elsewhere:
        raise LayoutError(
            f"'{name}' does not begin where its storage does: torch would add its sparse"
            " gradient elsewhere. Give the optimizer a tensor that is no view."
        )


def _select_tensors(*values: object) -> list[Tensor]:
    """Return the tensors among values."""
    return [candidate for candidate in values if isinstance(candidate, Tensor)]


@contextmanager
def whole(optimizer: Any) -> Generator[None]:
    """Restore parameters and state if torch's step in the `with` block raises.

    Torch updates parameters one by one, and may reject a later gradient. So all tensors are copied
    before the step, unless torch is known to accept it. Tensor subclasses with their own dispatch
    are not restored.

    Args:
        optimizer: A `FusedTorchOptimizer`. `step_cache.progress` is set to notes for errors.
    """
    members = [
        (group, param)
        for group in optimizer.param_groups
        for param in group["params"]
        if param.grad is not None
    ]
    cache, kinds = optimizer.step_cache, _make_acceptance_key(optimizer, members)
    # Torch accepts ordinary tensors and options (None), and any kinds that it accepted last.
    if kinds is None or kinds == cache.kinds_of_torch:
        cache.progress = (_OF_TORCH,)
        yield
        return
    with writable():
        new = [param for _, param in members if param not in optimizer.state]
        restore_calls = [call for _, param in members for call in _restore_calls(optimizer, param)]
        restore_calls += [partial(optimizer.state.pop, param, None) for param in new]
    try:
        yield
        cache.progress = (_OF_TORCH,)
    except BaseException:
        cache.progress = (_OF_TORCH,)
        with writable():
            run(restore_calls)
        cache.progress = ()
        raise
    cache.kinds_of_torch = kinds


def _make_acceptance_key(optimizer: Any, members: Sequence[tuple[Group, Tensor]]) -> Hashable:
    """Return a hashable key of all facts that decide whether torch accepts a step.

    Return None if tensors need not be copied before the step, because torch certainly accepts the
    step. Also return None if a tensor's class has its own dispatch: such a step is not restored.
    """
    kinds: list[Any] = []
    is_ordinary = True
    for group, param in members:
        entries: dict[str, Any] = optimizer.state.get(param) or {}
        kind, *entry_kinds = map(_describe_kind, (param, param.grad, *entries.values()))
        tensors = [entry for entry in entries.values() if isinstance(entry, Tensor) and entry.dim()]
        if not all(map(has_plain_dispatch, (param, cast("Tensor", param.grad), *tensors))):
            return None
        is_plain_group = _are_plain(optimizer, group)
        # Torch raises if it would differentiate a write to a leaf, or is capturable on the CPU.
        is_ordinary = is_ordinary and is_plain_group and not group.get("differentiable")
        is_ordinary = is_ordinary and not (group.get("capturable") and param.device.type == "cpu")
        is_ordinary = is_ordinary and _describe_kind(param.grad) == kind and bool(param.numel())
        is_ordinary = is_ordinary and (
            not entries or _has_torch_form(optimizer, group, param, entries)
        )
        options = [
            (name, _describe_kind(option)) for name, option in group.items() if name != "params"
        ]
        # A new object makes the key unique: torch may reject an unusual number in a later step.
        marker = is_plain_group or object()
        kinds.append((kind, param.is_leaf, *entry_kinds, *entries, *options, marker))
    return None if is_ordinary else tuple(kinds)


def _has_torch_form(
    optimizer: Any, group: Group, param: Tensor, entries: Mapping[str, object]
) -> bool:
    """Return True if a state has the form that torch's steps create.

    Slots and numbers are told apart by name, as both may have the shape ().
    """
    rule, kind = optimizer.base_rule(group, param), _describe_kind(param)
    numbers = {slot.name for slot in rule.scalar_slots} | {STEP} & {*entries}
    shaped = {slot.name for slot in rule.shaped_slots}
    slots = {slot.name for slot in rule.element_slots}
    lacking = {name for name in optimizer._optional if entries.get(name) is None}
    required = numbers | shaped | slots | {STEP} if optimizer._counts else numbers | shaped | slots
    return (
        entries.keys() >= required - lacking
        and all(_is_ordinary(entries[name]) for name in numbers)
        and all(_has_dtype_of(entries[name], param) for name in shaped)
        and all(_describe_kind(entries[name]) == kind for name in slots - lacking)
    )


def _has_dtype_of(value: object, param: Tensor) -> bool:
    """Return True for a tensor with the dtype of a parameter."""
    return isinstance(value, Tensor) and (value.dtype, value.device) == (param.dtype, param.device)


def _is_ordinary(value: object) -> bool:
    """Return True if a value is a number of a state that torch computes with."""
    if isinstance(value, Tensor):
        if value.dim() or not value.is_floating_point():
            return False
        return value.device.type != "cpu" or value.item() >= 0
    return isinstance(value, int | float) and value >= 0


def _describe_kind(value: object) -> Hashable:
    """Return a hashable description: shape, strides, dtype and device, or the type."""
    if isinstance(value, Tensor):
        layout = value.stride() if value.layout == torch.strided else value.sparse_dim()
        return value.shape, layout, value.dtype, value.device, value.is_neg()
    if isinstance(value, tuple | list):
        return tuple(map(_describe_kind, cast("Sequence[Any]", value)))
    return type(value), isinstance(value, int | float) and bool(value)


def _are_plain(optimizer: Any, group: Group) -> bool:
    """Return True if a group has all options that a step reads, as ordinary numbers."""
    return all(
        name in group and _is_plain(group[name], is_fraction=name.startswith("betas"))
        for name in optimizer.read_options
    )


def _is_plain(option: object, is_fraction: bool = False) -> bool:
    """Return True for a number that torch computes with, several of them, or None."""
    if isinstance(option, tuple | list):
        return all(_is_plain(number, is_fraction) for number in cast("Sequence[Any]", option))
    if option is None or not isinstance(option, int | float):
        return option is None
    return (
        -1 < option < 1 if is_fraction else abs(option) <= _FLOAT32_MAX or abs(option) == math.inf
    )


def _restore_calls(optimizer: Any, param: Tensor) -> list[Call]:
    """Return calls of C functions that restore the present values of a parameter and its state."""
    entries: dict[str, Any] = optimizer.state.get(param) or {}
    tensors = [param, *(entry for entry in entries.values() if isinstance(entry, Tensor))]
    unexpanded = [_without_repeats(tensor) for tensor in tensors]
    calls: list[Call] = [partial(tensor.copy_, tensor.clone()) for tensor in unexpanded]
    return [entries.clear, partial(entries.update, dict(entries)), *calls]


def _without_repeats(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor, those of expanded dimensions once, for copies."""
    if tensor.layout != torch.strided:
        # `copy_` into a detached sparse tensor would not change the original.
        return tensor
    return tensor.detach()[tuple(slice(None if step else 1) for step in tensor.stride())]
