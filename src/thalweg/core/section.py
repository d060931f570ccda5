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
from typing import Any, cast

from torch._C import (
    DisableTorchFunction,
    _DisableTorchDispatch,  # pyright: ignore[reportPrivateUsage]
)

Call = Callable[[], Any]

# Calls everything that an iterator of `calls` has left; itself a callable in C.
consume: Callable[[Iterator[Any]], Any] = partial(cast("type[deque[Any]]", deque), maxlen=0)


def calls(functions: Iterable[Call]) -> Iterator[Any]:
    """An iterator that calls the next function for each item; what they return is its items."""
    return map(operator.call, functions)


def run(functions: Sequence[Call]) -> None:
    """Call functions in C, one after the other; not one of them, or all."""
    # Modes of torch would call Python for every function, and could fail in the middle.
    with DisableTorchFunction(), _DisableTorchDispatch():
        consume(map(operator.call, functions))
