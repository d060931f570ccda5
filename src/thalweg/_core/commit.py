"""What becomes of a step: all of it or nothing, and words on the exceptions that say which."""

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
from thalweg.errors import InvalidArgumentError, ReplicaLostError
from thalweg.variable import check_held, name_of, variable_constraint

_NOT_TAKEN = "The step was not taken: no variable and no slot has changed."
TAKEN = "The step was taken"
SKIPPED = "The step was skipped"
LEFT = f"{TAKEN}, unless the device found a gradient that is infinite or NaN."


class StepResult(NamedTuple):
    """What has become of a step.

    Attributes:
        taken: Whether it was taken; a bool tensor of shape () where a device alone knows it.
        errors: What was raised after its writes.
    """

    taken: bool | Tensor
    errors: list[BaseException]


class PostUpdateCall(NamedTuple):
    """A function of the user's that follows the writes of a step.

    Attributes:
        call: The function.
        missing: What is to be said if it fails: "without the constraint of 'w'".
        write: Optional. What writes its result, as a function in C.
    """

    call: Call
    missing: str
    write: Call | None = None


@contextlib.contextmanager
def note_not_applied(done: Sequence[str] = ()) -> Generator[None]:
    """Say of an exception that nothing has changed, or what has been done by then.

    Args:
        done: A list that is given one sentence as soon as something has changed.
    """
    try:
        yield
    except BaseException as error:
        add_note(error, done)
        raise


def add_note(error: BaseException, done: Sequence[str]) -> None:
    """Add the note of `note_not_applied` to an exception."""
    if done:
        error.__notes__ = [note for note in _notes_of(error) if note != _NOT_TAKEN]
        if not any(note.startswith(done[0].rstrip(".")) for note in _notes_of(error)):
            error.add_note(done[0])
    elif not says_not_taken(error):
        error.add_note(_NOT_TAKEN)
        if isinstance(error, AttributeError):
            from thalweg._base.tensor_patching import (
                hint,
            )  # of TensorFlow's names, which steps do without

            for advice in hint(error):
                error.add_note(advice)


def say_refused(error: Exception) -> None:
    """Add the note of `note_not_applied` to an error of a step that does not say what it did."""
    if not (says_taken(error) or isinstance(error, ReplicaLostError)):
        add_note(error, ())


def says_not_taken(error: BaseException) -> bool:
    """Whether an exception says that nothing has changed."""
    return _NOT_TAKEN in _notes_of(error)


def says_taken(error: BaseException) -> bool:
    """Whether an exception says that it came after the step."""
    return any(note.startswith(TAKEN) for note in _notes_of(error))


def _notes_of(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def add_taken(error: BaseException, missing: str = "", said: str = f"{TAKEN}.") -> None:
    """Say of an exception that it came after the step, unless it says so."""
    if not says_taken(error):
        error.add_note(f"{TAKEN}, but {missing}." if missing else said)


def write_step(
    writes: Sequence[Call],
    then: Sequence[PostUpdateCall] = (),
    counts: Sequence[Call] = (),
    begun: list[str] | None = None,
    said: str = f"{TAKEN}.",
) -> list[BaseException]:
    """Write a step in one section, and do what follows to its end.

    An interruption comes before all writes, and is raised, or after them. What follows is done
    then, too, but for the one function that was interrupted or failed; the counters are counted.

    Args:
        writes: Functions in C.
        then: The user's functions that come between the writes and the counters.
        counts: Functions in C; those whose tensors the user's functions cut are left out.
        begun: Optional. Is given a sentence with the writes: that the step was taken.
        said: The sentence.

    Returns:
        What was raised after the writes, with notes that say what is missing.

    Raises:
        LayoutError: A tensor that is to be written is in read-only memory; nothing was written.
    """
    check_targets([*writes, *counts])
    begun = [] if begun is None else begun
    errors: list[BaseException] = []
    functions = [*writes, partial(begun.append, said)]
    missing: dict[int, str] = {}
    for after in then:
        missing[len(functions)] = after.missing
        functions += [after.call] if after.write is None else [after.call, after.write]
    functions += map(unless_resized, counts) if then else counts
    pending = iter(functions)
    remaining = calls(pending)
    end = len(functions) - 1
    try:
        _come_to_the_end(remaining, pending, begun, errors, missing, end, said)
    except BaseException as error:
        if not begun:
            raise
        # It came while an error was noted, and what follows is done even so.
        add_taken(error, missing.get(end - length_hint(pending), ""), said)
        errors.append(error)
        _come_to_the_end(remaining, pending, begun, errors, missing, end, said)
    return errors


def _come_to_the_end(
    remaining: Iterator[object],
    pending: Iterator[Call],
    begun: Sequence[str],
    errors: list[BaseException],
    missing: Mapping[int, str],
    end: int,
    said: str,
) -> None:
    while True:
        try:
            with DisableTorchFunction():  # modes of torch would call Python for every function
                drain(remaining)
            return
        except BaseException as error:
            if not begun:
                raise
            add_taken(error, missing.get(end - length_hint(pending), ""), said)
            errors.append(error)


class WriteBatch:
    """The writes of several steps, which become one section: all of them or nothing."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._writes: list[Call] = []
        self._then: list[PostUpdateCall] = []
        self._counts: list[Call] = []
        self._ready: list[Any] = []

    def add(
        self, writes: Sequence[Call], then: Sequence[PostUpdateCall], counts: Sequence[Call]
    ) -> None:
        """What `write_step` is given for one of them."""
        self._writes += writes
        self._then += then
        self._counts += counts

    def hold(self, ready: object) -> None:
        """Keep what the writes need until they are done."""
        self._ready.append(ready)

    def release_gradients(self) -> None:
        """Forget the gradients of all steps."""
        for ready in self._ready:
            ready.release_gradients()

    def write_all(self) -> list[BaseException]:
        """Write everything; see the function of this name."""
        return write_step(self._writes, self._then, self._counts, self.begun)


def putting_back(tensors: Sequence[Tensor]) -> list[Call]:
    """What sets tensors to the values that they have now, as functions in C.

    Those whose storage is cut by then have no place for them.

    Raises:
        LayoutError: The storage of one was cut already, or is read-only memory.
    """
    for tensor in tensors:
        check_held(tensor)
    check_numbers_writable(tensors, lambda index: name_of(tensors[index]))
    plain = [tensor.detach() for tensor in tensors]
    return [unless_resized(partial(tensor.copy_, tensor.clone())) for tensor in plain]


def copy_writes(copies: Sequence[Tensor | None], values: Sequence[Tensor]) -> list[Call]:
    """What sets copies, where there are any, to values or the nearest finite numbers; in C."""
    return [
        partial(copy.detach().copy_, saturated(value, copy.dtype))
        for copy, value in zip(copies, values, strict=True)
        if copy is not None
    ]


@contextlib.contextmanager
def restored(tensors: Sequence[Tensor], unless: Sequence[object] = ()) -> Generator[None]:
    """Put these tensors back from copies if the block fails, unless a list is no longer empty."""
    with no_grad():
        undo = calls(putting_back(tensors))
    try:
        yield
    except BaseException:
        if not unless:
            drain(undo)
        raise


def constraint_of(var: Tensor, title: str) -> PostUpdateCall:
    """What replaces a variable's value by what its constraint makes of it."""
    made: list[Tensor] = []
    return PostUpdateCall(
        partial(made.extend, map(partial(_constrain, title=title), (var,))),
        f"without the constraint of '{title}'",
        # Nothing is copied if the constraint made nothing.
        partial(drain, map(var.detach().copy_, made)),
    )


def constrained(var: Tensor, title: str) -> list[BaseException]:
    """Do so now, if the variable has a constraint.

    Returns:
        What the constraint raised: the update is done by now, and the step goes on.
    """
    if variable_constraint(var) is None:
        return []
    return write_step([], [constraint_of(var, title)])


def _constrain(var: Tensor, title: str) -> Tensor:
    constraint = variable_constraint(var)
    if constraint is None:
        return var.detach()
    with EnableTorchFunction(), writable():
        check_memory(var, f"'{title}'")
        value = constraint(var)
        check_memory(var, f"'{title}'")
        check_memory(value, f"What the constraint of '{title}' returned")
        if value.shape != var.shape or value.dtype != var.dtype:
            raise InvalidArgumentError(
                f"The constraint of '{title}' returned {value.dtype} of shape"
                f" {tuple(value.shape)}, expected {var.dtype} of shape {tuple(var.shape)}."
            )
        return value.detach()


def raise_first(errors: Sequence[BaseException]) -> None:
    """Raise the most urgent of the errors, noting the others.

    An interruption comes before any other exception, so that it is never lost.
    """
    if not errors:
        return
    first = next((error for error in errors if not isinstance(error, Exception)), errors[0])
    for error in errors:
        if error is not first:
            first.add_note(f"Also: {type(error).__name__}: {error}")
    raise first


def raise_within(errors: Sequence[BaseException]) -> None:
    """Raise what came after the update of one variable; the step may be put back yet."""
    for error in errors:
        error.__notes__ = []  # they say that it was taken
    raise_first(errors)
