"""Exchange of parameters and their averages in a `with` block."""

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
    """Parameter that is swapped with its average in a block.

    Attributes:
        memory: The parameter's memory at the start of the block.
        buffer: Holds the parameter's value in the block.
    """

    label: str
    param: Tensor
    memory: Tensor
    average: Tensor
    buffer: Tensor


AverageOf = Callable[[Tensor, Mapping[str, Any]], Tensor | None]


def _ema_of(param: Tensor, entries: Mapping[str, Any]) -> Tensor | None:
    """Return the average of a parameter in its state, or None."""
    return entries.get(EMA)


def swapped(optimizer: object, average_of: AverageOf = _ema_of) -> ContextSetting:
    """Exchange the parameters of an optimizer with their averages in a `with` block.

    Args:
        optimizer: A `FusedOptimizer` that keeps averages.
        average_of: `average_of(param, state)` returns the average of a parameter from the
            parameter's state, or None without an average.
    """
    return ContextSetting(partial(_exchange_calls, optimizer, average_of))


def _exchange_calls(optimizer: Any, average_of: AverageOf) -> tuple[list[Call], list[Call]]:
    """Return (callables for the start of a `with` block, callables for its end).

    Callables of the first list copy averages to parameters and fill the second list. Callables of
    the second list restore the parameters. `average_of` is the argument of `swapped`.

    Raises:
        FailedPreconditionError: The parameters are averages already.
    """
    cache = optimizer.step_cache
    with cache.lock, writable():
        if cache.holds_averages:
            _raise_nested()
        swaps = _find_swaps(optimizer, average_of)
    restore_calls = [unless_resized(partial(swap.memory.copy_, swap.buffer)) for swap in swaps]
    # Empty until the block is open, since the exit of a block that failed to open must do nothing.
    closing: list[Call] = []
    enter_calls = [
        partial(setattr, cache, "holds_averages", True),
        partial(
            closing.extend,
            [
                unwatched([*restore_calls, partial(setattr, cache, "holds_averages", False)]),
                partial(_restore_moved, swaps),
            ],
        ),
        *(partial(swap.buffer.copy_, swap.memory) for swap in swaps),
        *(partial(swap.memory.copy_, swap.average) for swap in swaps),
    ]
    # The lock was free for a moment: another thread may have begun a block of its own.
    is_free = map(not_, map(getattr, (cache,), ("holds_averages",)))
    is_nested = map(not_, (closing,))
    lock = cache.lock
    return [lock.acquire, when(is_free, unwatched(enter_calls)), lock.release,
            when(is_nested, _raise_nested)], closing  # fmt: skip


def _raise_nested() -> None:
    """Raise FailedPreconditionError: `swapped` was entered twice."""
    raise FailedPreconditionError(
        "The parameters are their averages already: swapped() was called inside of swapped()."
    )


def _find_swaps(optimizer: Any, average_of: AverageOf) -> list[_Swap]:
    """Return a `_Swap`, with a new buffer, for each parameter that has an average.

    `average_of` is the argument of `swapped`.

    Raises:
        InvalidArgumentError: A parameter and its average have different shapes.
        LayoutError: A parameter or its average has no memory.
    """
    states = states_of(optimizer.state)
    averages = [(param, average_of(param, entries)) for param, entries in states]
    averaged_params = [(param, average) for param, average in averages if average is not None]
    labels = parameter_names(optimizer.param_groups, [param for param, _ in averaged_params])
    swaps: list[_Swap] = []
    for (param, mean), label in zip(averaged_params, labels, strict=True):
        memory, average = local(param).detach(), local(mean).detach()
        check_memory(memory, f"'{label}'")
        check_memory(average, f"The average of '{label}'")
        if average.shape != memory.shape:
            raise InvalidArgumentError(
                f"The average of '{label}' has shape {tuple(average.shape)} but the parameter has"
                f" shape {tuple(memory.shape)}."
            )
        swaps.append(_Swap(label, param, memory, average, torch.empty_like(memory)))
    return swaps


def _restore_moved(swaps: list[_Swap]) -> None:
    """Write values back to parameters whose memory was replaced in the block.

    Raise the first error after trying all parameters.
    """
    errors: list[BaseException] = []
    with writable():
        for label, param, memory, _, buffer in swaps:
            current = local(param).detach()
            try:
                check_memory(current, f"'{label}'")
                if current.data_ptr() != memory.data_ptr() or current.shape != memory.shape:
                    current.copy_(buffer)
            except (ValueError, RuntimeError) as error:
                error.add_note(f"'{label}' does not have its value again, which it had before"
                               " swapped().")  # fmt: skip
                errors.append(error)
    raise_first(errors)
