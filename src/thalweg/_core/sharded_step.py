"""Steps that several processes share: each updates its part of every variable.

What a step says of its variables - titles, norms, groups, constraints - it says of whole variables,
and the same in every process. Engines see parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from thalweg._core.commit import PostUpdateCall
from thalweg._core.gradient_transforms import Measures
from thalweg._core.grads_and_vars import Pair
from thalweg._engines.protocol import StepPlan, StepRequest
from thalweg.formula import Rule


class Sharing(Protocol):
    """One step, as this process sees it."""

    def local_parts(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        """What lies in this process' memory of gradients and variables, to be looked at."""
        ...

    def check_matrices(
        self, rule: Rule, variables: Sequence[Tensor], titles: Sequence[str]
    ) -> None:
        """Refuse what a rule with passes, whose stages see whole matrices, does not take.

        Raises:
            NotImplementedError: Names the first variable that is not taken.
        """
        ...

    def share_out(self, request: StepRequest) -> StepRequest:
        """This process' part of each variable, with its gradient and its copy."""
        ...

    def measure_whole(self, plan: StepPlan, request: StepRequest) -> Measures:
        """What is measured of whole variables.

        Args:
            plan: The step over the parts.
            request: The step over whole variables.
        """
        ...

    def begin_writing(self) -> None:
        """Called once, before the first write: nothing can fail in this process any more."""

    def joining_calls(self, request: StepRequest) -> PostUpdateCall | None:
        """What brings the parts together after the writes; None if they stay apart."""
        ...
