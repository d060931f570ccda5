"""`Mixed`: one optimizer whose groups are updated by different rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch

from thalweg.core.groups import Group
from thalweg.core.state import shown
from thalweg.errors import InvalidArgumentError, InvalidTypeError, NotFoundError, did_you_mean
from thalweg.formula import Rule
from thalweg.optim.class_of import class_named, kind_of
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.optim.groups import title_of
from thalweg.optim.kinds import KINDS
from thalweg.optim.modern.arguments import Arguments
from thalweg.optim.modern.schedule_free import Means
from thalweg.optim.param_state import Own


class MixedArguments(Arguments):
    """What `Mixed` is given."""

    def __init__(self, params: Iterable[Mapping[str, object]]) -> None:
        super().__init__(params)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            if group.get("rule") in KINDS:  # what an older release of torch had not is as it was
                kind: Any = class_named(group["rule"])
                own = {"state": {}, "param_groups": [group], "defaults": {}}
                kind._torch.__setstate__(kind.__new__(kind), own)


MixedArguments.__init__.__qualname__ = "Mixed.__init__"  # by which Python's errors call it


class Mixed(Means, FusedTorchOptimizer, MixedArguments):
    """Groups with a rule each, in one step: all of them are updated, or none.

    One norm clips all gradients, one `state_dict` has all state, `last_step` tells of all groups,
    and a schedule of the rate sees each. State and options are those of the rule's class.

    Args:
        params: Groups as torch takes them, each with a `rule`, a class of `thalweg.optim` or its
            name, and options of that class; what a group lacks is that class's default.
            `thalweg.optim.groups(model, rules=...)` makes such.

    Raises:
        NotFoundError: A group has no rule.
        InvalidTypeError, InvalidArgumentError: Its rule is no class of `thalweg.optim`, or it has
            an option that other classes take, and that one does not.
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

    _torch = MixedArguments

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, all of it or nothing; the group has a `rule`.

        Raises:
            NotFoundError, TypeError, ValueError: As the class.
        """
        given: object = param_group
        if isinstance(given, dict):  # else torch refuses it
            param_group = _completed(param_group, len(self.param_groups))
        super().add_param_group(param_group)

    def _kind_of(self, group: Group) -> type[FusedTorchOptimizer]:
        return _kind_named(group)

    @staticmethod
    def _choose_rule(group: Group) -> Rule:
        kind = _kind_named(group)
        try:
            return kind._choose_rule(group)
        except KeyError as error:
            raise NotFoundError(
                f"A group whose rule is {kind.__name__} has no {error.args[0]!r}: a rule is given"
                " when the group is added."
            ) from error

    def _starts_of(self, group: Group) -> Own:
        return self._kind_of(group)._starts_of(self, group)

    @property
    def _has_means(self) -> bool:
        return any(issubclass(self._kind_of(group), Means) for group in self.param_groups)

    @property
    def _single(self) -> set[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {name for group in self.param_groups for name in self._kind_of(group)._single}

    def _unfit_options(self, group: Group, place: int) -> list[str]:
        rule, own = group.get("rule"), self.param_groups[place]["rule"]
        if rule != own:
            return [f"the rule of group {place} is {shown(rule)}, here {own!r}"]
        return super()._unfit_options(group, place)

    def _strange_options(self, group: Mapping[str, Any]) -> dict[str, str]:
        found = super()._strange_options(group)
        found.pop("rule", None)
        if group.get("differentiable"):
            found["differentiable"] = "which torch's own classes alone take"
        if isinstance(rule := group.get("rule"), str) and rule in KINDS:
            strange = _of_others(rule).intersection(group)
            found |= dict.fromkeys(sorted(strange), f"which is no option of {rule}")
        return found


def _kind_named(group: Group) -> Any:
    """The class of a group that was added, whose rule is a name."""
    rule = group.get("rule")
    if not isinstance(rule, str):
        raise InvalidTypeError(f"The rule of a group must be a name here, not {shown(rule)}.")
    return kind_of(rule)


def _completed(group: Group, place: int) -> Group:
    """A group with all the options of its rule, which are checked."""
    if "rule" not in group:
        raise NotFoundError(
            f"Group {place} has no 'rule': the name of a class of thalweg.optim, such as 'AdamW'."
        )
    kind = kind_of(group["rule"])
    title = kind.__name__
    strange = sorted(_of_others(title).intersection(group))
    if strange:
        raise InvalidArgumentError(f"{strange[0]!r} of group {place} is no option of {title}.")
    known = {*kind.__signature__.parameters, *kind._fixed}
    for name in group:
        is_meant = name not in known and (title_of(name) in known or did_you_mean(name, known))
        if is_meant and name not in _BESIDE:
            near = did_you_mean(name, known) or f"Did you mean {title_of(name)!r}?"
            raise InvalidArgumentError(f"{name!r} of group {place} is no option of {title}. {near}")
    for name, value in kind._fixed.items():
        if group.get(name, value) != value:
            raise InvalidArgumentError(
                f"{name!r} of group {place} is {shown(group[name])}: {title} has {value!r}."
            )
    own = [name for name in kind.__signature__.parameters if name in group and name != "params"]
    checked = kind([torch.zeros(1, 1)], **{name: group[name] for name in own}).param_groups[0]
    del checked["params"]
    return {**checked, **group, "rule": kind.__name__}


_BESIDE = ("rule", "param_names", "initial_lr", "max_lr", "min_lr", "swa_lr")  # of schedules, too


@cache
def _of_others(rule: str) -> set[str]:
    """The options of all classes that one does not have."""
    names, own = {name for each in KINDS for name in class_named(each)._wanted}, class_named(rule)
    return names.difference(own.__signature__.parameters, own._fixed)
