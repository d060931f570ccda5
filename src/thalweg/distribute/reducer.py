"""What one optimizer sends its gradients through, step after step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from torch import Tensor

from thalweg.autodiff import watching
from thalweg.distribute.agreement import Agreement
from thalweg.distribute.buckets import Bucket, Sending, Sent
from thalweg.distribute.overlapping import Underway
from thalweg.distribute.ranks import Ranks
from thalweg.distribute.reducing import MaybePair, filled, sums_of
from thalweg.distribute.sharding.scattering import Scatter
from thalweg.distribute.sharding.shards import Shards
from thalweg.distribute.sharding.step import SharedStep, before
from thalweg.errors import ReplicaLostError, ReplicaMismatchError

Told = Callable[[], Sequence[str]]
Made = Callable[[Sequence[int], Sequence[Tensor]], Sent]


class Reducer:
    """The sums of one optimizer's gradients over all ranks.

    From its second step on, `minimize` sends gradients while the backward pass still computes
    others: those of the variables that had a dense one in the step before.

    Args:
        ranks: The ranks.
        sending: How.
        shards: Who has what of the slots, if they are shared out.

    Attributes:
        shards: The same.
    """

    def __init__(self, ranks: Ranks, sending: Sending, shards: Shards | None = None) -> None:
        self.shards = shards
        self._scatters = False  # whether the step before had ranks get their parts of sums alone
        self._ranks, self._sending = ranks, sending
        self._agreement = Agreement(ranks)
        self._variables: list[Tensor] = []  # of the step before
        self._dense: list[int] = []  # the numbers of those that had a dense gradient
        self._underway: Underway | None = None
        self._has_met = False
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
        with self._in_a_step():
            whole, known = self._agreed(gradients, variables, told)
            found = sums_of(whole, self._ranks, self._sending, known)
        self._steps += 1
        return found

    def shared(
        self,
        gradients: Callable[[], Sequence[MaybePair]],
        variables: Sequence[Tensor],
        told: Told,
        scatters: bool,
    ) -> tuple[list[MaybePair], SharedStep]:
        """As `summed`, for a step over slots that are shared out.

        Args:
            gradients, variables, told: As in `summed`.
            scatters: Whether a rank gets its parts of the sums alone.

        Returns:
            The pairs, dense gradients as they were given if `scatters`, and the step.
        """
        shards = self._shards_here()
        with self._in_a_step():
            whole, known = self._agreed(gradients, variables, told, scatters)
            shards.learn([var for grad, var in whole if grad is not None])
            made = partial(Scatter, shards, variables) if scatters else Bucket
            found = sums_of(whole, self._ranks, self._sending, known, made)
        self._steps += 1
        parts: dict[int, Tensor] = {}
        if scatters:
            for place, (grad, var) in enumerate(found):
                if isinstance(grad, Tensor):
                    parts[id(var)], found[place] = grad, whole[place]
        return found, SharedStep(shards, parts, self._steps, self._sending.bucket_size)

    def step_of_sums(self) -> SharedStep:
        """A step over slots that are shared out, whose gradients are sums already."""
        self._steps += 1
        return SharedStep(self._shards_here(), {}, self._steps, self._sending.bucket_size)

    def _shards_here(self) -> Shards:
        if self.shards is None:
            raise RuntimeError("the strategy does not share out slots")
        return self.shards

    @contextlib.contextmanager
    def _in_a_step(self) -> Iterator[None]:
        """Say in which step a rank was lost, and what that means."""
        try:
            yield
        except ReplicaLostError as error:
            number = self._steps + 1
            if self.shards is not None:
                raise self.shards.lost(error, before(number)) from error
            raise ReplicaLostError(
                f"{error} In step {number} of this optimizer under this strategy; variables are as"
                f" after step {number - 1}."
            ) from error

    def _agreed(
        self,
        gradients: Callable[[], Sequence[MaybePair]],
        variables: Sequence[Tensor],
        told: Told,
        scatters: bool = False,
    ) -> tuple[list[MaybePair], dict[int, Tensor]]:
        """The pairs, of one kind on all ranks, and the sums that are there by now."""
        underway, self._underway = self._underway, None
        pairs: Sequence[MaybePair] = ()
        trouble: Exception | None = None
        try:
            pairs = gradients()
        except Exception as error:
            trouble = error
        own = [] if trouble is not None else variables
        is_other = underway is None or not underway.carries(own, [grad for grad, _ in pairs])
        is_other = is_other or scatters != self._scatters
        digest = 0 if self.shards is None else self.shards.digest
        if self._agreement.check(own, told, trouble, is_other, digest) and underway is not None:
            underway.sums()  # somebody has changed the gradients since
            underway = None
        whole = filled(pairs, self._ranks)
        self._variables, self._scatters = list(variables), scatters
        self._dense = [place for place, (grad, _) in enumerate(whole) if isinstance(grad, Tensor)]
        return whole, {} if underway is None else underway.sums()

    @contextlib.contextmanager
    def guarding(self, told: Told) -> Iterator[None]:
        """A block that computes gradients for `summed`, which the other ranks wait for."""
        self._underway, self._has_met = None, False
        with self._in_a_step():
            yield from self._guarded(told)

    def _guarded(self, told: Told) -> Iterator[None]:
        try:
            with watching(self._begin):
                yield
        except (ReplicaLostError, ReplicaMismatchError):
            raise
        except Exception as error:
            self._meet(True)
            if self._underway is not None:
                self._underway.finish()
            self._agreement.check([], told, error)
        else:
            self._meet(True)
            if self._underway is not None:
                self._underway.finish()

    def _meet(self, declines: bool) -> bool:
        if self._has_met:
            return False
        self._has_met = True
        return self._agreement.meet(self._variables, declines)

    def _begin(self, leaves: Sequence[Tensor]) -> Callable[[Tensor], None] | None:
        """Begin a backward pass; returns what is called with each leaf whose gradient is there."""
        known = set(map(id, self._variables))
        declines = not self._dense or any(id(leaf) not in known for leaf in leaves)
        if not self._meet(declines):
            return None
        made: Made = Bucket
        if self.shards is not None and self._scatters:
            made = partial(Scatter, self.shards, self._variables)
        self._underway = Underway(self._variables, self._dense, self._ranks, self._sending, made)
        return self._underway.arrived
