"""Gradients of several backward passes, folded into one before a step is taken."""

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
from thalweg._core.param_groups import Group, parameter_names, states_of
from thalweg._core.sparse_gradients import check_inside
from thalweg._core.state import shown
from thalweg._engines import layout
from thalweg._engines.layout import all_have_memory, check_disjoint, check_parts
from thalweg.errors import InvalidArgumentError, InvalidTypeError, LayoutError
from thalweg.variable import REDUCED, dtype_name

SUM = "gradient_sum"  # in the state of a parameter
COUNT = "folded"  # in groups: how many passes are in the sums

_shape_of: Any = Tensor.shape.__get__  # pyright: ignore
_dtype_of: Any = Tensor.dtype.__get__  # pyright: ignore
_device_of: Any = Tensor.device.__get__  # pyright: ignore


def add_to_sums(
    groups: Sequence[Group],
    state: Mapping[Any, Any],
    *,
    unscaling: float | None,
    wide: bool,
    told: Callable[[int], Call],
) -> int:
    """Add gradients to the sums that the state holds, and free them.

    Args:
        groups: The optimizer's.
        state: The optimizer's.
        unscaling: What gradients are multiplied by, or None.
        wide: Whether sums of 16-bit gradients are float32.
        told: What says how many passes the sums hold, as a function in C; called with them.

    Returns:
        How many passes the sums hold now.

    Raises:
        LayoutError: A gradient or a sum has no memory that holds its elements, or a sum shares it
            with another one or with a parameter.
        InvalidArgumentError: A gradient has another shape or device than the sum before it, or a
            group's count of them is none.
    """
    params = [param for group in groups for param in group["params"]]
    check_whole(params, "accumulate")
    sums_before = [state[param].get(SUM) if param in state else None for param in params]
    given = [param.grad for param in params]
    _check_all(given, sums_before, partial(parameter_names, groups, params))
    del given  # one more holder of each gradient
    count = _count_passes(groups) + 1
    calls: list[Call] = []
    sums: list[Tensor] = []
    gradients: list[Tensor] = []
    for param in params:
        if param.grad is None:
            continue
        own = state[param]
        kept = own.get(SUM)
        is_alone = kept is None and _is_alone(param)
        grad = param.grad.detach()
        if kept is None:
            begun = _begin_sum(grad, unscaling, wide, is_alone)
            calls.append(partial(own.__setitem__, SUM, begun))
        elif grad.is_sparse or kept.is_sparse:
            further = _begin_sum(grad, unscaling, wide, is_alone=True)  # and is not written to
            added = further + kept if kept.is_sparse else kept + further
            calls.append(partial(own.__setitem__, SUM, added))
        else:
            sums.append(kept)
            gradients.append(grad)
        calls.append(partial(setattr, param, "grad", None))
    if sums:
        gradients = _copy_shared(params, sums_before, gradients, partial(parameter_names, groups))
        alpha = 1 if unscaling is None else unscaling
        add = torch._foreach_add_  # pyright: ignore
        calls.insert(0, partial(add, sums, gradients, alpha=alpha))
    calls += [partial(group.__setitem__, COUNT, count) for group in groups]
    run([*calls, told(count)])
    return count


def is_count(value: object) -> bool:
    """Whether this many passes may be in sums."""
    return type(value) is int and 0 <= value < 2**63


def _count_passes(groups: Sequence[Group]) -> int:
    counts = [group.get(COUNT, 0) for group in groups]
    for place, each in enumerate(counts):
        if not is_count(each):
            raise InvalidArgumentError(
                f"'{COUNT}' of group {place} is {shown(each)}, no number of gradients."
            )
    return max(counts, default=0)


def _check_all(
    given: Sequence[Tensor | None], sums: Sequence[object], titles: Callable[[], list[str]]
) -> None:
    """Refuse what cannot be added up. What most are is found out of all of them at once."""
    pairs = list(zip(given, sums, strict=True))
    if _are_usual(pairs):
        return
    has_rows = [any(map(_is_of_rows, pair)) for pair in pairs]
    others = [pair for pair, has in zip(pairs, has_rows, strict=True) if not has]
    strange = has_rows if _are_usual(others) else repeat(True)
    names = titles()
    for (grad, kept), name in compress(zip(pairs, names, strict=True), strange):
        _check_sum(grad, kept, name)


def _is_of_rows(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_sparse


def _are_usual(pairs: Sequence[tuple[Tensor | None, Any]]) -> bool:
    """Whether `_check_sum` would certainly find nothing."""
    gradients = [grad for grad, _ in pairs if grad is not None]
    sums = [kept for _, kept in pairs if kept is not None]
    if not (all_have_memory(gradients) and all_have_memory(sums)):
        return False
    if not len(gradients) == len(sums) == len(pairs):
        gradients = [grad for grad, kept in pairs if grad is not None and kept is not None]
        sums = [kept for grad, kept in pairs if grad is not None and kept is not None]
    dtypes: set[Any] = {*zip(map(_dtype_of, gradients), map(_dtype_of, sums), strict=True)}
    return (
        list[Any](map(_shape_of, gradients)) == list[Any](map(_shape_of, sums))
        and list[Any](map(_device_of, gradients)) == list[Any](map(_device_of, sums))
        and all(starmap(torch.can_cast, dtypes))
    )


def _check_sum(grad: Tensor | None, kept: object, title: str) -> None:
    if grad is not None:
        check_parts(grad, f"The gradient of '{title}'")
        if grad.is_sparse:
            check_inside(grad, f"The gradient of '{title}'")
    if kept is None:
        return
    if not isinstance(kept, Tensor):
        raise InvalidTypeError(
            f"The sum of gradients of '{title}' is {show_value(kept)}, not a tensor."
        )
    check_parts(kept, f"The sum of gradients of '{title}'")
    if kept.layout == torch.strided and layout.may_overlap(kept):
        raise LayoutError(
            f"cannot add to the sum of gradients of '{title}' in place: its elements share memory"
            f" (shape {tuple(kept.shape)}, strides {kept.stride()})."
        )
    if grad is None:
        return
    if grad.shape != kept.shape or grad.device != kept.device:
        raise InvalidArgumentError(
            f"The gradient of '{title}' has shape {tuple(grad.shape)} on {grad.device} but the sum"
            f" of those before has shape {tuple(kept.shape)} on {kept.device}."
        )
    if not torch.can_cast(grad.dtype, kept.dtype):
        raise InvalidTypeError(
            f"The gradient of '{title}' is {dtype_name(grad.dtype)} but the sum of those before is"
            f" {dtype_name(kept.dtype)}."
        )


def _copy_shared(
    params: Sequence[Tensor],
    sums: Sequence[Tensor | None],
    gradients: list[Tensor],
    titles_of: Callable[[Sequence[Tensor]], list[str]],
) -> list[Tensor]:
    """The gradients that are added to dense sums, of which none lies in what is written.

    Args:
        params, sums: All parameters and their sums.
        gradients: Those that are added.
        titles_of: Gives names of parameters, for messages.
    """
    written = [kept for kept in sums if kept is not None and not kept.is_sparse]
    homes = set(_storages_of(written))
    if len(homes) < len(written) or not homes.isdisjoint(_storages_of(params)):
        titles = titles_of(params)
        pairs = zip(sums, titles, strict=True)
        named = [
            f"{title}/{SUM}" for kept, title in pairs if kept is not None and not kept.is_sparse
        ]
        check_disjoint([*written, *params], [*named, *titles])
    if homes.isdisjoint(_storages_of(gradients)):
        return gradients
    homes_of = zip(gradients, _storages_of(gradients), strict=True)
    return [grad.clone() if home in homes else grad for grad, home in homes_of]


def _storages_of(tensors: Iterable[Tensor]) -> Iterable[int]:
    return map(attrgetter("_cdata"), map(Tensor.untyped_storage, tensors))


def _begin_sum(grad: Tensor, unscaling: float | None, wide: bool, is_alone: bool) -> Tensor:
    """The first gradient of a sum; nobody else will hold it."""
    if wide and grad.dtype in REDUCED:
        grad = grad.float()
    elif unscaling is None and not is_alone:
        grad = grad.clone()
    return grad if unscaling is None else grad * unscaling


def _is_alone(param: Tensor) -> bool:
    """Whether nobody else holds a gradient or its memory, as a bucket, a list or an array may."""
    grad = cast("Tensor", param.grad)
    # One whose elements share memory cannot be added to.
    return not grad.is_sparse and layout.is_dense(grad) and _count_holders(param) == _of_one()


def _count_holders(param: Tensor) -> tuple[int, ...]:
    grad = cast("Tensor", param.grad)
    memory = grad.untyped_storage()
    tensors = count_holders(memory)
    return sys.getrefcount(grad), grad._use_count(), tensors, memory.resizable()  # pyright: ignore


@cache
def _of_one() -> tuple[int, ...]:
    """What `_count_holders` counts of a gradient that its parameter alone holds."""
    param = torch.zeros(1, dtype=torch.float32, device="cpu", requires_grad=True)
    param.grad = torch.zeros(1, dtype=torch.float32, device="cpu")
    return _count_holders(param)


@contextmanager
def set_aside(state: Mapping[object, object]) -> Generator[None]:
    """Have no state where sums are all of it, in a `with` block: torch expects `step`."""
    begun = [(own, own.pop(SUM)) for _, own in states_of(state) if own.keys() == {SUM}]
    try:
        yield
    finally:
        for own, kept in begun:
            own[SUM] = kept


def sums_of(state: Mapping[object, object]) -> dict[int, Tensor]:
    """The sums by `id` of their parameters."""
    return {id(param): own[SUM] for param, own in states_of(state) if SUM in own}


def clearing_sums(groups: Sequence[Group], state: Mapping[object, object]) -> list[Call]:
    """What begins anew, as functions in C that return None."""
    owners = [own for _, own in states_of(state) if SUM in own]
    counted = [group.__setitem__ for group in groups]
    return [
        *(partial(own.__delitem__, SUM) for own in owners),
        *(partial(each, COUNT, 0) for each in counted),
    ]


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Accumulation(Option):
    """Option that sums gradients of several backward passes for one step.

    Attributes:
        accumulate: How many calls of `step` add up gradients, and free them, for one that is taken:
            the last of them. Clipping sees the sum, and so does the update.
        wide_sums: Whether sums of 16-bit gradients are float32; they are beside masters.
    """

    accumulate: int = 1
    wide_sums: bool = False

    def __post_init__(self) -> None:
        if type(self.accumulate) is not int or self.accumulate < 1:
            raise InvalidArgumentError(
                f"accumulate must be a whole number from 1 on, not {show_value(self.accumulate)}."
            )
        self._check_bool("wide_sums")

    @property
    def is_ours(self) -> bool:
        return self.accumulate > 1
