"""Step with sharded slots: each rank updates its parts, then all ranks exchange them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._core.commit import PostUpdateCall
from thalweg._core.grads_and_vars import Pair
from thalweg._engines.protocol import Reductions, StepRequest
from thalweg.distribute.handshake import PendingCollective, RankMessage
from thalweg.distribute.sharding.all_gather import join_parts
from thalweg.distribute.sharding.sharded_reductions import ShardedReductions
from thalweg.distribute.sharding.shards import Shards
from thalweg.errors import InvalidArgumentError, ReplicaLostError, ReplicaMismatchError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices


class SharedStep:
    """Step in which this rank updates its parts; see `thalweg._core.step_adapter.Sharing`.

    Args:
        shards: The assignment of elements to ranks, also an attribute.
        sums: {id of a variable: this rank's part of the gradient sum}. A gradient without entry is
            a full sum, which is cut.
        step_number: The number of the step under the strategy, from 1.
        size: The most bytes of a message of several tensors.
    """

    def __init__(
        self, shards: Shards, sums: Mapping[int, Tensor], step_number: int, size: int
    ) -> None:
        self.shards, self._sums, self._step_number, self._size = shards, sums, step_number, size
        self._is_writing, self._is_joined, self._order = False, False, 0

    def local_parts(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        """Return the pairs unchanged: full variables are in the memory of each rank."""
        return pairs

    def check_matrices(
        self, rule: Rule, variables: Sequence[Tensor], titles: Sequence[str]
    ) -> None:
        """Raise NotImplementedError for any variable: no rank has all slots of a matrix."""
        if titles:
            raise NotImplementedError(
                f"Rule {rule.name!r} has stages over whole matrices, of which no rank has the slots"
                f" where they are shared out: '{titles[0]}' is one. Make the strategy without"
                " shard_slots."
            )

    def share_out(self, request: StepRequest) -> StepRequest:
        """Return `request` with this rank's parts of variables, gradients and 16-bit copies."""
        if len(set(map(id, request.variables))) < len(request.variables):
            raise InvalidArgumentError(
                "With shard_slots, no variable can come twice in a step:"
                f" {', '.join(request.titles)}."
            )
        shards, variables = self.shards, request.variables
        self._order = shards.hash_order(variables)
        local_variables: list[Any] = list(map(shards.part, variables))
        gradients: list[Any] = []
        slots = list(request.slots)
        for index, (grad, var) in enumerate(zip(request.gradients, variables, strict=True)):
            if isinstance(grad, IndexedSlices):
                gradients.append(shards.own_rows(grad, var))
                local_variables[index] = shards.as_rows(local_variables[index], var)
                slots[index] = [shards.as_rows(slot, var) for slot in slots[index]]
            else:
                local_sum = self._sums.get(id(var))
                gradients.append(shards.cut(grad, var) if local_sum is None else local_sum)
        copies = request.copies and [
            None if copy is None else shards.writable_part(copy, var)
            for copy, var in zip(request.copies, variables, strict=True)
        ]
        return request._replace(
            variables=local_variables, gradients=gradients, slots=slots, copies=copies
        )

    def make_reductions(self, parts: Reductions, pairs: Sequence[Pair], flush: bool) -> Reductions:
        """Return reductions over full variables that use `parts`, reductions over local parts."""
        return ShardedReductions(self.shards, parts, pairs, flush, self._wait_for_ranks)

    def begin_writing(self) -> None:
        """Wait until all ranks are about to write; raise ReplicaMismatchError if one failed."""
        self._wait_for_ranks()
        self._is_writing = True

    def joining_calls(self, request: StepRequest) -> PostUpdateCall:
        """Return a call that exchanges updated parts, to run after all writes of the step."""
        only_rows = request.rule.update_untouched is None
        tensors: list[tuple[Tensor, Tensor, Any]] = []
        copies = request.copies or [None] * len(request.variables)
        for var, grad, copy in zip(request.variables, request.gradients, copies, strict=True):
            updated = [var] if copy is None else [var, copy]
            tensors += [(var, tensor, grad if only_rows else None) for tensor in updated]

        def join_step() -> None:
            """Exchange the updated parts. After an error, later steps raise ReplicaLostError."""
            with self.shards.mark_torn(self._step_number), no_grad():
                join_parts(self.shards, tensors, self._size)
            self._is_joined = True

        return PostUpdateCall(join_step, "without the parts of other ranks")

    @contextlib.contextmanager
    def report_errors(self) -> Generator[None]:
        """Report an error in the `with` block of a step to the other ranks, then raise the error.

        After an error during the writes, all later steps raise ReplicaLostError.
        """
        try:
            yield
        except ReplicaLostError as error:
            # An error during the writes already describes the state of the variables.
            if self._is_writing:
                raise
            raise self.shards.lost_error(error, fate_before_write(self._step_number)) from error
        except ReplicaMismatchError:
            raise
        except BaseException as error:
            if not self._is_writing:
                self._wait_for_ranks(error)
            # The other ranks write, and wait for parts that this rank cannot send.
            elif not self._is_joined:
                with self.shards.mark_torn(self._step_number):
                    raise
            raise

    def _wait_for_ranks(self, trouble: BaseException | None = None) -> None:
        """Wait for all ranks; raise `trouble`, or ReplicaMismatchError if one failed or differs."""
        reply = RankMessage(
            self.shards.ranks, PendingCollective.SHARED, (self._order,), trouble=trouble
        ).receive()
        if not reply.are_equal[0]:
            raise ReplicaMismatchError(
                "The ranks have gradients of different variables, or in another order. Nothing has"
                " changed on any rank."
            )


def fate_before_write(step_number: int) -> str:
    """Return a sentence about the variables if a rank is lost before the first write."""
    return (
        f"In step {step_number} of this optimizer under this strategy; variables are as after step"
        f" {step_number - 1} here, and may be mixed on other ranks."
    )
