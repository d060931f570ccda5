"""Validation of parameter groups of torch-style optimizers and their rules, and of calls."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from thalweg._base.execution_context import replicas
from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg._core.flat_buffers import FlatBuffer, check_reductions, find_marked, is_reducing
from thalweg._core.gradient_transforms import NOTHING
from thalweg._core.param_groups import Group, parameter_names, params_of
from thalweg._core.state.entries import is_cut
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from thalweg.formula import Rule
from thalweg.optim.grad_scaler import GradScalerMixin
from thalweg.optim.group_options import check_options_held, tensors_in
from thalweg.optim.options import Accumulation, Rounding, StateCodec
from thalweg.optim.state_mismatch import of_options, of_strange, told
from thalweg.optim.step_cache import StepCache


class GroupChecks(GradScalerMixin):
    """Base class with checks of groups (options, matrices, flat buffers) and of calls."""

    defaults: dict[str, Any]
    step_cache: StepCache
    _betas: int = 2  # number of betas in a group
    _flags: ClassVar[list[str]]  # options of groups that are read as true or false

    def rule_of(self, group: Group) -> Rule:
        """Return the rule of a group with its wrapping options."""
        raise NotImplementedError

    def encodes_group(self, group: Group) -> bool:
        """Return True if slots of a group are stored in 8 bits."""
        # Built-in rules have no codecs, and with invalid options there may be no rule.
        defines_rule = hasattr(self, "rule") or hasattr(self._kind_of(group), "_prepared_rule")
        return bool((self.step_options.wrapping or defines_rule) and self.rule_of(group).codecs)

    def _check_storage(self, group: Group) -> None:
        """Raise if parameters of a group do not support 8-bit slots or stochastic rounding."""
        if self.step_options.of(Rounding).round is not None:
            with importing:
                from thalweg.optim.stochastic_rounding import check_params
            check_params(self, self.rule_of(group), group["params"])
        if self.encodes_group(group):
            with importing:
                from thalweg.optim.quantized_state import check_params
            check_params(self, group)

    def _check_effect(self, rules: Mapping[str, Rule]) -> None:
        """Raise InvalidArgumentError if `state_storage` is on, but no rule has a slot to encode.

        Args:
            rules: {title in messages: rule} of all groups.
        """
        storage = self.step_options.of(StateCodec).state_storage
        # None, or a mapping by slot.
        if not isinstance(storage, str):
            return
        with importing:
            from thalweg.optim.quantized_state import check_effect
        with self._drop_hooks_on_error():
            check_effect(storage, rules)

    @contextmanager
    def _drop_hooks_on_error(self) -> Generator[None]:
        """Remove the hooks of all parameters if the `with` block of a constructor raises."""
        try:
            yield
        except BaseException:
            for handle in self.step_cache.heard.values():
                handle.remove()
            raise

    def _check_matrices(self, rule: Rule, rule_title: str, place: int) -> None:
        """Raise unless a rule for matrices can update all parameters of a group.

        Args:
            rule_title: The name of the rule in messages.
            place: The index of the group.

        Raises:
            InvalidArgumentError: A parameter has fewer than two dimensions, or does not fit the
                layout.
            InvalidTypeError: A parameter is not float32, float64 or bfloat16.
            NotImplementedError: A parameter is on another device than its state.
        """
        with importing:
            from thalweg._engines.matrix_shapes import check_matrices
        params = self.param_groups[place]["params"]
        titles = parameter_names(self.param_groups, params)
        if any(param.dim() < 2 for param in params) and (flat := find_marked(params)):
            (title,) = parameter_names(self.param_groups, [flat.param])
            check_reductions(flat, title, rule, NOTHING)
        check_matrices(rule, rule_title, params, titles)
        for param, title in zip(params, titles, strict=True):
            if self.step_options.kinds.is_away(param):
                raise NotImplementedError(
                    f"'{title}' is on {param.device}, and {rule_title} has matrices where their"
                    " state is: leave out state_device='cpu'."
                )

    def check_flat_buffers(self, groups: Sequence[Group]) -> None:
        """Raise if a parameter is a flat buffer, and its rule or an option does not support it.

        FSDP and DeepSpeed join parameters in flat buffers. `accumulate` does not support flat
        buffers. Rules and options that depend on shapes or norms of parameters do not, either.

        Args:
            groups: The groups whose rules are checked. Buffers are searched in all groups.

        Raises:
            InvalidArgumentError: Names the buffer, and the rule or option.
        """
        transforms = self.step_options.base_transforms
        is_accumulating = self.step_options.of(Accumulation).accumulate > 1
        rules = {
            rule: getattr(self._kind_of(group), "_rule_by_shape", None) is not None
            for group in groups
            for rule in self.rules_around(group)
        }
        if not is_accumulating and not any(
            is_by_shape or is_reducing(rule, transforms) for rule, is_by_shape in rules.items()
        ):
            return
        params = params_of(self.param_groups)
        # Some libraries mark their buffers; DeepSpeed ZeRO puts unmarked ones into groups.
        flat = find_marked(params) or self.step_cache.added_params.find_replacement(params)
        if flat is not None:
            (title,) = parameter_names(self.param_groups, [flat.param])
            if is_accumulating:
                _check_accumulation(flat, title)
            for rule, is_by_shape in rules.items():
                check_reductions(flat, title, rule, transforms, is_by_shape=is_by_shape)

    def rules_around(self, group: Group) -> set[Rule]:
        """Return the rules that update parameters of a group, with their options."""
        raise NotImplementedError

    def _check_options(self, group: Group, group_index: int, complete: bool = True) -> None:
        """Raise if a group lacks an option, or sets an option that only the constructor may set.

        Args:
            group_index: The index of the group.
            complete: False if torch adds defaults later, so that options may be missing.

        Raises:
            InvalidArgumentError: The group sets an option of the constructor.
            NotFoundError: An option is missing.
        """
        problems = of_strange(group, self._invalid_options(group), group_index)
        if problems:
            raise InvalidArgumentError(f"{problems[0]}.")
        lacking = complete and [n for n in self._wanted_options(group) if n not in group]
        if lacking:
            raise NotFoundError(f"{lacking[0]!r} of group {group_index} is missing.")

    def _check_options_held(self) -> None:
        """Raise LayoutError if an option of a group is a tensor with freed storage."""
        for group in self.param_groups:
            check_options_held(group)

    def _unfit_options(self, group: Group, group_index: int) -> list[str]:
        """Return messages about options with which no step of a group is possible; [] if none."""
        if cut := [name for name, tensor in tensors_in(group) if is_cut(tensor)]:
            return [f"'{cut[0]}' of group {group_index} is {told(group[cut[0]])}"]
        kind = self._kind_of(group)
        try:
            choices = [f"{reason} in group {group_index}" for reason in self.choice_faults(group)]
        except KeyError as error:
            choices = [f"{error.args[0]!r} of group {group_index} is missing"]
        return [
            *of_options(group, self._wanted_options(group), kind._flags, group_index, kind._betas),
            *of_strange(group, self._invalid_options(group), group_index),
            *choices,
        ]

    def _unfit_groups(self, groups: Sequence[Group]) -> list[str]:
        """Return reasons why no step could be taken with groups that are each valid; [] if none."""
        return []

    def choice_faults(self, group: Group) -> list[str]:
        """Return a list with the reason why no rule has the options of a group; [] if one has.

        Raises:
            KeyError: An option is missing; `args[0]` is its name.
        """
        return self._kind_of(group)._unfit_choices(group)

    @classmethod
    def _unfit_choices(cls, group: Mapping[str, Any]) -> list[str]:
        """Return a list with the reason why no rule has the options of a group; [] if one has.

        Raises:
            KeyError: An option is missing; `args[0]` is its name.
        """
        try:
            cls._check_choices(group)
        except (TypeError, ValueError) as error:
            return [str(error).rstrip(".")]
        return []

    @classmethod
    def _check_choices(cls, group: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError if the options of a group choose no rule.

        `_unfit_choices` calls this method; by default all options choose a rule.
        """

    def _invalid_options(self, group: Mapping[str, Any]) -> dict[str, str]:
        """Return {option: reason against it} of options that only the constructor may set."""
        names = self.step_options.others(group)
        if isinstance(group.get("state_storage"), dict) and "state_storage" in names:
            with importing:
                from thalweg.optim.quantized_state import storage_of
            # The groups of an optimizer name the codec of each slot.
            if group["state_storage"] == storage_of(self.rule_of({**self.defaults, **group})):
                names.remove("state_storage")
        return {
            name: f"but {show_value(self.step_options.value(name))} in the constructor, which"
            " decides it for all groups"
            for name in names
        }

    def check_not_swapped(self, message: str) -> None:
        """Raise FailedPreconditionError in a block of `swapped()`, where parameters hold averages.

        Args:
            message: The message of the error: the call, its effect, and the alternative.
        """
        if self.step_cache.holds_averages:
            raise FailedPreconditionError(message)

    def _check_alone(self) -> None:
        """Raise FailedPreconditionError in a strategy of several replicas."""
        count = replicas()
        if count > 1:
            raise FailedPreconditionError(
                f"{type(self).__name__} would train this replica alone: optimizers of torch's kind"
                f" do not add up the gradients of the {count} replicas of the strategy. Take the"
                " step outside of strategy.run, with a module inside of"
                " torch.nn.parallel.DistributedDataParallel; or take it with an optimizer of"
                " thalweg.keras.optimizers or thalweg.v1."
            )

    def class_of(self, group: Group) -> type:
        """Return the class that updates a group."""
        kind = self._kind_of(group)
        return kind if isinstance(kind, type) else type(kind)

    def _kind_of(self, group: Group) -> Any:
        """Return the class or optimizer that defines the options of a group."""
        return type(self)

    def _wanted_options(self, group: Group) -> Sequence[str]:
        """Return the options of a group that a step reads."""
        raise NotImplementedError


def _check_accumulation(flat: FlatBuffer, title: str) -> None:
    """Raise InvalidArgumentError if the library of `flat` calls `step` for each flat buffer.

    The option `accumulate` cannot count such calls. `title` is the name of the buffer.
    """
    if flat.is_stepped_alone:
        raise InvalidArgumentError(
            f"'{title}' is a flat buffer of {flat.origin}, which calls step for each of its"
            " buffers: accumulate= counts calls for all parameters. Accumulate with that library."
        )
