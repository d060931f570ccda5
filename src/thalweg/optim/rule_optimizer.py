"""`RuleOptimizer`: any rule as a torch-style optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad, writable
from thalweg._base.showing import show_value
from thalweg._core.atomic_section import run
from thalweg._core.commit import raise_first
from thalweg._core.options.accumulation import SUM
from thalweg._core.options.loss_scale import Unscaling
from thalweg._core.options.update_targets import MASTER
from thalweg._core.param_groups import Group, Params, group_indices_of, params_of
from thalweg._core.reentrance import check_no_step
from thalweg._core.state import shown as told
from thalweg._core.step import finish, run_step, try_rebind
from thalweg._core.step_scalars import defaults_of
from thalweg._engines import check_rule
from thalweg.errors import InvalidArgumentError, did_you_mean
from thalweg.formula import Rule
from thalweg.optim.fused_optimizer import FusedOptimizer
from thalweg.optim.group_options import (
    PAIRS,
    as_options,
    hypers_by_name,
    hypers_of,
    members_of,
    number,
    title_of,
)
from thalweg.optim.load_state import load, plan_load_in_place
from thalweg.optim.param_scalars import STEP
from thalweg.optim.param_state import Entries, ParamState, ScalarSpec, check_number
from thalweg.optim.signatures import publish, with_options
from thalweg.optim.step_options import KEYWORDS, GradientReport, check_hypers, gradient_transforms
from thalweg.optim.tensorflow_hooks import TensorFlowStepAdapter

# Options of torch's optimizers. A group must not set one that the rule would ignore.
_TORCH_OPTIONS = (
    "weight_decay", "momentum", "dampening", "nesterov", "centered", "amsgrad", "maximize", "betas",
    "eps",
)  # fmt: skip


class RuleOptimizer(FusedOptimizer, torch.optim.Optimizer):
    """Optimizer of any rule, of the library or your own, in one pass over memory.

    Arithmetic is TensorFlow's: steps are counted once for all parameters, and a Python float is
    rounded to float32, even for a float64 parameter. The constructor and `add_param_group` create
    all state: `state[p]` holds `step`, an int64 tensor of shape (), and the rule's slots, of the
    parameter's shape and dtype.

    Args:
        params: Parameters, pairs of a name and a parameter, or groups, as torch takes them. A group
            may override options.
        rule: The rule.
        lr: The learning rate, a number or a tensor of shape (). None takes the rule's default.
        initial: Optional. Initial values of slots by name, in place of those of the rule.
        capturable: True to allow CUDA graphs of steps on a GPU: `step` is counted there, and
            `prepare` of the rule receives tensors. Nothing changes on other devices.
        **hypers: The rule's other hyperparameters by name, or as groups call them: `betas` for
            beta1 and beta2, `eps` for epsilon; and options of steps (see
            `thalweg.optim.step_options`).

    Raises:
        TypeError: A keyword is unknown, a value is not a number, or `capturable` is not a bool.
        ValueError: A number is NaN.
        RuleError: No step is possible with the rule.

    Example:
        >>> import torch
        >>> from thalweg import Hyper, Rule, sign
        >>> def update(var, grad, *, learning_rate):
        ...     return (var - learning_rate * sign(grad),)
        >>> rule = Rule(name="SignSGD", update=update, hypers=(Hyper("learning_rate", 0.5),))
        >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> w.grad = torch.tensor([3.0, -4.0])
        >>> RuleOptimizer([w], rule).step()
        >>> w.detach()
        tensor([0.5000, 2.5000])
    """

    _exact: ClassVar[tuple[str, ...]] = ()  # hyperparameters that do not pass through float32
    product_hypers: ClassVar[dict[str, str]] = {}  # running products of hyperparameters, by name
    # {name: initial value} of further per-parameter numbers, which `prepare` reads and returns.
    _extra: ClassVar[dict[str, float]] = {}

    # Options whose value 0 would select another rule, so that groups must not set them to 0.
    _nonzero: ClassVar[tuple[str, ...]] = ()
    fixed_options: ClassVar[dict[str, object]] = {}  # hyperparameters that groups may lack
    _flags: ClassVar[list[str]] = []
    # Arguments of the constructor that groups may not have.
    _constructor_options: ClassVar[set[str]] = {"initial"}

    rule: Rule
    _capturable: bool = False
    has_torch_numbers = False
    _adapter = TensorFlowStepAdapter

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("thalweg."):
            args = inspect.signature(cls.__init__).parameters.values()
            names = [arg.name for arg in args if arg.kind is arg.POSITIONAL_OR_KEYWORD]
            cls._constructor_options = cls._constructor_options | {*names[1:]} - {"params"}
            _publish_arguments(cls)

    def __init__(
        self,
        params: Params,
        rule: Rule,
        lr: float | Tensor | None = None,
        *,
        initial: Mapping[str, float] | None = None,
        capturable: bool = False,
        **hypers: object,
    ) -> None:
        hyper_values = defaults_of(rule)
        check_hypers(rule, as_options(hyper_values))
        self.rule = rule
        if not isinstance(capturable, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"capturable must be a bool, not {show_value(capturable)}.")
        options = {key: hypers.pop(key) for key in KEYWORDS if key in hypers}
        arguments = hypers_by_name(
            hypers if lr is None else {"lr": lr, **hypers}, hyper_names=hyper_values
        )
        # All names are checked before torch's constructor, which accepts any default.
        for name in arguments:
            if name not in hyper_values:
                suggestion = did_you_mean(title_of(name), map(title_of, hyper_values))
                raise TypeError(f"{self._label} takes no {title_of(name)!r}. {suggestion}".rstrip())
        hyper_values |= arguments
        check_rule(rule, {**hyper_values, **self._extra})
        if capturable and options.get("state_device"):
            raise InvalidArgumentError(
                "capturable=True needs the state on the GPU: leave out state_device='cpu'."
            )
        self._initial = dict(initial or {})
        self._capturable = capturable
        super().__init__(params, {**as_options(hyper_values), "rule": rule.name}, **options)
        self._check_effect({self._label: rule})

    @property
    def _label(self) -> str:
        """Name of the rule for users."""
        return self.rule.name if type(self) is RuleOptimizer else type(self).__name__

    def _complete(self) -> None:
        """Validate the last group, and create its state."""
        self.step_options.check_rule(self.rule, self._label)
        hypers_of(self.param_groups[-1], self.rule)
        if self.rule.passes:
            self._check_matrices(self.rule, f"rule {self.rule.name!r}", -1)
        self._check_storage(self.param_groups[-1])
        self._make()

    def rule_of(self, group: Group) -> Rule:
        """Return the rule, wrapped by the options around an update."""
        return self.step_options.rule(self.rule)

    def _make(self) -> None:
        """Create missing slots and numbers of all parameters, and add them to `self.state`."""
        with self.step_cache.lock, writable():
            param_state, params, group_indices = self.whole_state()
            param_state.targets(self.state, params, False)
            starts = self._initial_entries(params, group_indices)
            param_state.make(self.state, params, starts, self.scalar_devices(params))
            run(param_state.publishing())
            param_state.settle(self.state)

    def whole_state(self) -> tuple[ParamState, list[Tensor], list[int]]:
        """Return the state of all parameters, the parameters, and the indices of their groups."""
        param_states, rule = self.step_cache.parts, self.step_options.rule(self.rule)
        if rule not in param_states:
            kinds, blocks = self.step_options.kinds, self.step_cache.blocks
            param_states[rule] = ParamState(rule, self._numbers(), kinds=kinds, blocks=blocks)
        groups = self.param_groups
        return param_states[rule], params_of(groups), group_indices_of(groups)

    def _numbers(self) -> dict[str, ScalarSpec]:
        """Return {state key: specification} of the rule's per-parameter numbers."""
        rule, first = self.rule, self.param_groups[0]["params"][0]
        specs = {STEP: ScalarSpec(0, torch.int64)}
        specs |= {name: ScalarSpec(1.0, torch.float32) for name in self.product_hypers}
        kind = self.step_options.kinds.updated_dtype(first)
        specs |= {name: ScalarSpec(start, kind) for name, start in self._extra.items()}
        return specs | {
            slot.name: ScalarSpec(slot.initial, slot.dtype or torch.float32)
            for slot in rule.numbers
        }

    def _initial_entries(
        self, params: Sequence[Tensor], group_indices: list[int]
    ) -> dict[int, Entries]:
        """Return {id(parameter): {state key: initial number}}; warn of all-zero parameters.

        If another parameter already has a number in its state, such as a step count, new parameters
        start at this number.
        """
        self._warn_of_zeros(params, group_indices)
        former = next(
            (entries for param in params if (entries := self.state.get(param))), dict[str, Any]()
        )
        going: dict[str, object] = {}
        for name in self._numbers():
            if name in former:
                value = former[name]
                check_number(value, f"'{name}' of the optimizer's state")
                going[name] = value.item() if isinstance(value, Tensor) else value
        factors = [hypers_of(group, self.rule) for group in self.param_groups]
        products = [
            {name: number(hyper_values[hyper]) for name, hyper in self.product_hypers.items()}
            for hyper_values in factors
        ]
        return {
            id(param): {**self._initial, **products[group_index], **going}
            for param, group_index in zip(params, group_indices, strict=True)
        }

    def _take_step(self, single_param: Tensor | None = None) -> None:
        """Take a step over all parameters with a gradient, or over `single_param` alone."""
        param_state, params, group_indices = self.whole_state()
        grads = self._gradients(params) if single_param is None else [single_param.grad]
        updated = params if single_param is None else [single_param]
        pairs = [pair for pair in zip(grads, updated, strict=True) if pair[0] is not None]
        if not pairs:
            return
        updated_ids = {id(param) for _, param in pairs}
        members = [index for index, param in enumerate(params) if id(param) in updated_ids]
        adapter = TensorFlowStepAdapter(self, param_state, params, group_indices, members)
        plans = param_state.plans
        if single_param is not None:
            # Only the last update of a step adds new state to the optimizer.
            if not adapter.repeats:
                self._make()
                adapter = TensorFlowStepAdapter(self, param_state, params, group_indices, members)
            plans = plans.alone(single_param)
        report = GradientReport()
        arguments = self.unscaling(), len(pairs), report, self.has_torch_numbers
        transforms = gradient_transforms(self.step_options, *arguments)
        ends_step = single_param is None
        adapter.ending = self._end_calls(report, single_param)
        with no_grad():
            pairs, copies = adapter.aim(pairs)
        outcome = try_rebind(adapter, plans, pairs, transforms, copies, is_final=ends_step)
        was_rebound = outcome is not None
        outcome = outcome or run_step(
            adapter, plans, pairs, transforms, copies, is_final=ends_step, may_rebind=False
        )
        if outcome.taken is not False:
            adapter.settle()
        raise_first(outcome.errors)
        if ends_step and outcome.taken is not False:
            self._keep_rebind_target(
                param_state, group_indices if len(members) == len(params) else []
            )
            if was_rebound:
                self.step_cache.note_repeated(adapter)

    def _counts_on_device(self) -> bool:
        if self.step_options.kinds.device:
            return False
        return self._capturable or self.step_options.of(Unscaling).fused_unscale

    def _have_state(self, group: Group, params: Sequence[Tensor]) -> bool:
        # The constructor creates all state; a loaded state may lack entries that options add.
        keys = self.step_options.keys
        return all(name in self.state[param] for param in params for name in keys(param))

    @property
    def _single(self) -> Collection[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._numbers()

    def _state_names(self) -> set[str]:
        """Return the keys that the state of a parameter may have."""
        slots = self.step_options.rule(self.rule).slots
        names = {SUM, *self._numbers(), *(slot.name for slot in slots)}
        return names | {MASTER} if self.step_options.kinds.masters else names

    def _unfit_options(self, group: Group, group_index: int) -> list[str]:
        rule = group.get("rule")
        if not isinstance(rule, str) or rule != self.rule.name:
            return [f"its rule is {told(rule)}, here {self.rule.name!r}"]
        return super()._unfit_options(group, group_index)

    def rules_around(self, group: Group) -> set[Rule]:
        return {self.step_options.rule(self.rule)}

    def _kind_of(self, group: Group) -> Any:
        """Return this optimizer, which defines the options of all groups."""
        return self

    @property
    def _betas(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of betas of the rule."""
        return len(members_of("betas", self._hypers))

    @property
    def _hypers(self) -> set[str]:
        """Names of the hyperparameters of the rule."""
        return {hyper.name for hyper in self.rule.hypers}

    def _wanted_options(self, group: Group) -> Sequence[str]:
        return [*as_options({hyper.name: None for hyper in self.rule.hypers}), "rule"]

    def _invalid_options(self, group: Mapping[str, object]) -> dict[str, str]:
        """Return {option: reason against it} of options that a group may not have."""
        reasons, kind = super()._invalid_options(group), type(self).__name__
        option_names = self._wanted_options(cast("Group", group))
        for name in self._constructor_options:
            if name in group and name not in option_names:
                reasons[name] = f"but the constructor of {kind} decides it for all groups"
        for name in self._hypers & group.keys() - set(option_names):
            pairs = (key for key in PAIRS if name in members_of(key, self._hypers))
            label = next(pairs, title_of(name))
            reasons[name] = f"which groups of {kind} call {label!r}"
        for name in _TORCH_OPTIONS:
            if name not in (*option_names, *reasons) and group.get(name):
                reasons[name] = f"which is no option of {kind}"
        for name in self._nonzero:
            if name in option_names and name in group and not group[name]:
                reasons[name] = f"but the constructor of {kind} was given one for all groups"
        if group.get("rule", self.rule.name) != self.rule.name:
            reasons["rule"] = f"but {self.rule.name!r} for all groups"
        return reasons

    def _end_step(self) -> None:
        """Count a step after its gradients were applied in the backward pass."""
        param_state, params, group_indices = self.whole_state()
        adapter = TensorFlowStepAdapter(self, param_state, params, group_indices, [])
        adapter.read_hypers(params)
        adapter.ending = self._end_calls(GradientReport())
        errors = finish(adapter)
        adapter.settle()
        raise_first(errors)

    def load_state_dict(
        self, state_dict: dict[str, Any], *, convert: bool = False, allow_loss: bool = False
    ) -> None:
        """Load the state and the options of all groups; change nothing on an error.

        Parameters are matched by name if both sides have names, else by order. Torch's hooks are
        called. Every tensor keeps its dtype. Averages and masters missing in the state start at the
        parameters, with a warning.

        Args:
            state_dict: As `state_dict` returns it.
            convert: True to convert slots saved with another `state_storage`, and to ignore saved
                `round` and `seed` that differ from the optimizer's. False raises for these.
            allow_loss: No effect: states of other packages are not loaded into a rule.

        Raises:
            CheckpointMismatchError: An entry is missing or unknown, or has another shape, dtype or
                rule. Lists up to ten differences; nothing was loaded.
        """
        with self.step_cache.lock:
            check_no_step(self.step_cache, type(self).__name__, "load_state_dict")
            load(self, state_dict, plan_load_in_place, convert, allow_loss)

    def __getstate__(self) -> dict[str, Any]:
        attributes = {name: getattr(self, name) for name in ("rule", "_initial", "_capturable")}
        return {**super().__getstate__(), **attributes}


def _publish_arguments(cls: type[RuleOptimizer]) -> None:
    """Set the signature and docstring of the constructor, with options."""
    signature = inspect.signature(cls.__init__, eval_str=True)
    args = [arg for arg in signature.parameters.values() if arg.name not in ("self", "around")]
    extra_parameters = [] if "capturable" in signature.parameters else [_CAPTURABLE]
    publish(cls, with_options(signature.replace(parameters=args), *extra_parameters))


_CAPTURABLE = inspect.signature(RuleOptimizer.__init__, eval_str=True).parameters["capturable"]
_publish_arguments(RuleOptimizer)
