"""Parameters that are their averages in a `with` block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import not_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg._base.context_managers import ContextSetting, writable
from thalweg._core.atomic_section import Call, unless_resized, unwatched, when
from thalweg._core.commit import raise_first
from thalweg._core.dtensor import local
from thalweg._core.options.weight_averaging import EMA
from thalweg._core.param_groups import parameter_names, states_of
from thalweg._engines.layout import check_memory
from thalweg.errors import FailedPreconditionError, InvalidArgumentError


class _Swap(NamedTuple):
    """A parameter in a block.

    Attributes:
        title: Its name.
        param: The parameter.
        plain: Its memory, where the block began.
        average: Its average.
        kept: Has the parameter's value in the block.
    """

    title: str
    param: Tensor
    plain: Tensor
    average: Tensor
    kept: Tensor


AverageOf = Callable[[Tensor, Mapping[str, Any]], Tensor | None]


def _ema_of(param: Tensor, own: Mapping[str, Any]) -> Tensor | None:
    return own.get(EMA)


def swapped(optimizer: object, average_of: AverageOf = _ema_of) -> ContextSetting:
    """Return a context manager for a block in which the parameters of an optimizer are their
    averages.

    Args:
        optimizer: A `FusedOptimizer` that keeps averages.
        average_of: Gives that of a parameter with a state; None if there is none.
    """
    return ContextSetting(partial(_prepared, optimizer, average_of))


def _prepared(optimizer: Any, average_of: AverageOf) -> tuple[list[Call], list[Call]]:
    own = optimizer._own
    with own._lock, writable():
        if own.is_swapped:
            _refuse()
        swaps = _swaps(optimizer, average_of)
    back = [unless_resized(partial(each.plain.copy_, each.kept)) for each in swaps]
    # Empty until the block is open: one that is refused closes nothing.
    closing: list[Call] = []
    into = [
        partial(setattr, own, "is_swapped", True),
        partial(
            closing.extend,
            [unwatched([*back, partial(setattr, own, "is_swapped", False)]), partial(_end, swaps)],
        ),
        *(partial(each.kept.copy_, each.plain) for each in swaps),
        *(partial(each.plain.copy_, each.average) for each in swaps),
    ]
    # The lock was free for a moment: another thread may have begun a block of its own.
    is_free = map(not_, map(getattr, (own,), ("is_swapped",)))
    is_refused = map(not_, (closing,))
    lock = own._lock
    return [lock.acquire, when(is_free, unwatched(into)), lock.release,
            when(is_refused, _refuse)], closing  # fmt: skip


def _refuse() -> None:
    raise FailedPreconditionError(
        "The parameters are their averages already: swapped() was called inside of swapped()."
    )


def _swaps(optimizer: Any, average_of: AverageOf) -> list[_Swap]:
    found = [(param, average_of(param, own)) for param, own in states_of(optimizer.state)]
    given = [(param, average) for param, average in found if average is not None]
    titles = parameter_names(optimizer.param_groups, [param for param, _ in given])
    swaps: list[_Swap] = []
    for (param, mean), title in zip(given, titles, strict=True):
        plain, average = local(param).detach(), local(mean).detach()
        check_memory(plain, f"'{title}'")
        check_memory(average, f"The average of '{title}'")
        if average.shape != plain.shape:
            raise InvalidArgumentError(
                f"The average of '{title}' has shape {tuple(average.shape)} but the parameter has"
                f" shape {tuple(plain.shape)}."
            )
        swaps.append(_Swap(title, param, plain, average, torch.empty_like(plain)))
    return swaps


def _end(swaps: list[_Swap]) -> None:
    """Have parameters that were given other memory in the block have their values there."""
    errors: list[BaseException] = []
    with writable():
        for title, param, plain, _, kept in swaps:
            now = local(param).detach()
            try:
                check_memory(now, f"'{title}'")
                if now.data_ptr() != plain.data_ptr() or now.shape != plain.shape:
                    now.copy_(kept)
            except (ValueError, RuntimeError) as error:
                error.add_note(f"'{title}' does not have its value again, which it had before"
                               " swapped().")  # fmt: skip
                errors.append(error)
    raise_first(errors)
