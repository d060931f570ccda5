"""Protocol between a step and the engines.

An engine receives a `StepRequest` and returns a `StepPlan`; planning writes nothing. A `StepPlan`
computes reductions, and returns the writes as functions that cannot fail or be interrupted. A step
that lists a variable twice has several rounds. A variable occurs at most once in a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.array_types import Float64
from thalweg._engines.engine_selection import Selection
from thalweg._engines.random_bits import Place
from thalweg.formula import Formula, Rule
from thalweg.indexed_slices import IndexedSlices

Gradient = Tensor | IndexedSlices
Dtype = type[np.floating[Any]]
Formulas = tuple[Formula, ...]
Stages = tuple[Formula, ...]
Copies = Sequence[Tensor | None] | None
Call = Callable[[], Any]
Scalars = Mapping[str, Any]
ReductionKind = Literal["sums", "leaves", "measures", "peaks"]
# By kind: sums and peaks on the host or a device; leaves; measures.
Results = Float64 | Tensor | list[Float64] | list[list[Tensor]]


class StepRequest(NamedTuple):
    """A step of one rule over variables.

    Attributes:
        stages: Formulas that transform each gradient before the rule, in the same kernel.
        variables: The variables to update. A variable that is listed twice is updated twice.
        gradients: The gradient of each variable, dense or sparse.
        slots: For each variable its slots of the variable's shape, in the rule's order.
        titles: The names of the variables for messages.
        selection: The engine, and the handling of denormals.
        copies: For each variable None, or a tensor of its shape that receives the new value; None
            for no copies at all. A copy is of a 16-bit dtype, or on another device; a dense
            gradient may be on that device, too. Rows without a gradient are not copied.
        from_copies: True to begin the step at a 16-bit copy that differs from its rounded variable,
            because other code has written to the copy. Copies on other devices are only written.
        matrices: `matrices(request)` returns the replacement of `WholeMatrices` for a rule with
            passes, if variables are shards.
        vectors: For each variable {name: vector that formulas read}. Row vectors have the
            variable's shape with a last dimension of 1, column vectors with a second-to-last
            dimension of 1. Vectors are contiguous, have the compute dtype, and overlap with no
            tensor of the step.
        places: For stochastic rounding, and for shards with encoded slots: for each variable its
            index for random bits, or None to round to the nearest number; and the positions of its
            elements in the unsharded variable.
        short: For each variable True if an engine runs the passes inside its kernels, over small
            matrices side by side. Variables with True have no vectors.
        numbers: For each variable its index in the optimizer, if stages draw random numbers.
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
    places: Sequence[Place] = ()
    short: Sequence[bool] = ()
    numbers: Sequence[int] = ()


class Columns(NamedTuple):
    """The scalars of a step.

    Attributes:
        shared: {compute dtype: {name: scalar of all variables of the dtype}}.
        by_variable: {name: scalar that differs between variables}: arrays over the variables of the
            step, or tensors for scalars that only a device has.
        apply_flag: A bool tensor of shape () on the device, True if the step is applied; None if
            the step is always applied.
    """

    shared: Mapping[Dtype, Scalars]
    by_variable: Mapping[str, Any]
    apply_flag: Tensor | None = None

    def of_members(self, members: Sequence[int]) -> Columns:
        """Return the scalars of the variables at the indices `members`."""
        if not self.by_variable:
            return self
        by_variable = {
            name: pick_members(vector, members) for name, vector in self.by_variable.items()
        }
        return self._replace(by_variable=by_variable)

    def scalars_of(self, index: int, dtype: Dtype) -> Scalars:
        """Return {name: scalar} of the variable at `index`, in the compute dtype `dtype`."""
        shared = self.shared[dtype]
        if not self.by_variable:
            return shared
        by_variable = {
            name: dtype(float(vector[index])) for name, vector in self.by_variable.items()
        }
        return {**shared, **by_variable}

    def write_calls(self, slots: Iterable[Tensor], values: Iterable[Tensor]) -> list[Call]:
        """Return a list of one function that copies `values` to `slots`; [] if there are no slots.

        If `apply_flag` is a tensor, this call reads the flag and the slots. With a False flag, the
        function later writes the values that the slots had at this call.
        """
        slots, values = list(slots), list(values)
        if not slots:
            return []
        if self.apply_flag is not None:
            pairs = zip(values, slots, strict=True)
            # The device reads the flag; the host does not wait for it.
            values = [torch.where(self.apply_flag, value, slot) for value, slot in pairs]
        copy = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        return [partial(copy, slots, values)]


def pick_members(vector: Any, members: Sequence[int]) -> Any:
    """Return the elements at the indices `members` of an array or tensor over all variables."""
    if not isinstance(vector, Tensor):
        return vector[members]
    if len(members) == len(vector):
        return vector
    # A list as an index would be copied to the device.
    return torch.stack([vector[index] for index in members])


class WriteRound(NamedTuple):
    """Part of a step in which each variable occurs at most once.

    Attributes:
        members: The indices of the round's variables in the step.
        calls: Functions without arguments that write the new values.
        checks: Functions in C to call once, before the writes of the round. A check raises
            LayoutError if memory that kernels access was freed by `UntypedStorage.resize_`.
    """

    members: Sequence[int]
    calls: list[Call]
    checks: Sequence[Call] = ()

    @property
    def all_calls(self) -> list[Call]:
        """The checks, followed by the calls."""
        return [*self.checks, *self.calls]


def split_into_rounds(variables: Sequence[Tensor]) -> list[list[int]]:
    """Return [indices of the first occurrences of variables, indices of the second ones, ...]."""
    rounds: list[list[int]] = []
    occurrences: dict[int, int] = {}
    for index, var in enumerate(variables):
        round_index = occurrences[id(var)] = occurrences.get(id(var), -1) + 1
        if round_index == len(rounds):
            rounds.append([])
        rounds[round_index].append(index)
    return rounds


def select_row_formula(rule: Rule, var: Tensor) -> Formula:
    """Return the formula of a rule for rows: `update_single`, `update_sparse` or `update`."""
    if rule.update_single is not None and var.shape[1:].numel() == 1:
        return rule.update_single
    return rule.update_sparse or rule.update


@dataclass(frozen=True)
class Reduction:
    """Reductions over the elements of each variable, computed in one pass over memory.

    A sum has the order of `reduction_order`; measures have the order of `row_column_reductions`.

    Attributes:
        kind: The results, for n variables:
            "sums": float64 of shape (n, formulas); an array, or a tensor on `Reductions.device`.
            "leaves": for each variable the partial sums that "sums" adds up, an array of shape
                (leaves, formulas); without leaves for a sparse gradient.
            "measures": for each variable the tensors of its measures; see `reduce_lines`.
            "peaks": the largest magnitude of each gradient before stages, NaN if it contains NaN;
                float64 of shape (n,), as an array or a tensor like sums.
        formulas: Functions of (variable, gradient, *slots), computed in float64; for "measures"
            instances of `Measure`.
        stages: Formulas that transform the gradient first, in the compute dtype.
        is_checked: Optional, for peaks. A bool tensor of shape () on the device. If it is False,
            the results are 0, and no gradient is read.
    """

    kind: ReductionKind
    formulas: tuple[Any, ...] = ()
    stages: Stages = ()
    is_checked: Tensor | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(ReductionKind):
            kinds = ", ".join(get_args(ReductionKind))
            raise ValueError(f"a reduction of kind {self.kind!r} is unknown; expected: {kinds}")

    def gather(
        self, count: int, member_results: Iterable[tuple[Sequence[int], Results]]
    ) -> Results:
        """Return the results of all variables on the host, from results of disjoint parts.

        Args:
            count: The number of variables. For a variable in no part, sums and peaks are 0; leaves
                and measures are empty.
            member_results: (indices of variables, results of these variables) for each part.
        """
        if self.kind in ("sums", "peaks"):
            shape = (count, len(self.formulas)) if self.kind == "sums" else count
            values = np.zeros(shape, np.float64)
            for members, result in member_results:
                values[members] = as_array(result)
            return values
        missing: Any = [] if self.kind == "measures" else np.empty((0, len(self.formulas)))
        results = [missing] * count
        for members, result in member_results:
            for index, var_result in zip(members, cast("list[Any]", result), strict=True):
                results[index] = var_result
        return results


def as_array(results: Results) -> Float64:
    """Return sums or peaks as an array; raise TypeError for lists of leaves or measures."""
    if isinstance(results, list):
        raise TypeError("leaves and measures of variables are no single array")
    return results.cpu().numpy() if isinstance(results, Tensor) else results


PEAKS = Reduction("peaks")
NO_COLUMNS = Columns({}, {})


class Reductions(Protocol):
    """Reductions over the variables and gradients of a step.

    Attributes:
        device: The device on which sums and peaks may stay, or None for the host.
    """

    @property
    def device(self) -> torch.device | None: ...

    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        """Return the results of a reduction; do not wait for a device on which results stay.

        Args:
            columns: The scalars that the reduction's stages and formulas read.
        """
        ...


class StepPlan(Reductions, Protocol):
    """Plan of a step, bound to gradients.

    Attributes:
        dtypes: The compute dtypes of all variables, beginning with the first variable's.
        is_single: True if the step has one round, whose calls cannot be interrupted.
    """

    @property
    def dtypes(self) -> tuple[Dtype, ...]: ...

    @property
    def is_single(self) -> bool: ...

    def try_rebind(self, request: StepRequest) -> bool:
        """Bind the plan to the gradients of a request; return False if anything else differs.

        Slots and titles are not compared: the caller passes slots and titles of the last request.
        """
        ...

    def make_rounds(self, columns: Columns) -> Iterator[WriteRound]:
        """Yield the rounds of the step; the caller runs a round before it takes the next round."""
        ...

    def release_gradients(self) -> None:
        """Drop the references to gradients."""
        ...
