"""Reduction of one optimizer's gradients from step to step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence

from torch import Tensor

from thalweg.autodiff import watching
from thalweg.distribute.all_reduce_gradients import MaybePair, fill_missing, sum_matched_pairs
from thalweg.distribute.bucketed_all_reduce import InFlightAllReduce, Sender
from thalweg.distribute.buckets import Sending
from thalweg.distribute.consistency_check import Agreement, StepFingerprint, Vote
from thalweg.distribute.gradient_kinds import signature
from thalweg.distribute.handshake import PendingCollective, raise_on_all
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding.sharded_step import SharedStep, fate_before_write
from thalweg.distribute.sharding.shards import Shards
from thalweg.errors import ReplicaLostError, ReplicaMismatchError


class Reducer:
    """Reducer of the gradients of one optimizer over all ranks.

    From the second step on, gradients are sent during the backward pass of `minimize`, if all ranks
    vote for this when the pass begins. Only variables with a dense gradient in the last step take
    part.

    Args:
        ranks: The ranks.
        sending: The settings of the transfer.
        shards: Optional. The assignment of elements to ranks if slots are sharded, also an
            attribute.
    """

    def __init__(self, ranks: Ranks, sending: Sending, shards: Shards | None = None) -> None:
        self.shards = shards
        self._ranks, self._sending = ranks, sending
        self._sender = self._make_sender(scatters=False)
        self._agreement = Agreement(ranks)
        # The variables of the last step, and the indices of those with a dense gradient.
        self._variables: list[Tensor] = []
        self._dense: list[int] = []
        self._underway: InFlightAllReduce | None = None
        self._declined_vote: Vote | None = None
        self._has_backward_started = False
        self._expects_sums = False
        # True if the last step failed on this rank, but perhaps not on others.
        self._is_in_doubt = False
        self._steps = 0

    def sum_gradients(
        self,
        make_pairs: Callable[[], Sequence[MaybePair]],
        variables: Sequence[Tensor],
        fingerprint: StepFingerprint,
    ) -> list[MaybePair]:
        """Return new (gradient sum, variable) pairs; None stays None if all ranks have None.

        All ranks must call this method. The ranks first compare `fingerprint` and the variables.

        Args:
            make_pairs: `make_pairs()` returns this rank's pairs. After an error, all ranks raise.
            variables: The variables of the pairs; ignored if `make_pairs` raises.
            fingerprint: The description that must be equal on all ranks.

        Raises:
            ReplicaMismatchError: The ranks differ, or another rank failed.
            ReplicaLostError: A rank did not answer.
        """
        with self._explain_loss():
            all_pairs, early_sums = self._reach_agreement(make_pairs, variables, fingerprint)
            sums = sum_matched_pairs(all_pairs, self._sender, early_sums)
            # A sum that was sent early for a gradient that is now missing or sparse is dropped.
            self._sender.compression.keep_errors_of(variables[index] for index in self._dense)
        self._steps += 1
        # Until `commit_sums`, this rank may fail while other ranks apply the sums.
        self._is_in_doubt = True
        return sums

    def share_step(
        self,
        make_pairs: Callable[[], Sequence[MaybePair]],
        variables: Sequence[Tensor],
        fingerprint: StepFingerprint,
        scatters: bool,
    ) -> tuple[list[MaybePair], SharedStep]:
        """Sum gradients for a step in which each rank updates its part of the slots.

        Args:
            make_pairs: `make_pairs()` returns this rank's pairs. After an error, all ranks raise.
            variables: The variables of the pairs.
            fingerprint: The description that must be equal on all ranks.
            scatters: True to reduce-scatter dense gradients: each rank receives parts of sums.

        Returns:
            (pairs, step). `pairs` is a list of (gradient sum, variable). With `scatters`, only
            `step` has the sums of dense gradients: this rank's parts. A dense gradient in `pairs`
            is then this rank's own, not a sum.
        """
        shards = self._require_shards()

        def check_and_reduce() -> Sequence[MaybePair]:
            shards.check_sizes(variables)
            return make_pairs()

        with self._explain_loss():
            all_pairs, early_sums = self._reach_agreement(
                check_and_reduce, variables, fingerprint, scatters
            )
            shards.cut_new([var for grad, var in all_pairs if grad is not None])
            sums = sum_matched_pairs(all_pairs, self._sender, early_sums)
        self._steps += 1
        self._is_in_doubt = True
        local_sums: dict[int, Tensor] = {}
        if scatters:
            for index, (grad, var) in enumerate(sums):
                if isinstance(grad, Tensor):
                    local_sums[id(var)], sums[index] = grad, all_pairs[index]
        return sums, SharedStep(shards, local_sums, self._steps, self._sending.bucket_size)

    def step_of_sums(self) -> SharedStep:
        """Return a new step with sharded slots, for gradients that are already summed."""
        self._steps += 1
        return SharedStep(self._require_shards(), {}, self._steps, self._sending.bucket_size)

    def _require_shards(self) -> Shards:
        """Return the assignment of slots to ranks; raise RuntimeError if slots are not sharded."""
        if self.shards is None:
            raise RuntimeError("the strategy does not share out slots")
        return self.shards

    @contextlib.contextmanager
    def _explain_loss(self) -> Generator[None]:
        """Add step number and state of variables to a ReplicaLostError in the `with` block."""
        try:
            yield
        except ReplicaLostError as error:
            step_count = self._steps + 1
            if self.shards is not None:
                raise self.shards.lost_error(error, fate_before_write(step_count)) from error
            raise ReplicaLostError(
                f"{error} In step {step_count} of this optimizer under this strategy; variables are"
                f" as after step {step_count - 1}."
            ) from error

    def _reach_agreement(
        self,
        make_pairs: Callable[[], Sequence[MaybePair]],
        variables: Sequence[Tensor],
        fingerprint: StepFingerprint,
        scatters: bool = False,
    ) -> tuple[list[MaybePair], dict[int, Tensor]]:
        """Compare the ranks before a step; wait for sums of the backward pass.

        Returns:
            (pairs, {index of a pair: sum}). None becomes zeros in the pairs if another rank has a
            gradient. The dict has sums of gradients that were sent during the backward pass. It is
            empty if `scatters` is not as in the last step, or if a rank has changed a gradient.

        Raises:
            ReplicaMismatchError: The ranks differ, or another rank failed.
            Exception: The error of `make_pairs`.
        """
        self._expects_sums = False
        if self._is_in_doubt:
            self._agreement.compare_all_next()
            self._is_in_doubt = False
        underway, self._underway = self._underway, None
        pairs, trouble = _pairs_or_error(make_pairs)
        checked_vars: Sequence[Tensor] = [] if trouble is not None else variables
        grads = [grad for grad, _ in pairs]
        is_changed = underway is None or not underway.carries(checked_vars, grads)
        is_changed = is_changed or scatters != self._sender.scatters
        extra_digest, all_facts = self._add_shards(fingerprint, scatters)
        agreement = self._agreement.check(
            checked_vars, all_facts, trouble, is_changed, signature(grads), extra_digest
        )
        if agreement.is_doubted and underway is not None:
            # A rank has changed its gradients since they were sent.
            underway.wait_for_sums()
            underway = None
        # With sums in flight, `guard_backward` has begun the step.
        if underway is None:
            self._sender.compression.begin_step()
        if scatters != self._sender.scatters:
            self._sender = self._make_sender(scatters)
        all_pairs = list(pairs) if agreement.has_equal_kinds else fill_missing(pairs, self._ranks)
        self._variables = list(variables)
        # All ranks have the same kinds now, so that they send the same buckets early.
        pairs_by_index = enumerate(all_pairs)
        self._dense = [index for index, (grad, _) in pairs_by_index if isinstance(grad, Tensor)]
        sums = {} if underway is None else underway.wait_for_sums()
        return all_pairs, {index: sums[index] for index in self._dense if index in sums}

    def _make_sender(self, scatters: bool) -> Sender:
        """Return a new sender of gradients; `scatters` is True for reduce-scatter."""
        parts = self.shards if scatters else None
        return Sender(self._ranks, self._sending, compresses=True, shards=parts)

    def _add_shards(
        self, fingerprint: StepFingerprint, scatters: bool
    ) -> tuple[int, StepFingerprint]:
        """Return (number, fingerprint) that ranks compare: `fingerprint` with settings and shards.

        The number is a hash of the shards and of `scatters`, which is True if ranks receive parts
        of sums. Without shards, it is 0.
        """
        cut, shard_lines = 0, list[str]()
        if self.shards is not None:
            cut = self.shards.digest
            shard_lines = [f"what slots are where: {cut:x}"]
            shard_lines += [f"whether sums are sent in parts: {scatters}"]
        describe = lambda: [*fingerprint.words(), *self._sending.describe(), *shard_lines]  # noqa: E731
        return cut ^ scatters, fingerprint._replace(words=describe)

    def commit_sums(self, failed: bool) -> None:
        """Mark the last sums as applied: rounding errors of compression affect the next step.

        Args:
            failed: True if this rank failed after the sums were applied. The ranks then compare all
                facts in the next step.
        """
        self._sender.compression.commit_step()
        self._is_in_doubt = failed

    @contextlib.contextmanager
    def report_errors(self) -> Generator[None]:
        """Report an error in the `with` block to ranks that wait in `sum_gradients`.

        Nothing is reported if `sum_gradients` was called in the block, or if the error is a
        ReplicaLostError or ReplicaMismatchError. The error is raised in all cases.
        """
        # `sum_gradients` resets this, and reports its own errors.
        self._expects_sums = True
        try:
            yield
        except Exception as error:
            if self._expects_sums:
                with self._explain_loss():
                    raise_on_all(self._ranks, PendingCollective.STEP, error)
            raise

    @contextlib.contextmanager
    def guard_backward(self) -> Generator[None]:
        """Send gradients while the `with` block runs a backward pass, before `sum_gradients`.

        An error in the block is reported to the other ranks.
        """
        self._underway, self._has_backward_started = None, False
        self._sender.compression.begin_step()
        with self._explain_loss():
            yield from self._watch_backward()

    def _watch_backward(self) -> Iterator[None]:
        """Send gradients during the `with` block; report an error to all ranks."""
        try:
            with watching(self._begin_backward):
                yield
        except (ReplicaLostError, ReplicaMismatchError):
            raise
        except Exception as error:
            # The other ranks wait for this rank's buckets before they read its error.
            self._end_backward()
            raise_on_all(self._ranks, PendingCollective.STEP, error)
            raise
        # An interrupted rank cannot wait for the others.
        except BaseException:
            if self._has_backward_started:
                self._ranks.give_up(f"rank {self._ranks.rank} was interrupted in a step.")
            raise
        else:
            self._end_backward()

    def _end_backward(self) -> None:
        """Send the remaining gradients of the pass; decline the vote if no pass has voted."""
        self._begin_backward((), declines=True)
        if self._declined_vote is not None:
            vote, self._declined_vote = self._declined_vote, None
            # Detects ranks that take another action.
            vote.is_unanimous()
        if self._underway is not None and not self._underway.finish_sending():
            self._underway = None

    def _begin_backward(
        self, leaves: Sequence[Tensor], *, declines: bool = False
    ) -> Callable[[Tensor], None] | None:
        """Vote on sending gradients during the backward pass, at the first call in a step.

        This rank declines if the last step had no dense gradient.

        Args:
            leaves: The leaf tensors of the backward pass. This rank declines if a leaf is not a
                variable of the last step.
            declines: True to decline always.

        Returns:
            A function to call with each leaf whose gradient is complete. None if this rank
            declines, or if this is not the first call.
        """
        # Only one backward pass per step sends gradients while it runs.
        if self._has_backward_started:
            return None
        self._has_backward_started = True
        variable_ids = set(map(id, self._variables))
        declines = (
            declines or not self._dense or any(id(leaf) not in variable_ids for leaf in leaves)
        )
        if self.shards is not None and not self.shards.fits(self._variables):
            # The step will raise the error.
            declines = True
        vote = self._agreement.start_vote(self._variables, declines)
        if declines:
            self._declined_vote = vote
            return None
        self._underway = InFlightAllReduce(self._variables, self._dense, self._sender, vote)
        return self._underway.take_gradient


def _pairs_or_error(
    make_pairs: Callable[[], Sequence[MaybePair]],
) -> tuple[Sequence[MaybePair], Exception | None]:
    """Return (pairs, None), or ((), error) if `make_pairs` raises."""
    try:
        return make_pairs(), None
    except Exception as error:
        return (), error
