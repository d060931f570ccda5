"""Writes that no interruption can split.

`KeyboardInterrupt`, and what `PyThreadState_SetAsyncExc` sends, reach Python code between two of
its instructions. A loop in C over callables in C has none: it is entered before an interruption, or
left after it. So a step collects its writes first, as functions in C with their arguments bound (a
kernel's launch, `copy_` of a plain tensor), and then has them called in one go. A `Variable` must
not be among the arguments: torch calls back into Python for a subclass; `detach()` gives the plain
tensor over the same memory, with the same version counter.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from typing import Any, cast

import torch
from torch._C import (
    DisableTorchFunction,
    _DisableTorchDispatch,  # pyright: ignore[reportPrivateUsage]
)

from thalweg._base.context_managers import Call
from thalweg._engines.layout import byte_span
from thalweg._engines.memory_protection import check_numbers_writable
from thalweg.variable import dtype_name

# Calls everything that an iterator of `calls` has left; itself a callable in C.
drain: Callable[[Iterator[Any]], Any] = partial(cast("type[deque[Any]]", deque), maxlen=0)


def calls(functions: Iterable[Call]) -> Iterator[Any]:
    """An iterator that calls the next function for each item; what they return is its items."""
    return map(operator.call, functions)


def when(condition: Iterable[object], call: Call) -> Call:
    """A call that is made if a lazy condition, an iterator in C of one item, is true by then."""
    return partial(drain, map(operator.call, compress([call], condition)))


def unless_resized(call: Call) -> Call:
    """The call, left out if a tensor of it was cut meanwhile: to write there would end the process.

    Args:
        call: A function in C with its arguments bound by `partial`, in which tensors are found.
    """
    if not isinstance(call, partial):
        return call
    bound = cast("partial[Any]", call)
    given: list[Any] = []
    for one in (getattr(bound.func, "__self__", None), *bound.args, *bound.keywords.values()):
        given += one if isinstance(one, list) else [one]
    tensors = [one for one in given if isinstance(one, torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    needed = list(map(_end_of, tensors))
    fits = map(operator.le, needed, map(torch.UntypedStorage.nbytes, storages))
    return when(map(all, [fits]), bound)


def _end_of(tensor: torch.Tensor) -> int:
    """How many bytes of its storage a tensor needs."""
    first, end = byte_span(tensor)
    return int(tensor.storage_offset()) * tensor.element_size() + end - first if end else 0


def check_targets(functions: Sequence[Call]) -> None:
    """Raise if a tensor that one of these functions in C would write is in read-only memory.

    Raises:
        LayoutError: Names the first.
    """
    targets: list[torch.Tensor] = []
    for function in functions:
        # A method of a tensor, or one with its arguments bound.
        method: Any = getattr(function, "func", function)
        owner: object = getattr(method, "__self__", None)
        if isinstance(owner, torch.Tensor):
            targets.append(owner)
        elif isinstance(function, partial):  # perhaps of `_foreach_copy_`
            for listed in cast("partial[Any]", function).args[:1]:
                if isinstance(listed, list):
                    items = cast("list[object]", listed)
                    targets += [item for item in items if isinstance(item, torch.Tensor)]
    check_numbers_writable(targets, lambda index: _describe(targets[index]))


def _describe(tensor: torch.Tensor) -> str:
    return f"a tensor of shape {tuple(tensor.shape)} and type {dtype_name(tensor.dtype)}"


def run(functions: Sequence[Call]) -> None:
    """Call functions in C, one after the other; not one of them, or all.

    Raises:
        LayoutError: One of them would write to read-only memory.
    """
    check_targets(functions)
    # Modes of torch would call Python for every function, and could fail in the middle.
    with DisableTorchFunction(), _DisableTorchDispatch():
        drain(map(operator.call, functions))


def unwatched(functions: Sequence[Call]) -> Call:
    """One call of functions in C that cannot fail; modes of torch do not see them."""
    # The guards are made within: torch's crash where the garbage collector finds one in a cycle,
    # such as that of a traceback and its frames.
    kinds: tuple[object, ...] = (DisableTorchFunction, _DisableTorchDispatch)
    guards: list[object] = []
    nothing = (None,) * len(kinds)
    make = partial(guards.extend, calls(kinds))
    enter = partial(drain, map(operator.call, map(getattr, guards, ("__enter__",) * len(kinds))))
    leaving = map(getattr, guards, ("__exit__",) * len(kinds))
    call: Any = operator.call
    leave = partial(drain, map(call, leaving, nothing, nothing, nothing))
    return partial(drain, calls([make, enter, *functions, leave, guards.clear]))
