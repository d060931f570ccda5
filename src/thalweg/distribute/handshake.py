"""First message between ranks: a few numbers of fixed length that precede every collective."""

# torch does not annotate `Tensor.tolist`.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Generator, Sequence
from enum import IntEnum
from itertools import zip_longest
from typing import NamedTuple, Self, cast

import torch
from torch import distributed

from thalweg.distribute.process_group import Ranks
from thalweg.errors import ReplicaLostError, ReplicaMismatchError

# Every message has this many digests and flags, so that all have the same length.
_NUM_COMPARED, _NUM_MAXIMA = 2, 2


class PendingCollective(IntEnum):
    """Action that a rank is about to take.

    Attributes:
        phrase: The action as a verb phrase for messages.
        stage: The stage of a step at which an error prevented the action, for messages.
    """

    phrase: str
    stage: str

    BACKWARD = 1, "computes gradients", "before its gradients were there"
    STEP = 2, "applies gradients", "before its gradients were there"
    SHARED = 3, "takes a step over its share of the slots", "in its step"
    VALUES = 4, "adds up values", "before its values were there"
    STATE = 5, "brings the state of an optimizer together", "before its state was there"
    STAGES = 6, "takes a step over parts of DTensors", "in its step"

    def __new__(cls, identifier: int, phrase: str, stage: str) -> Self:
        member = int.__new__(cls, identifier)
        member._value_, member.phrase, member.stage = identifier, phrase, stage
        return member


class Received(NamedTuple):
    """Numbers of all ranks after the exchange of a `RankMessage`.

    Attributes:
        are_equal: For each digest, True if equal on all ranks.
        maxima: The maximum of each flag over all ranks.
    """

    are_equal: Sequence[bool]
    maxima: Sequence[int]


class RankMessage:
    """Non-blocking exchange of a few numbers between all ranks; the constructor sends them.

    Messages of all actions have equal length, so that ranks with different actions detect this.

    Args:
        ranks: The ranks.
        collective: The action of this rank.
        digests: At most two numbers below 2**63 that are compared.
        flags: At most two numbers whose maximum is computed.
        trouble: The error that prevents this rank from taking the action, or None.
        other_groups: Further process groups of this rank, over which numbers are compared next.
    """

    def __init__(
        self,
        ranks: Ranks,
        collective: PendingCollective,
        digests: Sequence[int] = (),
        flags: Sequence[int] = (),
        trouble: BaseException | None = None,
        other_groups: Sequence[Ranks] = (),
    ) -> None:
        self._ranks, self._collective, self._trouble = ranks, collective, trouble
        self._other_groups = other_groups
        values = [1 if trouble is not None else 0, *flags]
        values += [0] * (1 + _NUM_MAXIMA - len(values))
        # A number is equal on all ranks if the maxima of the number and its negative add up to 0.
        for integer in (collective, *digests, *[0] * (_NUM_COMPARED - len(digests))):
            values += [integer, -integer]
        self._values = torch.tensor(values, dtype=torch.int64, device=ranks.device)
        self._pending = ranks.begin_maximum(self._values)

    def receive(self) -> Received:
        """Wait for the numbers of all ranks; return comparisons of digests, and maxima of flags.

        Raises:
            BaseException: `trouble`, if this rank passed an error.
            ReplicaMismatchError: Another rank failed, or takes a different action.
            ReplicaLostError: A rank did not answer.
        """
        self._pending.wait()
        for ranks in self._other_groups:
            ranks.take_maximum(self._values)
        troubled, *values = cast("list[int]", self._values.tolist())
        maxima, pairs = values[:_NUM_MAXIMA], values[_NUM_MAXIMA:]
        has_equal_action, *are_equal = [high == -low for high, low in zip(pairs[::2], pairs[1::2])]
        if troubled:
            self._raise_trouble()
        if not has_equal_action:
            self.compare([f"what it does: it {self._collective.phrase}"])
        return Received(are_equal, maxima)

    def compare(self, lines: Sequence[str]) -> None:
        """Raise ReplicaMismatchError on all ranks about the first line that differs between ranks.

        All ranks must call this method if `receive` has found different digests of `lines`.
        """
        if not self._other_groups:
            compare_lines(self._ranks, lines)
            return
        text = ""
        for ranks in (self._ranks, *self._other_groups):
            try:
                compare_lines(ranks, lines, global_ranks=ranks.global_numbers())
            except ReplicaMismatchError as error:
                text = text or str(error)
            # Ranks of a group may be alike, and differ from those of another one.
            text = max(ranks.gather_texts(text)).strip()
        raise ReplicaMismatchError(text)

    def _raise_trouble(self) -> None:
        """Raise this rank's `trouble`, or else ReplicaMismatchError about another rank's error."""
        trouble, text = self._trouble, ""
        if trouble is not None:
            rank = distributed.get_rank() if self._other_groups else self._ranks.rank
            cause = f"{type(trouble).__name__}: {trouble}"
            cause = textwrap.shorten(cause, 300, placeholder=" ...")
            text = f"rank {rank} raised an error {self._collective.stage}: {cause.rstrip('.')}."
        # An empty text arrives as a space, which is less than any message.
        for ranks in (self._ranks, *self._other_groups):
            text = max(ranks.gather_texts(text)).strip()
        if trouble is not None:
            raise trouble
        raise ReplicaMismatchError(f"{text} Nothing has changed on any rank.")


@contextlib.contextmanager
def report_error(ranks: Ranks, collective: PendingCollective) -> Generator[None]:
    """Report an error in the `with` block to the waiting ranks, then raise the error."""
    try:
        yield
    except Exception as error:
        raise_on_all(ranks, collective, error)
        raise


def raise_on_all(ranks: Ranks, collective: PendingCollective, trouble: BaseException) -> None:
    """Raise `trouble` on this rank, and ReplicaMismatchError on waiting ranks.

    Do nothing if there are no other ranks, or if `trouble` is a ReplicaLostError or
    ReplicaMismatchError. The caller must then raise `trouble`.
    """
    if not ranks.is_alone and not isinstance(trouble, ReplicaLostError | ReplicaMismatchError):
        RankMessage(ranks, collective, trouble=trouble).receive()


def compare_lines(
    ranks: Ranks,
    lines: Sequence[str],
    hints: Sequence[tuple[str, str]] = (),
    global_ranks: Sequence[int] | None = None,
) -> None:
    """Raise ReplicaMismatchError on all ranks about the first line that differs between ranks.

    Args:
        lines: Facts of this rank, each "name: value".
        hints: (prefix, advice) pairs. The message has the advice if the fact's name has the prefix.
        global_ranks: Optional. The numbers of the ranks in messages; by default 0, 1, ...
    """
    global_ranks = range(ranks.size) if global_ranks is None else global_ranks
    first_lines, *other_texts = (text.split("\n") for text in ranks.gather_texts("\n".join(lines)))
    for rank, other_lines in enumerate(other_texts, 1):
        if other_lines != first_lines:
            pair = global_ranks[0], global_ranks[rank]
            raise ReplicaMismatchError(_describe_difference(first_lines, other_lines, hints, pair))


def _describe_difference(
    first: Sequence[str],
    second: Sequence[str],
    hints: Sequence[tuple[str, str]],
    global_ranks: tuple[int, int],
) -> str:
    """Return a message about the first line that differs between two ranks.

    Args:
        first, second: The lines of the two ranks, which differ.
        hints: (prefix, advice) pairs; advice is added if the line begins with the prefix.
        global_ranks: The numbers of the two ranks.
    """
    pairs = zip_longest(first, second, fillvalue=": nothing")
    fact, second_fact = next(pair for pair in pairs if pair[0] != pair[1])
    (label, _, fact), (second_label, _, second_fact) = (
        line.partition(": ") for line in (fact, second_fact)
    )
    labels = label if label == second_label else f"{label} and {second_label}"
    advice = next((f" {help}" for begin, help in hints if label.startswith(begin)), "")
    one, two = global_ranks
    return f"rank {two} disagrees with rank {one} at {labels}: {second_fact} vs {fact}.{advice}"
