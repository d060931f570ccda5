"""A step over slots that are shared out: each rank updates its parts, then all have all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._core.commit import PostUpdateCall
from thalweg._core.gradient_transforms import Measures
from thalweg._core.grads_and_vars import Pair
from thalweg._engines.protocol import StepPlan, StepRequest
from thalweg.distribute.handshake import PendingCollective, RankMessage
from thalweg.distribute.sharding.all_gather import join_parts
from thalweg.distribute.sharding.sharded_reductions import ShardedReductions
from thalweg.distribute.sharding.shards import Shards
from thalweg.errors import InvalidArgumentError, ReplicaLostError, ReplicaMismatchError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices


class SharedStep:
    """Step of an optimizer on one rank; see `thalweg._core.sharded_step`.

    Args:
        shards: The parts of each rank.
        sums: This rank's parts of the sums of gradients, by the `id` of their variables. Gradients
            of others are sums, of which it takes its part.
        number: The number of the step, from 1, under the strategy.
        size: Bytes that are sent together.

    Attributes:
        shards: As given.
    """

    def __init__(self, shards: Shards, sums: Mapping[int, Tensor], number: int, size: int) -> None:
        self.shards, self._sums, self._number, self._size = shards, sums, number, size
        self._has_met, self._is_joined, self._order = False, False, 0

    def local_parts(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        """See `Sharing`."""
        return pairs

    def check_matrices(
        self, rule: Rule, variables: Sequence[Tensor], titles: Sequence[str]
    ) -> None:
        """See `Sharing`."""
        if titles:
            raise NotImplementedError(
                f"Rule {rule.name!r} has stages over whole matrices, of which no rank has the slots"
                f" where they are shared out: '{titles[0]}' is one. Make the strategy without"
                " shard_slots."
            )

    def share_out(self, asked: StepRequest) -> StepRequest:
        """See `Sharing`."""
        if len(set(map(id, asked.variables))) < len(asked.variables):
            raise InvalidArgumentError(
                "With shard_slots, no variable can come twice in a step:"
                f" {', '.join(asked.titles)}."
            )
        shards, variables = self.shards, asked.variables
        self._order = shards.hash_order(variables)
        parts: list[Any] = list(map(shards.part, variables))
        gradients: list[Any] = []
        slots = list(asked.slots)
        for place, (grad, var) in enumerate(zip(asked.gradients, variables, strict=True)):
            if isinstance(grad, IndexedSlices):
                gradients.append(shards.own_rows(grad, var))
                parts[place] = shards.as_rows(parts[place], var)
                slots[place] = [shards.as_rows(slot, var) for slot in slots[place]]
            else:
                own = self._sums.get(id(var))
                gradients.append(shards.cut(grad, var) if own is None else own)
        copies = asked.copies and [
            None if copy is None else shards.writable_part(copy, var)
            for copy, var in zip(asked.copies, variables, strict=True)
        ]
        return asked._replace(variables=parts, gradients=gradients, slots=slots, copies=copies)

    def measure_whole(self, ready: StepPlan, asked: StepRequest) -> Measures:
        """See `Sharing`."""
        return ShardedReductions(self.shards, ready, asked, self._wait_for_ranks)

    def begin_writing(self) -> None:
        """See `Sharing`; raises ReplicaMismatchError if another rank is in trouble."""
        self._wait_for_ranks()
        self._has_met = True

    def joining_calls(self, asked: StepRequest) -> PostUpdateCall:
        """See `Sharing`."""
        rows_alone = asked.rule.update_untouched is None
        tensors: list[tuple[Tensor, Tensor, Any]] = []
        copies = asked.copies or [None] * len(asked.variables)
        for var, grad, copy in zip(asked.variables, asked.gradients, copies, strict=True):
            updated = [var] if copy is None else [var, copy]
            tensors += [(var, each, grad if rows_alone else None) for each in updated]

        def join_step() -> None:
            with self.shards.mark_torn(self._number), no_grad():
                join_parts(self.shards, tensors, self._size)
            self._is_joined = True

        return PostUpdateCall(join_step, "without the parts of other ranks")

    @contextlib.contextmanager
    def report_errors(self) -> Iterator[None]:
        """Return the context manager of the block in which the step is taken: if it fails, the
        other ranks are told.
        """
        try:
            yield
        except ReplicaLostError as error:
            if self._has_met:  # it says what has become of the step
                raise
            raise self.shards.lost_error(error, fate_before_write(self._number)) from error
        except ReplicaMismatchError:
            raise
        except BaseException as error:
            if not self._has_met:
                self._wait_for_ranks(error)
            elif not self._is_joined:  # others write, and wait for what this rank has not
                with self.shards.mark_torn(self._number):
                    raise
            raise

    def _wait_for_ranks(self, trouble: BaseException | None = None) -> None:
        """Wait for all ranks, and go on if none is in trouble."""
        heard = RankMessage(
            self.shards.ranks, PendingCollective.SHARED, (self._order,), trouble=trouble
        ).receive()
        if not heard.alike[0]:
            raise ReplicaMismatchError(
                "The ranks have gradients of different variables, or in another order. Nothing has"
                " changed on any rank."
            )


def fate_before_write(number: int) -> str:
    """Return a description of the variables after a rank is lost in a step, before it is
    written.
    """
    return (
        f"In step {number} of this optimizer under this strategy; variables are as after step"
        f" {number - 1} here, and may be mixed on other ranks."
    )
