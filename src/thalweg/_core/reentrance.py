"""Detection of a step inside another step of one optimizer, for example in a callback."""

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
    """Mark of a step in progress, with its thread.

    Optimizers hold a weak reference to the mark. If a debugger leaves a step without its end, the
    mark is collected, and later steps are not blocked.
    """

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()


def one_step_at_a_time(owner: Any, label: str, caches: Iterable[Any] = ()) -> ContextSetting:
    """Return a context manager for a step of the current thread; steps inside it raise.

    The thread must hold the optimizer's lock. Call this function in the `with` statement itself: a
    variable with the result could keep the step marked as running after its end.

    Args:
        owner: The object whose attribute `stepping` marks the step in the `with` block; else None.
        label: The name of the optimizer.
        caches: Plan caches. Their `replay` is None in the block. It is restored at the end unless
            the step has set a new replay.

    Raises:
        FailedPreconditionError: The block is entered inside another block of this thread and owner.
    """
    return ContextSetting(partial(_make_sections, owner, label, caches))


def check_no_step(owner: Any, label: str, call: str) -> None:
    """Raise FailedPreconditionError if the current thread is in a step of `owner`.

    Args:
        owner: The optimizer, whose attribute `stepping` is None outside of steps.
        label: The name of the optimizer, for the message.
        call: The name of the method that was called, for the message.
    """
    stepping: Stepping | None = owner.stepping and owner.stepping()
    if stepping is not None and stepping.thread == get_ident():
        raise FailedPreconditionError(
            f"{call} of {label} was called within a step of the same optimizer, such as by a signal"
            " handler, a hook or a constraint. This call changed nothing. Have the handler set a"
            " flag, and make the call after the step."
        )


def _make_sections(owner: Any, label: str, caches: Iterable[Any]) -> tuple[list[Call], list[Call]]:
    """Return (functions in C that begin a block of `one_step_at_a_time`, functions that end it)."""
    check_no_step(owner, label, "A step")
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
    # Restore only where `replay` is still None: the step may have set a new one.
    lacking = map(is_, map(getattr, hidden_caches, name), empty_values)
    pairs = compress(zip(hidden_caches, name, replay, strict=False), lacking)
    closing = [
        partial(drain, starmap(setattr, pairs)),
        partial(setattr, owner, "stepping", None),
        # The optimizer has a weak reference only, so this call keeps the mark alive.
        partial(is_, stepping, None),
    ]
    return opening, closing
