"""Hooks of a step: methods of TensorFlow's `Optimizer` that subclasses override.

In graph mode hooks are called once, while the graph is built. The recorded operations form a `Unit`
of the graph, which sessions run as one update.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from thalweg import _graph
from thalweg._base.device_counters import Move
from thalweg._base.execution_context import handle_of, is_ours
from thalweg._base.locks import Lock
from thalweg._base.static_shape import UNKNOWN
from thalweg._core.atomic_section import run
from thalweg._core.config_registry import Argument, Configurable
from thalweg._core.grads_and_vars import distinct
from thalweg._core.slot_optimizer import SlotOptimizer
from thalweg._graph.eager_or_graph import IndexedSlices as EitherSlices
from thalweg.indexed_slices import IndexedSlices
from thalweg.v1.train.state import State
from thalweg.v1.train.state_dict import V1StateDict
from thalweg.v1.train.step_adapter import V1StepAdapter, Values, check_global_step, counting_calls

HOOKS = (
    "_prepare", "_finish", "_apply_dense", "_apply_sparse", "_apply_sparse_duplicate_indices",
    "_apply_sparse_shared", "_resource_apply_dense", "_resource_apply_sparse",
    "_resource_apply_sparse_duplicate_indices",
)  # fmt: skip


def has_hooks(optimizer: object) -> bool:
    """Return True if a subclass, or the object itself, overrides a hook of the optimizer."""
    return any(not is_ours(getattr(optimizer, hook, None)) for hook in HOOKS)


def check_counter(global_step: Any) -> Any:
    """Return the graph variable for `global_step`; a scalar tensor or None is returned unchanged.

    Raises:
        InvalidTypeError: `global_step` cannot be raised by 1, such as a constant of the graph.
    """
    step = None if global_step is None else _graph.graph_variable_of(global_step)
    if not (isinstance(step, _graph.GraphVariable) and step.shape in ((), UNKNOWN)):
        check_global_step(step)
    return step


def recorded(optimizer: Any, pairs: Sequence[tuple[Any, Any]], global_step: Any, name: str) -> Any:
    """Call an optimizer's hooks once to build the operation of a step; return the operation.

    The operation is added to the collection TRAIN_OP.

    Args:
        optimizer: The optimizer.
        pairs: (gradient, graph variable) pairs. Gradients are not None.
        global_step: A variable that is raised by 1 after the updates, or None.
        name: The name scope, made unique.

    Returns:
        The operation that raises `global_step`. Without `global_step`, the operation from
        `_finish`.

    Raises:
        InvalidTypeError: A hook needs values that only a run has, or `global_step` cannot count.
    """
    if optimizer._recorder is not None:
        optimizer._recorder.refuse_graph()
    variables = distinct([var for _, var in pairs])
    graph: Any = variables[0].graph  # pyright: ignore
    step = check_counter(global_step)
    hooks = optimizer._make_hooks(global_step, name, None)
    hooks.builds = True
    with (
        graph.as_default(),
        optimizer._turn_lock(),
        optimizer._locked(),
        optimizer._while_taking(hooks),
    ):
        symbolic_pairs = [(_graph.gradient_symbol(grad), var) for grad, var in pairs]
        # The initial values of slots must not depend on the caller's `control_dependencies`.
        with graph.control_dependencies(None), _graph.explain_errors(optimizer, "_create_slots"):
            optimizer._create_slots(variables)
        with graph.as_one(), graph.name_scope(name) as scope:
            with _graph.explain_errors(optimizer, "_prepare"):
                hooks.read_hypers(variables)
            updates = [
                _graph.update_of(optimizer, var, partial(optimizer._apply_one, grad, var))
                for grad, var in symbolic_pairs
            ]
            finished = _finish_updates(
                optimizer, graph, updates, scope if step is None else "update"
            )
            if step is not None:
                with graph.control_dependencies([finished]):
                    finished = _count_operation(step, scope)
        step_op = finished.op if isinstance(finished, _graph.SymbolicTensor) else finished
        collection = graph.get_collection_ref(_graph.GraphKeys.TRAIN_OP)
        if not any(step_op is member for member in collection):
            collection.append(step_op)
    return step_op


def add_update_names(step_op: Any, variables: Sequence[Any], kind: str) -> None:
    """Add an empty operation with TensorFlow's name for each updated variable of a step.

    Running an added operation, such as "Adam/update_w/ResourceApplyAdam", runs the whole step.

    Args:
        step_op: The operation that takes the step.
        variables: The updated graph variables.
        kind: The name of TensorFlow's kernel, such as "ApplyAdam".
    """
    graph = step_op.graph
    with (
        graph.as_default(),
        graph.control_dependencies([step_op]),
        graph.name_scope(f"{step_op.name}/"),
    ):
        for var in variables:
            with graph.name_scope(f"update_{var.op.name}"):
                _graph.no_op(f"Resource{kind}" if var.is_resource else kind)


def _finish_updates(optimizer: Any, graph: Any, updates: list[Any], scope: str) -> Any:
    """Call `_finish` and return its operation; if None, a group of all updates."""
    operation_count = len(graph.operations)
    with _graph.explain_errors(optimizer, "_finish"):
        finish_op = optimizer._finish(updates, scope)
    if finish_op is None:
        return _graph.group(*updates, *_graph.updates_since(graph, operation_count), name=scope)
    return _graph.after_writes(graph, finish_op)


def _count_operation(step: Any, name: str) -> _graph.Operation:
    """Return an operation that adds 1 to a step."""
    if isinstance(step, _graph.GraphVariable):
        return step.assign_add(1, name=name).op
    return _graph.operation(lambda: run(counting_calls([(step, None)])), [], name)


def apply_if(condition: Any, apply: Callable[[], object]) -> Any:
    """Return the operation of `apply()`, in a branch that runs only if `condition` is true.

    Args:
        condition: A symbolic bool, or True for an operation that is not in a branch.
        apply: Builds and returns the operation. Additions to the collection TRAIN_OP are removed,
            since operations of a branch cannot be run alone.
    """
    collection = _graph.get_default_graph().get_collection_ref(_graph.GraphKeys.TRAIN_OP)
    previous_ops = list(collection)
    op = apply() if condition is True else _graph.cond(condition, apply, _graph.no_op)
    collection[:] = previous_ops
    return op


# Held by the steps of optimizers made with use_locking=True.
_SHARED = Lock()


class UpdateHooks(State, V1StateDict, SlotOptimizer, Configurable, Argument):
    """Base class of `Optimizer` that calls the hooks of subclasses."""

    HOOKS_AT_EACH_RUN: ClassVar[bool] = False
    _under_way: V1StepAdapter | None
    _use_locking: bool

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        """Hook: create slots with `_zeros_slot`, `_get_or_make_slot` or `_fill_slots`."""

    def _prepare(self) -> None:
        """Hook: read the hyperparameters of a step."""

    def _finish(self, update_ops: list[Any], name_scope: str) -> Any:
        """Hook after all updates, before `global_step` is raised: update the counters besides it.

        By default these are the counters of `_counting_moves`, such as `beta1_power`.

        Args:
            update_ops: Results of the update hooks, one per variable.
            name_scope: "update" with a `global_step`, else "<name>/", the name scope of the step.

        Returns:
            None in eager mode, where counters are updated now. While a graph is built, an operation
            that runs all updates, then updates the counters.
        """
        if _graph.executing_eagerly():
            run(counting_calls(self._counting_moves(self._values())))
            return None

        update_operations = [op for op in update_ops if op is not None]
        if type(self)._counting_moves is not UpdateHooks._counting_moves:
            update_operations.append(self._make_counting_operation(update_operations))
        return _graph.group(*update_operations, name=name_scope or self._name)

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
        """Hook: like `_apply_sparse`, but `grad.indices` may contain a row repeatedly."""
        values, indices = _graph.deduplicated(grad.values, grad.indices)
        return self._apply_sparse(EitherSlices(values, indices, grad.dense_shape), var)

    def _resource_apply_sparse(self, grad: Tensor, handle: Any, indices: Tensor) -> Any:
        """Hook: update the rows `indices` of `handle`, each named once, by the rows of `grad`."""
        return self._apply_sparse(EitherSlices(grad, indices), handle)

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Tensor, handle: Any, indices: Tensor
    ) -> Any:
        """Hook: like `_resource_apply_sparse`, but `indices` may contain a row repeatedly."""
        values, unique = _graph.deduplicated(grad, indices)
        return self._resource_apply_sparse(values, handle, unique)

    def _apply_one(self, grad: Any, var: Any) -> Any:
        """Call the hook for one (gradient, variable) pair; return the hook's result."""
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
        """Return True to update a variable by resource hooks, False to update it by plain hooks.

        `resource` and `refs` are the names of resource hooks and plain hooks. A variable with
        `use_resource=False` uses plain hooks if any subclass has one. Else the most derived class
        with a hook decides: True if it has a resource hook. Without such a class, return True.
        """
        # Without this class, which defines all hooks.
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
        """Return a new operation: it updates counters of `_counting_moves` after all updates."""

        def count_step(values: Values) -> None:
            with self._turn_lock(), self._locked():
                run(counting_calls(self._counting_moves(values)))

        op = _graph.operation(
            count_step, [self._values()], "Assign", control_inputs=update_operations
        )
        # The counters are no inputs, so the session would not know that they are written.
        op.written += tuple(self._non_slots_of(op.graph).values())
        return op

    def _counting_moves(self, values: Values) -> list[Move]:
        """Return (counter, factor) pairs of the counters besides `global_step`.

        A step multiplies a counter by its factor, or adds 1 if the factor is None.
        """
        return []

    def _finishes_itself(self) -> bool:
        """Return True if a subclass overrides `_finish`.

        The library's own `_finish` only moves the counters of `_counting_moves`.
        """
        return getattr(self._finish, "__func__", None) is not UpdateHooks._finish

    def _may_call_users(self) -> bool:
        """Return True if the beginning of a step calls users' functions."""
        return True

    def _read_values(self) -> Values:
        """Return the values that a step reads once, by name; callables are called."""
        return {}

    def _with_prepared(self, values: Values) -> Values:
        """Return the values of a step after `_prepare`; a subclass may replace some."""
        return values

    def _values(self) -> Values:
        """Return the values of the current step, or read them if there is none."""
        return self._read_values() if self._under_way is None else self._under_way.values

    def _captured_inputs(self) -> list[Any]:
        """Return the inputs of a step in graph mode, other than gradients and variables."""
        return [self._read_values(), list(self._symbolic_attributes().values())]

    def _symbolic_attributes(self) -> dict[str, object]:
        """Return the attributes that hold tensors of a graph, by name."""
        return {
            name: attribute
            for name, attribute in vars(self).items()
            if _graph.is_symbolic(attribute)
        }

    def _is_recorded(self) -> bool:
        """Return True if hooks are called once, when a graph is built."""
        return not self.HOOKS_AT_EACH_RUN and has_hooks(self)

    def _turn_lock(self) -> Lock:
        """Return the lock that a step takes before `_locked`."""
        return _SHARED if self._use_locking else self._lock

    def _prepare_for_graph(self) -> None:
        """Call a subclass's `_prepare` on a copy of self; take over the copy's symbolic attributes.

        Do nothing if `_prepare` is not overridden. Errors are ignored, because each run of the
        graph calls `_prepare` again.
        """
        if not is_ours(self._prepare):
            twin = copy.copy(self)
            with contextlib.suppress(Exception):
                twin._prepare()
            vars(self).update(twin._symbolic_attributes())
