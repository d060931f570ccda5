"""Setting a state: all or nothing."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg._base.context_managers import writable
from thalweg._base.execution_context import is_symbolic
from thalweg._core import atomic_section
from thalweg._core.reentrance import check_no_step
from thalweg._core.slots import SlotStore
from thalweg._core.state.aliases import conflicts
from thalweg._core.state.entries import Call, Compared, Entry, Item, has_storage, is_writable, shown
from thalweg._core.state.names import Names, keys_of
from thalweg._core.state.staging import Copied, published, staged
from thalweg._engines.memory_protection import check_writable
from thalweg.errors import (
    LISTED,
    CheckpointMismatchError,
    FailedPreconditionError,
    LayoutError,
    listed,
)

# Entries, what they are given, and whether all of them have to be in it.
Given = tuple[Sequence[Item], Mapping[str, Any], bool]

NO_MEMORY = (MemoryError, torch.OutOfMemoryError)  # no fault of a state's


def check_eager(what: str, own: Iterable[object] = (), is_eager: object = True) -> None:
    """Refuse a state that is not eager, or has symbols among its `own`; say who saves it."""
    if not is_eager or any(map(is_symbolic, own)):
        raise FailedPreconditionError(
            f"{what} is variables of a graph, whose values a session has: save and restore them by"
            " thalweg.v1.train.Saver."
        )


def snapshot(entries: Iterable[Item]) -> dict[str, Any]:
    """Copies of all values by name."""
    return {entry.name: entry.read() for entry in entries}


def differences(
    entries: Iterable[Compared], given: Mapping[Any, Any], complete: bool = True
) -> list[str]:
    """Why a state cannot be set, in the order of the entries.

    Args:
        entries: What there is.
        given: The state.
        complete: Whether all entries have to be in it.
    """
    wanted = {entry.name: entry for entry in entries}
    found: list[str | None] = []
    for name, entry in wanted.items():
        if name not in given:
            found.append(f"{name!r} is missing" if complete else None)
            continue
        try:
            found.append(entry.difference(given[name]))
        except NO_MEMORY:
            raise
        except Exception as error:  # a class of tensors that fails whatever it is asked for
            found.append(f"{name!r} cannot be read: {error}")
    for name in given:
        if name not in wanted:
            title = repr(name) if isinstance(name, str) else shown(name)
            found.append(f"{title} belongs to nothing here")
    return [each for each in found if each]


def mismatch(
    found: Sequence[str], what: str = "", outcome: str = "Nothing was loaded."
) -> CheckpointMismatchError:
    """The error that lists differences.

    Args:
        found: The differences.
        what: Whose state it is.
        outcome: What has become of it.
    """
    if any(each.startswith(("'Variable/", "'Variable#")) for each in found[:LISTED]):
        outcome = (
            "Variables without a name are matched by their order; thalweg.named_variables(module)"
            f" names them. {outcome}"
        )
    return CheckpointMismatchError(f"{what}{': ' * bool(what)}{listed(found, '; ')}. {outcome}")


@dataclass(frozen=True)
class Loading:
    """A state in which no difference was found, before it is set.

    Attributes:
        pairs: Entries, and what they are set to.
        then: Further calls, after these, of the same kind as `Item.calls`.
        what: Whose state it is, as in `mismatch`.
        is_ours: Whether the values are plain tensors that nothing writes to meanwhile.
    """

    pairs: Sequence[tuple[Item, Any]] = ()
    then: Sequence[Call] = ()
    what: str = ""
    is_ours: bool = False

    def check_memory(self) -> None:
        """Refuse tensors whose memory may only be read.

        Raises:
            CheckpointMismatchError: Names the first, or all whose storage was cut.
        """
        own = [(entry.own, entry.name) for entry, _ in self.pairs if isinstance(entry, Entry)]
        cut = [name for tensor, name in own if not is_writable(tensor)]
        if cut:
            raise mismatch([f"{name!r} has no memory of its own here" for name in cut], self.what)
        try:
            check_writable([pair for pair in own if has_storage(pair[0])])
        except LayoutError as error:
            raise mismatch([str(error).removesuffix(".")], self.what) from error

    def calls(self) -> list[Call]:
        """What sets it, in C alone; all conversions are made now."""
        calls: list[Call] = []
        for entry, value in self.pairs:
            try:
                calls += entry.calls(value, self.is_ours)
            except NO_MEMORY:
                raise
            except Exception as error:
                found = [f"{entry.name!r} cannot be read: {error}"]
                raise mismatch(found, self.what) from error
        return [*calls, *self.then]


def restore(*loadings: Loading) -> None:
    """Set all of several states, or none.

    Raises:
        CheckpointMismatchError: A value cannot be converted, memory may only be read, or entries
            over the same memory are given different values.
    """
    with writable():
        for each in loadings:
            each.check_memory()
        calls = [call for each in loadings for call in each.calls()]
        _check_aliases(loadings)
        atomic_section.run(calls)


def _check_aliases(loadings: Sequence[Loading]) -> None:
    pairs = [pair for each in loadings for pair in each.pairs]
    found = conflicts((entry, value) for entry, value in pairs if isinstance(entry, Entry))
    if found:
        raise mismatch(found, loadings[0].what)


def fitting(
    entries: Sequence[Item], given: Mapping[str, object], what: str, then: Iterable[Call] = ()
) -> Loading:
    """A state that has all entries and nothing else.

    Args:
        entries: What there is.
        given: The state.
        what, then: See `Loading`.

    Raises:
        CheckpointMismatchError: Lists up to ten differences.
    """
    return _fitting([(entries, given, True)], what, then)


def _fitting(parts: Sequence[Given], what: str, then: Iterable[Call]) -> Loading:
    found = [each for part in parts for each in differences(*part)]
    if found:
        raise mismatch(found, what)
    pairs = [(each, own[each.name]) for all_, own, _ in parts for each in all_ if each.name in own]
    return Loading(pairs, list(then), what)


class StateDict(Copied):
    """The part of an optimizer, or of what keeps averages, that saves and loads, in any face.

    Nothing changes before all of a state is known to fit: what is missing is made on a twin.
    """

    _slots: SlotStore

    def _owners(self) -> list[Tensor]:
        """The variables that have slots, in order of their first."""
        return self._slots.owners()

    @contextmanager
    def _loading(
        self, state_dict: object, var_list: object = None, names: Names = keys_of
    ) -> Generator[Loading]:
        """What `load_state_dict` sets, by these names; the lock is held meanwhile."""
        given, variables = self._given_state(state_dict, var_list)
        with self._locked().to_load(), writable():
            if (plans := vars(self).get("_plans")) is not None:
                check_no_step(plans, type(self).__name__, "load_state_dict")
            yield self._fitting(given, variables, names)
            self._loaded()

    def _given_state(self, state_dict: object, var_list: object) -> tuple[Any, Any]:
        """A state as this face has it, and its variables; what is none raises."""
        raise NotImplementedError

    def _fitting(self, given: object, variables: object, names: Names) -> Loading:
        made = staged(self)
        made._forget_awaited()
        what, parts = made._state_parts(given, variables, names)
        return _fitting(parts, what, published(self, made))

    def _forget_awaited(self) -> None:
        """Let go of what waits for slots to be made."""

    def _state_parts(
        self, given: object, variables: object, names: Names
    ) -> tuple[str, list[Given]]:
        """Whose state it is, and the entries that its parts set; makes these."""
        raise NotImplementedError

    def _loaded(self) -> None:
        """All that is kept is whole."""
        self._locked().loaded()
