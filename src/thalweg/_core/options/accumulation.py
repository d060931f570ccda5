"""Accumulation of gradients over several backward passes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import compress, repeat, starmap
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._base.exports import exported_from
from thalweg._base.showing import show_value
from thalweg._base.storage_use_count import count_holders
from thalweg._core.atomic_section import Call, run
from thalweg._core.dtensor import check_whole
from thalweg._core.options.base import Option
from thalweg._core.param_groups import Group, parameter_names, params_of, states_of
from thalweg._core.sparse_gradients import check_inside
from thalweg._core.state import shown
from thalweg._engines import layout
from thalweg._engines.layout import all_have_memory, check_disjoint, check_parts
from thalweg.errors import InvalidArgumentError, InvalidTypeError, LayoutError
from thalweg.variable import REDUCED, dtype_name

# Key of the sum in the state of a parameter. Between two sums its value is the number 0, as
# `torch.distributed.checkpoint` loads only entries whose keys the optimizer's state has.
SUM = "gradient_sum"
# Key of the number of summed backward passes in a parameter group.
COUNT = "folded"

_shape_of: Any = Tensor.shape.__get__  # pyright: ignore
_dtype_of: Any = Tensor.dtype.__get__  # pyright: ignore
_device_of: Any = Tensor.device.__get__  # pyright: ignore


def add_to_sums(
    groups: Sequence[Group],
    state: Mapping[Any, Any],
    *,
    unscaling: float | None,
    sum_in_float32: bool,
    report_count: Callable[[int], Call],
) -> int:
    """Add all gradients to the sums in `state` atomically, and set `param.grad` to None.

    Return the number of backward passes that the sums now include.

    Args:
        groups: Parameter groups of the optimizer. `group[COUNT]` is set to the result.
        state: State of the optimizer; `state[param][SUM]` is the sum of a parameter.
        unscaling: Number by which gradients are multiplied, or None.
        sum_in_float32: True if sums of 16-bit gradients are float32.
        report_count: `report_count(count)` is called with the new count. It returns a function in C
            that runs after all writes.

    Raises:
        LayoutError: A gradient or a sum has no memory for its elements; or a sum shares memory with
            another sum or with a parameter.
        InvalidArgumentError: A gradient has another shape or device than its sum; or the count of a
            group is not valid.
    """
    params = params_of(groups)
    check_whole(params, "accumulate")
    sums_before = [_sum_in(state[param]) if param in state else None for param in params]
    all_grads = [param.grad for param in params]
    _check_all(all_grads, sums_before, partial(parameter_names, groups, params))
    # The list would count as another holder of each gradient.
    del all_grads
    count = _count_passes(groups) + 1
    calls = _add_calls(groups, params, state, sums_before, unscaling, sum_in_float32)
    calls += [partial(group.__setitem__, COUNT, count) for group in groups]
    run([*calls, report_count(count)])
    return count


def _add_calls(
    groups: Sequence[Group],
    params: Sequence[Any],
    state: Mapping[Any, Any],
    sums_before: Sequence[Tensor | None],
    unscaling: float | None,
    sum_in_float32: bool,
) -> list[Call]:
    """Return calls that add the gradients to their sums and set `param.grad` to None.

    The first gradient of a parameter is copied, unless `param.grad` is its only reference.
    `sums_before` has the present sum of each of `params`, or None. See `add_to_sums` for details.
    """
    calls: list[Call] = []
    sums: list[Tensor] = []
    gradients: list[Tensor] = []
    for param in params:
        if param.grad is None:
            continue
        param_state = state[param]
        grad_sum = _sum_in(param_state)
        is_sole_holder = grad_sum is None and _is_sole_holder(param)
        grad = param.grad.detach()
        if grad_sum is None:
            first_sum = _begin_sum(grad, unscaling, sum_in_float32, is_sole_holder)
            calls.append(partial(param_state.__setitem__, SUM, first_sum))
        elif grad.is_sparse or grad_sum.is_sparse:
            # A copy is not needed: the sum of sparse gradients is a new tensor.
            scaled_grad = _begin_sum(grad, unscaling, sum_in_float32, is_sole_holder=True)
            new_sum = scaled_grad + grad_sum if grad_sum.is_sparse else grad_sum + scaled_grad
            calls.append(partial(param_state.__setitem__, SUM, new_sum))
        else:
            sums.append(grad_sum)
            gradients.append(grad)
        calls.append(partial(setattr, param, "grad", None))
    if sums:
        # A gradient in the memory of a sum could change before `_foreach_add_` reads it.
        gradients = _copy_shared(params, sums_before, gradients, partial(parameter_names, groups))
        alpha = 1 if unscaling is None else unscaling
        add = torch._foreach_add_  # pyright: ignore
        # First: if it raises, no gradient is dropped and no count has changed.
        calls.insert(0, partial(add, sums, gradients, alpha=alpha))
    return calls


def is_empty_sum(entry: object) -> bool:
    """Return True if an entry stands for a sum without gradients."""
    return type(entry) is int and entry == 0


def _sum_in(param_state: Mapping[str, Any]) -> Any:
    """Return the sum in the state of a parameter, or None."""
    grad_sum = param_state.get(SUM)
    return None if is_empty_sum(grad_sum) else grad_sum


def are_zero(gradients: Sequence[Tensor]) -> bool:
    """Return True if there are gradients, and all of them are dense and 0."""
    if not gradients or not all_have_memory(gradients):
        return False
    return all(grad.layout == torch.strided and not grad.any() for grad in gradients)


def is_count(count: object) -> bool:
    """Return True if the value is a valid number of summed passes: an int in [0, 2**63)."""
    return type(count) is int and 0 <= count < 2**63


def _count_passes(groups: Sequence[Group]) -> int:
    """Return the largest `COUNT` of the groups; raise InvalidArgumentError if one is invalid."""
    counts = [group.get(COUNT, 0) for group in groups]
    for group_index, count in enumerate(counts):
        if not is_count(count):
            raise InvalidArgumentError(
                f"'{COUNT}' of group {group_index} is {shown(count)}, no number of gradients."
            )
    return max(counts, default=0)


def _check_all(
    grads: Sequence[Tensor | None], sums: Sequence[object], get_names: Callable[[], list[str]]
) -> None:
    """Raise an error if a gradient cannot be added to its sum; `get_names` is for the message.

    Dense gradients are checked together. They are checked one by one only if this check fails.
    """
    pairs = list(zip(grads, sums, strict=True))
    if _are_addable(pairs):
        return
    sparse_flags = [any(map(_is_sparse, pair)) for pair in pairs]
    dense_pairs = [pair for pair, flag in zip(pairs, sparse_flags, strict=True) if not flag]
    needs_check = sparse_flags if _are_addable(dense_pairs) else repeat(True)
    names = get_names()
    for (grad, grad_sum), name in compress(zip(pairs, names, strict=True), needs_check):
        _check_sum(grad, grad_sum, name)


def _is_sparse(grad_or_sum: object) -> bool:
    return isinstance(grad_or_sum, Tensor) and grad_or_sum.is_sparse


def _are_addable(pairs: Sequence[tuple[Tensor | None, Any]]) -> bool:
    """Return True if all gradients can be added to their sums in `pairs` (gradient, sum).

    False means that `_check_sum` must check each pair.
    """
    gradients = [grad for grad, _ in pairs if grad is not None]
    sums = [grad_sum for _, grad_sum in pairs if grad_sum is not None]
    if not (all_have_memory(gradients) and all_have_memory(sums)):
        return False
    if not len(gradients) == len(sums) == len(pairs):
        gradients = [grad for grad, grad_sum in pairs if grad is not None and grad_sum is not None]
        sums = [grad_sum for grad, grad_sum in pairs if grad is not None and grad_sum is not None]
    dtypes: set[Any] = {*zip(map(_dtype_of, gradients), map(_dtype_of, sums), strict=True)}
    return (
        list[Any](map(_shape_of, gradients)) == list[Any](map(_shape_of, sums))
        and list[Any](map(_device_of, gradients)) == list[Any](map(_device_of, sums))
        and all(starmap(torch.can_cast, dtypes))
    )


def _check_sum(grad: Tensor | None, grad_sum: object, name: str) -> None:
    """Raise an error unless the gradient can be added in place to the sum of earlier gradients."""
    if grad is not None:
        check_parts(grad, f"The gradient of '{name}'")
        if grad.is_sparse:
            check_inside(grad, f"The gradient of '{name}'")
    if grad_sum is None:
        return
    if not isinstance(grad_sum, Tensor):
        raise InvalidTypeError(
            f"The sum of gradients of '{name}' is {show_value(grad_sum)}, not a tensor."
        )
    check_parts(grad_sum, f"The sum of gradients of '{name}'")
    if grad_sum.layout == torch.strided and layout.may_overlap(grad_sum):
        raise LayoutError(
            f"cannot add to the sum of gradients of '{name}' in place: its elements share memory"
            f" (shape {tuple(grad_sum.shape)}, strides {grad_sum.stride()})."
        )
    if grad is None:
        return
    if grad.shape != grad_sum.shape or grad.device != grad_sum.device:
        raise InvalidArgumentError(
            f"The gradient of '{name}' has shape {tuple(grad.shape)} on {grad.device} but the sum"
            f" of those before has shape {tuple(grad_sum.shape)} on {grad_sum.device}."
        )
    if not torch.can_cast(grad.dtype, grad_sum.dtype):
        raise InvalidTypeError(
            f"The gradient of '{name}' is {dtype_name(grad.dtype)} but the sum of those before is"
            f" {dtype_name(grad_sum.dtype)}."
        )


def _copy_shared(
    params: Sequence[Tensor],
    sums: Sequence[Tensor | None],
    gradients: list[Tensor],
    get_names: Callable[[Sequence[Tensor]], list[str]],
) -> list[Tensor]:
    """Return `gradients`; a gradient that shares memory with a dense sum is replaced by a copy.

    Args:
        params: All parameters, for the check that no sum shares their memory.
        sums: For each parameter its sum, or None.
        gradients: The dense gradients that will be added to dense sums.
        get_names: `get_names(params)` returns names for messages.

    Raises:
        LayoutError: A dense sum shares memory with another sum or a parameter.
    """
    dense_sums = [grad_sum for grad_sum in sums if grad_sum is not None and not grad_sum.is_sparse]
    storages = set(_list_storages(dense_sums))
    if len(storages) < len(dense_sums) or not storages.isdisjoint(_list_storages(params)):
        param_names = get_names(params)
        pairs = zip(sums, param_names, strict=True)
        sum_names = [
            f"{name}/{SUM}" for total, name in pairs if total is not None and not total.is_sparse
        ]
        check_disjoint([*dense_sums, *params], [*sum_names, *param_names])
    if storages.isdisjoint(_list_storages(gradients)):
        return gradients
    grads_and_storages = zip(gradients, _list_storages(gradients), strict=True)
    return [grad.clone() if storage in storages else grad for grad, storage in grads_and_storages]


def _list_storages(tensors: Iterable[Tensor]) -> Iterable[int]:
    """Return an iterator of the storage addresses of the tensors."""
    return map(attrgetter("_cdata"), map(Tensor.untyped_storage, tensors))


def _begin_sum(
    grad: Tensor, unscaling: float | None, in_float32: bool, is_sole_holder: bool
) -> Tensor:
    """Return the first gradient of a sum, times `unscaling`, in memory that nothing else uses.

    `grad` itself is returned only if `is_sole_holder`, and only without scaling and conversion.
    """
    if in_float32 and grad.dtype in REDUCED:
        grad = grad.float()
    elif unscaling is None and not is_sole_holder:
        grad = grad.clone()
    return grad if unscaling is None else grad * unscaling


def _is_sole_holder(param: Tensor) -> bool:
    """Return True if only `param.grad` refers to the dense gradient and its memory.

    For example, a DDP bucket, a list or a NumPy array may refer to the gradient.
    """
    grad = cast("Tensor", param.grad)
    # A gradient whose elements share memory cannot become a sum: sums are written in place.
    return (
        not grad.is_sparse
        and layout.is_dense(grad)
        and _count_holders(param) == _sole_holder_counts()
    )


def _count_holders(param: Tensor) -> tuple[int, ...]:
    """Return the reference counts of `param.grad` and of its storage.

    Returns:
        Python references to the gradient, C++ references to the gradient, number of tensors of the
        storage, and True if the storage is resizable.
    """
    grad = cast("Tensor", param.grad)
    memory = grad.untyped_storage()
    tensors = count_holders(memory)
    return sys.getrefcount(grad), grad._use_count(), tensors, memory.resizable()  # pyright: ignore


@cache
def _sole_holder_counts() -> tuple[int, ...]:
    """Return `_count_holders` of a gradient that only its parameter refers to."""
    # The counts depend on the versions of Python and torch, so they are measured.
    param = torch.zeros(1, dtype=torch.float32, device="cpu", requires_grad=True)
    param.grad = torch.zeros(1, dtype=torch.float32, device="cpu")
    return _count_holders(param)


@contextmanager
def set_aside(state: dict[Any, Any]) -> Generator[None]:
    """Remove entries of `state` during a `with` block, and put them back at the end of the block.

    An entry is removed if it is empty or only a gradient sum. The block can then call torch's
    `__setstate__`, which expects `step` in the state of each parameter.
    """
    states = [(param, entries) for param, entries in states_of(state) if entries.keys() <= {SUM}]
    for param, _ in states:
        del state[param]
    try:
        yield
    finally:
        state.update(states)


def sums_of(state: Mapping[object, object]) -> dict[int, Tensor]:
    """Return {`id` of a parameter: its gradient sum}, without parameters that have no sum."""
    return {
        id(param): grad_sum
        for param, param_state in states_of(state)
        if (grad_sum := _sum_in(param_state)) is not None
    }


def clearing_sums(groups: Sequence[Group], state: Mapping[object, object]) -> list[Call]:
    """Return C functions that set each sum to the number 0, and `COUNT` to 0 in all groups."""
    states_with_sums = [param_state for _, param_state in states_of(state) if SUM in param_state]
    group_setters = [group.__setitem__ for group in groups]
    return [
        *(partial(param_state.__setitem__, SUM, 0) for param_state in states_with_sums),
        *(partial(set_in_group, COUNT, 0) for set_in_group in group_setters),
    ]


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Accumulation(Option):
    """Option that sums gradients of several backward passes for one step.

    Attributes:
        accumulate: Number of calls of `step` per update. Each call adds the gradients to sums and
            frees them; the last call updates. Clipping and the update use the sums.
        wide_sums: Whether sums of 16-bit gradients are float32; always so with master weights.
    """

    accumulate: int = 1
    wide_sums: bool = False

    def __post_init__(self) -> None:
        if type(self.accumulate) is not int or self.accumulate < 1:
            raise InvalidArgumentError(
                f"accumulate must be a whole number from 1 on, not {show_value(self.accumulate)}."
            )
        super().__post_init__()

    @property
    def is_ours(self) -> bool:
        return self.accumulate > 1
