"""Copies of what remembers: to try something on, and those that users make."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, Self, TypeVar

from torch import Tensor

from thalweg.core.hyperparameters import Hyperparameters
from thalweg.core.slots import SlotStore
from thalweg.core.state.entries import Call
from thalweg.locks import Guard

_T = TypeVar("_T")
_OPENED = (list, dict, set, SlotStore, Hyperparameters)


def staged(holder: _T) -> _T:
    """A twin with the same slots and variables, that can be given more without `holder` knowing."""
    twin = object.__new__(type(holder))
    own = {
        name: copy.copy(value) if type(value) in _OPENED else value
        for name, value in vars(holder).items()
    }
    vars(twin).update(own)
    return twin


def published(holder: Any, twin: Any) -> Call:
    """The call, in C alone, after which `holder` has all that `twin` has."""
    remembered: dict[str, Any] = holder.__dict__
    return partial(remembered.update, dict(twin.__dict__))


class Copied:
    """What `copy.deepcopy` and `pickle` copy between two steps, never within another thread's."""

    def _locked(self) -> Guard:
        """Holds steps back."""
        raise NotImplementedError

    def _foreign(self) -> list[Any]:
        """Tensors and callables that were given to it, and are shared with whoever gave them."""
        found: list[Any] = []
        for value in vars(self).values():
            if isinstance(value, Copied):
                found += value._foreign()
            elif isinstance(value, Tensor) or callable(value):
                found.append(value)
        return found

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        with self._locked():
            made.__setstate__(self.__getstate__())  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self).__new__(type(self))
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
