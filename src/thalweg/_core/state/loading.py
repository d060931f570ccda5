"""Atomic loading of states."""

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

# Entries, the state to load, and whether all entries have to be in the state.
Given = tuple[Sequence[Item], Mapping[str, Any], bool]

# Errors that are not caused by an invalid state.
NO_MEMORY = (MemoryError, torch.OutOfMemoryError)


def check_eager(label: str, variables: Iterable[object] = (), is_eager: object = True) -> None:
    """Raise FailedPreconditionError unless the state is eager and no variable is symbolic."""
    if not is_eager or any(map(is_symbolic, variables)):
        raise FailedPreconditionError(
            f"{label} is variables of a graph, whose values a session has: save and restore them by"
            " thalweg.v1.train.Saver."
        )


def snapshot(entries: Iterable[Item]) -> dict[str, Any]:
    """Return copies of all values by name."""
    return {entry.name: entry.read() for entry in entries}


def differences(
    entries: Iterable[Compared], state: Mapping[Any, Any], complete: bool = True
) -> list[str]:
    """Return a message for each reason why a state cannot be loaded; [] if it can be loaded.

    Args:
        entries: Entries of the optimizer, in the order of the messages.
        state: Values by name. A name without an entry is a reason.
        complete: True if an entry without a value is a reason.
    """
    entries_by_name = {entry.name: entry for entry in entries}
    messages: list[str | None] = []
    for name, entry in entries_by_name.items():
        if name not in state:
            messages.append(f"{name!r} is missing" if complete else None)
            continue
        try:
            messages.append(entry.difference(state[name]))
        except NO_MEMORY:
            raise
        # Operations of tensor subclasses may raise anything.
        except Exception as error:
            messages.append(f"{name!r} cannot be read: {error}")
    for name in state:
        if name not in entries_by_name:
            name_text = repr(name) if isinstance(name, str) else shown(name)
            messages.append(f"{name_text} belongs to nothing here")
    return [message for message in messages if message]


def mismatch(
    messages: Sequence[str], label: str = "", outcome: str = "Nothing was loaded."
) -> CheckpointMismatchError:
    """Return a CheckpointMismatchError that lists differences.

    Args:
        messages: The differences.
        label: Description of the state, or "".
        outcome: Last sentence of the message.
    """
    if any(message.startswith(("'Variable/", "'Variable#")) for message in messages[:LISTED]):
        outcome = (
            "Variables without a name are matched by their order; thalweg.named_variables(module)"
            f" names them. {outcome}"
        )
    start = f"{label}: " if label else ""
    return CheckpointMismatchError(f"{start}{listed(messages, '; ')}. {outcome}")


def raise_mismatch(
    messages: Sequence[str], label: str = "", outcome: str = "Nothing was loaded."
) -> None:
    """Raise the error of `mismatch` if there are messages; do nothing for []."""
    if messages:
        raise mismatch(messages, label, outcome)


@dataclass(frozen=True)
class Loading:
    """Validated values of a state, which `restore` writes.

    Attributes:
        pairs: Entries and their new values.
        then: Functions in C that run after the writes of the entries.
        what: Description of the state for `mismatch`.
        is_ours: True if nothing else writes to the values. They are then not copied.
    """

    pairs: Sequence[tuple[Item, Any]] = ()
    then: Sequence[Call] = ()
    what: str = ""
    is_ours: bool = False

    def check_memory(self) -> None:
        """Raise an error unless the tensors of all entries can be written.

        Raises:
            CheckpointMismatchError: Memory of an entry is missing or read-only.
        """
        named_tensors = [
            (entry.own, entry.name) for entry, _ in self.pairs if isinstance(entry, Entry)
        ]
        unwritable = [name for tensor, name in named_tensors if not is_writable(tensor)]
        raise_mismatch(
            [f"{name!r} has no memory of its own here" for name in unwritable], self.what
        )
        try:
            check_writable([pair for pair in named_tensors if has_storage(pair[0])])
        except LayoutError as error:
            raise mismatch([str(error).removesuffix(".")], self.what) from error

    def calls(self) -> list[Call]:
        """Convert and copy all values; return C functions: writes of the copies, then `self.then`.

        Raises:
            CheckpointMismatchError: A value cannot be read.
        """
        calls: list[Call] = []
        for entry, value in self.pairs:
            try:
                calls += entry.calls(value, self.is_ours)
            except NO_MEMORY:
                raise
            except Exception as error:
                messages = [f"{entry.name!r} cannot be read: {error}"]
                raise mismatch(messages, self.what) from error
        return [*calls, *self.then]


def restore(*loadings: Loading) -> None:
    """Write several states in one commit: all of them, or none.

    Raises:
        CheckpointMismatchError: A value cannot be converted, memory is read-only, or entries in
            shared memory get different values.
    """
    with writable():
        for loading in loadings:
            loading.check_memory()
        # All conversions come before the first write, because each of them can fail.
        calls = [call for loading in loadings for call in loading.calls()]
        pairs = [pair for loading in loadings for pair in loading.pairs]
        messages = conflicts((entry, value) for entry, value in pairs if isinstance(entry, Entry))
        if messages:
            raise mismatch(messages, loadings[0].what)
        atomic_section.run(calls)


def fitting(entries: Sequence[Item], state: Mapping[str, object], label: str) -> Loading:
    """Return the `Loading` of a state, which must have exactly the names of `entries`.

    Args:
        entries: Entries of the optimizer.
        state: Values by name.
        label: A description of the state, for messages.

    Raises:
        CheckpointMismatchError: The state has differences; the message lists up to ten.
    """
    return _fitting([(entries, state, True)], label)


def _fitting(groups: Sequence[Given], label: str, calls: Sequence[Call] = ()) -> Loading:
    """Return one `Loading` of several states; raise CheckpointMismatchError for differences.

    An element of `groups` is (entries, state, True if missing values are differences). `restore`
    calls the functions in C `calls` after the writes.
    """
    raise_mismatch([message for group in groups for message in differences(*group)], label)
    pairs = [
        (entry, state[entry.name])
        for entries, state, _ in groups
        for entry in entries
        if entry.name in state
    ]
    return Loading(pairs, calls, label)


class StateDict(Copied):
    """Base class of optimizers and moving averages that save and load states.

    A load creates missing slots on a twin, and changes the object only after all checks.
    """

    _slots: SlotStore

    def _owners(self) -> list[Tensor]:
        """Return the variables that have slots, in the order of their first slots."""
        return self._slots.owners()

    @contextmanager
    def _loading(
        self, state_dict: object, var_list: object = None, names: Names = keys_of
    ) -> Generator[Loading]:
        """Return a context manager that holds the object's lock and yields a validated `Loading`.

        The `with` block must write the `Loading` by `restore`.

        Args:
            state_dict: The argument of `load_state_dict`, the saved state.
            var_list: The variables to which the state belongs, if the method has this argument.
            names: `names(variables)` returns unique names, by which entries are found.

        Raises:
            CheckpointMismatchError: The state differs from the entries of the object.
            FailedPreconditionError: This thread is within a step of the object.
        """
        state, variables = self._given_state(state_dict, var_list)
        with self._locked().to_load(), writable():
            if (plans := vars(self).get("_plans")) is not None:
                check_no_step(plans, type(self).__name__, "load_state_dict")
            yield self._fitting(state, variables, names)
            # Skipped if the block raises: the object then stays marked as it was.
            self._loaded()

    def _given_state(self, state_dict: object, var_list: object) -> tuple[Any, Any]:
        """Return the parsed state and its variables; raise for an argument of the wrong type."""
        raise NotImplementedError

    def _fitting(self, state: object, variables: object, names: Names) -> Loading:
        """Create missing slots on a twin, a copy of this object; return the `Loading` of a state.

        `restore` writes the values, and copies the twin's attributes to this object.
        """
        twin = staged(self)
        twin._forget_awaited()
        label, groups = twin._state_parts(state, variables, names)
        return _fitting(groups, label, published(self, twin))

    def _forget_awaited(self) -> None:
        """Discard values that wait for the creation of their slots."""

    def _state_parts(
        self, given: object, variables: object, names: Names
    ) -> tuple[str, list[Given]]:
        """Create the slots of the state; return its title and its parts."""
        raise NotImplementedError

    def _loaded(self) -> None:
        """Mark the object as consistent after a load."""
        self._locked().loaded()
