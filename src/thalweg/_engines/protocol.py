"""Protocol between a step and the engines.

An engine receives a `StepRequest` and returns a `StepPlan`. Making it writes nothing. A `StepPlan`
computes reductions, and returns the writes as functions that cannot fail or be interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.array_types import Float64
from thalweg._engines.engine_selection import Selection
from thalweg.formula import Formula, Rule
from thalweg.indexed_slices import IndexedSlices

if TYPE_CHECKING:
    from thalweg._base.rule_passes import Measure

Gradient = Tensor | IndexedSlices
Dtype = type[np.floating[Any]]
Formulas = tuple[Formula, ...]
Stages = tuple[Formula, ...]
Copies = Sequence[Tensor | None] | None
Call = Callable[[], Any]
Scalars = Mapping[str, Any]


class StepRequest(NamedTuple):
    """One step of a rule over any variables.

    Attributes:
        rule: The rule.
        stages: What is applied to each gradient first, inside the update.
        variables: What is updated. A variable may come twice: it is updated twice.
        gradients: One for each, of its shape, or of its rows' shape.
        slots: For each variable its slots of its own shape, in the rule's order.
        titles: The variables' names for messages.
        selection: Engine and denormals.
        copies: For each variable a tensor of its shape that is set to it, or None; None stands for
            no copies at all. It is of a 16-bit type, or on another device, where a dense gradient
            may be, too. Where a sparse gradient leaves rows alone, the copy's rows are left alone.
        from_copies: Whether what others wrote to copies of 16 bits counts: where such a copy is not
            its variable, rounded, the step begins at the copy. Copies on other devices follow only.
        matrices: What makes the matrices of a rule with passes, where `variables` are parts of
            them; None where they are whole.
        vectors: For each variable, by name, what formulas are given of its rows, of the variable's
            shape with 1 in place of the last dimension, and of its columns, with 1 in place of the
            last but one; contiguous, in the type of the arithmetic, and elsewhere than all else.
        places: Where numbers of 16 bits are rounded by random bits, for each variable its number,
            and the position of its first element in the whole of which it is a part; see `draws`.
        short: For each variable whether an engine runs passes within its own sweeps, over matrices
            side by side; it is given no vectors then.
    """

    rule: Rule
    stages: Stages
    variables: Sequence[Tensor]
    gradients: Sequence[Any]
    slots: Sequence[Sequence[Tensor]]
    titles: Sequence[str]
    selection: Selection
    copies: Copies = None
    from_copies: bool = False
    matrices: Callable[[StepRequest], Any] | None = None
    vectors: Sequence[Mapping[str, Tensor]] = ()
    places: Sequence[tuple[int, int]] = ()
    short: Sequence[bool] = ()


class Columns(NamedTuple):
    """The scalars of a step.

    Attributes:
        shared: For each compute dtype what all its variables have, by name.
        separate: What differs by variable: arrays over the step's variables, by name; tensors of
            their device where that is known there alone.
        taken: Whether the step is taken, a bool of shape () on that device; None if it is.
    """

    shared: Mapping[Dtype, Scalars]
    separate: Mapping[str, Any]
    taken: Tensor | None = None

    def of_members(self, members: Sequence[int]) -> Columns:
        """Those of some of the variables."""
        if not self.separate:
            return self
        separate = {name: pick_members(each, members) for name, each in self.separate.items()}
        return self._replace(separate=separate)

    def scalars_of(self, index: int, dtype: Dtype) -> Scalars:
        """Those of one variable, which is computed in `dtype`; numbers."""
        shared = self.shared[dtype]
        if not self.separate:
            return shared
        own = {name: dtype(float(each[index])) for name, each in self.separate.items()}
        return {**shared, **own}


def pick_members(vector: Any, members: Sequence[int]) -> Any:
    """Those of some of the variables, of an array or a tensor over all of them."""
    if not isinstance(vector, Tensor):
        return vector[members]
    if len(members) == len(vector):
        return vector
    return torch.stack([vector[index] for index in members])  # a list as an index would be sent


class WriteRound(NamedTuple):
    """A part of a step in which no variable comes twice.

    Attributes:
        members: Positions of its variables in the step.
        calls: What writes it: functions in C.
    """

    members: Sequence[int]
    calls: list[Call]


def in_rounds(variables: Sequence[Tensor]) -> list[list[int]]:
    """Positions of the first, the second ... appearances of variables."""
    rounds: list[list[int]] = []
    seen: dict[int, int] = {}
    for index, var in enumerate(variables):
        number = seen[id(var)] = seen.get(id(var), -1) + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(index)
    return rounds


def formula_of_rows(rule: Rule, var: Tensor) -> Formula:
    """What a rule does to the rows of a variable that a sparse gradient names."""
    if rule.update_single is not None and var.shape[1:].numel() == 1:
        return rule.update_single
    return rule.update_sparse or rule.update


class StepPlan(Protocol):
    """A step that can be taken.

    Attributes:
        dtypes: The types it computes in, that of the first variable first.
        is_single: Whether it is a single round, whose calls cannot be interrupted.
    """

    @property
    def dtypes(self) -> tuple[Dtype, ...]: ...

    @property
    def is_single(self) -> bool: ...

    def try_rebind(self, asked: StepRequest) -> bool:
        """Whether this is the step asked for, but for its gradients; if so it is ready for them.

        Slots and titles are not looked at: they are those of the step before.
        """
        ...

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """For each formula its sum over the elements of each variable, in float64.

        Args:
            formulas: Functions of (variable, gradient, *slots), in float64.
            stages: What is applied to the gradient first, in the type of the update.
            columns: The scalars of the stages.
        """
        ...

    def sums_on_device(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Tensor] | None:
        """As `compute_sums`, on the device of all variables; None on the host, or on several.

        Nobody waits for the device.
        """
        ...

    def compute_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> list[Float64]:
        """What `compute_sums` adds up, see `measuring`: each variable's (leaves, formulas) float64.

        A variable with a sparse gradient has none.
        """
        ...

    def compute_lines(
        self, measures: tuple[Measure, ...], stages: Stages, columns: Columns
    ) -> list[list[Tensor]]:
        """Of each variable its measures, in one sweep; see `lines.reduce_lines` for their shapes.

        Args:
            measures: Of rows, columns or the variable.
            stages: What is applied to the gradient first, in the type of the update.
            columns: The scalars of stages and measures.
        """
        ...

    def max_abs(self) -> Float64:
        """The largest magnitude of each gradient as it came, NaN if it holds one; float64."""
        ...

    def max_abs_on_device(self, is_checked: Tensor) -> Tensor | None:
        """Return `max_abs` as a tensor of shape (n,) on the device of all variables, or None.

        Args:
            is_checked: A bool tensor of shape () on the device. If it is False, the results are 0,
                and no gradient is read.
        """
        ...

    def make_rounds(self, columns: Columns) -> Iterator[WriteRound]:
        """The writes. A round is asked for when the one before has been written."""
        ...

    def release_gradients(self) -> None:
        """Forget the gradients."""
        ...
