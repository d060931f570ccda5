"""Hooks of a step: TensorFlow's methods that a subclass of `Optimizer` overrides."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from thalweg._base.device_counters import Move
from thalweg._base.execution_context import handle_of, is_ours
from thalweg._base.locks import Lock
from thalweg._core.atomic_section import run
from thalweg._core.config_registry import Argument, Configurable
from thalweg._core.slot_optimizer import SlotOptimizer
from thalweg._graph import deduplicated, executing_eagerly, group, is_symbolic, operation
from thalweg._graph.eager_or_graph import IndexedSlices as EitherSlices
from thalweg.indexed_slices import IndexedSlices
from thalweg.v1.train.state import State
from thalweg.v1.train.state_dict import V1StateDict
from thalweg.v1.train.step_adapter import V1StepAdapter, counting_calls
from thalweg.v1.train.traced_hooks import has_hooks

# Held by the steps of optimizers made with use_locking=True.
_SHARED = Lock()


class UpdateHooks(State, V1StateDict, SlotOptimizer, Configurable, Argument):
    """The part of `Optimizer` that calls the hooks of one variable and of one step."""

    HOOKS_AT_EACH_RUN: ClassVar[bool] = False
    _under_way: V1StepAdapter | None
    _use_locking: bool

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        """Hook: make slots with `_zeros_slot` and its relatives."""

    def _prepare(self) -> None:
        """Hook: read the hyperparameters of a step."""

    def _finish(self, update_ops: list[Any], name_scope: str) -> Any:
        """Hook: called after the updates, before `global_step` is raised; moves the other counters.

        Args:
            update_ops: The results of the update hooks, one for each variable.
            name_scope: "update" if there is a `global_step`, otherwise "<name>/", the scope in
                which the hooks of a graph are called.

        Returns:
            None in eager mode; while a graph is built, an operation that ends after all updates.
        """
        if executing_eagerly():
            run(counting_calls(self._counting_moves(self._values())))
            return None

        update_operations = [op for op in update_ops if op is not None]
        if type(self)._counting_moves is not UpdateHooks._counting_moves:
            update_operations.append(self._make_counting_operation(update_operations))
        return group(*update_operations, name=name_scope or self._name)

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        """Hook: update `var` in place by a dense gradient of its shape and dtype."""
        raise NotImplementedError(f"{type(self).__name__} must override _apply_dense.")

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        """Hook: as `_apply_dense`."""
        return self._apply_dense(grad, handle)

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        """Hook: update the rows `grad.indices` of `var`, each named once, by `grad.values`."""
        raise NotImplementedError(f"{type(self).__name__} must override _apply_sparse.")

    def _apply_sparse_duplicate_indices(self, grad: IndexedSlices, var: Any) -> Any:
        """Hook: as `_apply_sparse`, where a row may be named twice."""
        values, indices = deduplicated(grad.values, grad.indices)
        return self._apply_sparse(EitherSlices(values, indices, grad.dense_shape), var)

    def _resource_apply_sparse(self, grad: Tensor, handle: Any, indices: Tensor) -> Any:
        """Hook: update the rows `indices` of `handle`, each named once, by the rows of `grad`."""
        return self._apply_sparse(EitherSlices(grad, indices), handle)

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Tensor, handle: Any, indices: Tensor
    ) -> Any:
        """Hook: as `_resource_apply_sparse`, where a row may be named twice."""
        values, unique = deduplicated(grad, indices)
        return self._resource_apply_sparse(values, handle, unique)

    def _apply_one(self, grad: Any, var: Any) -> Any:
        """Call the hook for one pair of gradient and variable, and return what it returns."""
        if isinstance(grad, EitherSlices):
            return self._apply_slices(grad, var)
        if self._calls_resource_hook(var, ("_resource_apply_dense",), ("_apply_dense",)):
            return self._resource_apply_dense(grad, var)
        return self._apply_dense(grad, var)

    def _apply_slices(self, grad: Any, var: Any) -> Any:
        resource = ("_resource_apply_sparse_duplicate_indices", "_resource_apply_sparse")
        refs = ("_apply_sparse_duplicate_indices", "_apply_sparse")
        if self._calls_resource_hook(var, resource, refs):
            return self._resource_apply_sparse_duplicate_indices(grad.values, var, grad.indices)
        return self._apply_sparse_duplicate_indices(grad, var)

    def _calls_resource_hook(self, var: Any, resource: Sequence[str], refs: Sequence[str]) -> bool:
        """Return True if a variable is updated by hooks for resource variables.

        As in TensorFlow, reference variables, made by `use_resource=False`, are updated by the
        plain hooks, if any class defines one. All other variables are updated by the kind of hook
        that the most derived class defines, by those for resource variables if it defines both.
        """
        classes = type(self).__mro__[: type(self).__mro__.index(UpdateHooks)]
        is_reference = getattr(handle_of(var), "is_resource", True) is False
        if is_reference and any(name in vars(cls) for cls in classes for name in refs):
            return False
        for cls in classes:
            for names in (resource, refs):
                if any(name in vars(cls) for name in names):
                    return names is resource
        return True

    def _make_counting_operation(self, update_operations: list[object]) -> object:
        """Return an operation that moves the counters of a step after the update operations."""

        def count_step(values: dict[str, object]) -> None:
            with self._turn_lock(), self._locked():
                run(counting_calls(self._counting_moves(values)))

        op = operation(count_step, [self._values()], "Assign", control_inputs=update_operations)
        op.written += tuple(self._non_slots_of(op.graph).values())
        return op

    def _counting_moves(self, values: dict[str, object]) -> list[Move]:
        """Return the counters that a step moves besides `global_step`, each with its factor."""
        return []

    def _finishes_itself(self) -> bool:
        """Return True if a subclass overrides `_finish`.

        The library's own `_finish` only moves the counters of `_counting_moves`.
        """
        return getattr(self._finish, "__func__", None) is not UpdateHooks._finish

    def _may_call_users(self) -> bool:
        """Return True if the beginning of a step calls users' functions."""
        return True

    def _read_values(self) -> dict[str, Any]:
        """Return the values that a step reads once, by name; callables are called."""
        return {}

    def _with_prepared(self, values: dict[str, object]) -> dict[str, Any]:
        """Return the values of a step after `_prepare`; a subclass may replace some."""
        return values

    def _values(self) -> dict[str, Any]:
        """Return the values of the current step, or read them if there is none."""
        return self._read_values() if self._under_way is None else self._under_way.values

    def _captured_inputs(self) -> list[Any]:
        """Return the inputs of a step in graph mode, other than gradients and variables."""
        return [self._read_values(), list(self._symbolic_attributes().values())]

    def _symbolic_attributes(self) -> dict[str, object]:
        """Return the attributes that hold tensors of a graph, by name."""
        return {name: attribute for name, attribute in vars(self).items() if is_symbolic(attribute)}

    def _is_recorded(self) -> bool:
        """Return True if hooks are called once, when a graph is built."""
        return not self.HOOKS_AT_EACH_RUN and has_hooks(self)

    def _turn_lock(self) -> Lock:
        """Return the lock that a step takes before `_locked`."""
        return _SHARED if self._use_locking else self._lock

    def _prepare_for_graph(self) -> None:
        """Call a subclass's `_prepare` on a copy, and store the symbolic attributes that it set.

        Errors are ignored: each run of the graph calls `_prepare` again.
        """
        if not is_ours(self._prepare):
            twin = copy.copy(self)
            with contextlib.suppress(Exception):
                twin._prepare()
            vars(self).update(twin._symbolic_attributes())
