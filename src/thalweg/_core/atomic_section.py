"""Atomic sections: writes that no interruption can split.

`KeyboardInterrupt` and exceptions of `PyThreadState_SetAsyncExc` are raised between two
instructions of Python. A loop in C over callables in C has none, so it runs as a whole or not at
all. A step collects its writes first, as functions in C with bound arguments (a kernel's launch,
`copy_` of a tensor), and then calls all of them in one go. A *function in C* is such a callable
without Python code. A `Variable` must not be an argument, because torch calls Python for
subclasses; `detach()` gives a plain tensor over the same memory, with the same version counter.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch._C import (
    DisableTorchFunction,
    _DisableTorchDispatch,  # pyright: ignore[reportPrivateUsage]
)

from thalweg._base.context_managers import Call, calls, drain, when
from thalweg._engines.layout import byte_span
from thalweg._engines.memory_protection import check_numbers_writable
from thalweg.variable import dtype_name


def unless_resized(call: Call) -> Call:
    """Return a function that calls `call` if all its tensors fit into their storages.

    If a storage is too small, the function does nothing. A write beyond a storage would crash.

    Args:
        call: A function in C with tensors among its arguments, bound by `partial`. Another callable
            is returned unchanged.
    """
    if not isinstance(call, partial):
        return call
    bound = cast("partial[Any]", call)
    arguments: list[Any] = []
    for argument in (getattr(bound.func, "__self__", None), *bound.args, *bound.keywords.values()):
        arguments += argument if isinstance(argument, list) else [argument]
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    required_bytes = list(map(_count_required_bytes, tensors))
    # Nothing is compared yet: `map` reads the storages' sizes when the function runs.
    fits = map(operator.le, required_bytes, map(torch.UntypedStorage.nbytes, storages))
    return when(map(all, [fits]), bound)


def _count_required_bytes(tensor: torch.Tensor) -> int:
    """Return how many bytes of its storage a tensor needs."""
    first, end = byte_span(tensor)
    return int(tensor.storage_offset()) * tensor.element_size() + end - first if end else 0


def check_targets(functions: Sequence[Call]) -> None:
    """Raise an error if one of `functions` would write to read-only memory. Call no function.

    A method of a tensor is assumed to write to that tensor. Any other function is assumed to write
    to the tensors in its first argument if this argument is a list.

    Raises:
        LayoutError: A written tensor is read-only; the message has its shape and dtype.
    """
    targets: list[torch.Tensor] = []
    for function in functions:
        # A bound method of a tensor, possibly in a `partial` that binds its arguments.
        method: Any = getattr(function, "func", function)
        owner: object = getattr(method, "__self__", None)
        if isinstance(owner, torch.Tensor):
            targets.append(owner)
        elif isinstance(function, partial):
            # The first argument of `_foreach_copy_` is a list.
            for argument in cast("partial[Any]", function).args[:1]:
                if isinstance(argument, list):
                    entries = cast("list[object]", argument)
                    targets += [entry for entry in entries if isinstance(entry, torch.Tensor)]
    check_numbers_writable(targets, lambda index: _describe(targets[index]))


def _describe(tensor: torch.Tensor) -> str:
    """Return a tensor's shape and dtype for messages."""
    return f"a tensor of shape {tuple(tensor.shape)} and type {dtype_name(tensor.dtype)}"


def run(functions: Sequence[Call]) -> None:
    """Call functions in C in order, so that no signal handler runs in between.

    Raises:
        LayoutError: A function would write to read-only memory; no function is called.
    """
    check_targets(functions)
    # Modes of torch would call Python for every function, and could fail in the middle.
    with DisableTorchFunction(), _DisableTorchDispatch():
        drain(map(operator.call, functions))


def unwatched(functions: Sequence[Call]) -> Call:
    """Combine functions in C into one call, in which torch's function and dispatch modes are off.

    No function may raise an exception: the modes would stay disabled.
    """
    # Create the guards in the call: torch crashes if the garbage collector finds one in a cycle,
    # such as that of a traceback and its frames.
    guard_classes: tuple[object, ...] = (DisableTorchFunction, _DisableTorchDispatch)
    guards: list[object] = []
    exit_args = (None,) * len(guard_classes)
    make = partial(guards.extend, calls(guard_classes))
    enter = partial(
        drain, map(operator.call, map(getattr, guards, ("__enter__",) * len(guard_classes)))
    )
    leaving = map(getattr, guards, ("__exit__",) * len(guard_classes))
    call: Any = operator.call
    # `clear` must be last: `leave` looks up `__exit__` of the guards when it runs.
    leave = partial(drain, map(call, leaving, exit_args, exit_args, exit_args))
    return partial(drain, calls([make, enter, *functions, leave, guards.clear]))
