"""Interface of steps over sharded variables: each process updates its part of every variable.

Titles, norms, groups and constraints are those of full variables, and equal in every process.
Engines get the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from thalweg._core.commit import PostUpdateCall
from thalweg._core.grads_and_vars import Pair
from thalweg._engines.protocol import Reductions, StepRequest
from thalweg.formula import Rule


class Sharing(Protocol):
    """Interface by which a process takes part in a step over sharded variables."""

    def local_parts(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        """Return the parts of gradients and variables in this process's memory, for validation."""

    def check_matrices(
        self, rule: Rule, variables: Sequence[Tensor], titles: Sequence[str]
    ) -> None:
        """Raise an error if this sharding cannot gather the matrices of a rule with passes.

        Raises:
            NotImplementedError: A variable is not supported; the message names the first.
        """

    def share_out(self, request: StepRequest) -> StepRequest:
        """Return the request over this process's part of each variable, gradient and copy."""

    def make_reductions(self, parts: Reductions, pairs: Sequence[Pair], flush: bool) -> Reductions:
        """Return reductions over full variables.

        Args:
            parts: Reductions over this process's parts.
            pairs: The full variables, with gradients as the caller passed them.
            flush: True if gradient transforms treat denormals as zero.
        """

    def begin_writing(self) -> None:
        """Announce the writes: called once, before the first, when nothing can fail any more."""

    def joining_calls(self, request: StepRequest) -> PostUpdateCall | None:
        """Return the call that gathers the parts after the writes; None if they stay sharded."""
