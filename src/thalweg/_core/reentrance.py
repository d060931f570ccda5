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
from weakref import ref

from thalweg._base.context_managers import ContextSetting
from thalweg._core.atomic_section import Call, drain
from thalweg.errors import FailedPreconditionError


class Stepping:
    """The thread of a step; it lives as long as the block of the step.

    Optimizers refer to it weakly, so that a block that is left without its end, as a debugger can
    force, does not keep them from stepping.
    """

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()


def one_step_at_a_time(owner: Any, title: str, caches: Iterable[Any] = ()) -> ContextSetting:
    """Return the block in which a thread takes a step; the lock of the optimizer is held.

    Call it in the `with` statement itself. A variable would keep the block, and so the `Stepping`,
    as long as the traceback of an interruption keeps its frame.

    Args:
        owner: Its attribute `stepping` is set to a weak reference to a `Stepping`.
        title: The name of the optimizer.
        caches: What takes steps in one call, as their `replay`, which they lack in the block.

    Raises:
        FailedPreconditionError: When the block is entered: the thread is in such a block already.
    """
    return ContextSetting(partial(_sections, owner, title, caches))


def check_no_step(owner: Any, title: str, call: str) -> None:
    """Raise `FailedPreconditionError` if this thread is in a step of an optimizer.

    Args:
        owner, title: As for `one_step_at_a_time`.
        call: What was called.
    """
    stepping: Stepping | None = owner.stepping and owner.stepping()
    if stepping is not None and stepping.thread == get_ident():
        raise FailedPreconditionError(
            f"{call} of {title} was called within a step of the same optimizer, such as by a signal"
            " handler, a hook or a constraint. This call changed nothing. Have the handler set a"
            " flag, and make the call after the step."
        )


def _sections(owner: Any, title: str, caches: Iterable[Any]) -> tuple[list[Call], list[Call]]:
    check_no_step(owner, title, "A step")
    hidden_caches = list(caches)
    # Filled and read in C, so that a signal handler cannot change the cache between the two.
    replay: list[Any] = []
    empty_values = [None] * len(hidden_caches)
    name = ["replay"] * len(hidden_caches)
    stepping = Stepping()
    opening = [
        partial(setattr, owner, "stepping", ref(stepping)),
        partial(replay.extend, map(getattr, hidden_caches, name)),
        partial(drain, map(setattr, hidden_caches, name, empty_values)),
    ]
    # What the step itself has planned for the next one stays.
    lacking = map(is_, map(getattr, hidden_caches, name), empty_values)
    pairs = compress(zip(hidden_caches, name, replay, strict=False), lacking)
    closing = [
        partial(drain, starmap(setattr, pairs)),
        partial(setattr, owner, "stepping", None),
        # Keeps it alive until the block ends.
        partial(is_, stepping, None),
    ]
    return opening, closing
