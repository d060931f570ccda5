"""First message of ranks: the same few numbers, whatever they do next."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import distributed

from thalweg.distribute.process_group import Ranks
from thalweg.errors import ReplicaLostError, ReplicaMismatchError

_SAME, _MOST = 2, 2  # how many numbers of either kind there are


class PendingCollective(IntEnum):
    """Next action of a rank."""

    BACKWARD = 1
    STEP = 2
    SHARED = 3
    VALUES = 4
    STATE = 5
    STAGES = 6

    @property
    def words(self) -> str:
        """Description of the action."""
        return _WORDS[self][0]

    @property
    def fate(self) -> str:
        """Description of the state after a rank has raised an error that kept it from the
        action.
        """
        return _WORDS[self][1]


_WORDS = {
    PendingCollective.BACKWARD: ("computes gradients", "before its gradients were there"),
    PendingCollective.STEP: ("applies gradients", "before its gradients were there"),
    PendingCollective.SHARED: ("takes a step over its share of the slots", "in its step"),
    PendingCollective.STAGES: ("takes a step over parts of DTensors", "in its step"),
    PendingCollective.VALUES: ("adds up values", "before its values were there"),
    PendingCollective.STATE: (
        "brings the state of an optimizer together",
        "before its state was there",
    ),
}


class Received(NamedTuple):
    """Numbers of all ranks.

    Attributes:
        alike: For each number that may be equal on all ranks whether it is.
        most: The largest of each other number.
    """

    alike: Sequence[bool]
    most: Sequence[int]


class RankMessage:
    """A few numbers that all ranks tell one another while they go on.

    Those of ranks that do different things are of one length, too, so that all of them find out.

    Args:
        ranks: The ranks.
        doing: What this one is about to do.
        same: Numbers below 2**63 that are compared.
        most: Numbers of which the largest is found.
        trouble: What keeps this rank from doing it.
        further: The other process groups of a mesh, to which the answer is passed on in turn.
    """

    def __init__(
        self,
        ranks: Ranks,
        doing: PendingCollective,
        same: Sequence[int] = (),
        most: Sequence[int] = (),
        trouble: BaseException | None = None,
        further: Sequence[Ranks] = (),
    ) -> None:
        self._ranks, self._doing, self._trouble = ranks, doing, trouble
        self._further = further
        numbers = [1 if trouble is not None else 0, *most]
        numbers += [0] * (1 + _MOST - len(numbers))
        for each in (doing, *same, *[0] * (_SAME - len(same))):
            numbers += [each, -each]
        self._numbers = torch.tensor(numbers, dtype=torch.int64, device=ranks.device)
        self._pending = ranks.begin_maximum(self._numbers)

    def receive(self) -> Received:
        """Wait for the numbers of the other ranks and return them.

        Raises:
            BaseException: The trouble, on its rank.
            ReplicaMismatchError: Another rank is in trouble, or does something else.
            ReplicaLostError: A rank did not answer.
        """
        self._pending.wait()
        for ranks in self._further:
            ranks.take_maximum(self._numbers)
        troubled, *numbers = self._numbers.tolist()
        most, pairs = numbers[:_MOST], numbers[_MOST:]
        does_one, *alike = [high == -low for high, low in zip(pairs[::2], pairs[1::2])]
        if troubled:
            self._raise_trouble()
        if not does_one:
            self.compare([f"what it does: it {self._doing.words}"])
        return Received(alike, most)

    def compare(self, lines: Sequence[str]) -> None:
        """Raise `ReplicaMismatchError` on all ranks, which do not have the same lines.

        Args:
            lines: As for `compare_lines`.
        """
        if not self._further:
            compare_lines(self._ranks, lines)
            return
        text = ""
        for ranks in (self._ranks, *self._further):
            try:
                compare_lines(ranks, lines, numbers=ranks.global_numbers())
            except ReplicaMismatchError as error:
                text = text or str(error)
            # Ranks of a group may be alike, and differ from those of another one.
            text = max(ranks.gather_texts(text)).strip()
        raise ReplicaMismatchError(text)

    def _raise_trouble(self) -> None:
        """Raise the error of this rank, or one that quotes the error of the troubled rank."""
        trouble, text = self._trouble, ""
        if trouble is not None:
            rank = distributed.get_rank() if self._further else self._ranks.rank
            said = textwrap.shorten(f"{type(trouble).__name__}: {trouble}", 300, placeholder=" ...")
            text = f"rank {rank} raised an error {self._doing.fate}: {said.rstrip('.')}."
        for ranks in (self._ranks, *self._further):
            text = max(ranks.gather_texts(text)).strip()
        if trouble is not None:
            raise trouble
        raise ReplicaMismatchError(f"{text} Nothing has changed on any rank.")


@contextlib.contextmanager
def report_error(ranks: Ranks, doing: PendingCollective) -> Iterator[None]:
    """Return a context manager for a block that ends before this rank does it: errors are told to
    the others, which wait.
    """
    try:
        yield
    except Exception as error:
        raise_on_all(ranks, doing, error)
        raise


def raise_on_all(ranks: Ranks, doing: PendingCollective, trouble: BaseException) -> None:
    """Tell the other ranks what keeps this one from doing something, and raise it.

    They know of errors that all ranks raise together.
    """
    if not ranks.is_alone and not isinstance(trouble, ReplicaLostError | ReplicaMismatchError):
        RankMessage(ranks, doing, trouble=trouble).receive()


def compare_lines(
    ranks: Ranks,
    lines: Sequence[str],
    hints: Sequence[tuple[str, str]] = (),
    numbers: Sequence[int] | None = None,
) -> None:
    """Raise on all ranks if they say different things.

    Args:
        ranks: The ranks.
        lines: What this one says: what each thing is called, ": ", and what it is here.
        hints: What things' names begin with, and what helps if those differ.
        numbers: Optional. What the ranks are called; their places by default.

    Raises:
        ReplicaMismatchError: Names the first difference.
    """
    numbers = range(ranks.size) if numbers is None else numbers
    first, *others = (text.split("\n") for text in ranks.gather_texts("\n".join(lines)))
    for rank, other in enumerate(others, 1):
        if other != first:
            raise ReplicaMismatchError(
                _describe_difference(first, other, hints, (numbers[0], numbers[rank]))
            )


def _describe_difference(
    first: Sequence[str],
    other: Sequence[str],
    hints: Sequence[tuple[str, str]],
    numbers: tuple[int, int],
) -> str:
    """Return, in words, the first line that differs.

    Args:
        first, other: The lines of two ranks.
        hints: As for `compare_lines`.
        numbers: What the two ranks are called.
    """
    length = max(len(first), len(other))
    one, two = ([*lines, *[": nothing"] * (length - len(lines))] for lines in (first, other))
    mine, its = next((a, b) for a, b in zip(one, two, strict=True) if a != b)
    (where, _, mine), (there, _, its) = mine.partition(": "), its.partition(": ")
    place = where if where == there else f"{where} and {there}"
    hint = next((f" {help}" for begin, help in hints if where.startswith(begin)), "")
    return f"rank {numbers[1]} disagrees with rank {numbers[0]} at {place}: {its} vs {mine}.{hint}"
