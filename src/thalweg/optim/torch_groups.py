"""Groups of the optimizers of `torch.optim` classes: their rules, options and state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg._core.options.accumulation import SUM
from thalweg._core.options.loss_scale import Unscaling
from thalweg._core.options.update_targets import MASTER
from thalweg._core.options.wrappers import Wrapper
from thalweg._core.param_groups import Group, parameter_names
from thalweg.errors import InvalidArgumentError, ThalwegError
from thalweg.formula import Rule
from thalweg.optim.fused_optimizer import FusedOptimizer
from thalweg.optim.grad_scaler import Homes
from thalweg.optim.group_options import Options, check_options_held, number
from thalweg.optim.native_support import device_of, is_host
from thalweg.optim.param_scalars import CPU, STEP
from thalweg.optim.param_state import Entries, ScalarSpec
from thalweg.optim.rule_names import KINDS
from thalweg.optim.state_mismatch import REAL_DTYPES, StateEntrySpec, state_mismatches, sum_spec
from thalweg.rules import torch as torch_rules


class TorchGroups(FusedOptimizer):
    """Base class that defines the rule and the state of each group, and validates both.

    Attributes:
        constructor_signature: The signature of the constructor, with options.
        fixed_options: {hyperparameter: value} of those that groups may lack.
    """

    # The class whose step is replaced: the last base.
    _torch: ClassVar[Any]
    # The name of the rule in `_rule_package`; unused if `_choose_rule` is overridden.
    _rule: ClassVar[str]
    _rule_package: ClassVar[Any] = torch_rules
    # Messages of errors for sparse and for dense gradients; "" if the gradients are supported.
    _sparse: ClassVar[str] = ""
    _dense: ClassVar[str] = ""
    _counts: ClassVar[bool] = True  # True if each parameter has a step count
    _has_python_scalars: ClassVar[bool] = False  # True if the step count is a Python number
    fixed_options: ClassVar[dict[str, object]] = {}
    # Per-parameter numbers that torch computes as tensors of the default dtype, with its rounding.
    _as_tensors: ClassVar[tuple[str, ...]] = ()
    # The dtype of scalar slots; None if torch's default dtype decides.
    _number_dtype: ClassVar[torch.dtype | None] = None
    _optional: ClassVar[tuple[str, ...]] = ()  # slots that options of a group add
    # Slots that are sparse tensors if torch's step created them from sparse gradients.
    _rowwise: ClassVar[tuple[str, ...]] = ()
    _of_matrices: ClassVar[bool] = False  # True if all parameters must be matrices
    # If set, `_rule_by_shape(group, param)` returns a parameter's rule, in place of `_choose_rule`.
    _rule_by_shape: Callable[[Group, Tensor], Rule] | None = None
    # The message of the error for options that wrap the rule; "" if they are supported.
    _unwrapped: ClassVar[str] = ""
    _unsupported_options: ClassVar[Mapping[str, str]] = {}  # {option: message of the error}
    # Options that must be equal in all groups of the class.
    _common: ClassVar[tuple[str, ...]] = ()
    constructor_signature: ClassVar[inspect.Signature]
    read_options: ClassVar[list[str]]  # options that a step reads
    _flags: ClassVar[list[str]]  # options that are true or false

    def _complete(self) -> None:
        """Normalize and validate the last group of `param_groups`, before its first step.

        Raises:
            InvalidArgumentError, RuleError: An option is invalid, or the rule does not support it.
        """
        group, group_index = self.param_groups[-1], len(self.param_groups) - 1
        kind = self._kind_of(group)
        if group.get("layout") is not None:
            with importing:
                from thalweg._base.matrix_layout import layout_text
            group["layout"] = layout_text(group["layout"])
        if problems := self.choice_faults(group):
            raise InvalidArgumentError(f"{problems[0]} in group {group_index}.")
        if kind._common:
            self._check_common(kind, group, group_index)
        if kind._of_matrices:
            self._check_matrices(self._choose_rule(group), kind.__name__, group_index)
        for name, reason in kind._unsupported_options.items():
            if name in self.step_options.on:
                raise InvalidArgumentError(f"{kind.__name__} {reason}.")
        if self.step_options.wrapping:
            params = group["params"]
            labels = parameter_names(self.param_groups, params)
            for param, label in zip(params, labels, strict=True):
                for option in self.step_options.wrapping:
                    option.check_param(param, label)
            if kind._unwrapped and any(isinstance(x, Wrapper) for x in self.step_options.wrapping):
                label = f"{kind.__name__} with {self.step_options.named()}"
                raise InvalidArgumentError(f"{label}: {kind._unwrapped}.")
            for rule in self._rules_of(group):
                self.step_options.check_rule(rule, kind.__name__)
        self._check_storage(group)

    def _check_options(self, group: Group, group_index: int, complete: bool = True) -> None:
        """Raise if a group has options that a step would ignore, or lacks one."""
        check_options_held(group)
        super()._check_options(group, group_index, complete)
        if complete and (kind := self._kind_of(group))._common:
            self._check_common(kind, group, group_index)

    def _check_common(self, kind: type[TorchGroups], group: Group, group_index: int) -> None:
        """Raise InvalidArgumentError if two groups of one class differ in a shared option."""
        for index, other_group in enumerate(self.param_groups):
            if self._kind_of(other_group) is not kind:
                continue
            if kind._common:
                check_options_held(other_group)
            if problem := kind._describe_difference(group, group_index, other_group, index):
                raise InvalidArgumentError(f"{problem}.")

    @classmethod
    def _describe_difference(
        cls, group: Group, group_index: int, other_group: Group, index: int
    ) -> str:
        """Return a message about the first option in `_common` that differs; "" if none does.

        Args:
            group_index, index: The indices of `group` and `other_group`, for the message.
        """
        for name in (name for name in cls._common if other_group.get(name) != group.get(name)):
            return (
                f"{name} of group {group_index} is {show_value(group.get(name))}, and of group"
                f" {index} {show_value(other_group.get(name))}: groups of {cls.__name__} have it in"
                " common"
            )
        return ""

    def _unfit_groups(self, groups: Sequence[Group]) -> list[str]:
        """Return messages about groups of one class that differ in a shared option; [] if none."""
        firsts: dict[type[TorchGroups], int] = {}
        problems = [
            kind._describe_difference(group, group_index, groups[first], first)
            for group_index, group in enumerate(groups)
            if (kind := self._kind_of(group))._common
            and (first := firsts.setdefault(kind, group_index)) != group_index
        ]
        return [problem for problem in problems if problem]

    @classmethod
    def _choose_rule(cls, group: Group) -> Rule:
        """Return the rule that updates a group."""
        return getattr(cls._rule_package, cls._rule)

    def base_rule(self, group: Group, param: Tensor) -> Rule:
        """Return the rule that updates a parameter of a group, without options."""
        choose = self._kind_of(group)._rule_by_shape
        return self._choose_rule(group) if choose is None else choose(group, param)

    def wrapped_rule(self, group: Group, param: Tensor) -> Rule:
        """Return the rule of a parameter, wrapped by the options around an update."""
        return self.step_options.rule(self.base_rule(group, param))

    def rule_of(self, group: Group) -> Rule:
        return self.step_options.rule(self._choose_rule(group))

    def _rules_of(self, group: Group) -> set[Rule]:
        """Return the rules that update parameters of a group, without options."""
        if self._kind_of(group)._rule_by_shape is None or not group["params"]:
            return {self._choose_rule(group)}
        return {self.base_rule(group, param) for param in group["params"]}

    def rules_around(self, group: Group) -> set[Rule]:
        return set(map(self.step_options.rule, self._rules_of(group)))

    def _kind_of(self, group: Group) -> type[TorchGroups]:
        return type(self)

    def _initials_of_group(self, group: Group) -> Entries:
        """Return the initial state of a group's parameters, where the rule cannot define it."""
        return {}

    @staticmethod
    def _initials_of_param(param: Tensor) -> Entries:
        """Return initial state of one parameter that depends on the parameter's shape."""
        return {}

    def _initial_entries(
        self, params: Sequence[Tensor], places: Sequence[int]
    ) -> dict[int, Entries]:
        """Return {id(parameter): {key: initial value}} of initial values other than the rule's.

        Warn of all-zero parameters.
        """
        self._warn_of_zeros(params, places)
        starts = list(map(self._initials_of_group, self.param_groups))
        kinds = list(map(self._kind_of, self.param_groups))
        return {
            id(param): {**starts[group_index], **kinds[group_index]._initials_of_param(param)}
            for param, group_index in zip(params, places, strict=True)
        }

    def _have_state(self, group: Group, params: Sequence[Tensor]) -> bool:
        """Return True if the state of each of `params`, which are in `group`, is complete."""
        step = {STEP} if self._keeps_step(self._kind_of(group)) else set[str]()
        names = {
            rule: {*step, *(slot.name for slot in self.step_options.rule(rule).slots)}
            for rule in self._rules_of(group)
        }
        return all(
            names[self.base_rule(group, param)] <= self.state.get(param, {}).keys()
            for param in params
        )

    def _has_slot_dtypes(self, group: Group, param: Tensor) -> bool:
        """Return True if the slots of a parameter have the dtypes that its rule defines."""
        entries = self.state.get(param, {})
        slots = [slot for slot in self.base_rule(group, param).slots if slot.shape is None]
        dtypes = {slot.name: slot.dtype or param.dtype for slot in slots if not slot.scalar}
        return all(
            getattr(entries[name], "dtype", None) == dtype
            for name, dtype in dtypes.items()
            if name in entries
        )

    @staticmethod
    def _computes(param: Tensor) -> bool:
        """Return True if the rules of the class support a parameter that engines support."""
        return True

    @staticmethod
    def _takes_rows(group: Group) -> bool:
        """Return True if the engines support sparse gradients of a group."""
        return True

    def _numbers(self, rule: Rule, kind: type[TorchGroups]) -> dict[str, ScalarSpec]:
        """Return {state key: specification} of a rule's per-parameter numbers."""
        specs = {
            slot.name: ScalarSpec(
                slot.initial,
                slot.dtype or kind._number_dtype,
                rounds_as_tensor=slot.name in kind._as_tensors,
            )
            for slot in rule.numbers
        }
        start = 0 if kind._has_python_scalars else 0.0
        step = {STEP: ScalarSpec(start, may_lack=not kind._counts)}
        return {**step, **specs} if self._keeps_step(kind) else specs

    def _keeps_step(self, kind: type[TorchGroups]) -> bool:
        """Return True if parameters have a step count, for their class or an option."""
        return kind._counts or self.step_options.counts

    def _counts_on_device(self) -> bool:
        kinds = map(self._kind_of, self.param_groups)
        if self.step_options.kinds.device or any(kind._has_python_scalars for kind in kinds):
            return False
        if self.step_options.of(Unscaling).fused_unscale or self._is_option_on("capturable"):
            return True
        return "found_inf" in vars(self) and self._is_option_on("fused")

    def _is_option_on(self, option: str) -> bool:
        """Return True if a group has this option on."""
        return any(group.get(option) for group in self.param_groups)

    def scalar_devices(self, params: Sequence[Tensor]) -> Homes:
        """Return (GPU of numbers that the host does not read or None, device of other numbers)."""
        homes = super().scalar_devices(params)
        is_on_device = not (is_host(params) or self.step_options.kinds.device)
        # Torch's fused classes keep step counts on the GPU, too, so that states are exchangeable.
        if homes[0] is None and is_on_device and self._is_option_on("fused"):
            return None, device_of(params) or CPU
        return homes

    def _invalid_options(self, group: Mapping[str, object]) -> dict[str, str]:
        reasons, rule = super()._invalid_options(group), group.get("rule")
        class_names = {ancestor.__name__ for ancestor in type(self).__mro__}
        is_other_class = isinstance(rule, str) and rule in KINDS and rule not in class_names
        if isinstance(rule, Rule) or is_other_class:
            reasons["rule"] = "and groups with rules of their own are for Mixed"
        return reasons

    def _wanted_options(self, group: Group) -> Sequence[str]:
        return self._kind_of(group).read_options

    def _unfit_options(self, group: Group, group_index: int) -> list[str]:
        """Return messages about options with which no step of a group is possible; [] if none."""
        unfit = super()._unfit_options(group, group_index)
        kind = self._kind_of(group)
        if not unfit and kind._of_matrices:
            try:
                self._check_matrices(self._choose_rule(group), kind.__name__, group_index)
            except (TypeError, ValueError, NotImplementedError) as error:
                unfit.append(str(error).rstrip("."))
        return unfit

    def _unfit_state(
        self, group: Group, entries: object, param: Tensor, label: object, may_lack: bool = False
    ) -> list[str]:
        """Return messages why a step cannot use the state of a parameter; [] if it can.

        Args:
            entries: The state to load.
            label: The name of the parameter in messages.
            may_lack: True if slots that the next step creates may be missing.
        """
        specs = {SUM: sum_spec(param)}
        # A parameter before its first step has no entries but a gradient sum.
        if isinstance(entries, Mapping) and entries.keys() <= {SUM}:
            return state_mismatches(entries, specs, label)  # pyright: ignore[reportUnknownArgumentType]
        kind, rule = self._kind_of(group), self.base_rule(group, param)
        slots = rule.slots
        optional = [*kind._optional, *self.step_options.keys(param)]
        names = [*(s.name for s in slots if not (s.scalar or s.is_shaped)), *optional]
        if self._keeps_step(kind):
            specs[STEP] = StateEntrySpec(is_optional=not kind._counts)
        specs |= {slot.name: StateEntrySpec(dtypes=REAL_DTYPES) for slot in rule.numbers}
        specs |= {n: StateEntrySpec(param, (), n in kind._rowwise, n in optional) for n in names}
        wrapped_rule = self.step_options.rule(rule)
        # A step creates missing slots that options add.
        for slot in (*wrapped_rule.measured_slots, *wrapped_rule.common_slots):
            number = torch.empty((), dtype=torch.float32, device="cpu")
            specs[slot.name] = StateEntrySpec(number, is_optional=slot not in slots)
        for slot in slots:
            if slot.is_shaped:
                with importing:
                    from thalweg._engines.matrix_shapes import shaped_like
                specs[slot.name] = StateEntrySpec(shaped_like(param, slot))
        for slot in wrapped_rule.element_slots:
            if slot.storage is not None:
                with importing:
                    from thalweg._core.quantized_slots import codec_of, likeness_of
                codec = codec_of(slot, param)
                if codec is not None:
                    template = likeness_of(codec, param)
                    spec = specs.get(slot.name, StateEntrySpec())
                    specs[slot.name] = spec._replace(like=template, dtypes=(template.dtype,))
        if MASTER in optional:
            specs[MASTER] = StateEntrySpec(param, (torch.float32,), is_optional=True)
        if may_lack:
            slot_names = {slot.name for slot in slots if slot not in rule.numbers}
            specs |= {n: specs[n]._replace(is_optional=True) for n in slot_names & specs.keys()}
        return state_mismatches(entries, specs, label)  # pyright: ignore[reportUnknownArgumentType]

    def _unfit_numbers(
        self,
        group: Group,
        entries: Mapping[str, Any],
        param: Tensor,
        label: object,
        checked_keys: set[object],
    ) -> list[str]:
        """Return a list with a message if the rule's `prepare` fails for a parameter; else [].

        Rules that call functions of users are not checked.

        Args:
            entries: The state of the parameter.
            label: The name of the parameter in messages.
            checked_keys: Keys of checked (group, numbers) combinations. A combination in this set
                is skipped; any other is added.
        """
        rule = self.wrapped_rule(group, param)
        scalars = {STEP: 0.0, **{slot.name: slot.initial for slot in rule.scalar_slots}}
        scalars |= {name: float(entries[name]) for name in scalars if entries.get(name) is not None}
        key = (id(group), rule, *scalars.values())
        if rule.prepare is None or rule.calls_users or key in checked_keys:
            return []
        checked_keys.add(key)
        try:
            options = Options(group, rule, self._kind_of(group).fixed_options)
            # A root that is real in one step may be complex in the next.
            for _ in range(2):
                scalars[STEP] = scalars["t"] = scalars[STEP] + 1
                for scalar in rule.prepare(**options.given_to_prepare(scalars)).values():
                    number(scalar)
        except (ArithmeticError, TypeError, ThalwegError) as error:
            scalars_text = self.show_numbers(group)
            return [f"'{label}' takes no step {scalars[STEP]:g} with {scalars_text}: {error}"]
        return []

    def show_numbers(self, group: Group) -> str:
        """Return the numbers among a group's options as text for messages."""
        flags = self._kind_of(group)._flags
        names = [name for name in self._wanted_options(group) if name not in flags]
        return ", ".join(f"{name}={show_value(group.get(name))}" for name in names)
