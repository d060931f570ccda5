"""Copies of stateful objects, for changes that are made completely or not at all."""

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
_CONTAINERS = (list, dict, set, Hyperparameters)


class Staged:
    """Base class of objects that `staged` copies together with the object that holds them."""


def staged(holder: _T) -> _T:
    """Return a copy of a stateful object, its *twin*, to which slots and variables can be added.

    The twin shares tensors with `holder`, but has copies of its lists, dicts, sets and slots.
    Attributes that are `Staged` have twins, too.
    """
    return _stage_twin(holder, {})


def _stage_twin(holder: _T, twins: dict[int, object]) -> _T:
    """Create a copy of `holder` as `staged` does, and add it to `twins`.

    `twins` is {`id` of an object: its copy}. A `Staged` attribute that is in `twins` is not copied
    again.
    """
    # Added before its attributes are visited, because they may refer to `holder`.
    twin = twins[id(holder)] = object.__new__(type(holder))
    attributes: dict[str, Any] = {}
    for name, value in vars(holder).items():
        if isinstance(value, Staged):
            has_twin = id(value) in twins
            attributes[name] = twins[id(value)] if has_twin else _stage_twin(value, twins)
        else:
            is_container = type(value) in _CONTAINERS or isinstance(value, SlotStore)
            attributes[name] = copy.copy(value) if is_container else value
    vars(twin).update(attributes)
    return twin


def published(holder: object, twin: object) -> list[Call]:
    """Return C functions that copy all attributes of a twin to `holder`.

    A `Staged` attribute of `holder` stays, and receives the attributes of its twin.
    """
    return _publish_twin(holder, twin, set())


def _publish_twin(holder: object, twin: object, visited: set[int]) -> list[Call]:
    """Return functions in C that copy the attributes of `twin` to `holder`; see `published`.

    Objects whose `id` is in `visited` are left out. The `id` of `holder` and of each `Staged`
    attribute is added to `visited`.
    """
    visited.add(id(holder))
    new_attributes: dict[str, Any] = {**vars(twin)}
    calls: list[Call] = []
    attributes: dict[str, object] = holder.__dict__
    for name, value in attributes.items():
        if isinstance(value, Staged):
            value_twin = new_attributes.pop(name, value)
            if id(value) not in visited:
                calls += _publish_twin(value, value_twin, visited)
    return [*calls, partial(attributes.update, new_attributes)]


@contextlib.contextmanager
def whole(holder: object, unless: Sequence[object] = ()) -> Generator[None]:
    """Undo the creation of slots and variables if the `with` block raises an exception.

    Attributes of `holder` and of its `Staged` attributes are reset, but not the values in tensors.
    The exception is raised again.

    Args:
        holder: Object with slots, such as an optimizer.
        unless: Nothing is undone if this list has an entry: the step was written.
    """
    backup = staged(holder)
    try:
        yield
    except BaseException:
        if not unless:
            atomic_section.run(published(holder, backup))
        raise


def making(
    holder: Any, variables: Iterable[object], unless: Sequence[object] = ()
) -> contextlib.AbstractContextManager[None]:
    """Return `whole(holder, unless)`; a context without effect if each variable has slots."""
    owned_ids = set(map(id, holder._slots.owners()))
    requested_ids = (id(handle_of(var)) for var in variables)
    return (
        contextlib.nullcontext() if owned_ids.issuperset(requested_ids) else whole(holder, unless)
    )


class Copied(Staged):
    """Base class of objects that cannot be copied or pickled during a step of another thread."""

    def _locked(self) -> Guard:
        """Return the lock that blocks steps."""
        raise NotImplementedError

    def _foreign(self) -> list[object]:
        """Return the user's tensors and callables, which copies share with the original."""
        shared_objects: list[Any] = []
        for value in vars(self).values():
            if isinstance(value, Copied):
                shared_objects += value._foreign()
            elif isinstance(value, Tensor) or callable(value):
                shared_objects.append(value)
        return shared_objects

    def _blank(self) -> Self:
        """Return a new object without state."""
        return type(self).__new__(type(self))

    def __copy__(self) -> Self:
        clone = self._blank()
        with self._locked():
            clone.__setstate__(self.__getstate__())  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        return clone

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        clone = self._blank()
        # Registered before the state is copied, because the state may refer to `self`.
        memo[id(self)] = clone
        with self._locked():
            clone.__setstate__(copy.deepcopy(self.__getstate__(), memo))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        return clone

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The pickler reads the returned state after the lock is released, so copy it. User objects
        # stay the same, for the pickle may contain them elsewhere, too.
        with self._locked():
            memo = {id(value): value for value in self._foreign()}
            clone = copy.deepcopy(self, memo)
        return object.__reduce_ex__(clone, protocol)
