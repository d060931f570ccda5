"""`Optimizer`, the base class of TensorFlow 1's optimizers: hooks and order of operations."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from thalweg import distribute
from thalweg._base.context_managers import ContextSetting, Sections
from thalweg._base.device_counters import Move, number_of
from thalweg._base.execution_context import handle_of, is_deferred, is_ours, thread
from thalweg._base.locks import Lock, importing
from thalweg._base.tracing import untraced
from thalweg._core.atomic_section import run
from thalweg._core.commit import StepResult, raise_first, says_committed
from thalweg._core.config_registry import OPTIMIZERS, Argument, Configurable, Names
from thalweg._core.dtensor import is_imported
from thalweg._core.gradient_transforms import NOTHING, GradientTransforms
from thalweg._core.grads_and_vars import (
    Gradient,
    as_gradient,
    as_pairs,
    check_variables,
    distinct,
    flatten,
)
from thalweg._core.hyperparameters import is_function
from thalweg._core.plan_cache import PlanCache, PlanCaches
from thalweg._core.replay_trigger import (
    ReplayResult,
    count_replayed,
    note_repeated,
    say_what_became,
)
from thalweg._core.slot_dict_view import variable_key_in_graph
from thalweg._core.slot_optimizer import SlotOptimizer
from thalweg._core.slots import SlotStore
from thalweg._core.step import finish, run_step, try_rebind
from thalweg._core.step_adapter import Copies
from thalweg._graph import (
    GraphKeys,
    by_reference,
    check_updates,
    current_session,
    deduplicated,
    executing_eagerly,
    get_default_graph,
    graph_variable_of,
    group,
    is_symbolic,
    operation,
    resolve,
)
from thalweg._graph.eager_or_graph import IndexedSlices as EitherSlices
from thalweg.autodiff import has_replicas
from thalweg.indexed_slices import IndexedSlices
from thalweg.v1.train import gradients, processors
from thalweg.v1.train.gate_gradients import backward, forward, need_no_tape
from thalweg.v1.train.gradients import GradsAndVars
from thalweg.v1.train.state import State
from thalweg.v1.train.state_dict import V1StateDict
from thalweg.v1.train.step_adapter import V1StepAdapter, counting_calls
from thalweg.v1.train.traced_hooks import add_update_names, check_counter, has_hooks, recorded
from thalweg.variable import frozen_among

_SHARED = Lock()  # held by the steps of optimizers made with use_locking=True
_VARIADIC_KINDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ASIDE = ("name", "use_locking", "use_own_namescope_for_non_slot_vars")  # change no number


def _make_replay(optimizer: object, cache: PlanCache, step: object) -> object:
    """Return a replay that takes the next step of an optimizer in one call; None if impossible."""
    with importing:
        from thalweg.v1.train.replay import V1Replay
    return V1Replay.of(optimizer, cache, step)


class Optimizer(State, V1StateDict, SlotOptimizer, Configurable, Argument):
    """Base class of the optimizers; derive from it to write one.

    `minimize` calls `compute_gradients` and `apply_gradients`. To process gradients before they are
    applied, call the two yourself, the second with pairs like those that the first returns.

    Override `_apply_dense(grad, var)` and `_apply_sparse(grad, var)`, or TensorFlow's names for
    resource variables, `_resource_apply_dense(grad, var)` and `_resource_apply_sparse(grad, var,
    indices)`; both kinds get the variable itself and change it and its slots, in eager mode in
    place and with autograd off. `_create_slots(var_list)`, `_prepare()` and `_finish(update_ops,
    name)` are called around them. Should a hook fail that updates variables, they and their slots
    are put back from copies made before each step; should `_finish` fail, the step has been taken.

    In graph mode all hooks are called once, when the graph is built, with tensors that have no
    value yet, and return operations, as in TensorFlow: `_create_slots` outside of the scope
    `<name>/`, `_prepare` in it, and the updates in `<name>/update_<variable>/`. `_finish` gets what
    they returned. A session runs what they recorded as one update: should an operation of it fail,
    all variables that it writes to are put back.

    Args:
        use_locking: Whether no two steps run at the same time, of this optimizer or of others made
            with `use_locking=True`. Without it, steps of different optimizers on the same variable
            may lose each other's updates.
        name: Name of the optimizer, the last part of its slots' names.
        use_own_namescope_for_non_slot_vars: Accepted for compatibility.

    Attributes:
        GATE_NONE: `minimize` applies each gradient as soon as it is complete and frees it.
        GATE_OP: All gradients are complete before the first is applied; the same as GATE_GRAPH.
        GATE_GRAPH: All gradients are complete before the first is applied.
        HOOKS_AT_EACH_RUN: Set to True in a class whose hooks need values in graph mode, too: all
            but `_create_slots` are then called at each run, with the session's tensors, which they
            change in place. `_prepare` is tried on a copy when the graph is built, for the symbolic
            tensors that it keeps.

    Raises:
        ValueError: There is no name.

    Reference: tf.compat.v1.train.Optimizer
    """

    GATE_NONE = gradients.GATE_NONE
    GATE_OP = gradients.GATE_OP
    GATE_GRAPH = gradients.GATE_GRAPH
    HOOKS_AT_EACH_RUN: ClassVar[bool] = False
    _needs_variables: ClassVar[bool] = True
    _NOT_COPIED: ClassVar[tuple[str, ...]] = (*SlotOptimizer._NOT_COPIED, "_under_way")

    def __init__(
        self, use_locking: bool, name: str, use_own_namescope_for_non_slot_vars: bool = False
    ) -> None:
        if not name:
            raise ValueError("Must specify the optimizer name")
        State.__init__(self)
        self._use_locking = use_locking
        self._name = name

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
            loss: A callable without arguments that returns the value to minimize; in graph mode a
                symbolic tensor, too.
            global_step: Optional. A variable that is raised by 1 after the updates.
            var_list: Optional. Variables, in lists, tuples or dicts; all trainable ones that
                the loss depends on (eager) or of the graph by default. What
                `requires_grad_(False)` froze is left alone.
            gate_gradients: GATE_NONE frees each gradient as soon as it has been applied, so that
                no more than one need exist at a time; see below.
            aggregation_method: Checked in graph mode; it does not change the values.
            colocate_gradients_with_ops: Accepted for compatibility.
            name: Name of the operation in graph mode.
            grad_loss: Optional. Weights of the loss's elements, of its shape.

        Returns:
            None; in graph mode the operation that takes the step.

        Raises:
            ValueError: No variable has a gradient, or there are none; a gate that is none of the
                three; a dtype without gradients.
            RuntimeError: The loss is a tensor in eager mode.

        With GATE_NONE in eager mode, where neither `compute_gradients` nor `apply_gradients` is
        overridden and neither a hook nor diagnostics want all gradients, each gradient is applied
        inside the backward pass. Should that fail, earlier variables have been updated: the error
        names them. In all other cases, and where `torch.distributed` has several processes,
        GATE_NONE waits for all gradients.

        Differs from:
            TensorFlow: `grad_loss` is used in eager mode too, as there, though undocumented.
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
        cls = type(self)
        return (
            callable(loss)
            and executing_eagerly()
            and self._recorder is None  # of whole steps
            and not has_replicas()  # a hook may have to average the gradient first
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
        """Return the gradients of a loss, for `apply_gradients`.

        Args:
            loss, var_list, aggregation_method, colocate_gradients_with_ops, grad_loss: As in
                `minimize`.
            gate_gradients: Checked in graph mode; the values do not depend on it.

        Returns:
            A pair (gradient, variable) for each variable, in order. A gradient is a tensor,
            `IndexedSlices`, or None where the loss does not depend on the variable.

        Raises:
            ValueError: A gate that is none of the three; a dtype without gradients; in graph mode,
                no variables.
            RuntimeError: The loss is a tensor in eager mode.
        """
        valid = self._valid_dtypes()
        loss_args = (loss, var_list, gate_gradients, grad_loss, valid, self._scale_loss)
        return gradients.of_loss(*loss_args, aggregation_method)

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
            grads_and_vars: Pairs of a gradient and its variable, as `compute_gradients` returns
                them. A gradient is a tensor (dense, or sparse COO over dimension 0),
                `IndexedSlices`, an array, a list, or None.
            global_step: Optional. A variable that is raised by 1 after the updates.
            name: Name of the operation in graph mode; the optimizer's name by default.
            skip_gradients_aggregation: Whether gradients are applied as they are, without the sum
                over replicas, in `thalweg.distribute.Strategy.run`.

        Returns:
            In graph mode the operation that takes the step. Without a `global_step` it is what a
            subclass's `_finish` returns, in eager mode, too; otherwise None.

        Raises:
            RuntimeError: The call is across replicas, in the scope of a strategy.
            TypeError: The pairs are malformed, a gradient cannot be converted, dtypes differ, or a
                hook needs values while a graph is built.
            ValueError: There are no pairs, no variable has a gradient, or a gradient does not fit
                its variable.

        No variable and no slot has changed then, nor when a callable or a hook fails. A constraint
        or a `_finish` that fails is the only part of its step that is not done, but where a graph
        recorded it. A note on the exception says which.
        """
        if thread.strategies and distribute.has_strategy() and not skip_gradients_aggregation:
            replica = distribute.get_replica_context()
            if replica is None:
                raise RuntimeError(
                    "Use `_distributed_apply()` instead of `apply_gradients()` in a cross-replica"
                    " context."
                )
            if getattr(self._distributed_apply, "__func__", None) is not _DISTRIBUTED_APPLY:
                # As in TensorFlow. The method of this class counts None as zero.
                grads_and_vars = [pair for pair in grads_and_vars if pair[0] is not None]
            return replica.merge_call(
                self._distributed_apply, args=(grads_and_vars, global_step, name)
            )
        cache = self._plans.now()
        replay_count = count_replayed(cache)
        try:
            if cache.replay is not None and self._take_again(grads_and_vars, global_step):
                return None
            return self._apply_aggregated(as_pairs(grads_and_vars), global_step, name)
        except Exception as error:
            if executing_eagerly():
                say_what_became(error, cache, replay_count)
            raise

    def _apply_aggregated(self, pairs: GradsAndVars, global_step: Any, name: str | None) -> Any:
        """Apply gradients that are those of all replicas."""
        if not pairs:
            raise ValueError("No variables provided.")
        if is_deferred(*chain.from_iterable(pairs)):
            return self._apply_in_graph(pairs, global_step, name)
        return self._apply(pairs, global_step, name or self._name)

    _APPLIES: ClassVar[bool] = True  # `apply_gradients` of this very class does what `_take` does

    def takes_transforms(self) -> bool:
        """Return True if `_take` may take a step: the user does not replace `apply_gradients`."""
        return self._applies() and "apply_gradients" not in vars(self)

    @classmethod
    def _applies(cls) -> bool:
        overriding_classes = [base for base in cls.__mro__ if "apply_gradients" in vars(base)]
        return all("_APPLIES" in vars(base) for base in overriding_classes)

    def _apply(
        self,
        pairs: GradsAndVars,
        global_step: object,
        name: str,
        captured: list[object] | None = None,
        sharing: object = None,
        transforms: GradientTransforms = NOTHING,
    ) -> object:
        """Update the variables at once, except those whose gradient is None.

        The arguments are those of `_take`.

        Returns:
            The result of a subclass's `_finish`; None if there is no such method, if `global_step`
            is given, or if the step is taken in one call.

        Raises:
            ValueError: All gradients are None.
        """
        may_replay = transforms is NOTHING and sharing is None
        if may_replay and self._take_again(pairs, global_step, captured):
            return None
        if any(grad is None for grad, _ in pairs):
            check_variables([var for _, var in pairs])
            check_any(pairs)
            pairs = [(grad, var) for grad, var in pairs if grad is not None]
        finished: list[Any] = []
        step_args = pairs, global_step, name, transforms
        outcome = self._take(*step_args, captured=captured, sharing=sharing, finished=finished)
        raise_first(outcome.errors)
        return finished[0] if finished and global_step is None else None

    def _take_again(
        self,
        pairs: object,
        global_step: object,
        captured: list[object] | None = None,
        report: ReplayResult | None = None,
        transforms: GradientTransforms = NOTHING,
    ) -> bool:
        """Replay the previous step with new gradients in one call, if that is possible.

        Update the variables, the optimizer's state and `global_step`, as `_take` does.

        Args:
            pairs: What a caller gave as gradients and variables; only a list of pairs is replayed.
            global_step, captured: As in `_take`.
            report: Optional. Notes whether the step was taken. A replay that is due is built only
                if this is given.
            transforms: Transforms of the gradients before the update; without `decide`, `watch` and
                `calls`.

        Returns:
            True if the step was taken; False if not: variables and state are unchanged then.
        """
        if type(pairs) is not list or thread.strategies or self._under_way is not None:
            return False
        values = None if captured is None else captured[0]
        with self._turn_lock(), self._locked():
            cache = self._plans.now()
            if report is not None:
                report.follow(cache)
            replay = cache.replay
            if replay is None or (replay.is_due and report is None) or not replay.is_over(pairs):
                return False
            try:
                if replay.take(self, cache, (pairs, global_step, values, transforms)):
                    return True
            finally:
                if report is not None:
                    report.settle()
            read = getattr(replay, "read", None)
            if read is None or report is not None:
                return False
            outcome = self._take(pairs, global_step, self._name, captured=[read])
        raise_first(outcome.errors)
        return True

    def _take(
        self,
        pairs: GradsAndVars,
        global_step: Any,
        name: str,
        transforms: GradientTransforms = NOTHING,
        copies: Copies = None,
        captured: list[Any] | None = None,
        sharing: Any = None,
        finished: list[object] | None = None,
    ) -> StepResult:
        """Take a step, eagerly or as a session runs.

        Args:
            pairs: Gradients, none of them None, and variables.
            global_step: A variable that is raised by 1 after the updates, or None.
            name: The name of the step.
            transforms: What happens to the gradients first.
            copies: For each pair a tensor of a 16-bit type that is set to the variable, or None.
            captured: In a session the values of `_captured_inputs`. Without them a step inside of
                `_while_taking` has those of that step.
            sharing: How the step is shared with other ranks, if their gradients were summed for it.
            finished: Optional. Is given what `_finish` returned.

        Returns:
            Whether the step was taken, and what was raised after the updates.
        """
        is_simple = copies is None and sharing is None and self._under_way is None
        is_simple = is_simple and not thread.strategies
        with self._turn_lock(), self._locked():
            cache = self._plans.now()
            values = None if captured is None else captured[0]
            replay = cache.replay if is_simple and transforms is NOTHING else None
            step_args = (pairs, global_step, values, transforms)
            if replay is not None and replay.take(self, cache, step_args):
                return StepResult(True, [])
            values = getattr(replay, "read", None) if values is None else values
            if values is None and self._under_way is not None:
                values = self._under_way.values
            with (
                self._plans.one_step(self._name),
                self._while_taking(self._make_hooks(global_step, name, values)) as hooks,
            ):
                is_shared = thread.strategies or self._slots.parts is not None or is_imported()
                if sharing is None and is_shared:
                    pairs, sharing = distribute.share_summed_step(
                        self, pairs, hooks, transforms, self._said(global_step)
                    )
                hooks.sharing = sharing
                outcome = self._take_planned(hooks, cache, pairs, transforms, copies, is_simple)
                if finished is not None:
                    finished.append(hooks.finished)
                return outcome

    def _take_planned(
        self,
        hooks: V1StepAdapter,
        cache: PlanCache,
        pairs: GradsAndVars,
        transforms: GradientTransforms,
        copies: Copies,
        is_simple: bool,
    ) -> StepResult:
        """Take a step that is rebound or planned; prepare its replay if it is `is_simple`."""
        sharing: Any = hooks.sharing
        transforms = self._judged(transforms)
        no_context, recorder = contextlib.nullcontext(), self._recorder
        shared = no_context if sharing is None else distribute.enter_shared_step(sharing)
        with shared, no_context if recorder is None else recorder.around(hooks):
            outcome = try_rebind(hooks, cache, pairs, transforms, copies)
            if outcome is None:
                return run_step(hooks, cache, pairs, transforms, copies, may_rebind=False)
            watches = transforms.decide, transforms.judge, transforms.watch, hooks.watch
            if is_simple and watches == (None,) * 4:
                note_repeated(cache, _make_replay)
            return outcome

    def _make_hooks(
        self, global_step: object, name: str, values: dict[str, object] | None
    ) -> V1StepAdapter:
        return V1StepAdapter(self, global_step, name, values)

    def _while_taking(self, hooks: V1StepAdapter) -> ContextSetting:
        """Return a block in which `self._under_way` is the step; the caller holds the locks.

        TensorFlow's hooks receive a gradient and a variable, and find the rest in `self`.
        """

        def begin_step() -> Sections:
            change, restored_attributes = vars(self).update, {"_under_way": self._under_way}
            if current_session() is not None:
                restored_attributes |= (
                    self._symbolic_attributes()
                )  # hooks of a session may overwrite them
            return [partial(change, {"_under_way": hooks})], [partial(change, restored_attributes)]

        return ContextSetting(begin_step, hooks)

    def _prepare_for_graph(self) -> None:
        """Take over the symbols that a subclass's `_prepare` makes, for those who ask for them.

        Each run prepares anew; so a hook that needs values fails here without consequence.
        """
        if not is_ours(self._prepare):
            twin = copy.copy(self)
            with contextlib.suppress(Exception):
                twin._prepare()
            vars(self).update(twin._symbolic_attributes())

    def _symbolic_attributes(self) -> dict[str, object]:
        """Return the attributes that hold tensors of a graph, by name."""
        return {name: attribute for name, attribute in vars(self).items() if is_symbolic(attribute)}

    def _minimize_one_by_one(
        self,
        loss: object,
        global_step: object,
        var_list: object,
        grad_loss: object,
        name: str | None,
    ) -> object:
        loss_value, variables = forward(loss, var_list)
        errors: list[BaseException] = []
        adapter = self._make_hooks(global_step, name or self._name, None)
        with (
            self._turn_lock(),
            self._locked(),
            self._plans.one_step(self._name),
            self._while_taking(adapter) as hooks,
        ):
            cache = self._plans.now()

            def apply_one(grad: Gradient, var: Tensor) -> None:
                hooks.begun = []  # each variable is committed by itself
                outcome = run_step(hooks, cache.alone(var), [(grad, var)], is_final=False)
                errors.extend(outcome.errors)

            hooks.read_hypers(variables)
            hooks.is_prepared = True
            updated = backward(loss_value, variables, grad_loss, apply_one)
            cache.forget_others(updated)
            hooks.updates = len(updated)
            errors += finish(hooks)
        raise_first(errors)
        return hooks.finished if global_step is None else None

    def _turn_lock(self) -> Lock:
        """Return the lock that a step takes before `_locked`."""
        return _SHARED if self._use_locking else self._lock

    def _forget_step(self) -> None:
        self._under_way = None

    @untraced
    def _distributed_apply(
        self,
        distribution: object,
        grads_and_vars: Iterable[tuple[object, object]],
        global_step: object = None,
        name: str | None = None,
    ) -> None:
        """Sum the gradients over the replicas, then apply them; call it on every rank.

        None counts as zero where another rank has a gradient.

        Args:
            distribution: A `thalweg.distribute.Strategy`, or a process group of torch.distributed;
                None takes the default group, or this process alone where none is initialised.
            grads_and_vars, global_step, name: As in `apply_gradients`.

        Returns:
            None; in graph mode the operation that takes the step.

        Raises:
            ValueError: No variable has a gradient on any rank.
            ReplicaMismatchError: The ranks differ in variables, hyperparameters or steps, a
                gradient is dense on one rank and sparse on another, or its dtypes differ.
            ReplicaLostError: A rank did not answer. Nothing has changed then.
        """
        strategy = distribute.strategy_of(distribution)
        with distribute.report_errors(self, strategy):
            pairs = as_pairs(grads_and_vars)
        is_shared = pairs and distribute.shards_of(self, strategy) is not None
        if not is_shared and not strategy.ranks.is_alone:
            summed_pairs = distribute.sum_gradients(self, strategy, pairs, self._said(global_step))
            if pairs and not summed_pairs:
                check_any(pairs)
            pairs = summed_pairs
        try:
            if is_shared:
                step_op = self._apply_in_parts(strategy, pairs, global_step, name or self._name)
            else:
                step_op = self._apply_aggregated(pairs, global_step, name)
        except BaseException as error:
            if says_committed(error):
                distribute.commit_sums(self, failed=True)
            raise
        distribute.commit_sums(self)
        return step_op

    def _apply_in_parts(
        self, strategy: distribute.Strategy, pairs: list[Any], global_step: Any, name: str
    ) -> None:
        """Apply gradients of all replicas to slots that are shared out over them."""
        with self._turn_lock(), self._locked():
            hooks = self._make_hooks(global_step, name, None)
            summed_pairs, step = distribute.sum_for_shards(
                self, strategy, pairs, self._said(global_step), hooks
            )
            if not summed_pairs:
                check_any(pairs)
            self._apply(summed_pairs, global_step, name, sharing=step)

    def _take_store(self, store: SlotStore, taken: dict[int, object]) -> None:
        super()._take_store(store, taken)
        self._plans = PlanCaches()

    def _said(self, global_step: Any = None) -> distribute.StepFingerprint:
        """Return the fingerprint of a step, which must be the same on all replicas."""
        has_step_tensor = isinstance(global_step, Tensor)

        def words_of_step() -> list[str]:
            descriptions = distribute.in_words({**self._arguments(), **self._counters_now()})
            step = [f"global_step: {number_of(global_step)}"] if has_step_tensor else []
            return [f"optimizer: {type(self).__name__}", *descriptions, *step]

        def numbers_of_step() -> tuple[int, list[float]]:
            values = [*self._arguments().values(), *self._counters_now().values()]
            numbers = [
                number_of(value) if isinstance(value, Tensor) and not value.dim() else value
                for value in values
            ]
            step = int(number_of(global_step)) if has_step_tensor else 0
            return step, [number for number in numbers if isinstance(number, int | float)]

        return distribute.StepFingerprint(words_of_step, numbers_of_step)

    def _counters_now(self) -> dict[str, object]:
        """Return the optimizer-wide variables of eager mode, by name."""
        return {name: var for (name, graph), var in self._non_slots.items() if graph is None}

    def _apply_in_graph(self, grads_and_vars: GradsAndVars, global_step: Any, name: Any) -> Any:
        pairs = [(grad, graph_variable_of(var)) for grad, var in grads_and_vars]
        check_counter(global_step)
        check_updates(pairs)
        for grad, var in pairs:
            if not (grad is None or is_symbolic(grad) or isinstance(grad, Tensor | IndexedSlices)):
                target = torch.empty((), dtype=torch.float32, device="cpu")
                as_gradient(grad, target, var.name)  # raises if it cannot be converted
        check_any(pairs)
        updated = [(grad, var) for grad, var in pairs if grad is not None]
        if self._is_recorded():
            return recorded(self, updated, global_step, name or self._name)
        variables = distinct([var for _, var in updated])
        self._create_slots(variables)
        self._prepare_for_graph()
        captured = self._captured_inputs()

        def apply_in_run(
            grads: list[object], leaves: list[Tensor], step: object, values: list[object]
        ) -> None:
            self._apply(list(zip(grads, leaves, strict=True)), step, op.name, values)

        op = operation(
            apply_in_run,
            [
                [grad for grad, _ in updated],
                [by_reference(var) for _, var in updated],
                by_reference(global_step) if is_symbolic(global_step) else global_step,
                captured,
            ],
            name or self._name,
            kind="update",
        )
        op.written += tuple(self._kept_in_graph(variables))
        kernel = type(self._innermost()).__name__.removesuffix("Optimizer")
        add_update_names(op, variables, f"Apply{kernel}")
        get_default_graph().add_to_collection(GraphKeys.TRAIN_OP, op)
        return op

    def _kept_in_graph(self, variables: Sequence[Any]) -> list[object]:
        """Return the slots and other variables of a graph that a step of these variables writes."""
        slots = [slot for var in variables for slot in self._slots.all_of(var).values()]
        graph = variables[0].graph
        return [*slots, *(var for (_, key), var in self._non_slots.items() if key is graph)]

    def _is_recorded(self) -> bool:
        """Return whether hooks are called once, when a graph is built."""
        return not self.HOOKS_AT_EACH_RUN and has_hooks(self)

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

    def _may_call_users(self) -> bool:
        """Return whether the beginning of a step calls users' functions."""
        return True

    def _finishes_itself(self) -> bool:
        """Return whether `_finish` is a subclass's own; `_counting_moves` does what the library's
        does.
        """
        return getattr(self._finish, "__func__", None) is not Optimizer._finish

    def _counting_moves(self, values: dict[str, object]) -> list[Move]:
        """Return the counters that a step moves besides `global_step`, each with its factor."""
        return []

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
        """Return whether a variable is updated by hooks for resource variables.

        As in TensorFlow, reference variables, made by `use_resource=False`, are updated by the
        plain hooks, if any class defines one. All other variables are updated by the kind of hook
        that the most derived class defines, by those for resource variables if it defines both.
        """
        classes = type(self).__mro__[: type(self).__mro__.index(Optimizer)]
        is_reference = getattr(handle_of(var), "is_resource", True) is False
        if is_reference and any(name in vars(cls) for cls in classes for name in refs):
            return False
        for cls in classes:
            for names in (resource, refs):
                if any(name in vars(cls) for name in names):
                    return names is resource
        return True

    def _written_tensors(self, variables: Sequence[Tensor]) -> list[Tensor]:
        """Return all tensors that hooks may write."""
        slots = [slot for var in variables for slot in self._slots.all_of(var).values()]
        session = current_session()
        graph = None if session is None else session.graph
        non_slots = [resolve(var) for (_, key), var in self._non_slots.items() if key is graph]
        return [*variables, *slots, *non_slots]

    def _valid_dtypes(self) -> set[torch.dtype]:
        """Return the dtypes that losses and variables may have in `compute_gradients`."""
        return set(gradients.VALID_DTYPES)

    def _assert_valid_dtypes(self, tensors: Iterable[object]) -> None:
        """Raise ValueError for tensors of other dtypes."""
        gradients.check_dtypes(tensors, self._valid_dtypes())

    def _call_if_callable(self, param: Any) -> Any:
        """Return the value of a hyperparameter; a callable is called."""
        return resolve(param() if is_function(param) else param)

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        """Hook: make slots with `_zeros_slot` and its relatives."""

    def _prepare(self) -> None:
        """Hook: read the hyperparameters of a step."""

    def _finish(self, update_ops: list[Any], name_scope: str) -> Any:
        """Hook: called after the updates, before `global_step` is raised.

        Args:
            update_ops: What the hooks returned that update variables, one for each.
            name_scope: "update" if there is a `global_step`, otherwise "<name>/", which is where a
                graph is built the scope that the hooks are called in.

        Returns:
            None; where a graph is built, an operation that is done when the updates are.
        """
        if executing_eagerly():
            run(counting_calls(self._counting_moves(self._values())))
            return None

        update_operations = [op for op in update_ops if op is not None]
        if type(self)._counting_moves is not Optimizer._counting_moves:
            update_operations.append(self._counting_operation(update_operations))
        return group(*update_operations, name=name_scope or self._name)

    def _counting_operation(self, update_operations: list[object]) -> object:
        """Return an operation that moves the counters of a step after the updates."""

        def count_step(values: dict[str, object]) -> None:
            with self._turn_lock(), self._locked():
                run(counting_calls(self._counting_moves(values)))

        op = operation(count_step, [self._values()], "Assign", control_inputs=update_operations)
        op.written += tuple(var for (_, key), var in self._non_slots.items() if key is op.graph)
        return op

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


def check_any(pairs: Iterable[tuple[object, object]]) -> None:
    """Raise ValueError unless a variable has a gradient.

    Raises:
        ValueError: Names the variables.
    """
    pairs = list(pairs)
    if all(grad is None for grad, _ in pairs):
        variables = [var for _, var in pairs]
        names = [gradients.title_of(var) for var in variables]
        hint = frozen_among(variables)
        raise ValueError(f"No gradients provided for any variable: {names}.{hint}")


def _constructor_arguments(cls: type[object]) -> list[str]:
    """Return the names of a constructor's arguments, including those of base classes."""
    argument_names: list[str] = []
    for base in cls.__mro__:
        if "__init__" in vars(base):
            params = list(inspect.signature(base.__init__).parameters.values())[1:]
            names = [param.name for param in params if param.kind not in _VARIADIC_KINDS]
            argument_names += [name for name in names if name not in _ASIDE]
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
_DISTRIBUTED_APPLY = Optimizer._distributed_apply
_get_processor = processors.processor_of
_deduplicate_indexed_slices = deduplicated
_var_key = variable_key_in_graph
