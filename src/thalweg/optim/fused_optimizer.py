"""`FusedOptimizer`: base class of torch-style optimizers with one pass over memory."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from multiprocessing.context import get_spawning_popen
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from thalweg._base.context_managers import enable_grad, host_allocations, no_grad
from thalweg._base.locks import importing
from thalweg._base.showing import Describing
from thalweg._base.tracing import untraced, without_dynamo
from thalweg._core.commit import raise_first, says_committed
from thalweg._core.dtensor import local
from thalweg._core.options.accumulation import are_zero, set_aside
from thalweg._core.options.spikes import HISTORY
from thalweg._core.param_groups import Group, group_indices_of, params_of, states_of
from thalweg._core.reentrance import check_no_step, one_step_at_a_time
from thalweg._core.sparse_gradients import is_sparse
from thalweg._core.step import try_rebind
from thalweg._engines.guards import is_recorded
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Rule
from thalweg.optim.custom_op import forget_gradients, put_in_graph
from thalweg.optim.dtensor_params import guard_ranks
from thalweg.optim.group_checks import GroupChecks
from thalweg.optim.group_options import check_options_held
from thalweg.optim.options import Average, Diagnosed, Flat, Rounding, Unscaling
from thalweg.optim.param_scalars import STEP
from thalweg.optim.param_state import ParamState
from thalweg.optim.profiler_hooks import has_hooks
from thalweg.optim.signatures import OfConstructor
from thalweg.optim.step_adapter import ParamGroupAdapter
from thalweg.optim.step_cache import StepCache
from thalweg.optim.step_options import (
    KEYWORDS,
    NO_OPTIONS,
    GradientReport,
    StepOptions,
    gradient_transforms,
    pop_options,
)
from thalweg.optim.step_reports import StepNotes, StepReports, annotate_errors
from thalweg.variable import check_held, name_of

if TYPE_CHECKING:
    from thalweg.optim.flat_gradients import FlatGradients
    from thalweg.optim.replay import ReplayedStep

_NOT_IN_GRAPHS = (
    "a step of thalweg is no operation of a graph if it is given a closure, if the optimizer has"
    " accumulate=, in_backward= or differentiable=, or if tensors are sparse, not on the CPU, or of"
    " a class of their own"
)
_NESTED = "The step was not taken, but other steps were while its closure ran."
_SWAPPED_STEP = "A step inside of swapped() would move averages instead of parameters."


class FusedOptimizer(GroupChecks, StepReports):
    """Base class of torch-style optimizers that update all parameters in one pass.

    Args:
        *args: The arguments of the torch class.
        **keywords: Keyword arguments of the torch class, and options; see `StepOptions`.

    Attributes:
        step_cache: Caches and counters outside the state, for other modules of thalweg.
        step_options: The options of the constructor.
    """

    state: Any
    step_options: StepOptions = NO_OPTIONS
    step_cache: StepCache
    _single: Collection[str] = (STEP,)  # keys of per-parameter numbers
    # A slot, and the warning about parameters of zeros that get the slot.
    _zero_warning: ClassVar[tuple[str, ...]] = ()
    has_torch_numbers = True  # True for torch's arithmetic, False for TensorFlow's
    _adapter: ClassVar[type[ParamGroupAdapter]]  # the class of adapters of steps
    __signature__ = OfConstructor()

    # Not made by `__init__`: torch restores what it copies and loads without it.
    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        optimizer = super().__new__(cls)
        optimizer.step_cache = StepCache(optimizer)
        return optimizer

    def __init__(self, *args: object, **keywords: object) -> None:
        arguments = {f"argument {index}": value for index, value in enumerate(args) if index}
        check_options_held({**arguments, **keywords})
        options = pop_options(keywords)
        if options is not NO_OPTIONS:
            self.step_options = options
        # Adagrad's constructor makes `step`.
        with host_allocations():
            super().__init__(*args, **keywords)
        # Torch copies `defaults` to each new group; `add_param_group` removes these options again.
        self.defaults.update(options.on)
        # Torch's constructor may have made slots.
        self.step_cache.blocks.gather(self.state, self._single)
        # Torch's constructor makes slots on the device of the parameters.
        if options.kinds.device is not None:
            for entries in self.state.values():
                tensors = {key: x for key, x in entries.items() if isinstance(x, Tensor)}
                entries |= {key: x.to(options.kinds.device) for key, x in tensors.items()}
        # `GradScaler.step` then passes scale and overflow flag to `step`, and leaves gradients.
        if options.of(Unscaling).fused_unscale:
            self._step_supports_amp_scaling = True
        with self._drop_hooks_on_error():
            self.check_flat_buffers(self.param_groups)
        self.step_cache.is_constructed = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The name of the options in older pickles.
        names = {"_around": "step_options"}
        state = {names.get(name, name): value for name, value in state.items()}
        # Torch's method expects `step` in the state of each parameter.
        with set_aside(state.get("state", {})), host_allocations():
            super().__setstate__(state)  # pyright: ignore
        self.step_cache.blocks.gather(self.state, self._single)
        self._begin(is_copy=True)
        self.step_cache.is_constructed = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as `torch.optim.Optimizer.add_param_group` does; change nothing on an error.

        Args:
            param_group: The parameters under `params`, and options of the group.

        Raises:
            TypeError, ValueError: The argument is not a group, an option is not a number, or only
                the constructor accepts an option.
        """
        check_no_step(self.step_cache, type(self).__name__, "add_param_group")
        candidate = cast("object", param_group)
        # Torch raises for other types.
        if isinstance(candidate, dict):
            check_options_held(param_group)
            self._check_options(param_group, len(self.param_groups), complete=False)
        with self._undo_on_error():
            without_dynamo(super().add_param_group)(param_group)  # pyright: ignore
            for name in KEYWORDS:
                self.param_groups[-1].pop(name, None)
            self._complete()
            # The constructor checks all groups at once.
            if self.step_cache.is_constructed:
                self.check_flat_buffers(self.param_groups[-1:])
            self._begin()

    def _complete(self) -> None:
        """Prepare and validate the last group of `param_groups` before its first step."""

    def _warn_of_zeros(self, params: Sequence[Tensor], group_indices: Sequence[int]) -> None:
        """Warn of each new all-zero parameter on which the rule or an option has no effect."""
        kinds = map(self._kind_of, self.param_groups)
        zero_notes = [kind._zero_warning or self.step_options.zero_warning for kind in kinds]
        if any(zero_notes):
            with importing:
                from thalweg.optim.zero_params import warn_zero_params
            warn_zero_params(
                self, zip(params, map(zero_notes.__getitem__, group_indices), strict=True)
            )

    @contextmanager
    def _undo_on_error(self) -> Generator[None]:
        """If the `with` block raises, undo its changes of groups, state, hooks and gradients."""
        cache, count, former_params = self.step_cache, len(self.param_groups), list(self.state)
        heard, flat = list(cache.heard), cache.flat
        former_grads = [] if flat is None else [(param, param.grad) for param in flat.params]
        try:
            yield
        except BaseException:
            groups = self.param_groups[count:]
            del self.param_groups[count:]
            for param in params_of(groups):
                # `in` would compare tensors element by element.
                if not any(param is former_param for former_param in former_params):
                    self.state.pop(param, None)
            for key in cache.heard.keys() - heard:
                cache.heard.pop(key).remove()
            cache.flat = flat
            for param, grad in former_grads:
                param.grad = grad
            cache.places.clear()
            cache.operands.read_again(self)
            raise

    def __repr__(self) -> str:
        with Describing():
            text = super().__repr__()
        options = self.step_options.on
        if not options:
            return text
        lines = [f"    {name}: {options[name]}\n" for name in sorted(options)]
        return "".join([text.removesuffix(")"), "\nAll Parameter Groups\n", *lines, ")"])

    def _begin(self, is_copy: bool = False) -> None:
        """Set up hooks, flat gradients and other options of the constructor for new parameters.

        Args:
            is_copy: True for a copied or unpickled optimizer, whose parameters are all new. False
                if only the parameters of the last group are new.
        """
        self.record_format(self.param_groups, self.state)
        self.step_cache.operands.read_again(self)
        groups = self.param_groups if is_copy else self.param_groups[-1:]
        self.step_cache.added_params.add(params_of(groups))
        self._register_hooks()
        if self.step_options.of(Flat).gradients == "flat":
            self._flatten()
        if (diagnostics := self.step_options.of(Diagnosed).diagnostics) is not None:
            with importing:
                from thalweg.optim.diagnostics.measuring import diagnose
            diagnose(self, diagnostics, is_copy)
        if (judge := self.step_options.judge) is not None:
            with importing:
                from thalweg.optim.judged_steps import JudgedSteps
            judge.attach_to(JudgedSteps(self))

    def record_format(self, groups: Sequence[Group], state: Mapping[Any, Any]) -> None:
        """Write the entries that describe the form of a state to groups and states, in place."""
        options = self.step_options
        has_entries = options.kinds.sums or options.judge is not None
        has_entries = has_entries or options.of(Rounding).round is not None
        if has_entries or any(map(self.encodes_group, groups)):
            with importing:
                from thalweg.optim.state_format import record_format
            record_format(self, groups, state)

    def describe_state(self, groups: Sequence[Group]) -> None:
        """Write the form of the state and the history of judged steps to saved groups, in place."""
        self.record_format(groups, {})
        if (judge := self.step_options.judge) is not None:
            for group in groups:
                group[HISTORY] = judge.history

    def _register_hooks(self) -> None:
        """Register hooks that update parameters in the backward pass, if `in_backward` is on."""
        if self.step_options.in_backward:
            with importing:
                from thalweg.optim.step_in_backward import register_hooks
            register_hooks(self)

    def __getstate__(self) -> dict[str, Any]:
        self.check_not_swapped(
            f"A copy of {type(self).__name__} inside of swapped() would train averages instead of"
            " parameters. Copy the optimizer outside of the block; inside, copy the model alone."
        )
        # `copy.deepcopy` reads the parameters' memory.
        for param in params_of(self.param_groups):
            check_held(param)
        names = ("step_options", "_step_supports_amp_scaling")
        attributes = {name: vars(self)[name] for name in names if name in vars(self)}
        lock = self.step_cache.lock
        # A thread with the lock ends the copy before the next step of another thread.
        is_locked = lock.is_mine()
        with lock:
            state: dict[str, Any] = super().__getstate__()  # pyright: ignore
            return {**(state if is_locked else _copy_for_pickle(state)), **attributes}

    def __copy__(self) -> Self:
        return self.__deepcopy__(None)

    def __deepcopy__(self, memo: dict[int, Any] | None) -> Self:
        with self.step_cache.lock:
            # As `copy` does without this method.
            return copy._reconstruct(self, memo, *self.__reduce_ex__(4))  # pyright: ignore

    @untraced
    def state_dict(self) -> dict[str, Any]:
        """Return the state and the groups as `torch.optim.Optimizer.state_dict` does.

        Later steps write to the returned tensors. The option `state_storage` adds the codecs of
        slots to groups. The option `round` adds `round` and `seed`.

        Raises:
            FailedPreconditionError: The call is in a block of `swapped()`.
        """
        with self.step_cache.lock:
            self.check_not_swapped(
                f"The state of {type(self).__name__} does not go with averages, which the"
                " parameters are inside of swapped(): save it outside of the block, and inside the"
                " model alone."
            )
            state_dict = without_dynamo(super().state_dict)()  # pyright: ignore
            # Options of a group may have changed since they were recorded.
            self.describe_state(state_dict["param_groups"])
            if any("state_storage" in group for group in state_dict["param_groups"]):
                with importing:
                    from thalweg.optim.quantized_state import add_rows
                add_rows(self, state_dict)
            return state_dict

    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """Update all parameters whose `grad` is not None, and their state, in place.

        Args:
            closure: Optional. Called once, with autograd on, before the update; computes the loss
                and the gradients.

        Returns: The result of the closure, or None without one.

        Raises:
            FailedPreconditionError: The call is in `strategy.run` with several replicas, or in a
                block of `swapped()`. Nothing is updated.
        """
        # Torch has wrapped the step of a subclass with its hooks.
        has_own_step = type(self).step is FusedOptimizer.step
        if is_dynamo_compiling() or (has_own_step and has_hooks(self)):
            return self._hooked_step(closure)
        # As in `_plain_step`: the call would take 5 % of a replayed step.
        replay = self.step_cache.replay if closure is None else None
        if replay is not None and replay.take(self, False, has_own_step):
            return None
        return self._hooked_step(closure) if has_own_step and is_recorded() else self._step(closure)

    # Schedules of torch's set `_opt_called` by a wrapper, which Dynamo does not look into.
    step._wrapped_by_lr_sched = True  # pyright: ignore
    step.hooked = True  # pyright: ignore  # by `_hooked_step`

    def _plain_step(self, closure: Callable[[], object] | None = None) -> object:
        """Take a step, in a traced function as one operation of the graph; return the loss."""
        if is_dynamo_compiling() and closure is None and put_in_graph(self.step_cache.operands):
            return None
        replay = self.step_cache.replay if closure is None else None
        if replay is not None and replay.take(self):
            return None
        return self._step(closure)

    # With torch's hooks before and after it, in a record for profilers.
    _hooked_step = Optimizer.profile_hook_step(_plain_step)

    @partial(untraced, reason=_NOT_IN_GRAPHS)
    @annotate_errors
    def _step(self, closure: Callable[[], object] | None, results: StepNotes) -> Any:
        """Call the closure and take a step; return the closure's result, or None.

        Repeat the last step by a replay if possible; otherwise run all checks.

        Args:
            closure: As in `step`.
            results: Receives the result of `_describe_progress` after the step. If the closure
                took a step itself and then raises, receives a note about this step.
        """
        # Schedulers of torch warn of a schedule that moves before the first step unless it is set.
        self._opt_called = True
        self._check_alone()
        cache, loss = self.step_cache, None
        if closure is not None:
            total = cache.total
            try:
                with enable_grad():
                    loss = closure()
            except BaseException as error:
                if cache.total != total and not says_committed(error):
                    results.append(([_NESTED], ""))
                raise
        if loss is not None:
            self._note_loss(loss)
        # A backward pass that was interrupted may have left gradients whose transfer has begun.
        if cache.fetching:
            with importing:
                from thalweg.optim.step_in_backward import apply_fetched
            apply_fetched(self)
        with cache.lock:
            # Before anything changes, as the outer step may be replayed.
            check_no_step(cache, type(self).__name__, "A step")
            self._run_noted(partial(self._step_locked, closure is not None), results)
        return loss

    def _step_locked(self, has_closure: bool) -> None:
        """Take a step by a replay if possible, else with all checks; the caller holds the lock."""
        cache = self.step_cache
        has_sets = cache.sets is not None
        if has_sets:
            with importing:
                from thalweg.optim.absent_gradients import select_set
            select_set(self)
        is_due = bool(cache.due_adapters) or cache.changes.needs_plan
        # In all other cases `step` has just tried the replay in vain.
        may_replay = has_closure or is_due or has_sets
        if may_replay and self.step_options.accumulate == 1 and self._try_replay():
            return
        # The replay has counted steps that the optimizer has not yet.
        cache.settle()
        with one_step_at_a_time(cache, type(self).__name__), guard_ranks(self):
            self._step_carefully()

    def _step_carefully(self) -> None:
        """Check all inputs, then take a step without replay; the caller holds the lock.

        Update nothing if GradScaler found an overflow, or while gradients are accumulated.
        """
        cache = self.step_cache
        self.check_not_swapped(_SWAPPED_STEP)
        # A parameter may have been unfrozen since the last step.
        self._register_hooks()
        cache.apply_flag = self._found_finite()
        if cache.apply_flag is None and self._skip_overflowed_step():
            return
        is_allocating = not self.state and self._is_allocating()
        with self._restore_params() if is_allocating else nullcontext():
            if self._accumulate_gradients(is_allocating):
                self._take_due_step()

    def _take_due_step(self) -> None:
        """Update parameters by their gradients or gradient sums; reuse the last plan if possible.

        Measure the step if the option `diagnostics` is on.
        """
        cache = self.step_cache
        recording = (
            nullcontext() if cache.diagnosing is None else cache.diagnosing.measure_step(self)
        )
        with recording:
            # Replays by `grad` were tried before; sums exist only now.
            is_replayed = cache.sums is not None and self._try_replay(has_sums=True)
            if not (is_replayed or self._try_rebind()):
                self._check_options_held()
                self._take_step()
            if cache.has_applied_grads:
                self._end_step()

    def _is_allocating(self) -> bool:
        """Return True if all gradients and rates are 0: the step only allocates state.

        `torch.distributed.checkpoint` takes such a step with an optimizer without state. Parameters
        and accumulated gradients must not change in it.
        """
        self._check_options_held()
        if any(group.get("lr") != 0 for group in self.param_groups):
            return False
        params = params_of(self.param_groups)
        return are_zero([local(param.grad) for param in params if param.grad is not None])

    @contextmanager
    def _restore_params(self) -> Generator[None]:
        """Restore the values of all parameters after the `with` block; suspend `spikes` in it.

        Some rules decay parameters even at a rate of 0.
        """
        params, judge = params_of(self.param_groups), self.step_options.judge
        values = [param.detach().clone() for param in params]
        try:
            with nullcontext() if judge is None else judge.suspend():
                yield
        finally:
            with no_grad():
                for param, value in zip(params, values, strict=True):
                    param.copy_(value)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None, or to 0 in place.

        With `gradients="flat"` gradients always become 0 and stay in their buffers.

        Args:
            set_to_none: True to set gradients to None.
        """
        flat = self.step_cache.flat
        # Torch's method disables Dynamo, and would break the graph.
        if flat is None and set_to_none and is_dynamo_compiling():
            forget_gradients(self.step_cache.operands)
        elif flat is None:
            for param in () if set_to_none else params_of(self.param_groups):
                if param.grad is not None:
                    check_held(param.grad, f"The gradient of '{name_of(param)}'")
            without_dynamo(super().zero_grad)(set_to_none)  # pyright: ignore
        else:
            self._clear(flat)

    @untraced
    def _clear(self, flat: FlatGradients) -> None:
        """Set flat gradients to 0 in place, after a rebuild if other parameters are frozen."""
        if not flat.stands():
            self._flatten()
        cast("FlatGradients", self.step_cache.flat).clear()

    def _flatten(self) -> None:
        """Move the gradients of all trainable parameters into new buffers, in place."""
        with importing:
            from thalweg.optim.flat_gradients import FlatGradients
        self.step_cache.flat = FlatGradients(params_of(self.param_groups))
        self.step_cache.rebind_target = None

    def _try_replay(self, has_sums: bool = False) -> bool:
        """Repeat the last step with new gradients in one native call; return True if it was taken.

        Return False, with no tensor changed, if there is no replay or the replay no longer applies.
        If a new replay is due, first plan it and store it in `step_cache.replay`.

        Args:
            has_sums: True to read gradients from `step_cache.sums` instead of `param.grad`.
        """
        cache = self.step_cache
        if cache.due_adapters or cache.changes.needs_plan:
            # Cleared first, so that a plan that cannot be replayed is not tried in each step.
            adapters, cache.due_adapters = cache.due_adapters, ()
            with importing:
                from thalweg.optim.replay import ReplayedStep
            kind = ReplayedStep if cache.diagnosing is None else cache.diagnosing.replay_class
            replay = self._plan_with_absent(kind) if cache.changes.needs_plan else None
            cache.changes.needs_plan = False
            cache.replay = kind.of(self, adapters) if replay is None and adapters else replay
        return cache.replay is not None and cache.replay.take(self, has_sums)

    def is_torchs_group(self, group: Group) -> bool:
        """Return True if options of a group leave the step to torch."""
        return False

    def _plan_with_absent(self, kind: type[ReplayedStep]) -> ReplayedStep | None:
        """Return a replayable step in which gradients may be absent, or None."""
        return None

    def _try_rebind(self) -> bool:
        """Run the kernels of the last plan with new gradients or learning rates.

        Return True if the step was taken, or skipped by GradScaler or `spikes`. Return False, with
        nothing written, if the plan does not fit the present parameters, options or gradients.
        """
        cache = self.step_cache
        if cache.rebind_target is None:
            return False
        param_state, group_indices = cache.rebind_target
        groups = self.param_groups
        if len(groups) == 1:
            params: list[Tensor] = groups[0]["params"]
        else:
            params = params_of(groups)
            if group_indices != group_indices_of(groups):
                return False
        if len(params) != len(group_indices):
            return False
        gradients = [param.grad for param in params]
        has_absent = any(map(is_, gradients, itertools.repeat(None)))
        if has_absent or not self._updates_all(param_state, gradients):
            return False
        adapter, report = self._adapter(self, param_state, params, group_indices), GradientReport()
        adapter.ending = self._end_calls(report)
        if not adapter.repeats:
            return False
        arguments = self.unscaling(), len(params), report, self.has_torch_numbers
        transforms = gradient_transforms(self.step_options, *arguments)
        pairs = list(zip(gradients, params, strict=True))
        if self.step_options.clips and any(map(is_sparse, gradients)):
            pairs = adapter.seen(pairs)
        outcome = try_rebind(adapter, param_state.plans, pairs, transforms)
        if outcome is None:
            return False
        if outcome.taken is not False:
            adapter.settle()
        raise_first(outcome.errors)
        if outcome.taken is not False:
            cache.note_repeated(adapter)
        return True

    def _rules(self) -> set[Rule]:
        """Return the rules of all groups, with their options."""
        return {rule for group in self.param_groups for rule in self.rules_around(group)}

    def _updates_all(self, param_state: ParamState, gradients: Sequence[object]) -> bool:
        """Return True if the rule of `param_state` still updates all groups."""
        return True

    def _keep_rebind_target(self, param_state: ParamState, group_indices: Sequence[int]) -> None:
        """Set `step_cache.rebind_target`, by which `_try_rebind` finds the last plan.

        Store (param_state, group_indices). Store None instead if the last step did not update all
        parameters, or used masters, gradient sums or local shards.
        """
        cache, options = self.step_cache, self.step_options
        count = sum(len(group["params"]) for group in self.param_groups)
        # Masters, sums and local shards are replaced between steps: their targets are found anew.
        cache.rebind_target = None
        is_rebindable = (
            not options.kinds.sums and not options.kinds.masters and param_state.locals is None
        )
        if len(group_indices) == count and is_rebindable:
            cache.rebind_target = (param_state, list(group_indices))

    @annotate_errors
    def _apply_alone(self, param: Tensor, results: StepNotes) -> None:
        """Update one parameter in the backward pass."""
        self._check_alone()
        with self.step_cache.lock, one_step_at_a_time(self.step_cache, type(self).__name__):
            self.check_not_swapped(_SWAPPED_STEP)
            self._run_noted(partial(self._take_step, param), results)

    def swapped(self) -> AbstractContextManager[None]:
        """Return a context manager in which parameters hold their averages, to evaluate or save.

        Raises:
            InvalidArgumentError: The constructor had no `ema_decay`, or an average has another
                shape than its parameter.
            FailedPreconditionError: The block takes a step, reads or loads the state, copies the
                optimizer, or calls `swapped()` again.
            LayoutError: A parameter or its average has no memory.
        """
        if self.step_options.of(Average).ema_decay is None:
            raise InvalidArgumentError("There are no averages without ema_decay.")
        with importing:
            from thalweg.optim.swap_averages import swapped
        return swapped(self)

    def _take_step(self, single_param: Tensor | None = None) -> None:
        """Update all parameters that have a gradient, or `single_param` in the backward pass."""
        raise NotImplementedError


def _copy_for_pickle(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the result of torch's `__getstate__` with new groups and copied slots and numbers.

    Parameters and options are not copied, for a pickle may contain them elsewhere. Neither are
    tensors after `share_memory_`, and tensors with a `grad_fn`, which cannot be copied. Return
    `attributes` if there is no other thread, or for a new process, which shares the memory.
    """
    if threading.active_count() == 1 or get_spawning_popen():
        return attributes
    groups, state = attributes["param_groups"], attributes["state"]
    kept = {id(tensor): tensor for tensor in (*params_of(groups), *state)}
    for tensor in (entry for _, entries in states_of(state) for entry in entries.values()):
        # `is_shared` is True for all tensors of a GPU.
        if isinstance(tensor, Tensor) and (
            not tensor.is_leaf or (type(tensor) is Tensor and tensor.is_cpu and tensor.is_shared())
        ):
            kept[id(tensor)] = tensor
    new_groups = [{**group, "params": [*group["params"]]} for group in groups]
    return {**attributes, "state": copy.deepcopy(state, kept), "param_groups": new_groups}
