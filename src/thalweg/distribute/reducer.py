"""What one optimizer sends its gradients through, step after step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from thalweg.autodiff import watching
from thalweg.distribute.agreement import Agreement
from thalweg.distribute.buckets import Sending
from thalweg.distribute.kinds import signature
from thalweg.distribute.overlapping import Underway
from thalweg.distribute.ranks import Ranks
from thalweg.distribute.reducing import MaybePair, filled, sums_of
from thalweg.distribute.sender import Sender
from thalweg.errors import ReplicaLostError, ReplicaMismatchError

Told = Callable[[], Sequence[str]]


class Reducer:
    """The sums of one optimizer's gradients over all ranks.

    From its second step on, `minimize` sends gradients while the backward pass still computes
    others: those of the variables that had a dense one in the step before. All ranks must do so or
    none, so they ask one another; after a step in which that went well they need not.

    Args:
        ranks: The ranks.
        sending: How.
    """

    def __init__(self, ranks: Ranks, sending: Sending) -> None:
        self._ranks, self._sending = ranks, sending
        self._sender = Sender(ranks, sending, compresses=True)
        self._agreement = Agreement(ranks)
        self._variables: list[Tensor] = []  # of the step before
        self._dense: list[int] = []  # the numbers of those that had a dense gradient
        self._underway: Underway | None = None
        self._has_begun = False
        self._is_trusted = False  # whether all ranks sent while their backward pass ran
        self._is_awaited = False
        self._steps = 0

    def summed(
        self,
        gradients: Callable[[], Sequence[MaybePair]],
        variables: Sequence[Tensor],
        told: Told,
    ) -> list[MaybePair]:
        """As `reducing.summed`, after the ranks have compared what they are about to do.

        Args:
            gradients: Gives the pairs; what it raises is told to the other ranks.
            variables: Those of the pairs, or anything if `gradients` raises.
            told: What must be the same on all ranks, in words, one thing a line.
        """
        self._is_awaited = False
        with self._in_a_step():
            found = self._summed(gradients, variables, told)
        self._steps += 1
        return found

    @contextlib.contextmanager
    def _in_a_step(self) -> Iterator[None]:
        """Say in which step a rank was lost, and that it was not taken."""
        try:
            yield
        except ReplicaLostError as error:
            number = self._steps
            raise ReplicaLostError(
                f"{error} In step {number + 1} of this optimizer under this strategy; variables are"
                f" as after step {number}."
            ) from error

    def _summed(
        self,
        gradients: Callable[[], Sequence[MaybePair]],
        variables: Sequence[Tensor],
        told: Told,
    ) -> list[MaybePair]:
        underway, self._underway = self._underway, None
        pairs: Sequence[MaybePair] = ()
        trouble: Exception | None = None
        try:
            pairs = gradients()
        except Exception as error:
            trouble = error
        own = [] if trouble is not None else variables
        given = [grad for grad, _ in pairs]
        is_other = underway is None or not underway.carries(own, given)
        alike = lambda: [*told(), *self._sending.told()]  # noqa: E731
        agreed = self._agreement.check(own, alike, trouble, is_other, signature(given))
        self._is_trusted = underway is not None and not agreed.is_doubted
        if agreed.is_doubted and underway is not None:
            underway.sums()  # somebody has changed the gradients since
            underway = None
        if underway is None:
            self._sender.begin()
        whole = list(pairs) if agreed.is_alike else filled(pairs, self._ranks)
        self._variables = list(variables)
        self._dense = [place for place, (grad, _) in enumerate(whole) if isinstance(grad, Tensor)]
        sums = {} if underway is None else underway.sums()
        known = {place: sums[place] for place in self._dense if place in sums}
        found = sums_of(whole, self._sender, known)
        self._sender.sent(variables[place] for place in self._dense)
        return found

    def taken(self) -> None:
        """Say that the last sums were applied: an error before that leaves all as it was."""
        self._sender.taken()

    @contextlib.contextmanager
    def telling(self, told: Told) -> Iterator[None]:
        """A block with a `summed` in it, which the other ranks wait for: errors before are told."""
        self._is_awaited = True
        try:
            yield
        except (ReplicaLostError, ReplicaMismatchError):
            raise
        except Exception as error:
            if self._is_awaited:
                with self._in_a_step():
                    self._agreement.check([], told, error)
            raise

    @contextlib.contextmanager
    def guarding(self, told: Told) -> Iterator[None]:
        """A block that computes gradients for `summed`, which the other ranks wait for."""
        self._underway, self._has_begun = None, False
        self._sender.begin()
        with self._in_a_step():
            yield from self._guarded(told)

    def _guarded(self, told: Told) -> Iterator[None]:
        trusted, self._is_trusted = self._is_trusted, False
        begin = partial(self._begin, trusted)
        try:
            with watching(begin):
                yield
        except (ReplicaLostError, ReplicaMismatchError):
            raise
        except Exception as error:
            self._end(begin)
            self._agreement.check([], told, error)
        else:
            self._end(begin)

    def _end(self, begin: Callable[..., Any]) -> None:
        """End the backward pass; one that has not begun sends what the others wait for."""
        begin((), declines=True)
        if self._underway is not None and not self._underway.finish():
            self._underway = None

    def _begin(
        self, trusted: bool, leaves: Sequence[Tensor], *, declines: bool = False
    ) -> Callable[[Tensor], None] | None:
        """Begin a backward pass; returns what is called with each leaf whose gradient is there."""
        if self._has_begun:  # one pass alone is sent while it runs
            return None
        self._has_begun = True
        known = set(map(id, self._variables))
        declines = declines or not self._dense or any(id(leaf) not in known for leaf in leaves)
        meeting = None if trusted else self._agreement.meet(self._variables, declines)
        if declines and meeting is not None:
            return None
        self._underway = Underway(self._variables, self._dense, self._sender, meeting)
        return None if declines else self._underway.arrived
