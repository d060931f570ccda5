"""Steps of v1 optimizers from (gradient, variable) pairs, in eager mode and in graph mode.

A step is planned: tensors are checked and kernel calls prepared. Later steps may reuse the plan. A
*replay* repeats the kernel calls of the last step with new gradients, in one native call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph, distribute
from thalweg._base.context_managers import ContextSetting, Sections
from thalweg._base.device_counters import number_of
from thalweg._base.execution_context import Symbolic, executing_eagerly, is_deferred, thread
from thalweg._base.locks import importing
from thalweg._core.commit import StepResult, add_taken, raise_first
from thalweg._core.dtensor import is_imported
from thalweg._core.gradient_transforms import NOTHING, GradientTransforms
from thalweg._core.grads_and_vars import Gradient, as_gradient, check_variables, distinct
from thalweg._core.plan_cache import PlanCache
from thalweg._core.replay_trigger import (
    ReplayResult,
    annotate_outcome,
    note_repeated,
    progress_of,
)
from thalweg._core.slot_optimizer import SlotOptimizer
from thalweg._core.step import finish, run_step, try_rebind
from thalweg._core.step_adapter import Copies
from thalweg.indexed_slices import IndexedSlices
from thalweg.v1.train.gradients import GradsAndVars, backward, check_any, forward
from thalweg.v1.train.step_adapter import V1StepAdapter, Values
from thalweg.v1.train.update_hooks import UpdateHooks, add_update_names, check_counter, recorded

# Gradients that need no conversion in a graph.
_GRADIENTS = (Symbolic, Tensor, IndexedSlices)


def _make_replay(optimizer: object, cache: PlanCache, step: object) -> object:
    """Return a replay that takes the next step of an optimizer; None if impossible."""
    # Imported by the first replay: programs without repeated steps do not need the module.
    with importing:
        from thalweg.v1.train.replay import V1Replay
    return V1Replay.of(optimizer, cache, step)


@dataclass(frozen=True)
class StepArguments:
    """Arguments of a step besides its gradients and variables.

    Attributes:
        global_step: A variable that is raised by 1 after the updates, or None.
        name: The name of the step.
        captured: In a session, the values of the tensors from `_captured_inputs`; None in eager
            mode.
        sharing: Description of a sharded step whose gradients are already summed over ranks, or
            None.
    """

    global_step: Any
    name: str
    captured: list[Any] | None = None
    sharing: Any = None


class GradientApplication(UpdateHooks, SlotOptimizer):
    """Base class of `Optimizer` that applies gradients already summed over replicas."""

    def _apply_aggregated(self, pairs: GradsAndVars, global_step: Any, name: str | None) -> Any:
        """Apply gradients that need no sum over replicas.

        Raise ValueError if `pairs` is empty.

        Returns:
            In graph mode, an operation that takes the step. In eager mode, the result of a
            subclass's `_finish` if `global_step` is None, else None.
        """
        if not pairs:
            raise ValueError("No variables provided.")
        if is_deferred(*chain.from_iterable(pairs)):
            return self._apply_in_graph(pairs, global_step, name)
        return self._apply(pairs, StepArguments(global_step, name or self._name))

    def _apply(
        self,
        pairs: GradsAndVars,
        arguments: StepArguments,
        transforms: GradientTransforms = NOTHING,
    ) -> object:
        """Update all variables whose gradient is not None, and the optimizer's state.

        Raise ValueError if all gradients are None.

        Args:
            pairs: (gradient or None, variable) pairs.
            arguments, transforms: As in `_take`.

        Returns:
            The result of a subclass's `_finish`, or None. A replayed step and a step with a
            `global_step` return None.
        """
        may_replay = transforms is NOTHING and arguments.sharing is None
        if may_replay and self._take_again(pairs, arguments.global_step, arguments.captured):
            return None
        if any(grad is None for grad, _ in pairs):
            check_variables([var for _, var in pairs])
            check_any(pairs)
            pairs = [(grad, var) for grad, var in pairs if grad is not None]
        finished: list[Any] = []
        outcome = self._take(pairs, arguments, transforms, finished=finished)
        raise_first(outcome.errors)
        return finished[0] if finished and arguments.global_step is None else None

    def _take_again(
        self,
        pairs: object,
        global_step: object,
        captured: list[object] | None = None,
        report: ReplayResult | None = None,
        transforms: GradientTransforms = NOTHING,
    ) -> bool:
        """Take a step by the cached replay of the last step; return True if the step was taken.

        Return False if nothing changed; the caller then takes a full step. The replay calls
        functions that users passed as hyperparameters. If it then finds that it cannot take the
        step, and `report` is None, take a full step here with their results.

        Args:
            pairs: A list of (gradient, variable) pairs; for another type, return False.
            global_step, captured: As in `StepArguments`.
            report: Optional. Records whether the step was taken. If None, no replay is built here.
            transforms: Gradient transforms; `decide`, `watch` and `calls` must be unset.
        """
        if type(pairs) is not list or thread.strategies or self._under_way is not None:
            return False
        values, is_replayed = None if captured is None else captured[0], False
        try:
            with self._turn_lock(), self._locked():
                cache = self._plans.now()
                if report is not None:
                    report.follow(cache)
                replay, progress = cache.replay, progress_of(cache)
                if replay is None or (replay.is_due and report is None):
                    return False
                try:
                    step_args = pairs, global_step, values, transforms
                    is_replayed = replay.is_over(pairs) and replay.take(self, cache, step_args)
                    # A step calls users' functions once, so a full step reuses their results.
                    read = None if is_replayed else getattr(replay, "read", None)
                    if read is None or report is not None:
                        return is_replayed
                except BaseException as error:
                    annotate_outcome(error, cache, progress)
                    raise
                finally:
                    if report is not None:
                        report.settle()
                outcome = self._take(pairs, StepArguments(global_step, self._name, [read]))
        except BaseException as error:
            # A signal handler may raise it while the locks are released.
            if is_replayed and executing_eagerly():
                add_taken(error)
            raise
        raise_first(outcome.errors)
        return True

    def _take(
        self,
        pairs: GradsAndVars,
        arguments: StepArguments,
        transforms: GradientTransforms = NOTHING,
        copies: Copies = None,
        finished: list[object] | None = None,
    ) -> StepResult:
        """Take one step: write variables, slots, counters and `global_step` in one commit.

        Args:
            pairs: (gradient, variable) pairs. Gradients are not None.
            arguments: The `global_step` and the name of the step; see `StepArguments`.
            transforms: Transforms of the gradients before the update.
            copies: One 16-bit tensor per pair, overwritten with the updated variable; or None.
            finished: Optional. A list; the result of `_finish` is appended to it.

        Returns:
            A `StepResult` (taken, errors); the errors are of callbacks after the commit.
        """
        outcome: StepResult | None = None
        try:
            with self._turn_lock(), self._locked():
                outcome = self._take_locked(pairs, arguments, transforms, copies, finished)
                return outcome
        except BaseException as error:
            # A signal handler may raise it while the locks are released.
            if outcome is not None and outcome.taken is True and executing_eagerly():
                add_taken(error)
            raise

    def _take_locked(
        self,
        pairs: GradsAndVars,
        arguments: StepArguments,
        transforms: GradientTransforms,
        copies: Copies,
        finished: list[object] | None,
    ) -> StepResult:
        """Take one step while the caller holds the optimizer's locks; see `_take`."""
        global_step, sharing = arguments.global_step, arguments.sharing
        is_simple = copies is None and sharing is None and self._under_way is None
        is_simple = is_simple and not thread.strategies
        cache = self._plans.now()
        progress = progress_of(cache)
        try:
            values = None if arguments.captured is None else arguments.captured[0]
            replay = cache.replay if is_simple and transforms is NOTHING else None
            step_args = (pairs, global_step, values, transforms)
            if replay is not None and replay.take(self, cache, step_args):
                return StepResult(True, [])
            values = getattr(replay, "read", None) if values is None else values
            # A hook called `apply_gradients`: this step uses the values of the outer step.
            if values is None and self._under_way is not None:
                values = self._under_way.values
            with (
                self._plans.one_step(self._name),
                self._while_taking(self._make_hooks(global_step, arguments.name, values)) as hooks,
            ):
                hooks.sharing, hooks.is_simple = sharing, is_simple
                outcome = self._take_planned(hooks, cache, pairs, transforms, copies)
                if finished is not None:
                    finished.append(hooks.finished)
                return outcome
        except BaseException as error:
            annotate_outcome(error, cache, progress)
            raise

    def _take_planned(
        self,
        hooks: V1StepAdapter,
        cache: PlanCache,
        pairs: GradsAndVars,
        transforms: GradientTransforms,
        copies: Copies,
    ) -> StepResult:
        """Take the step by the plan in `cache`, or by a new plan; return a `StepResult`.

        A plan has checked tensors and prepared kernel calls. With sharded slots or DTensors, first
        set `hooks.sharing`, unless it is set already. If a cached plan is reused, a replay may be
        prepared in `cache` for later steps.

        Args:
            hooks: The adapter, which calls the optimizer's hooks.
            cache: The optimizer's plans; a new plan is stored.
            pairs, transforms, copies: As in `_take`.
        """
        is_shared = thread.strategies or self._slots.parts is not None or is_imported()
        if hooks.sharing is None and is_shared:
            pairs, hooks.sharing = distribute.share_summed_step(
                self, pairs, hooks, transforms, self._describe(hooks.global_step)
            )
        sharing: Any = hooks.sharing
        transforms = self._judged(transforms)
        no_context, recorder = contextlib.nullcontext(), self._recorder
        shared = no_context if sharing is None else distribute.enter_shared_step(sharing)
        with shared, no_context if recorder is None else recorder.around(hooks):
            outcome = try_rebind(hooks, cache, pairs, transforms, copies)
            if outcome is None:
                return run_step(hooks, cache, pairs, transforms, copies, may_rebind=False)
            watches = transforms.decide, transforms.judge, transforms.watch, hooks.watch
            if hooks.is_simple and watches == (None,) * 4:
                note_repeated(cache, _make_replay)
            return outcome

    def _minimize_one_by_one(
        self,
        loss: object,
        global_step: object,
        var_list: object,
        grad_loss: object,
        name: str | None,
    ) -> object:
        """Compute gradients; apply and free each gradient inside the backward pass (GATE_NONE).

        Return a subclass's result of `_finish`; without one, or with a `global_step`, return None.
        Raise the first error of a callback after all updates. See `minimize` for the arguments.
        """
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
                # Each variable is committed separately, so each has its own note.
                hooks.begun = []
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

    def _make_hooks(self, global_step: object, name: str, values: Values | None) -> V1StepAdapter:
        return V1StepAdapter(self, global_step, name, values)

    def _while_taking(self, hooks: V1StepAdapter) -> ContextSetting:
        """Return a context manager that sets `self._under_way` to `hooks` and yields `hooks`.

        The end of the block restores `_under_way`. In a session's run, it also restores attributes
        of self that held symbolic tensors. The caller must hold the locks.
        """
        # TensorFlow's hooks receive only a gradient and a variable. Their implementations here read
        # the other arguments of the step from `_under_way`.

        def begin_step() -> Sections:
            change, restored_attributes = vars(self).update, {"_under_way": self._under_way}
            if _graph.current_session() is not None:
                # `_prepare` may overwrite them with the session's tensors.
                restored_attributes |= self._symbolic_attributes()
            return [partial(change, {"_under_way": hooks})], [partial(change, restored_attributes)]

        return ContextSetting(begin_step, hooks)

    def _forget_step(self) -> None:
        self._under_way = None

    def _written_tensors(self, variables: Sequence[Tensor]) -> list[Tensor]:
        """Return all tensors that hooks may write."""
        slots = [slot for var in variables for slot in self._slots.all_of(var).values()]
        session = _graph.current_session()
        non_slots = self._non_slots_of(None if session is None else session.graph)
        return [*variables, *slots, *map(_graph.resolve, non_slots.values())]

    def _kept_in_graph(self, variables: Sequence[Any]) -> list[object]:
        """Return the slots and the optimizer-wide variables of a graph that a step writes."""
        slots = [slot for var in variables for slot in self._slots.all_of(var).values()]
        return [*slots, *self._non_slots_of(variables[0].graph).values()]

    def _apply_in_graph(self, grads_and_vars: GradsAndVars, global_step: Any, name: Any) -> Any:
        """Create slots; return an operation that takes one step in each run.

        The operation calls `_apply`. If a subclass overrides hooks, call the hooks now instead;
        the step consists of their operations. Add the operation to the collection TRAIN_OP.

        Raises:
            ValueError: All gradients are None.
            TypeError: A gradient cannot be converted, or does not fit its variable.
        """
        pairs = [(grad, _graph.graph_variable_of(var)) for grad, var in grads_and_vars]
        check_counter(global_step)
        _graph.check_updates(pairs)
        for grad, var in pairs:
            if grad is not None and not isinstance(grad, _GRADIENTS):
                target = torch.empty((), dtype=torch.float32, device="cpu")
                # This raises for a gradient that cannot be converted.
                as_gradient(grad, target, var.name)
        check_any(pairs)
        updated = [(grad, var) for grad, var in pairs if grad is not None]
        if self._is_recorded():
            return recorded(self, updated, global_step, name or self._name)
        variables = distinct([var for _, var in updated])
        self._create_slots(variables)
        self._prepare_for_graph()
        grads = [grad for grad, _ in updated]
        references = [_graph.by_reference(var) for _, var in updated]
        is_variable = _graph.is_symbolic(global_step)
        counter = _graph.by_reference(global_step) if is_variable else global_step

        def apply_in_run(grads: Any, leaves: Any, step: object, captured: list[Any]) -> None:
            # `op` is assigned below, before any run.
            arguments = StepArguments(step, op.name, captured)
            self._apply(list(zip(grads, leaves, strict=True)), arguments)

        inputs = [grads, references, counter, self._captured_inputs()]
        op = _graph.operation(apply_in_run, inputs, name or self._name, kind="update")
        # The slots are no inputs, so the session would not know that the step writes them.
        op.written += tuple(self._kept_in_graph(variables))
        kernel = type(self._innermost()).__name__.removesuffix("Optimizer")
        add_update_names(op, variables, f"Apply{kernel}")
        _graph.get_default_graph().add_to_collection(_graph.GraphKeys.TRAIN_OP, op)
        return op

    def _describe(self, global_step: Any = None) -> distribute.StepFingerprint:
        """Return a description of optimizer and step; all ranks must have equal descriptions."""
        has_step_tensor = isinstance(global_step, Tensor)

        def words_of_step() -> list[str]:
            descriptions = distribute.in_words({**self._arguments(), **self._non_slots_of(None)})
            step = [f"global_step: {number_of(global_step)}"] if has_step_tensor else []
            return [f"optimizer: {type(self).__name__}", *descriptions, *step]

        def numbers_of_step() -> tuple[int, list[float]]:
            values = [*self._arguments().values(), *self._non_slots_of(None).values()]
            numbers = [
                number_of(value) if isinstance(value, Tensor) and not value.dim() else value
                for value in values
            ]
            step = int(number_of(global_step)) if has_step_tensor else 0
            return step, [number for number in numbers if isinstance(number, int | float)]

        return distribute.StepFingerprint(words_of_step, numbers_of_step)
