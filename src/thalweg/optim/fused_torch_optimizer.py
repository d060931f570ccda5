"""`FusedTorchOptimizer`: `torch.optim` classes whose steps run in engines (fused kernels)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from thalweg._base.context_managers import host_allocations, no_grad, writable
from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg._base.tracing import without_dynamo
from thalweg._core.atomic_section import run
from thalweg._core.commit import WriteBatch, note_not_applied, raise_first
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.options.loss_scale import Unscaling
from thalweg._core.options.update_targets import MASTER
from thalweg._core.param_groups import Group, parameter_names, params_of
from thalweg._core.plan_cache import CachedPlan
from thalweg._core.reentrance import check_no_step
from thalweg._core.sparse_gradients import is_sparse
from thalweg._core.step import execute_plan, keep_plan, plan_step, rebind_plan, run_step
from thalweg._core.step_writes import skip_step
from thalweg._engines import current
from thalweg.errors import InvalidTypeError, ThalwegError
from thalweg.formula import Rule
from thalweg.optim.group_options import PAIRS, STEP_FLAGS
from thalweg.optim.load_state import load, plan_torch_load
from thalweg.optim.native_support import device_of, engines_support, find_shared_scalar
from thalweg.optim.param_scalars import STEP
from thalweg.optim.param_state import ParamState
from thalweg.optim.signatures import publish, with_options
from thalweg.optim.state_mismatch import are_numbers
from thalweg.optim.step_adapter import TorchStepAdapter, UpdatePairs
from thalweg.optim.step_options import KEYWORDS, GradientReport, gradient_transforms
from thalweg.optim.torch_groups import TorchGroups

if TYPE_CHECKING:
    from thalweg.optim.replay import ReplayedStep

NO_GRADIENTS: Mapping[int, Tensor] = MappingProxyType({})


class _RuleMembers(NamedTuple):
    """Parameters that one rule updates in a step: (gradient, parameter) pairs, group indices."""

    pairs: list[tuple[Tensor, Tensor]]
    places: list[int]


# Adapter of one rule, and gradients with the parameters that the rule updates.
_SubStep = tuple[TorchStepAdapter, list[tuple[Tensor, Tensor]]]


# (plan of a sub-step with its gradients, or None if `run_step` has to plan the sub-step; True if
# the plan is that of the last step).
_BoundPlan = tuple[CachedPlan | None, bool]


class _LeftToTorch(Exception):
    """Raised before anything is written if the engines do not support a step."""


class FusedTorchOptimizer(TorchGroups):
    """Base class that replaces `step` of a class of `torch.optim`.

    Torch's step runs if the engines do not support a step: with `differentiable=True`, for tensor
    subclasses with their own dispatch, and, without options, on devices without kernels.
    """

    _adapter = TorchStepAdapter
    _unread: ClassVar[tuple[str, ...]] = ()  # options that no step reads

    def __init_subclass__(cls) -> None:
        if FusedTorchOptimizer in cls.__bases__:
            cls._torch = cls.__bases__[-1]
        # A subclass by a user has no `_rule` of its own and inherits the message.
        if "_rule" in vars(cls) and "_sparse" not in vars(cls):
            cls._sparse = f"{cls.__name__} does not support sparse gradients"
        # Frameworks inspect the signature to find out which options they may pass.
        signature = cls._signature()
        cls.constructor_signature = with_options(signature)
        if cls.__module__.startswith("thalweg."):
            publish(cls, cls.constructor_signature)
        unread_names = ("params", *STEP_FLAGS, *cls._unread)
        cls.read_options = [name for name in signature.parameters if name not in unread_names]
        cls._flags = [n for n, arg in signature.parameters.items() if isinstance(arg.default, bool)]

    @classmethod
    def _signature(cls) -> inspect.Signature:
        return inspect.signature(cls._torch, eval_str=True)

    def __init__(self, *args: Any, **keywords: object) -> None:
        try:
            self.constructor_signature.bind(self, *args, **keywords)
        except TypeError:
            # Torch's constructor raises with its own message; else the error of `bind` is raised.
            torch_keywords = {name: keywords[name] for name in keywords if name not in KEYWORDS}
            self._torch.__init__(self, *args, **torch_keywords)
            raise
        try:
            super().__init__(*args, **keywords)
        except LookupError as error:
            # Torch indexes `betas` and the like before it validates them.
            arguments = self.constructor_signature.bind(self, *args, **keywords).arguments
            pairs = [name for name in PAIRS if name in arguments]
            unfit = [name for name in pairs if not are_numbers(arguments[name], self._betas)]
            if isinstance(error, ThalwegError) or not unfit:
                raise
            value = show_value(arguments[unfit[0]])
            raise InvalidTypeError(f"{unfit[0]} must be a pair of numbers, not {value}.") from error
        groups = [(self._kind_of(group).__name__, group) for group in self.param_groups]
        self._check_effect({label: self._choose_rule(group) for label, group in groups})
        options = self.step_options
        if options.begins or options.kinds.sums or not options.keeps_as_torch:
            # Torch's constructor of Adagrad makes its own entries, and steps make those of options.
            # `torch.distributed.checkpoint` takes a step only if there is no state yet.
            self.state.clear()

    def _take_step(self, single_param: Tensor | None = None) -> None:
        """Update all parameters, or only `single_param`, by the engines or by torch's code.

        If a group requires torch's step, torch updates all parameters.
        """
        if any(map(self.is_torchs_group, self.param_groups)):
            return self._step_of_torch()
        if single_param is None:
            members_by_rule, param_states = self._members_by_rule(), self.step_cache.parts
        else:
            members_by_rule = self._members_of_param(single_param)
            states_by_param = self.step_cache.single_param_states
            param_states = states_by_param.setdefault(id(single_param), {})
        if not members_by_rule:
            return None
        steps = [
            self._sub_step(rule, members, param_states) for rule, members in members_by_rule.items()
        ]
        return self._take_sub_steps(steps, single_param)

    def _take_sub_steps(self, steps: Sequence[_SubStep], single_param: Tensor | None) -> None:
        """Run the updates of all rules as one step, or let torch's code take the step.

        Args:
            steps: (adapter, (gradient, parameter) pairs) of each rule.
            single_param: The only parameter of a step in the backward pass; None in `step`.
        """
        if not self._supports_step(steps):
            return self._step_of_torch()
        report, options = GradientReport(), self.step_options
        # The last sub-step commits the writes of all others.
        steps[-1][0].ending = self._end_calls(report, single_param)
        make_transforms = partial(
            gradient_transforms, options, self.unscaling(), grad_report=report, is_torchs=True
        )
        outcome = None
        with suppress(_LeftToTorch):
            outcome = self._write(steps, make_transforms)
        if outcome is None:
            return self._step_of_torch()
        errors, was_rebound, takes_step = outcome
        for adapter, _ in steps if takes_step else ():
            adapter.settle()
        raise_first(errors)
        if takes_step and single_param is None:
            self._note_taken(steps, was_rebound)
        return None

    def _note_taken(self, steps: Sequence[_SubStep], was_rebound: bool) -> None:
        """Record a taken step, so that the next step may reuse its plans.

        `was_rebound` is True if this step reused the plans of the step before.
        """
        if len(steps) == 1:
            adapter = steps[0][0]
            self._keep_rebind_target(adapter.part, adapter.places)
        if was_rebound:
            self.step_cache.note_repeated(*(adapter for adapter, _ in steps))
        else:
            trainable = sum(param.requires_grad for param in params_of(self.param_groups))
            gradients = sum(len(pairs) for _, pairs in steps)
            self.step_cache.changes.note_planned(gradients, trainable)

    def _sub_step(
        self, rule: Rule, members: _RuleMembers, param_states: dict[Rule, ParamState]
    ) -> _SubStep:
        """Return the adapter of a rule over its members, with their (gradient, parameter) pairs."""
        param_state = self.part_of(rule, members.places[0], param_states)
        params = [param for _, param in members.pairs]
        return TorchStepAdapter(self, param_state, params, members.places), members.pairs

    def part_of(
        self, rule: Rule, group_index: int, param_states: dict[Rule, ParamState]
    ) -> ParamState:
        """Return `param_states[rule]`; create it if missing.

        The class of the group at `group_index` defines the per-parameter numbers of a new state.
        Before a state is created, states of rules that no group uses are deleted.
        """
        if rule not in param_states:
            # Changed options may select other rules; states of former rules would keep memory.
            for stale_rule in param_states.keys() - self._rules():
                del param_states[stale_rule]
            kinds, blocks = self.step_options.kinds, self.step_cache.blocks
            kind = self._kind_of(self.param_groups[group_index])
            scalar_specs = self._numbers(rule, kind)
            param_states[rule] = ParamState(
                rule, scalar_specs, kind._has_python_scalars, kinds, blocks
            )
        return param_states[rule]

    def _supports_step(self, steps: Sequence[_SubStep]) -> bool:
        """Return True if the engines support the whole step."""
        new_steps = [step for step in steps if not step[0].repeats]
        if not new_steps:
            return True
        return all(map(self._supports_sub_step, new_steps)) and not self._shares_counts(steps)

    def _write(
        self, steps: Sequence[_SubStep], make_transforms: Callable[..., GradientTransforms]
    ) -> tuple[list[BaseException], bool, bool]:
        """Run the updates of all rules. With several rules, write all results together at the end.

        Return (errors raised after the writes, True if all plans were reused, True if the step was
        taken).

        Args:
            steps: (adapter, (gradient, parameter) pairs) of each rule.
            make_transforms: `make_transforms(count)` returns the unscaling and clipping of `count`
                gradients.

        Raises:
            _LeftToTorch: Torch must take the step; nothing was written.
        """
        with no_grad():
            targets = [adapter.aim(pairs) for adapter, pairs in steps]
        adapters, batch = [adapter for adapter, _ in steps], WriteBatch()
        # Several sub-steps only collect writes in the batch, so that an error leaves all unwritten.
        for adapter in adapters if len(steps) > 1 else ():
            adapter.gathered, adapter.begun = batch, batch.begun
        transforms = [make_transforms(len(pairs)) for pairs, _ in targets]
        # Lazy: a sub-step is bound after the previous one has run. A common norm needs all first.
        bound: Iterable[_BoundPlan] = map(self._bind, steps, targets, transforms)
        try:
            with note_not_applied(adapters[-1].begun), writable():
                has_global_norm = self.step_options.base_transforms.has_global_norm
                if adapters[-1].gathered is not None and has_global_norm:
                    bound = list(bound)
                    all_transforms = make_transforms(sum(len(pairs) for pairs, _ in targets))
                    with importing:
                        from thalweg.optim.global_norm import clip_factor
                    factor, decision = clip_factor(adapters, targets, bound, all_transforms)
                    if not decision.apply_flag:
                        return skip_step(decision.calls, batch.begun), False, False
                    adapters[-1].ending = [*adapters[-1].ending, *decision.calls]
                    transforms = [make_transforms(len(x), factor=factor) for x, _ in targets]
                    if any(adapter.part.rule.calls_users for adapter in adapters):
                        # A function of one rule may move tensors of another.
                        batch.release_gradients()
                        bound = map(self._bind, steps, targets, transforms)
                outcome = _run_all(adapters, targets, transforms, bound)
                if adapters[-1].gathered is not None:
                    for sharing in [adapter.sharing for adapter in adapters if adapter.sharing][:1]:
                        sharing.begin_writing()
                    outcome[0].extend(batch.write_all())
                return outcome
        finally:
            batch.release_gradients()

    def _bind(
        self, step: _SubStep, target: UpdatePairs, transforms: GradientTransforms
    ) -> _BoundPlan:
        """Return (plan of one rule's update or None, True if the last plan was reused).

        Args:
            step: The adapter and the (gradient, parameter) pairs of the rule.
            target: (pairs for the kernels, copies), as from `adapter.aim(pairs)`.
            transforms: Unscaling and clipping of the gradients.

        Raises:
            _LeftToTorch: The engines do not support the step; nothing was written.
        """
        (adapter, _), (pairs, copies) = step, target
        plan_args = adapter, adapter.part.plans, pairs, transforms, copies
        may_repeat = self._may_repeat(adapter.part, [grad for grad, _ in pairs])
        plan = rebind_plan(*plan_args) if may_repeat else None
        was_rebound = plan is not None
        if plan is None:
            # `_supports_step` skipped this check because the adapter expected to repeat its plan.
            if adapter.repeats and not self._supports_sub_step(step):
                raise _LeftToTorch
            plan = plan_step(*plan_args)
        if plan is not None and adapter.gathered is not None:
            adapter.gathered.hold(plan.ready)
        return plan, was_rebound

    def _plan_with_absent(self, kind: type[ReplayedStep]) -> ReplayedStep | None:
        """Return a replayable step of class `kind` in which gradients may be absent.

        Return None if planning fails, or if an option does not allow such a step.
        """
        options = self.step_options
        if options.accumulate > 1 or options.in_backward or options.kinds.device is not None:
            return None
        if any(map(self.is_torchs_group, self.param_groups)):
            return None
        with importing:
            from thalweg.optim.absent_gradients import plan_with_absent
        return plan_with_absent(self, kind)

    def _updates_all(self, param_state: ParamState, gradients: Sequence[object]) -> bool:
        """Return True if the rule of `param_state` still updates the parameters of all groups.

        Return True if no option changed. After a change, return False if a group needs another
        rule or torch's step, or if a gradient is sparse.
        """
        if param_state.hold(self.param_groups):
            return True
        self._check_options_held()
        return (
            self._may_repeat(param_state, gradients)
            and self._rules() == {param_state.rule}
            and not any(map(self.is_torchs_group, self.param_groups))
        )

    def _may_repeat(self, param_state: ParamState, gradients: Sequence[object]) -> bool:
        """Return True if the last plan of a rule may be used with new gradients.

        With sparse gradients, the options of groups must not have changed. The plan itself checks
        all other conditions of `_supports_sub_step`.
        """
        return not any(map(is_sparse, gradients)) or param_state.hold(self.param_groups)

    def is_torchs_group(self, group: Group) -> bool:
        """Return True if the options of a group require the step of torch."""
        if group.get("capturable"):
            params = params_of(self.param_groups)
            if self.step_options.kinds.device or device_of(params) is None:
                return True
        betas: tuple[Any, ...] | list[Any] | None = group.get("betas")
        scalars = [group["lr"], betas, *(betas if isinstance(betas, tuple | list) else ())]
        has_tensors = bool(group.get("foreach")) and any(isinstance(x, Tensor) for x in scalars)
        return bool(group.get("differentiable")) or (has_tensors and not group.get("capturable"))

    def _supports_sub_step(self, step: _SubStep) -> bool:
        """Return True if the engines support one rule's update; return False if torch must take it.

        Raises:
            RuntimeError: The class does not support a sparse gradient, or does not support a dense
                gradient.
        """
        adapter, pairs = step
        options = self.step_options
        for (grad, param), group_index in zip(pairs, adapter.places, strict=True):
            group, has_rows = self.param_groups[group_index], grad.layout != torch.strided
            kind = self._kind_of(group)
            if refusal := kind._sparse if has_rows else kind._dense:
                raise RuntimeError(refusal)
            if has_rows and not kind._takes_rows(group):
                return False
            if not kind._computes(param):
                return False
            if options.keeps_as_torch and not self._has_slot_dtypes(group, param):
                return False
        allows_wide_grads = options.kinds.masters and self.step_cache.sums is not None
        is_offloaded = options.kinds.device is not None
        (_, first), group_index = pairs[0], adapter.places[0]
        rule = options.rule(self.base_rule(self.param_groups[group_index], first))
        names = {STEP, MASTER, *(slot.name for slot in rule.slots)}
        coded = {slot.name for slot in rule.element_slots if slot.storage}
        # Torch's step reads values, which tensors of the meta device do not have.
        anywhere = is_offloaded or first.is_meta or self._has_no_torch_step()
        return engines_support(pairs, self.state, names, allows_wide_grads, anywhere, coded)

    def _has_no_torch_step(self) -> bool:
        """Return True if the engines take the step on every device, because torch has no step."""
        return (
            bool(self.step_options)
            or self._is_unscaling()
            or not getattr(self._torch, "_has_step", True)
            or current().name == "torch"
        )

    def _is_unscaling(self) -> bool:
        """Return True if the step divides gradients by a scale, which torch's step may ignore."""
        return self.step_options.of(Unscaling).fused_unscale and self.unscaling() is not None

    def _shares_counts(self, steps: Sequence[_SubStep]) -> bool:
        """Return True if two parameters share one state tensor, such as a step count.

        Torch's step increases a shared count once for each parameter; the engines increase it once.
        Raise NotImplementedError if a tensor is shared, and options exclude torch's step.
        """
        scalars = {slot.name for adapter, _ in steps for slot in adapter.part.rule.scalar_slots}
        params = [param for _, pairs in steps for _, param in pairs]
        shared_scalar = find_shared_scalar(params, self.state, {STEP, *scalars})
        if shared_scalar is not None and self.step_options:
            first_name, second_name = parameter_names(self.param_groups, shared_scalar[1])
            raise NotImplementedError(
                f"{shared_scalar[0]!r} of '{first_name}' and of '{second_name}' is one tensor,"
                f" which {type(self).__name__} with {self.step_options.named()} would count for"
                " both at once: give each one of its own."
            )
        return shared_scalar is not None

    def _members_by_rule(
        self, absent: Mapping[int, Tensor] = NO_GRADIENTS
    ) -> dict[Rule, _RuleMembers]:
        """Return {rule: gradients, parameters and group indices} of parameters with a gradient.

        A parameter without a gradient uses `absent[id(param)]`, or is left out.
        """
        members_by_rule: dict[Rule, _RuleMembers] = {}
        for group_index, group in enumerate(self.param_groups):
            params = group["params"]
            candidates = zip(self._gradients(params), params, strict=True)
            pairs = [
                (present_grad, param)
                for grad, param in candidates
                if (present_grad := absent.get(id(param)) if grad is None else grad) is not None
            ]
            for rule, rule_pairs in self._by_rule(group, pairs):
                members = members_by_rule.setdefault(
                    self.step_options.rule(rule), _RuleMembers([], [])
                )
                members.pairs.extend(rule_pairs)
                members.places.extend([group_index] * len(rule_pairs))
        return members_by_rule

    def _by_rule(
        self, group: Group, pairs: list[tuple[Tensor, Tensor]]
    ) -> Iterable[tuple[Rule, list[tuple[Tensor, Tensor]]]]:
        """Split (gradient, parameter) pairs of a group by rule; return (rule, pairs) tuples."""
        if self._kind_of(group)._rule_by_shape is None:
            return [(self._choose_rule(group), pairs)] if pairs else []
        pairs_by_rule: dict[Rule, list[tuple[Tensor, Tensor]]] = {}
        for pair in pairs:
            pairs_by_rule.setdefault(self.base_rule(group, pair[1]), []).append(pair)
        return pairs_by_rule.items()

    def _members_of_param(self, param: Tensor) -> dict[Rule, _RuleMembers]:
        """Return the rule of one parameter, with the parameter as its only member."""
        with importing:
            from thalweg.optim.step_in_backward import find_group_index
        group_index = cast("int", find_group_index(self, param))
        rule = self.step_options.rule(self.base_rule(self.param_groups[group_index], param))
        return {rule: _RuleMembers([(cast("Tensor", param.grad), param)], [group_index])}

    def load_state_dict(
        self, state_dict: dict[str, Any], *, convert: bool = False, allow_loss: bool = False
    ) -> None:
        """Load a state as `torch.optim.Optimizer.load_state_dict` does; change nothing on an error.

        Entries that options add to torch's state keep their dtype. Averages and masters missing in
        the state start at the parameters, with a warning.

        Args:
            state_dict: A dict from `state_dict`.
            convert: True to convert slots saved with another `state_storage`, and states of other
                packages (see docs/migrate-optimizers.md). True also ignores saved `round` and
                `seed` that differ from the optimizer's. False raises for all of these.
            allow_loss: True to leave out parts of another package's state that have no counterpart
                here, with a warning. False raises for these parts.

        Raises:
            CheckpointMismatchError: The optimizer cannot step with the state, such as a state of
                another class. Lists up to ten differences; nothing was loaded.
        """
        with self.step_cache.lock:
            check_no_step(self.step_cache, type(self).__name__, "load_state_dict")
            torch_class: Any = super(FusedTorchOptimizer, type(self))
            torch_load = without_dynamo(torch_class.load_state_dict)
            load(self, state_dict, partial(plan_torch_load, load=torch_load), convert, allow_loss)

    def _step_of_torch(self) -> None:
        """Take the step by torch's code; on an error, restore parameters and state.

        Raise NotImplementedError if an option excludes torch's step, or torch has no such class.
        """
        self.check_flat_buffers(self.param_groups)
        if self.step_options or self._is_unscaling():
            self._raise_unsupported()
        if self._skip_overflowed_step():
            return
        if not getattr(self._torch, "_has_step", True):
            # Raises, since torch has no such class; nothing is written yet.
            self._torch.step(self)
        self._check_memories()
        # Torch's step writes as it goes: an error of another rank must be known before.
        if self.step_cache.team is not None:
            self.step_cache.team.agree()
        step = self._torch.step
        # `step` of this class has already called the hooks that torch's wrapper would call.
        step = step.__wrapped__ if getattr(step, "hooked", False) else step
        with importing:
            from thalweg.optim.torch_fallback import whole
        with whole(self), host_allocations():
            step(self)
        run(self._end_calls(GradientReport()))

    def _raise_unsupported(self) -> None:
        """Raise NotImplementedError: options exclude torch's code, but the step needs it."""
        if self.step_options.kinds.device:
            raise NotImplementedError(
                f"state_device='cpu' of {type(self).__name__} takes steps on real tensors,"
                " strided or sparse, without capturable=True and differentiable=True; this one"
                " is torch's."
            )
        label = f"{type(self).__name__} with {self.step_options.named()}"
        params = params_of(self.param_groups)
        pairs = zip(self._gradients(params), params, strict=True)
        if rows := [param for grad, param in pairs if grad is not None and is_sparse(grad)]:
            name = parameter_names(self.param_groups, rows)[0]
            raise NotImplementedError(
                f"The gradient of '{name}' is sparse, and {label} takes dense ones: leave out one"
                " of them, or update it with an optimizer of its own."
            )
        raise NotImplementedError(
            f"{label} takes steps on real, dense tensors without a dispatch of their own, without"
            " capturable=True where there are no kernels, and without differentiable=True; this one"
            " is torch's."
        )

    def _check_memories(self) -> None:
        """Raise if torch's step would access memory outside a tensor's storage.

        Raises:
            LayoutError: A tensor has no memory for its elements; names the tensor.
            InvalidArgumentError: An index of a sparse gradient or slot is out of range.
        """
        with importing:
            from thalweg.optim.torch_fallback import check_memories
        check_memories(self)


def _run_all(
    adapters: Sequence[TorchStepAdapter],
    targets: Sequence[UpdatePairs],
    transforms: Sequence[GradientTransforms],
    bound: Iterable[_BoundPlan],
) -> tuple[list[BaseException], bool, bool]:
    """Run the update of each rule, in order; first plan an update whose plan is None.

    Arguments have an element for each rule. `targets` are the results of `adapter.aim`, `bound` the
    plans.

    Returns:
        (errors raised after the writes, True if all plans were reused, True if the step was taken).
    """
    errors: list[BaseException] = []
    are_rebound = takes_step = True
    rows = zip(adapters, targets, transforms, bound, strict=True)
    for adapter, (pairs, copies), rule_transforms, (plan, was_rebound) in rows:
        plans = adapter.part.plans
        if plan is None:
            outcome = run_step(adapter, plans, pairs, rule_transforms, copies, may_rebind=False)
        else:
            outcome = execute_plan(adapter, plan, rule_transforms, is_new=not was_rebound)
            if not was_rebound:
                keep_plan(plans, plan)
        errors += outcome.errors
        are_rebound = are_rebound and was_rebound
        takes_step = takes_step and outcome.taken is not False
    return errors, are_rebound, takes_step
