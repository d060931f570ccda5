"""Steps that begin within a step of the same optimizer: a signal handler or a callback calls it.

Locks let their own thread pass. A step that is planned has read counts and slots that an inner step
would change, and would overwrite what that one wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import compress, starmap
from operator import is_
from threading import get_ident
from typing import Any

from thalweg.core.section import Call, drain
from thalweg.errors import FailedPreconditionError
from thalweg.ground.switches import Within


def one_step_at_a_time(owner: Any, title: str, caches: Iterable[Any] = ()) -> Within:
    """Return the block in which a thread takes a step; the lock of the optimizer is held.

    Args:
        owner: What remembers the thread, as its `stepping`.
        title: The name of the optimizer.
        caches: What takes steps in one call, as their `quick`, which they lack in the block.

    Raises:
        FailedPreconditionError: When the block is entered: the thread is in such a block already.
    """
    return Within(partial(_sections, owner, title, caches))


def check_no_step(owner: Any, title: str, call: str) -> None:
    """Raise `FailedPreconditionError` if this thread is in a step of an optimizer.

    Args:
        owner, title: As for `one_step_at_a_time`.
        call: What was called.
    """
    if owner.stepping == get_ident():
        raise FailedPreconditionError(
            f"{call} of {title} was called within a step of the same optimizer, such as by a signal"
            " handler, a hook or a constraint. This call changed nothing. Have the handler set a"
            " flag, and make the call after the step."
        )


def _sections(owner: Any, title: str, caches: Iterable[Any]) -> tuple[list[Call], list[Call]]:
    check_no_step(owner, title, "A step")
    hidden = list(caches)
    # Filled and read in C, so that a signal handler cannot change the cache between the two.
    quick: list[Any] = []
    nothing = [None] * len(hidden)
    name = ["quick"] * len(hidden)
    opening = [
        partial(setattr, owner, "stepping", get_ident()),
        partial(quick.extend, map(getattr, hidden, name)),
        partial(drain, map(setattr, hidden, name, nothing)),
    ]
    # What the step itself has planned for the next one stays.
    lacking = map(is_, map(getattr, hidden, name), nothing)
    pairs = compress(zip(hidden, name, quick, strict=False), lacking)
    closing = [
        partial(drain, starmap(setattr, pairs)),
        partial(setattr, owner, "stepping", None),
    ]
    return opening, closing
