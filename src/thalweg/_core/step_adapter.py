"""What a face has to say about one step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.lazy import lazy
from thalweg._base.locks import importing
from thalweg._core.atomic_section import Call
from thalweg._core.commit import PostUpdateCall, WriteBatch
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.grads_and_vars import Gradient, Pair
from thalweg._core.sharded_step import Sharing
from thalweg._core.step_scalars import Groups
from thalweg._engines import Selection
from thalweg._engines.protocol import Copies as Copies
from thalweg._engines.protocol import Dtype as Dtype
from thalweg.formula import Rule

Shared = Mapping[Dtype, Mapping[str, Any]]  # a step's scalars, for each compute dtype


class StepAdapter:
    """What a face has to say about one step: names, state, scalars and hooks, no arithmetic.

    Attributes:
        selection: The engine.
        calls: Whether `read_hypers` calls users' functions, which may move a variable's memory.
        repeats: Whether a step like the one before needs no more than its scalars: nothing of the
            user's wants to see it.
        constrains: Whether constraints follow the updates; not in a part of a step that is put
            back as a whole.
        is_prepared: Whether `read_hypers` has been called.
        may_leave: Whether a device may decide on the step: no function of the user's ends it.
        there: The device that knows scalars of this step which the host does not; None for none.
        taken: Whether the step is taken, a bool of shape () on that device; None if it is.
        sharing: How this step is shared with other processes; None for not at all.
        gathered: Is given the writes in place of their being done; None does them.
        ending: What else is written with the updates, as functions in C.
        from_copies: Whether what others wrote to copies of variables counts; see `Request`.
        begun: Is given a sentence when the step is written: that it was taken.
        sees_all: Whether all variables that the optimizer updates now are in the step.
        watch: Is shown a step before its writes, where it is measured.
    """

    selection: Selection
    calls: bool = False
    repeats: bool = True
    constrains: bool = True
    is_prepared: bool = False
    may_leave: bool = False
    there: torch.device | None = None
    taken: Tensor | None = None
    sharing: Sharing | None = None
    gathered: WriteBatch | None = None
    ending: Sequence[Call] = ()
    from_copies: bool = False
    sees_all: bool = True
    watch: Any = None

    def __init__(self) -> None:
        self.begun: list[str] = []

    def step_rule(self) -> Rule | None:
        """The rule of this step; None if `apply_one` is all there is."""
        return None

    def names_of(self, variables: Sequence[Tensor]) -> list[str]:
        """The variables' names for messages."""
        raise NotImplementedError

    def convert_pairs(self, given: Sequence[tuple[Any, Any]]) -> list[Pair]:
        """What a caller gave, as tensors and `IndexedSlices`; pairs without a gradient go."""
        return list(given)

    def check_pairs(self, pairs: Sequence[Pair], narrow: bool) -> None:
        """Refuse a step that cannot be taken as a whole."""
        raise NotImplementedError

    def create_state(self, variables: Sequence[Tensor]) -> None:
        """Make the state that these variables, each given once, lack."""

    def read_hypers(self, variables: Sequence[Tensor]) -> None:
        """Read the hyperparameters of the step, once."""

    def transform_pairs(self, pairs: list[Pair]) -> list[Pair]:
        """The pairs as the user's own functions change them; checked."""
        return pairs

    def group_variables(self, variables: Sequence[Tensor], gradients: Sequence[object]) -> Groups:
        """For each variable what tells its hyperparameters from those of others; None for none."""
        return None

    def scalars_of(self, dtype: Dtype, group: Hashable) -> dict[str, Any]:
        """Return all scalars that the rule may ask for, of a compute dtype, for a group, by
        name.
        """
        raise NotImplementedError

    def slots_of(self, var: Tensor) -> list[Tensor]:
        """The slots of a variable in the order of the rule."""
        raise NotImplementedError

    def find_common_slots(self) -> list[Sequence[Tensor]]:
        """The slots per optimizer of each variable that has them, in the order of the rule.

        Those of variables that have taken a step come first, whether they are in this one or not.
        """
        raise NotImplementedError

    @lazy
    def common_slots(self) -> list[Sequence[Tensor]]:
        """The same, looked for once."""
        return self.find_common_slots()

    @lazy
    def in_common(self) -> dict[str, float]:
        """The rule's numbers per optimizer, as they are before the step."""
        rule = self.step_rule()
        if rule is None or not rule.common_slots:
            return {}
        with importing:
            from thalweg._core.optimizer_reductions import read_shared_scalars
        return read_shared_scalars(rule, self.common_slots)

    def places_of(self, variables: Sequence[Tensor]) -> Sequence[tuple[int, int]]:
        """Return a pair for each variable that its random bits depend on; see `Request`."""
        return ()

    def check_flat_buffers(
        self, rule: Rule | None, transforms: GradientTransforms, variables: Sequence[Tensor]
    ) -> None:
        """Raise an error if the step reduces over flat buffers of several parameters.

        Raises:
            InvalidArgumentError: As `check_reductions` of `_core/flat_buffers.py`.
        """
        with importing:
            from thalweg._core.flat_buffers import check_reductions, find_marked, is_reducing
        if is_reducing(rule, transforms) and (flat := find_marked(variables)) is not None:
            (title,) = self.names_of([flat.param])
            check_reductions(flat, title, rule, transforms)

    def one_by_one(self, pairs: Sequence[Pair]) -> bool:
        """Return True if the user's own functions update the variables, by `apply_one`."""
        return self.step_rule() is None

    def apply_one(self, grad: Gradient, var: Tensor) -> None:
        """Update a variable in place."""
        raise NotImplementedError

    def written_tensors(self, variables: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors that `apply_one` may write to."""
        raise NotImplementedError

    def finishing_calls(self) -> list[PostUpdateCall]:
        """Return the calls after the updates and before the counters."""
        return []

    def counting_calls(self, shared: Shared) -> list[Call]:
        """Return the calls of C functions that count the step, given the scalars of the first
        group.
        """
        return []
