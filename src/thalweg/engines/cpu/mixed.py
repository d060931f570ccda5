"""A step with sparse gradients among dense ones: its plans, kept until something changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from thalweg.engines import layout
from thalweg.engines.cpu.measure import Tensors
from thalweg.engines.cpu.plan import DensePlan, Scalars
from thalweg.engines.cpu.sparse import SparsePlan
from thalweg.formula import Formula, Rule
from thalweg.variable import Variable


class MixedPlan:
    """A step over distinct CPU variables, each with a plan; it is used like a `DensePlan`.

    Args:
        rule, stages: What is run.
        dense: The plan of the variables with dense gradients, if there are any.
        members: Their positions in the step.
        sparse: Position and plan of each variable with a sparse gradient.
    """

    def __init__(
        self,
        rule: Rule,
        stages: tuple[Formula, ...],
        dense: DensePlan | None,
        members: Sequence[int],
        sparse: Sequence[tuple[int, SparsePlan]],
    ) -> None:
        self.rule = rule
        self.stages = stages
        self._dense = dense
        self._members = list(members)
        self._sparse = list(sparse)
        self._count = len(self._members) + len(self._sparse)
        self._changes = Variable.changes
        written = [tensor for _, plan in sparse for tensor in plan.written]
        if dense is not None:
            written += [*dense.variables, *(slot for each in dense.slots for slot in each)]
        self._bounds = layout.bounds(written)
        self._edges: list[int] = self._bounds.tolist()  # the same, for looking up one number
        computed = {index: plan.compute for index, plan in sparse}
        if dense is not None:
            for index, var in zip(members, dense.variables, strict=True):
                computed[index] = layout.compute_dtype(var.dtype)
        self.dtypes = tuple(dict.fromkeys(computed[index] for index in sorted(computed)))

    def applies(self, variables: Sequence[Tensor]) -> bool:
        """Whether this plan was made for these very variables, and they lie where they lay."""
        if len(variables) != self._count or Variable.changes != self._changes:
            return False
        if any(variables[i] is not plan.var or not plan.stands() for i, plan in self._sparse):
            return False
        return self._dense is None or self._dense.applies([variables[i] for i in self._members])

    def copied_to(self, copies: Sequence[Tensor | None] | None) -> bool:
        """Whether these are the plan's copies: it has none."""
        return not any(copy is not None for copy in copies or ())

    def aim(self, gradients: Sequence[Any]) -> bool:
        """Get ready for these gradients; False if one does not fit as it is.

        Nothing is written; a False return leaves the reasons to the careful path.
        """
        if self._dense is not None:
            own = [gradients[index] for index in self._members]
            if not self._dense.aim(own, self._bounds):
                return False
        return all(plan.aim(gradients[index], self._edges) for index, plan in self._sparse)

    def squares(self, bound: float = np.inf) -> np.ndarray:
        """Sum of squares of each gradient, clipped to [-bound, bound]; repeated rows count."""
        return self._measured(
            lambda dense: dense.squares(bound), lambda tensors: tensors.squares(bound)
        )

    def peaks(self) -> np.ndarray:
        """Largest magnitude of each gradient."""
        return self._measured(DensePlan.peaks, Tensors.peaks)

    def variable_squares(self) -> np.ndarray:
        """Sum of squares of each variable."""
        return self._measured(DensePlan.variable_squares, Tensors.variable_squares)

    def _measured(
        self, dense: Callable[[DensePlan], np.ndarray], sparse: Callable[[Tensors], np.ndarray]
    ) -> np.ndarray:
        result = np.zeros(self._count, np.float64)
        if self._dense is not None:
            result[self._members] = dense(self._dense)
        positions = [index for index, _ in self._sparse]
        plans = [plan for _, plan in self._sparse]
        values, variables = [plan.values for plan in plans], [plan.var for plan in plans]
        result[positions] = sparse(Tensors(values, variables))
        return result

    def run(
        self, scalars: dict[type, Scalars], separate: dict[str, np.ndarray], flush: bool
    ) -> None:
        """Update everything; cannot fail once it has begun.

        Args:
            scalars: The step's scalars for each compute dtype.
            separate: Scalars that differ by variable.
            flush: Whether denormals are treated as zero.
        """
        for index, plan in self._sparse:
            plan.run(self.stages, own_scalars(scalars[plan.compute], separate, index), flush)
        if self._dense is not None:
            own = {name: values[self._members] for name, values in separate.items()}
            self._dense.run(scalars, own, flush)


def own_scalars(shared: Scalars, separate: dict[str, np.ndarray], index: int) -> Scalars:
    """The scalars of the variable at a position."""
    if not separate:
        return shared
    dtype = type(next(iter(shared.values())))
    return {**shared, **{name: dtype(values[index]) for name, values in separate.items()}}
