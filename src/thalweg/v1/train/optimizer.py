"""`Optimizer`, the base class of TensorFlow 1's optimizers: hooks and order of operations."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from thalweg import distribute
from thalweg._base.execution_context import is_deferred, thread
from thalweg._base.tracing import untraced
from thalweg._core.commit import annotate_not_taken
from thalweg._core.config_registry import OPTIMIZERS, Names
from thalweg._core.grads_and_vars import as_pairs, flatten
from thalweg._core.hyperparameters import is_function
from thalweg._core.slot_dict_view import variable_key_in_graph
from thalweg._core.slot_optimizer import SlotOptimizer
from thalweg._graph import (
    deduplicated,
    executing_eagerly,
    get_default_graph,
    graph_variable_of,
    resolve,
)
from thalweg.autodiff import has_replicas
from thalweg.v1.train import gradients, processors
from thalweg.v1.train.distributed_apply import DistributedApply
from thalweg.v1.train.gradients import GradsAndVars, need_no_tape
from thalweg.v1.train.state import State
from thalweg.v1.train.step_adapter import V1StepAdapter

_VARIADIC_KINDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# Arguments that do not affect updates.
_ASIDE = ("name", "use_locking", "use_own_namescope_for_non_slot_vars")


class Optimizer(DistributedApply, SlotOptimizer):
    """Base class of TensorFlow 1's optimizers; derive from it to write an optimizer.

    `minimize` calls `compute_gradients` and `apply_gradients`. To process gradients first, call
    `compute_gradients`, change the pairs, and pass them to `apply_gradients`.

    Override `_apply_dense(grad, var)` and `_apply_sparse(grad, var)`, or TensorFlow's names for
    resource variables, `_resource_apply_dense(grad, var)` and `_resource_apply_sparse(grad, var,
    indices)`; each hook changes `var` and its slots, in eager mode in place and without autograd.
    `_create_slots(var_list)` and `_prepare()` are called before the updates, and
    `_finish(update_ops, name)` after the updates. If an update hook fails, variables and slots are
    restored from copies made before the step. If `_finish` fails, the step was taken.

    In graph mode all hooks are called once, with symbolic tensors, and return operations.
    `_create_slots` is called outside of the scope `<name>/`, `_prepare` inside it, and update hooks
    in `<name>/update_<variable>/`. `_finish` receives the returned operations. A session runs the
    operations as one update; if an operation fails, all written variables are restored.

    Args:
        use_locking: True to never run two steps of optimizers with `use_locking=True` at a time. If
            False, concurrent steps of two optimizers on one variable may lose updates.
        name: Name of the optimizer, and last part of its slots' names.
        use_own_namescope_for_non_slot_vars: Accepted for compatibility.

    Attributes:
        GATE_NONE: `minimize` applies and frees each gradient before computing the next.
        GATE_OP: Equal to GATE_GRAPH in effect.
        GATE_GRAPH: All gradients are complete before the first is applied.
        HOOKS_AT_EACH_RUN: True if hooks need tensors with values in graph mode, too. All hooks but
            `_create_slots` are then called at each run, and change the session's tensors in
            place. `_prepare` is also called on a copy when the graph is built.

    Raises:
        ValueError: `name` is empty.

    Reference: tf.compat.v1.train.Optimizer
    """

    GATE_NONE = gradients.GATE_NONE
    GATE_OP = gradients.GATE_OP
    GATE_GRAPH = gradients.GATE_GRAPH
    _needs_variables: ClassVar[bool] = True
    _NOT_COPIED: ClassVar[tuple[str, ...]] = (*SlotOptimizer._NOT_COPIED, "_under_way")

    def __init__(
        self, use_locking: bool, name: str, use_own_namescope_for_non_slot_vars: bool = False
    ) -> None:
        if not name:
            raise ValueError("Must specify the optimizer name")
        State.__init__(self)
        self._use_locking, self._name = use_locking, name

    def _set_up(self) -> None:
        super()._set_up()
        self._under_way: V1StepAdapter | None = None

    def get_name(self) -> str:
        """Return the name given to the constructor."""
        return self._name

    def _arguments(self) -> dict[str, object]:
        """Return the constructor's arguments that affect numbers, by name."""
        fields, attributes = vars(self), getattr(self, "HYPERS", {})
        names = {
            name: attributes.get(name, f"_{name}") for name in _constructor_arguments(type(self))
        }
        return {name: fields[attribute] for name, attribute in names.items() if attribute in fields}

    def _made_by(self) -> tuple[Names, type[Optimizer]]:
        return OPTIMIZERS, type(self)

    @untraced
    def minimize(
        self,
        loss: object,
        global_step: object = None,
        var_list: object = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: object = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: object = None,
    ) -> Any:
        """Compute the gradients of a loss and apply them.

        Args:
            loss: A callable without arguments that returns the value to minimize; in graph mode,
                also a symbolic tensor.
            global_step: Optional. A variable that is raised by 1 after the updates.
            var_list: Optional. Variables, in lists, tuples or dicts. The default is all trainable
                variables that the loss depends on (eager) or of the graph. Variables frozen by
                `requires_grad_(False)` do not change.
            gate_gradients: GATE_NONE applies and frees each gradient before the next is computed;
                see below.
            aggregation_method: Checked in graph mode; no effect on values.
            colocate_gradients_with_ops: Accepted for compatibility.
            name: Name of the operation in graph mode.
            grad_loss: Optional. Weights of the loss's elements, of its shape.

        Returns:
            None; in graph mode, an operation that takes the step.

        Raises:
            ValueError: No variable has a gradient, there are no variables, the gate is invalid, or
                a dtype has no gradients.
            RuntimeError: The loss is a tensor in eager mode.

        With GATE_NONE, each gradient is applied inside the backward pass. If an update fails,
        earlier variables are already updated; the error names these variables. GATE_NONE waits for
        all gradients in graph mode, with several `torch.distributed` processes, with diagnostics,
        if a hook needs all gradients, and with overridden `compute_gradients` or `apply_gradients`.

        Differs from:
            TensorFlow does not document that `grad_loss` is used in eager mode, too.
        """
        if gate_gradients == self.GATE_NONE and self._applies_one_by_one(loss):
            var_list = None if var_list is None else flatten(var_list)
            if need_no_tape(var_list or ()):
                return self._minimize_one_by_one(loss, global_step, var_list, grad_loss, name)
        with distribute.guard_backward(self) if thread.strategies else contextlib.nullcontext():
            pairs = self.compute_gradients(
                loss,
                var_list=var_list,
                gate_gradients=gate_gradients,
                aggregation_method=aggregation_method,
                colocate_gradients_with_ops=colocate_gradients_with_ops,
                grad_loss=grad_loss,
            )
        # In a strategy another rank may have gradients.
        is_single_rank = not thread.strategies or distribute.get_strategy().ranks.is_alone
        if is_single_rank and all(grad is None for grad, _ in pairs):
            raise gradients.none_given([var for _, var in pairs], loss)
        return self.apply_gradients(pairs, global_step=global_step, name=name)

    def _applies_one_by_one(self, loss: object) -> bool:
        """Return True if `minimize` may apply each gradient inside the backward pass (GATE_NONE).

        This requires eager mode and a callable loss. Diagnostics, DistributedDataParallel, and
        overrides of `compute_gradients` or `apply_gradients` prevent it.
        """
        cls = type(self)
        return (
            callable(loss)
            and executing_eagerly()
            # Diagnostics record whole steps.
            and self._recorder is None
            # A hook of DistributedDataParallel may have to average the gradient first.
            and not has_replicas()
            and cls.compute_gradients is Optimizer.compute_gradients
            and cls.apply_gradients is Optimizer.apply_gradients
        )

    @untraced
    def compute_gradients(
        self,
        loss: object,
        var_list: object = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: object = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: object = None,
    ) -> GradsAndVars:
        """Return a list of (gradient, variable) pairs of a loss, for `apply_gradients`.

        Args:
            loss, var_list, aggregation_method, colocate_gradients_with_ops, grad_loss: As in
                `minimize`.
            gate_gradients: Checked in graph mode; no effect on values.

        Returns:
            One pair per variable, in order. A gradient is a tensor, `IndexedSlices`, or None if the
            loss does not depend on the variable.

        Raises:
            ValueError: The gate is invalid, a dtype has no gradients, or in graph mode there are no
                variables.
            RuntimeError: The loss is a tensor in eager mode.
        """
        valid_dtypes = self._valid_dtypes()
        # A tensor subclass may define `__call__`.
        if callable(loss) and not isinstance(loss, torch.Tensor):
            if executing_eagerly():
                return gradients.of_callable(loss, var_list, grad_loss, self._scale_loss)
            loss = loss()
        if not is_deferred(loss):
            raise RuntimeError(
                "`loss` passed to Optimizer.compute_gradients should be a function when eager"
                " execution is enabled.\nGive one that computes it: minimize(lambda: ...)."
            )
        gradient_args = var_list, gate_gradients, grad_loss, valid_dtypes, aggregation_method
        return gradients.of_symbol(self._scale_loss(graph_variable_of(loss)), *gradient_args)

    @staticmethod
    def _scale_loss(loss_value: Any) -> object:
        """Return the scaled loss; see `thalweg.distribute.scale_loss_for_estimator`."""
        factor = distribute.loss_factor()
        get_default_graph()._is_loss_scaled_by_optimizer = factor is not None
        return loss_value if factor is None else loss_value * factor

    @untraced
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[object, object]],
        global_step: object = None,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
    ) -> Any:
        """Apply gradients to variables.

        Args:
            grads_and_vars: (gradient, variable) pairs, as from `compute_gradients`. A gradient is a
                tensor (dense, or sparse COO over dimension 0), `IndexedSlices`, an array, a list,
                or None.
            global_step: Optional. A variable that is raised by 1 after the updates.
            name: Name of the operation in graph mode; the optimizer's name by default.
            skip_gradients_aggregation: True to skip the sum over replicas inside
                `thalweg.distribute.Strategy.run`.

        Returns:
            In graph mode, an operation that takes the step; in eager mode, None. If a subclass has
            `_finish` and `global_step` is None, the result of `_finish`.

        Raises:
            RuntimeError: The call is in a strategy's scope, but in no replica.
            TypeError: The pairs are malformed, a gradient cannot be converted, dtypes differ, or a
                hook needs values while a graph is built.
            ValueError: There are no pairs, no variable has a gradient, or a gradient does not fit
                its variable.

        On these errors, and if a callable or a hook fails, no variable and no slot changes. If a
        constraint or `_finish` fails in eager mode, the rest of the step is done. A note on the
        exception tells the two cases apart.
        """
        if thread.strategies and distribute.has_strategy() and not skip_gradients_aggregation:
            replica = distribute.get_replica_context()
            if replica is None:
                raise RuntimeError(
                    "Use `_distributed_apply()` instead of `apply_gradients()` in a cross-replica"
                    " context."
                )
            if self._has_own_distributed_apply():
                # As in TensorFlow. The library's method counts None as zero.
                grads_and_vars = [pair for pair in grads_and_vars if pair[0] is not None]
            return replica.merge_call(
                self._distributed_apply, args=(grads_and_vars, global_step, name)
            )
        try:
            if self._plans.now().replay is not None and self._take_again(
                grads_and_vars, global_step
            ):
                return None
            return self._apply_aggregated(as_pairs(grads_and_vars), global_step, name)
        except Exception as error:
            # A step adds its notes itself, while its locks are held.
            if executing_eagerly():
                annotate_not_taken(error)
            raise

    # Set by each class whose `apply_gradients` does nothing that `_take` leaves out.
    _APPLIES: ClassVar[bool] = True

    def takes_transforms(self) -> bool:
        """Return True if `_take` may take a step: the user does not replace `apply_gradients`."""
        overriding_classes = [
            base for base in type(self).__mro__ if "apply_gradients" in vars(base)
        ]
        is_standard = all("_APPLIES" in vars(base) for base in overriding_classes)
        return is_standard and "apply_gradients" not in vars(self)

    def _valid_dtypes(self) -> set[torch.dtype]:
        """Return the dtypes that losses and variables may have in `compute_gradients`."""
        return set(gradients.VALID_DTYPES)

    def _assert_valid_dtypes(self, tensors: Iterable[object]) -> None:
        """Raise ValueError unless all tensors have a dtype of `_valid_dtypes`."""
        gradients.check_dtypes(tensors, self._valid_dtypes())

    def _call_if_callable(self, param: Any) -> Any:
        """Return the value of a hyperparameter; a callable is called."""
        return resolve(param() if is_function(param) else param)


def _constructor_arguments(cls: type[object]) -> list[str]:
    """Return the names of a constructor's arguments that affect updates.

    If the constructor has *args or **kwargs, include the arguments of the next base class, too.
    """
    argument_names: list[str] = []
    for base in cls.__mro__:
        if "__init__" in vars(base):
            # Without `self`.
            params = list(inspect.signature(base.__init__).parameters.values())[1:]
            names = [param.name for param in params if param.kind not in _VARIADIC_KINDS]
            argument_names += [name for name in names if name not in _ASIDE]
            # Without *args and **kwargs, nothing is passed on to base classes.
            if len(names) == len(params):
                break
    return argument_names


# TensorFlow's names, for optimizers that have an `apply_gradients` of their own.
_OptimizableVariable = processors.OptimizableVariable
_RefVariableProcessor = processors.RefVariableProcessor
_DenseReadResourceVariableProcessor = processors.DenseReadResourceVariableProcessor
_DenseResourceVariableProcessor = processors.DenseResourceVariableProcessor
_StreamingModelPortProcessor = processors.StreamingModelPortProcessor
_TensorProcessor = processors.TensorProcessor
get_filtered_grad_fn = gradients.get_filtered_grad_fn
_get_processor = processors.processor_of
_deduplicate_indexed_slices = deduplicated
_var_key = variable_key_in_graph
