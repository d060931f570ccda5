"""Reduction of the gradients of one optimizer, step after step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from thalweg.autodiff import watching
from thalweg.distribute.all_reduce_gradients import MaybePair, fill_missing, sum_matched_pairs
from thalweg.distribute.bucketed_all_reduce import Sender
from thalweg.distribute.buckets import Sending
from thalweg.distribute.consistency_check import Agreement, Meeting, StepFingerprint
from thalweg.distribute.gradient_kinds import signature
from thalweg.distribute.handshake import PendingCollective, raise_on_all
from thalweg.distribute.overlapped_all_reduce import InFlightAllReduce
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding.sharded_step import SharedStep, fate_before_write
from thalweg.distribute.sharding.shards import Shards
from thalweg.errors import ReplicaLostError, ReplicaMismatchError


class Reducer:
    """The sums of one optimizer's gradients over all ranks.

    From its second step on, `minimize` sends gradients while the backward pass still computes
    others: those of the variables that had a dense one in the step before. All ranks must do so or
    none, so they ask one another while the pass begins.

    Args:
        ranks: The ranks.
        sending: How.
        shards: Who has what of the slots, if they are shared out.

    Attributes:
        shards: The same.
    """

    def __init__(self, ranks: Ranks, sending: Sending, shards: Shards | None = None) -> None:
        self.shards = shards
        self._ranks, self._sending = ranks, sending
        self._sender = self._make_sender(scatters=False)
        self._agreement = Agreement(ranks)
        self._variables: list[Tensor] = []  # of the step before
        self._dense: list[int] = []  # the numbers of those that had a dense gradient
        self._underway: InFlightAllReduce | None = None
        self._declined: Meeting | None = None
        self._has_begun = False
        self._is_awaited = False
        self._is_in_doubt = False  # whether the last step failed here, and may not have elsewhere
        self._steps = 0

    def sum_gradients(
        self,
        gradients: Callable[[], Sequence[MaybePair]],
        variables: Sequence[Tensor],
        said: StepFingerprint,
    ) -> list[MaybePair]:
        """Sum gradients as `reducing.sum_pairs` does, after the ranks have compared their next
        actions.

        Args:
            gradients: Returns the pairs; an error that it raises is reported to the other ranks.
            variables: Those of the pairs, or anything if `gradients` raises.
            said: The description that must be equal on all ranks.
        """
        with self._in_a_step():
            whole, known = self._reach_agreement(gradients, variables, said)
            found = sum_matched_pairs(whole, self._sender, known)
            self._sender.keep_wanted(variables[place] for place in self._dense)
        self._steps += 1
        self._is_in_doubt = True
        return found

    def share_step(
        self,
        gradients: Callable[[], Sequence[MaybePair]],
        variables: Sequence[Tensor],
        said: StepFingerprint,
        scatters: bool,
    ) -> tuple[list[MaybePair], SharedStep]:
        """Sum gradients as `sum_gradients` does, for a step over slots that are sharded.

        Args:
            gradients, variables, said: As in `sum_gradients`.
            scatters: Whether a rank gets its parts of the sums alone.

        Returns:
            The pairs, dense gradients as they were given if `scatters`, and the step.
        """
        shards = self._shards_here()

        def check_and_reduce() -> Sequence[MaybePair]:
            shards.check_sizes(variables)
            return gradients()

        with self._in_a_step():
            whole, known = self._reach_agreement(check_and_reduce, variables, said, scatters)
            shards.cut_new([var for grad, var in whole if grad is not None])
            found = sum_matched_pairs(whole, self._sender, known)
        self._steps += 1
        self._is_in_doubt = True
        parts: dict[int, Tensor] = {}
        if scatters:
            for place, (grad, var) in enumerate(found):
                if isinstance(grad, Tensor):
                    parts[id(var)], found[place] = grad, whole[place]
        return found, SharedStep(shards, parts, self._steps, self._sending.bucket_size)

    def step_of_sums(self) -> SharedStep:
        """Return a step over slots that are shared out, whose gradients are sums already."""
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
                raise self.shards.lost_error(error, fate_before_write(number)) from error
            raise ReplicaLostError(
                f"{error} In step {number} of this optimizer under this strategy; variables are as"
                f" after step {number - 1}."
            ) from error

    def _reach_agreement(
        self,
        gradients: Callable[[], Sequence[MaybePair]],
        variables: Sequence[Tensor],
        said: StepFingerprint,
        scatters: bool = False,
    ) -> tuple[list[MaybePair], dict[int, Tensor]]:
        """The pairs, of one kind on all ranks, and the sums that are there by now."""
        self._is_awaited = False
        if self._is_in_doubt:
            self._agreement.compare_all_next()
            self._is_in_doubt = False
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
        is_other = is_other or scatters != self._sender.scatters
        beside, whole_said = self._with_shards(said, scatters)
        agreed = self._agreement.check(own, whole_said, trouble, is_other, signature(given), beside)
        if agreed.is_doubted and underway is not None:
            underway.wait_for_sums()  # somebody has changed the gradients since
            underway = None
        if underway is None:
            self._sender.begin_step()
        if scatters != self._sender.scatters:
            self._sender = self._make_sender(scatters)
        whole = list(pairs) if agreed.is_alike else fill_missing(pairs, self._ranks)
        self._variables = list(variables)
        self._dense = [place for place, (grad, _) in enumerate(whole) if isinstance(grad, Tensor)]
        sums = {} if underway is None else underway.wait_for_sums()
        return whole, {place: sums[place] for place in self._dense if place in sums}

    def _make_sender(self, scatters: bool) -> Sender:
        parts = self.shards if scatters else None
        return Sender(self._ranks, self._sending, compresses=True, shards=parts)

    def _with_shards(self, said: StepFingerprint, scatters: bool) -> tuple[int, StepFingerprint]:
        """What must be the same besides `said`: as a number, and with it."""
        if self.shards is None:
            return 0, said._replace(words=lambda: [*said.words(), *self._sending.describe()])
        cut = self.shards.digest
        own = [f"what slots are where: {cut:x}", f"whether sums are sent in parts: {scatters}"]
        words = lambda: [*said.words(), *self._sending.describe(), *own]  # noqa: E731
        return cut ^ scatters, said._replace(words=words)

    def commit_sums(self, failed: bool) -> None:
        """Say that the last sums were applied: an error before that leaves all as it was.

        Args:
            failed: Whether an error has come since.
        """
        self._sender.commit_step()
        self._is_in_doubt = failed

    @contextlib.contextmanager
    def report_errors(self) -> Iterator[None]:
        """Return a context manager for a block with a `sum_gradients`, which other ranks wait for:
        errors before are told.
        """
        self._is_awaited = True
        try:
            yield
        except (ReplicaLostError, ReplicaMismatchError):
            raise
        except Exception as error:
            if self._is_awaited:
                with self._in_a_step():
                    raise_on_all(self._ranks, PendingCollective.STEP, error)
            raise

    @contextlib.contextmanager
    def guard_backward(self) -> Iterator[None]:
        """Return a context manager for a block that computes gradients for `sum_gradients`, which
        the other ranks wait for.
        """
        self._underway, self._has_begun = None, False
        self._sender.begin_step()
        with self._in_a_step():
            yield from self._watch_backward()

    def _watch_backward(self) -> Iterator[None]:
        try:
            with watching(self._begin_backward):
                yield
        except (ReplicaLostError, ReplicaMismatchError):
            raise
        except Exception as error:
            self._end_backward()
            raise_on_all(self._ranks, PendingCollective.STEP, error)
        except BaseException:  # this rank cannot wait for the others
            if self._has_begun:
                self._ranks.give_up(f"rank {self._ranks.rank} was interrupted in a step.")
            raise
        else:
            self._end_backward()

    def _end_backward(self) -> None:
        """End the backward pass; one that has not begun answers the others."""
        self._begin_backward((), declines=True)
        if self._declined is not None:
            declined, self._declined = self._declined, None
            declined.reach_agreement()  # or that others do something else goes unheard
        if self._underway is not None and not self._underway.finish_sending():
            self._underway = None

    def _begin_backward(
        self, leaves: Sequence[Tensor], *, declines: bool = False
    ) -> Callable[[Tensor], None] | None:
        """Begin a backward pass; returns what is called with each leaf whose gradient is there."""
        if self._has_begun:  # one pass alone is sent while it runs
            return None
        self._has_begun = True
        known = set(map(id, self._variables))
        declines = declines or not self._dense or any(id(leaf) not in known for leaf in leaves)
        if self.shards is not None and not self.shards.fits(self._variables):
            declines = True  # the step will say what is wrong
        meeting = self._agreement.ask_all(self._variables, declines)
        if declines:
            self._declined = meeting
            return None
        self._underway = InFlightAllReduce(self._variables, self._dense, self._sender, meeting)
        return self._underway.take_gradient
