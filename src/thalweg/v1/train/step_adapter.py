"""Adapters between TensorFlow 1 optimizers and the core step, with hooks in TensorFlow's order."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.device_counters import Move, moved, number_of
from thalweg._base.scalars import product, scalar_type
from thalweg._base.showing import show_value
from thalweg._core.atomic_section import Call
from thalweg._core.commit import EnableTorchFunction, PostUpdateCall
from thalweg._core.grads_and_vars import Gradient, Pair, as_gradient, check_variables
from thalweg._core.state import making
from thalweg._core.step_adapter import Dtype, Shared, StepAdapter
from thalweg._core.step_scalars import Groups, derived
from thalweg._core.validation import check_memories, check_pairs, counting
from thalweg._core.vectors import is_host
from thalweg._graph import current_session
from thalweg.errors import InvalidTypeError
from thalweg.formula import Rule
from thalweg.variable import Variable, titles_of

# {name: value} of hyperparameters, read once per step, or {name: scalar} of a rule.
Values = dict[str, Any]


class V1StepAdapter(StepAdapter):
    """Adapter that calls an optimizer's hooks for one step.

    Args:
        optimizer: The `Optimizer`.
        global_step: The variable that is raised by 1, or None.
        name: The name of the step.
        values: {name: value} of hyperparameters, captured by a session. If None, the property
            `values` reads the hyperparameters at first use.
    """

    # True while a graph is built, and no step is taken.
    builds = False
    # True if later steps may be replays.
    is_simple = False
    # The result of `_finish`.
    finished: Any = None
    # Number of updated variables.
    updates = 0

    def __init__(
        self, optimizer: Any, global_step: Any, name: str, values: Values | None = None
    ) -> None:
        super().__init__()
        self._optimizer, self.global_step, self._name = optimizer, global_step, name
        self._values = values
        # Results of the update hooks, for `_finish`.
        self._results: list[object] = []
        self.selection = optimizer._selection()
        self.calls = optimizer._may_call_users()
        self.repeats = _is_global_step(global_step) and not self.one_by_one(())
        # A counter that is not a variable may share memory with host tensors.
        can_move = global_step is None or isinstance(global_step, Variable)
        self.may_leave = can_move and current_session() is None and not optimizer._finishes_itself()

    @property
    def values(self) -> Values:
        """Values that the optimizer reads once a step, by name."""
        if self._values is None:
            optimizer = self._optimizer
            self._values = (
                optimizer._captured_inputs()[0] if self.builds else optimizer._read_values()
            )
        return self._values

    def names_of(self, variables: Sequence[Tensor]) -> list[str]:
        return titles_of(variables)

    def convert_pairs(self, given: Sequence[tuple[Any, Any]]) -> list[Pair]:
        variables = [var for _, var in given]
        check_variables(variables)
        names = titles_of(variables)
        return [
            (as_gradient(grad, var, name), var)
            for (grad, var), name in zip(given, names, strict=True)
        ]

    def check_pairs(self, pairs: Sequence[Pair], narrow: bool) -> None:
        check_global_step(self.global_step)
        names = titles_of([var for _, var in pairs])
        check_pairs(pairs, names, scatter=self._optimizer._scatters(), narrow=narrow)

    def create_state(self, variables: Sequence[Tensor]) -> None:
        # In a graph the slots were made when the graph was built.
        if current_session() is None:
            with making(self._optimizer, variables):
                self._optimizer._create_slots(list(variables))

    def read_hypers(self, variables: Sequence[Tensor]) -> None:
        self.updates = len(variables)
        self._optimizer._prepare()
        values = self.values
        if self.calls:
            self._values = self._optimizer._with_prepared(values)

    def apply_one(self, grad: Gradient, var: Tensor) -> None:
        self._results.append(self._optimizer._apply_one(grad, var))

    def written_tensors(self, variables: Sequence[Tensor]) -> list[Tensor]:
        return self._optimizer._written_tensors(variables)

    def finishing_calls(self) -> list[PostUpdateCall]:
        if not self._optimizer._finishes_itself():
            return []
        return [PostUpdateCall(self._finish, "`_finish` failed")]

    def _finish(self) -> None:
        # A fused update returns nothing for its variables.
        results = self._results or [None] * self.updates
        scope = self._name if self._name.endswith("/") else f"{self._name}/"
        with EnableTorchFunction(), no_grad():
            name = scope if self.global_step is None else "update"
            self.finished = self._optimizer._finish(results, name)

    def counting_calls(self, shared: Shared) -> list[Call]:
        optimizer, step = self._optimizer, self.global_step
        moves = [] if optimizer._finishes_itself() else [*optimizer._counting_moves(self.values)]
        if step is not None:
            moves.append((step, None))
        return counting_calls(moves, self.apply_flag)


def counting_calls(moves: Sequence[Move], device_decision: Tensor | None = None) -> list[Call]:
    """Return calls that update the counters of a step in place, on each counter's device.

    Args:
        moves: (counter, factor) pairs. A counter is multiplied by its factor, or raised by 1 if the
            factor is None.
        device_decision: Optional. A bool tensor on a device: False leaves the counters unchanged.

    Raises:
        LayoutError: A counter has no memory.
    """
    if device_decision is not None:
        check_memories([counter for counter, _ in moves])
        return moved(moves, device_decision)
    calls: list[Call] = []
    # Functions in C over detached tensors: torch calls Python for methods of a `Variable`, where an
    # interruption would split the commit.
    for counter, factor in moves:
        if not is_host(counter):
            calls += counting_calls([(counter, factor)], torch.ones_like(counter, dtype=torch.bool))
        elif factor is None:
            calls.append(counting(counter))
        else:
            product_value = product(scalar_type(counter)(number_of(counter)), factor)
            calls.append(partial(counter.detach().fill_, product_value.item()))
    return calls


class V1RuleStepAdapter(V1StepAdapter):
    """Adapter of one step of a `RuleOptimizer`."""

    def step_rule(self) -> Rule:
        return self._optimizer._rule_of_step()

    def one_by_one(self, pairs: Sequence[Pair]) -> bool:
        return self._optimizer._one_by_one()

    def slots_of(self, var: Tensor) -> list[Tensor]:
        return self._optimizer._slots.of(var, [slot.name for slot in self.step_rule().slots])

    def group_variables(self, variables: Sequence[Tensor], gradients: Sequence[Any]) -> Groups:
        return self._optimizer._group_variables(self.values, variables, gradients)

    def scalars_of(self, dtype: Dtype, group: Hashable) -> Values:
        return derived(
            self.step_rule(), self._optimizer._scalars_of(self.values, dtype, group), dtype, 1
        )


class V1HookStepAdapter(V1RuleStepAdapter):
    """Adapter for one variable whose update hook, of a subclass, calls the rule.

    Args:
        optimizer: The optimizer.
        values: {name: value} of hyperparameters read for the step; None outside of a step.
    """

    constrains = False
    sees_all = False
    is_prepared = True

    def __init__(self, optimizer: object, values: Values | None) -> None:
        super().__init__(optimizer, None, "", values)
        self.calls, self.repeats = False, True

    def step_rule(self) -> Rule:
        return self._optimizer._choose_rule()

    def create_state(self, variables: Sequence[Tensor]) -> None:
        """Do nothing: the step around the hook has made the slots."""

    def one_by_one(self, pairs: Sequence[Pair]) -> bool:
        return False


def check_global_step(global_step: object) -> None:
    """Raise InvalidTypeError unless the global step can be counted up."""
    if not _is_global_step(global_step):
        raise InvalidTypeError(
            f"global_step must be a scalar variable or None, not {show_value(global_step)}."
        )


def _is_global_step(global_step: object) -> bool:
    """Return True if it can be counted up: a scalar, or None."""
    return global_step is None or (isinstance(global_step, Tensor) and not global_step.dim())
