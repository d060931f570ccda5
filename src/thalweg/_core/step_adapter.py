"""Adapter between a front end and the core step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from thalweg._base.lazy import lazy
from thalweg._base.locks import importing
from thalweg._core.atomic_section import Call
from thalweg._core.commit import PostUpdateCall, WriteBatch
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.grads_and_vars import Gradient, Pair
from thalweg._core.step_scalars import Groups
from thalweg._engines import Selection
from thalweg._engines.protocol import Copies as Copies
from thalweg._engines.protocol import Dtype as Dtype
from thalweg._engines.protocol import Reductions, StepRequest
from thalweg._engines.random_bits import Place
from thalweg.formula import Rule

# Scalars of a step by compute dtype and name.
Shared = Mapping[Dtype, Mapping[str, Any]]


class Sharing(Protocol):
    """Interface by which a process takes part in a step over sharded variables.

    Each process updates its part of every variable. Titles, norms, groups and constraints are those
    of full variables, and equal in every process. Engines get the parts.
    """

    def local_parts(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        """Return the parts of gradients and variables in this process's memory, for validation."""
        ...

    def check_matrices(
        self, rule: Rule, variables: Sequence[Tensor], titles: Sequence[str]
    ) -> None:
        """Raise an error if this sharding cannot gather the matrices of a rule with passes.

        Raises:
            NotImplementedError: A variable is not supported; the message names the first.
        """
        ...

    def share_out(self, request: StepRequest) -> StepRequest:
        """Return the request over this process's part of each variable, gradient and copy."""
        ...

    def make_reductions(self, parts: Reductions, pairs: Sequence[Pair], flush: bool) -> Reductions:
        """Return reductions over full variables.

        Args:
            parts: Reductions over this process's parts.
            pairs: The full variables, with gradients as the caller passed them.
            flush: True if gradient transforms treat denormals as zero.
        """
        ...

    def begin_writing(self) -> None:
        """Announce the writes: called once, before the first, when nothing can fail any more."""

    def joining_calls(self, request: StepRequest) -> PostUpdateCall | None:
        """Return the call that gathers the parts after the writes; None if they stay sharded."""
        ...


class StepAdapter:
    """Interface by which a step reads names, state, scalars and callbacks of a front end.

    `run_step` calls the methods; subclasses override them.

    Attributes:
        selection: The engine.
        calls: True if `read_hypers` calls user functions, which may reallocate variables.
        repeats: True if the last plan may be reused: no user function has to see the step.
        constrains: True if constraints follow the updates; False in a sub-step.
        is_prepared: True after `read_hypers` has been called.
        may_leave: True if a device may decide whether the step is taken.
        there: The device of this step's scalars that the host does not have, or None.
        apply_flag: A bool tensor of shape () on that device, True if the step is applied; None if
            the host decides.
        sharing: How processes share this step, or None.
        gathered: Collects the writes for a later commit; None commits them at once.
        ending: Functions in C that are called in the step's commit.
        from_copies: True if user writes to the variables' 16-bit copies count; see `StepRequest`.
        begun: Receives a sentence at the commit: that the step was taken.
        sees_all: True if the step has all variables that the optimizer updates now.
        watch: Optional. Records the step before its writes, for diagnostics.
    """

    selection: Selection
    calls: bool = False
    repeats: bool = True
    constrains: bool = True
    is_prepared: bool = False
    may_leave: bool = False
    there: torch.device | None = None
    apply_flag: Tensor | None = None
    sharing: Sharing | None = None
    gathered: WriteBatch | None = None
    ending: Sequence[Call] = ()
    from_copies: bool = False
    sees_all: bool = True
    watch: Any = None

    def __init__(self) -> None:
        self.begun: list[str] = []

    def step_rule(self) -> Rule | None:
        """Return the rule of this step, or None if only `apply_one` updates variables."""
        return None

    def names_of(self, variables: Sequence[Tensor]) -> list[str]:
        """Return the variables' names for messages."""
        raise NotImplementedError

    def convert_pairs(self, given: Sequence[tuple[Any, Any]]) -> list[Pair]:
        """Return the pairs as tensors and `IndexedSlices`; leave out pairs without a gradient."""
        return list(given)

    def check_pairs(self, pairs: Sequence[Pair], narrow: bool) -> None:
        """Raise unless all variables can be updated; with `narrow`, gradients may be 16-bit."""
        raise NotImplementedError

    def create_state(self, variables: Sequence[Tensor]) -> None:
        """Create the missing state of these variables, each of which occurs once."""

    def read_hypers(self, variables: Sequence[Tensor]) -> None:
        """Read the hyperparameters of the step, once."""

    def transform_pairs(self, pairs: list[Pair]) -> list[Pair]:
        """Return the pairs as changed by user functions, and checked."""
        return pairs

    def group_variables(self, variables: Sequence[Tensor], gradients: Sequence[object]) -> Groups:
        """Return each variable's group, a key of equal hyperparameters; None for one group."""
        return None

    def scalars_of(self, dtype: Dtype, group: Hashable) -> dict[str, Any]:
        """Return all scalars that the rule may use in a compute dtype, for a group, by name."""
        raise NotImplementedError

    def slots_of(self, var: Tensor) -> list[Tensor]:
        """Return the slots of a variable in the order of the rule."""
        raise NotImplementedError

    def find_common_slots(self) -> list[Sequence[Tensor]]:
        """Return each variable's slots that are equal for all variables, in the order of the rule.

        Variables that have taken a step come first.
        """
        raise NotImplementedError

    @lazy
    def common_slots(self) -> list[Sequence[Tensor]]:
        """Optimizer-wide slots as of `find_common_slots`, read once."""
        return self.find_common_slots()

    @lazy
    def in_common(self) -> dict[str, float]:
        """{name: value} of the rule's optimizer-wide slots before the step; {} if it has none."""
        rule = self.step_rule()
        if rule is None or not rule.common_slots:
            return {}
        with importing:
            from thalweg._core.optimizer_reductions import read_shared_scalars
        return read_shared_scalars(rule, self.common_slots)

    def places_of(self, variables: Sequence[Tensor]) -> Sequence[Place]:
        """Return for each variable the two integers that select its random bits."""
        return ()

    def numbers_for(self, rule: Rule, variables: Sequence[Tensor]) -> Sequence[int]:
        """Return `numbers_of` if a matrix stage of the rule draws random numbers, else ()."""
        if not rule.passes:
            return ()
        with importing:
            from thalweg._engines.matrix_batches import draws
        return self.numbers_of(variables) if draws(rule) else ()

    def numbers_of(self, variables: Sequence[Tensor]) -> list[int]:
        """Return the index of each variable in the optimizer; here its index in the step."""
        return list(range(len(variables)))

    def check_flat_buffers(
        self, rule: Rule | None, transforms: GradientTransforms, variables: Sequence[Tensor]
    ) -> None:
        """Raise an error if the step reduces over flat buffers of several parameters.

        Raises:
            InvalidArgumentError: The message names the buffer, and the rule or option that reduces.
        """
        with importing:
            from thalweg._core.flat_buffers import check_reductions, find_marked, is_reducing
        if is_reducing(rule, transforms) and (flat := find_marked(variables)) is not None:
            (label,) = self.names_of([flat.param])
            check_reductions(flat, label, rule, transforms)

    def one_by_one(self, pairs: Sequence[Pair]) -> bool:
        """Return True if user functions update the variables, by `apply_one`."""
        return self.step_rule() is None

    def apply_one(self, grad: Gradient, var: Tensor) -> None:
        """Update a variable in place, by functions of the user."""
        raise NotImplementedError

    def written_tensors(self, variables: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors that `apply_one` may write to."""
        raise NotImplementedError

    def finishing_calls(self) -> list[PostUpdateCall]:
        """Return the calls after the updates and before the counters."""
        return []

    def counting_calls(self, shared: Shared) -> list[Call]:
        """Return functions in C that count the step."""
        return []
