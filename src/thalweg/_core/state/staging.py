"""Copies of what remembers: to try something on, and those that users make."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from torch import Tensor

from thalweg._base.execution_context import handle_of
from thalweg._base.locks import Guard
from thalweg._core import atomic_section
from thalweg._core.hyperparameters import Hyperparameters
from thalweg._core.slots import SlotStore
from thalweg._core.state.entries import Call

_T = TypeVar("_T")
_OPENED = (list, dict, set, Hyperparameters)


class Staged:
    """What has slots: inside of a holder it has a twin inside of the holder's."""


def staged(holder: _T) -> _T:
    """A twin with the same slots and variables, that can be given more without `holder` knowing."""
    return _staged(holder, {})


def _staged(holder: _T, twins: dict[int, object]) -> _T:
    twin = twins[id(holder)] = object.__new__(type(holder))
    own: dict[str, Any] = {}
    for name, value in vars(holder).items():
        if isinstance(value, Staged):
            known = id(value) in twins
            own[name] = twins[id(value)] if known else _staged(value, twins)
        else:
            is_opened = type(value) in _OPENED or isinstance(value, SlotStore)
            own[name] = copy.copy(value) if is_opened else value
    vars(twin).update(own)
    return twin


def published(holder: object, twin: object) -> list[Call]:
    """The calls, in C alone, after which `holder` has all that `twin` has."""
    return _published(holder, twin, set())


def _published(holder: object, twin: object, done: set[int]) -> list[Call]:
    done.add(id(holder))
    given: dict[str, Any] = {**vars(twin)}
    made: list[Call] = []
    remembered: dict[str, object] = holder.__dict__
    for name, value in remembered.items():
        if isinstance(value, Staged):
            inside = given.pop(name, value)
            if id(value) not in done:
                made += _published(value, inside, done)
    return [*made, partial(remembered.update, given)]


@contextlib.contextmanager
def whole(holder: object, unless: Sequence[object] = ()) -> Generator[None]:
    """Let a block make slots and variables of a holder: all of them, or none if it fails.

    Args:
        holder: What remembers.
        unless: What was made stays if this list is no longer empty: a step was taken.
    """
    before = staged(holder)
    try:
        yield
    except BaseException:
        if not unless:
            atomic_section.run(published(holder, before))
        raise


def making(
    holder: Any, variables: Iterable[object], unless: Sequence[object] = ()
) -> contextlib.AbstractContextManager[None]:
    """`whole`; nothing, where the holder has slots of all these variables and need make none."""
    known = set(map(id, holder._slots.owners()))
    asked = (id(handle_of(var)) for var in variables)
    return contextlib.nullcontext() if known.issuperset(asked) else whole(holder, unless)


class Copied(Staged):
    """What `copy.deepcopy` and `pickle` copy between two steps, never within another thread's."""

    def _locked(self) -> Guard:
        """Holds steps back."""
        raise NotImplementedError

    def _foreign(self) -> list[object]:
        """Tensors and callables that were given to it, and are shared with whoever gave them."""
        found: list[Any] = []
        for value in vars(self).values():
            if isinstance(value, Copied):
                found += value._foreign()
            elif isinstance(value, Tensor) or callable(value):
                found.append(value)
        return found

    def _blank(self) -> Self:
        """What is yet to become a copy."""
        return type(self).__new__(type(self))

    def __copy__(self) -> Self:
        made = self._blank()
        with self._locked():
            made.__setstate__(self.__getstate__())  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        return made

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        made = self._blank()
        memo[id(self)] = made
        with self._locked():
            made.__setstate__(copy.deepcopy(self.__getstate__(), memo))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        # What is returned is read later, so it must be a copy. Variables stay those that the
        # pickle may hold, too.
        with self._locked():
            memo = {id(value): value for value in self._foreign()}
            copied = copy.deepcopy(self, memo)
        return object.__reduce_ex__(copied, protocol)
