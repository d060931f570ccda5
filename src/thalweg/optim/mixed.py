"""`Mixed`: one optimizer with different rules for its groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from thalweg._base.matrix_layout import ONE_MATRIX
from thalweg._base.showing import show_value
from thalweg._core.param_groups import Group
from thalweg._core.state import shown
from thalweg.errors import InvalidArgumentError, InvalidTypeError, NotFoundError, did_you_mean
from thalweg.formula import Rule
from thalweg.optim.class_lookup import class_named, kind_of
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.optim.group_options import title_of
from thalweg.optim.modern.optimizer import Arguments, layout_of
from thalweg.optim.modern.schedule_free import Means
from thalweg.optim.param_state import Entries
from thalweg.optim.rule_names import KINDS
from thalweg.optim.step_options import KEYWORDS

if TYPE_CHECKING:
    from thalweg.optim.layout_decisions import MatrixLayouts


class MixedArguments(Arguments):
    """Base class of `Mixed` that checks its arguments."""

    def __init__(self, params: Iterable[Mapping[str, object]]) -> None:
        super().__init__(params)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            # Torch's `__setstate__` adds options that older releases of torch did not save.
            if group.get("rule") in KINDS:
                kind: Any = class_named(group["rule"])
                group_state: dict[str, Any] = {"state": {}, "param_groups": [group], "defaults": {}}
                kind._torch.__setstate__(kind.__new__(kind), group_state)


# Python's errors about arguments name the function by its qualified name.
MixedArguments.__init__.__qualname__ = "Mixed.__init__"


class Mixed(Means, FusedTorchOptimizer, MixedArguments):
    """Optimizer whose groups have a rule each; a step updates all groups, or none.

    All gradients have one norm for clipping; all groups share `state_dict`, `last_step` and
    schedulers. State and options of a group are those of its rule's class.

    Args:
        params: Groups, as torch's optimizers take them. Each group has a `rule`: a class of
            `thalweg.optim`, its name, or a `thalweg.Rule` of your own. Missing options get the
            rule's defaults. `thalweg.optim.groups(model, rules=...)` returns such groups. Groups
            and states store the name of your own rule, which computes with torch's numbers.

    Raises:
        NotFoundError: A group has no rule.
        InvalidTypeError, InvalidArgumentError: A rule is invalid or has another rule's name, or an
            option belongs to other classes only.
        RuleError: A rule of your own cannot take a step.
        TypeError, ValueError: As the class of a rule raises them.

    Example:
        >>> from torch import nn
        >>> from thalweg import optim
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
        >>> rules = {"1.weight": {"rule": "Lion", "lr": 1e-4}, ...: "AdamW"}
        >>> optimizer = optim.Mixed(optim.groups(model, rules=rules))
        >>> [(group["rule"], len(group["params"])) for group in optimizer.param_groups]
        [('AdamW', 4), ('Lion', 1)]
    """

    _named: Mapping[str, Rule] = {}  # rules of the user's own
    # Decisions of `for_model` about parameters, which `print` shows.
    layouts: MatrixLayouts | None = None

    def __str__(self) -> str:
        """Return a table of groups with the reasons of `for_model`, or else the `repr`."""
        return repr(self) if self.layouts is None else self.layouts.by_group(self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group that has a `rule`; change nothing on an error.

        Args:
            param_group: The parameters under `params`, the rule or its name under `rule`, and
                options.

        Raises:
            NotFoundError: The group has no rule.
            TypeError, ValueError: The rule or an option is invalid.
        """
        former_rules = self._named
        try:
            # Torch raises for other types.
            if isinstance(param_group, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                index = len(self.param_groups)
                if isinstance(rule := param_group.get("rule"), Rule):
                    self._named = _with_rule(former_rules, rule, index)
                    param_group = {**param_group, "rule": rule.name}
                param_group = _complete_group(param_group, index, self._named)
            super().add_param_group(param_group)
        except BaseException:
            # The rule of a group that was not added must not stay known by its name.
            self._named = former_rules
            raise

    def _kind_of(self, group: Group) -> type[FusedTorchOptimizer]:
        return _kind_named(group, self._named)

    def _choose_rule(self, group: Group) -> Rule:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the `Rule` for a group's options; raise NotFoundError if an option is missing."""
        kind = _kind_named(group, self._named)
        try:
            return kind._choose_rule(group)
        except KeyError as error:
            raise NotFoundError(
                f"A group whose rule is {kind.__name__} has no {error.args[0]!r}: a rule is given"
                " when the group is added."
            ) from error

    def _initials_of_group(self, group: Group) -> Entries:
        return self._kind_of(group)._initials_of_group(self, group)

    @property
    def _has_means(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if a group has a schedule-free rule."""
        return any(issubclass(self._kind_of(group), Means) for group in self.param_groups)

    @property
    def _single(self) -> set[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {name for group in self.param_groups for name in self._kind_of(group)._single}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_named": self._named, "layouts": self.layouts}

    def _unfit_options(self, group: Group, group_index: int) -> list[str]:
        rule, current_rule = group.get("rule"), self.param_groups[group_index]["rule"]
        if rule != current_rule:
            return [f"the rule of group {group_index} is {shown(rule)}, here {current_rule!r}"]
        return super()._unfit_options(group, group_index)

    def _invalid_options(self, group: Mapping[str, Any]) -> dict[str, str]:
        """Return {option: reason against it} of a group's options that its rule does not have."""
        reasons = super()._invalid_options(group)
        reasons.pop("rule", None)
        if group.get("differentiable"):
            reasons["differentiable"] = "which torch's own classes alone take"
        rule = group.get("rule")
        if isinstance(rule, str) and (rule in KINDS or rule in self._named):
            unknown = _foreign_options(self._kind_of({"rule": rule})).intersection(group)
            reasons |= dict.fromkeys(sorted(unknown), f"which is no option of {rule}")
        return reasons


def _kind_named(group: Group, rules_by_name: Mapping[str, Rule]) -> Any:
    """Return the class for a group's rule; `rules_by_name` has the rules of the user."""
    rule = group.get("rule")
    if not isinstance(rule, str):
        raise InvalidTypeError(f"The rule of a group must be a name here, not {shown(rule)}.")
    return kind_of(rules_by_name.get(rule, rule))


def _with_rule(rules_by_name: Mapping[str, Rule], rule: Rule, index: int) -> Mapping[str, Rule]:
    """Return `rules_by_name` with one more entry, {rule.name: rule}.

    Raises:
        InvalidArgumentError: A class or another rule has the name of `rule`.
        RuleError: The rule cannot take a step.
    """
    # Raises RuleError for a rule that cannot take a step.
    kind_of(rule)
    conflict = f"a class of thalweg.optim is {rule.name!r}, too" if rule.name in KINDS else ""
    if rules_by_name.get(rule.name, rule) is not rule:
        conflict = "another rule of this optimizer has that name"
    if conflict:
        raise InvalidArgumentError(
            f"The rule of group {index} is named {rule.name!r}, and {conflict}, by which"
            " groups and states tell rules apart: name it otherwise."
        )
    return {**rules_by_name, rule.name: rule}


def _complete_group(group: Group, index: int, user_rules: Mapping[str, Rule]) -> Group:
    """Return a copy of a group with all options of its rule, and the rule's name as "rule".

    Args:
        index: The index that the group will have.
        user_rules: {name: rule} of the user's rules.
    """
    if "rule" not in group:
        raise NotFoundError(
            f"Group {index} has no 'rule': the name of a class of thalweg.optim, such as 'AdamW'."
        )
    rule = group["rule"]
    kind = kind_of(user_rules.get(rule, rule) if isinstance(rule, str) else rule)
    class_name = kind.__name__
    unknown = sorted(_foreign_options(kind).intersection(group))
    if unknown:
        raise InvalidArgumentError(f"{unknown[0]!r} of group {index} is no option of {class_name}.")
    accepted = {*kind.constructor_signature.parameters, *kind.fixed_options} - {"self"}
    for name in group:
        if name in accepted or name in _FREE_KEYS:
            continue
        if title_of(name) in accepted or did_you_mean(name, accepted):
            hint = did_you_mean(name, accepted) or f"Did you mean {title_of(name)!r}?"
            raise InvalidArgumentError(
                f"{name!r} of group {index} is no option of {class_name}. {hint}"
            )
    for name, value in kind.fixed_options.items():
        if group.get(name, value) != value:
            raise InvalidArgumentError(
                f"{name!r} of group {index} is {shown(group[name])}: {class_name} has"
                f" {show_value(value)}."
            )
    # Options are compared with those of the constructor; the stand-in need not fit them.
    names = group.keys() - _IGNORED
    init_names = [name for name in kind.constructor_signature.parameters if name in names]
    # Expanded from one element, so that a large layout takes no memory.
    template = torch.zeros(1, 1, dtype=torch.float32, device="cpu").expand(_shape_for(kind, group))
    checked = kind([template], **{name: group[name] for name in init_names}).param_groups[0]
    del checked["params"]
    return {**checked, **group, "rule": kind.__name__}


def _shape_for(kind: Any, group: Group) -> tuple[int, ...]:
    """Return a small shape that the matrix layout of a group fits.

    Raise ValueError if the layout is invalid.
    """
    if user_rule := getattr(kind, "_prepared_rule", None):
        return user_rule.layout.smallest_shape
    return (layout_of(group) or ONE_MATRIX).smallest_shape


_IGNORED = {"self", "params", *KEYWORDS}
# Entries that are not options; schedules write some of them.
_FREE_KEYS = ("rule", "param_names", "initial_lr", "max_lr", "min_lr", "swa_lr")


def _foreign_options(kind: Any) -> set[str]:
    """Return the options of other classes that a class does not have."""
    return _all_options().difference(kind.constructor_signature.parameters, kind.fixed_options)


@cache
def _all_options() -> set[str]:
    """Return the options that classes of this package read."""
    return {name for kind_name in KINDS for name in class_named(kind_name).read_options}
