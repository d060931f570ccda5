"""The commit of a step: all writes or none. Exceptions get notes about what has changed."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from operator import length_hint
from typing import Any, NamedTuple

from torch import Tensor
from torch._C import DisableTorchFunction
from torch._C import _EnableTorchFunction as EnableTorchFunction  # pyright: ignore

from thalweg._base.context_managers import no_grad, writable
from thalweg._core.atomic_section import Call, calls, check_targets, drain, unless_resized
from thalweg._engines import saturated
from thalweg._engines.layout import check_memory
from thalweg._engines.memory_protection import check_numbers_writable
from thalweg._engines.protocol import WriteRound
from thalweg.errors import InvalidArgumentError, ReplicaLostError
from thalweg.variable import check_held, name_of, variable_constraint

_NOT_APPLIED_NOTE = "The step was not taken: no variable and no slot has changed."
TAKEN = "The step was taken"
SKIPPED = "The step was skipped"
LEFT = f"{TAKEN}, unless the device found a gradient that is infinite or NaN."


class StepResult(NamedTuple):
    """Result of a step.

    Attributes:
        taken: True if the step was taken; a bool tensor of shape () if only a device can decide.
        errors: The exceptions raised after the writes.
    """

    taken: bool | Tensor
    errors: list[BaseException]


class PostUpdateCall(NamedTuple):
    """User callback that runs after the writes of a step, with a note for its failure.

    Attributes:
        call: The function.
        missing: The note if the function fails: "without the constraint of 'w'".
        write: Optional function in C that writes the callback's result.
    """

    call: Call
    missing: str
    write: Call | None = None


@contextlib.contextmanager
def note_not_applied(notes: Sequence[str] = ()) -> Generator[None]:
    """If the `with` block raises, note on the exception whether the step was taken.

    Args:
        notes: A list to which `write_step` appends a sentence when it writes. The first sentence
            becomes the note. If the list is empty, the note is that the step was not taken.
    """
    try:
        yield
    except BaseException as error:
        add_note(error, notes)
        raise


def add_note(error: BaseException, notes: Sequence[str]) -> None:
    """Note on an exception that the step was written, or that nothing has changed.

    Args:
        error: The exception; changed. No note is added twice.
        notes: The note is `notes[0]`, which replaces a note that nothing has changed. [] if nothing
            was written.
    """
    if notes:
        error.__notes__ = [note for note in _list_notes(error) if note != _NOT_APPLIED_NOTE]
        if not any(note.startswith(notes[0].rstrip(".")) for note in _list_notes(error)):
            error.add_note(notes[0])
    elif not says_not_taken(error):
        error.add_note(_NOT_APPLIED_NOTE)
        if isinstance(error, AttributeError):
            # Imported late: only steps that fail need TensorFlow's names.
            from thalweg._base.tensor_patching import hint

            for advice in hint(error):
                error.add_note(advice)


def annotate_not_taken(error: BaseException) -> None:
    """Note on an error that nothing has changed.

    Do nothing if a note says that a step was taken or skipped, or if the error is a
    ReplicaLostError.
    """
    if not (says_committed(error) or isinstance(error, ReplicaLostError)):
        add_note(error, ())


def says_not_taken(error: BaseException) -> bool:
    """Return True if an exception has the note that nothing has changed."""
    return _NOT_APPLIED_NOTE in _list_notes(error)


def says_committed(error: BaseException) -> bool:
    """Return True if an exception has the note that the step was taken or skipped."""
    return any(note.startswith((TAKEN, SKIPPED)) for note in _list_notes(error))


def _list_notes(error: BaseException) -> list[str]:
    """Return the notes of an exception."""
    return getattr(error, "__notes__", [])


def add_taken(error: BaseException, missing: str = "", message: str = f"{TAKEN}.") -> None:
    """Add a note to an exception, by default "The step was taken.".

    Args:
        error: The exception. Nothing is added if it has a note about a taken or skipped step.
        missing: Text such as "without the constraint of 'w'". The note is then "The step was taken,
            but without the constraint of 'w'.".
        message: The note if `missing` is "".
    """
    if not says_committed(error):
        error.add_note(f"{TAKEN}, but {missing}." if missing else message)


def write_step(
    writes: Sequence[Call],
    callbacks: Sequence[PostUpdateCall] = (),
    counters: Sequence[Call] = (),
    notes: list[str] | None = None,
    message: str = f"{TAKEN}.",
) -> list[BaseException]:
    """Write a step in one commit, then run all callbacks and counters.

    An exception before the commit is raised, and nothing is written. An exception after the commit
    is collected, and everything else still runs.

    Args:
        writes: Functions in C that write variables and slots.
        callbacks: User callbacks between the writes and the counters.
        counters: Functions in C that update counts and other state. A counter whose tensor a
            callback has resized is left out.
        notes: Optional list; `message` is appended at the moment of the writes.
        message: The sentence that the step was taken. Collected exceptions get it as a note.

    Returns:
        The exceptions raised after the commit, with notes about what is missing.

    Raises:
        LayoutError: A tensor to be written is in read-only memory; nothing was written.
    """
    check_targets([*writes, *counters])
    notes = [] if notes is None else notes
    errors: list[BaseException] = []
    # The note belongs to the commit: no signal can come between the last write and the note.
    functions = [*writes, partial(notes.append, message)]
    missing: dict[int, str] = {}
    for callback in callbacks:
        missing[len(functions)] = callback.missing
        functions += [callback.call] if callback.write is None else [callback.call, callback.write]
    functions += map(unless_resized, counters) if callbacks else counters
    pending = iter(functions)
    remaining = calls(pending)
    end = len(functions) - 1
    try:
        _drain_pending(remaining, pending, notes, errors, missing, end, message)
    except BaseException as error:
        if not notes:
            raise
        # The exception interrupted the handling of another error; the rest must run even so.
        add_taken(error, missing.get(end - length_hint(pending), ""), message)
        errors.append(error)
        _drain_pending(remaining, pending, notes, errors, missing, end, message)
    return errors


def _drain_pending(
    remaining: Iterator[object],
    pending: Iterator[Call],
    notes: Sequence[str],
    errors: list[BaseException],
    missing: Mapping[int, str],
    end: int,
    message: str,
) -> None:
    """Call the functions of a step in order, and continue after an exception.

    An exception before the writes, while `notes` is empty, is raised. A later exception is appended
    to `errors` with a note.

    Args:
        remaining: Iterator whose `next` calls the next function of `pending`.
        pending: Iterator of the functions that were not called yet.
        notes: Not empty after the writes.
        errors: The list to which exceptions are appended.
        missing: {index of a callback: argument `missing` of `add_taken` if the callback fails}.
        end: The index of the last function.
        message: The note of exceptions without an entry in `missing`.
    """
    while True:
        try:
            # Modes of torch would call Python for every function.
            with DisableTorchFunction():
                drain(remaining)
            return
        except BaseException as error:
            if not notes:
                raise
            # `pending` has passed the function that failed, so its length gives the index.
            add_taken(error, missing.get(end - length_hint(pending), ""), message)
            errors.append(error)


class WriteBatch:
    """Writes of several steps, committed together."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._checks: list[Call] = []
        self._writes: list[Call] = []
        self._callbacks: list[PostUpdateCall] = []
        self._counters: list[Call] = []
        self._plans: list[Any] = []

    def add(
        self,
        write_round: WriteRound,
        callbacks: Sequence[PostUpdateCall],
        counters: Sequence[Call],
    ) -> None:
        """Add the writes, callbacks and counters of one step."""
        self._checks += write_round.checks
        self._writes += write_round.calls
        self._callbacks += callbacks
        self._counters += counters

    def hold(self, plan: object) -> None:
        """Keep a plan, whose memory the writes use, until they are done."""
        self._plans.append(plan)

    def release_gradients(self) -> None:
        """Release the gradients of all steps."""
        for plan in self._plans:
            plan.release_gradients()

    def write_all(self) -> list[BaseException]:
        """Commit all steps; return errors as `write_step`."""
        writes = [*self._checks, *self._writes]
        return write_step(writes, self._callbacks, self._counters, self.begun)


def putting_back(tensors: Sequence[Tensor]) -> list[Call]:
    """Copy tensors now; return functions in C that restore the tensors from these copies.

    A function does nothing if the storage of its tensor was truncated in between.

    Raises:
        LayoutError: The storage of a tensor is too small, or in read-only memory.
    """
    for tensor in tensors:
        check_held(tensor)
    check_numbers_writable(tensors, lambda index: name_of(tensors[index]))
    # Plain tensors: `copy_` of a `Variable` would run Python code.
    detached = [tensor.detach() for tensor in tensors]
    return [unless_resized(partial(tensor.copy_, tensor.clone())) for tensor in detached]


def copy_writes(copies: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> list[Call]:
    """Return functions in C that set each copy to its tensor. Overflow gives the largest number."""
    return [
        partial(copy.detach().copy_, saturated(tensor, copy.dtype))
        for copy, tensor in zip(copies, tensors, strict=True)
        if copy is not None
    ]


@contextlib.contextmanager
def restored(tensors: Sequence[Tensor], notes: Sequence[object] = ()) -> Generator[None]:
    """Restore the values of tensors if the `with` block raises an exception.

    Args:
        tensors: The tensors, copied when the block begins.
        notes: Nothing is restored if this list has an entry: the step was written.
    """
    # The rollback is an iterator in C, which no signal can interrupt half-way.
    with no_grad():
        rollback = calls(putting_back(tensors))
    try:
        yield
    except BaseException:
        if not notes:
            drain(rollback)
        raise


def constraint_of(var: Tensor, name: str) -> PostUpdateCall:
    """Return a callback for `write_step` that sets a variable to the result of its constraint.

    Args:
        name: The variable's name, for the note on an exception of the constraint.
    """
    new_values: list[Tensor] = []
    return PostUpdateCall(
        partial(new_values.extend, map(partial(_constrain, name=name), (var,))),
        f"without the constraint of '{name}'",
        # Copies nothing if the constraint has failed.
        partial(drain, map(var.detach().copy_, new_values)),
    )


def constrained(var: Tensor, name: str) -> list[BaseException]:
    """Set a variable to the result of its constraint, if the variable has a constraint.

    Return a list with the exception that the constraint raised, or [].
    """
    if variable_constraint(var) is None:
        return []
    return write_step([], [constraint_of(var, name)])


def _constrain(var: Tensor, name: str) -> Tensor:
    """Return the result of a variable's constraint; without a constraint, the variable's value.

    Raises:
        InvalidArgumentError: The result has another shape or dtype than the variable.
        LayoutError: The variable or the result has no memory for its elements.
    """
    constraint = variable_constraint(var)
    if constraint is None:
        return var.detach()
    # `write_step` calls this with torch functions disabled; user code needs them enabled.
    with EnableTorchFunction(), writable():
        check_memory(var, f"'{name}'")
        new_value = constraint(var)
        check_memory(var, f"'{name}'")
        check_memory(new_value, f"What the constraint of '{name}' returned")
        if new_value.shape != var.shape or new_value.dtype != var.dtype:
            raise InvalidArgumentError(
                f"The constraint of '{name}' returned {new_value.dtype} of shape"
                f" {tuple(new_value.shape)}, expected {var.dtype} of shape {tuple(var.shape)}."
            )
        return new_value.detach()


def raise_first(errors: Sequence[BaseException]) -> None:
    """Raise an error of `errors`, with notes about all further errors; return if there is none.

    An error that is not an `Exception`, such as KeyboardInterrupt, is preferred to the first error.
    """
    if not errors:
        return
    # KeyboardInterrupt must not end up in the notes of an ordinary error, which may be caught.
    first_error = next((error for error in errors if not isinstance(error, Exception)), errors[0])
    for error in errors:
        if error is not first_error:
            first_error.add_note(f"Also: {type(error).__name__}: {error}")
    raise first_error


def raise_within(errors: Sequence[BaseException]) -> None:
    """Remove all notes of the errors, then call `raise_first`; return if there are no errors.

    Use this for errors of `write_step` in a step that can still be rolled back. Notes that the step
    was taken are wrong there.
    """
    for error in errors:
        error.__notes__ = []
    raise_first(errors)
