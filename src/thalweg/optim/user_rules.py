"""Rules of the user's own in groups of `Mixed`: what stands for a class of this package."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, update_wrapper
from inspect import Parameter, Signature, signature
from typing import Any, ClassVar

import torch

from thalweg._core.param_groups import Group
from thalweg._core.step_scalars import defaults_of
from thalweg._engines.rule_check import check_rule
from thalweg.formula import Rule
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.optim.group_options import as_options, hypers_of, members_of
from thalweg.optim.modern.arguments import Arguments
from thalweg.optim.step_options import check_hypers


class OwnArguments(Arguments):
    """Base class of constructors with parameters and the hyperparameters of a user's rule."""

    _given: ClassVar[Rule]
    _torch: ClassVar[Any]
    __signature__: Signature

    def __init__(self, params: Any, **options: Any) -> None:
        own = self._torch.__signature__.parameters.values()
        defaults = {each.name: each.default for each in own if each.name != "params"} | options
        hypers_of(defaults, self._given)
        torch.optim.Optimizer.__init__(self, params, defaults)


OwnArguments.__signature__ = Signature([Parameter("params", Parameter.POSITIONAL_OR_KEYWORD)])


class OwnRule(FusedTorchOptimizer, OwnArguments):
    """Optimizer of a user's rule, with the numbers of torch's classes."""

    _torch = OwnArguments
    _number_dtype = torch.float32
    _given: ClassVar[Rule]
    _taken: ClassVar[Rule]

    @classmethod
    def _signature(cls) -> Signature:
        return cls._torch.__signature__

    @classmethod
    def _choose_rule(cls, group: Group) -> Rule:
        return cls._taken


@cache
def class_of(rule: Rule) -> type[OwnRule]:
    """Return a class for a rule, by whose name groups call it.

    Raises:
        RuleError: The rule could not take a step, or a hyperparameter is called as what all groups
            have.
    """
    own = defaults_of(rule)
    check_rule(rule, own)
    how = Parameter.POSITIONAL_OR_KEYWORD
    options = as_options(own)
    check_hypers(rule, options)
    parameters = [Parameter(name, how, default=value) for name, value in options.items()]
    beneath = {"_given": rule, "__signature__": Signature([Parameter("params", how), *parameters])}
    body = {
        "_torch": type(rule.name, (OwnArguments,), beneath),
        "_given": rule,
        "_taken": _prepared(rule),
        "_of_matrices": bool(rule.passes),
        "_betas": len(members_of("betas", own)),
    }
    return type(rule.name, (OwnRule,), body)


def _prepared(rule: Rule) -> Rule:
    """A rule whose `prepare` makes all that depends on the step: its powers, too."""
    users = rule.prepare
    wanted = () if users is None else tuple(signature(users).parameters)
    numbers = (*rule.hypers, *rule.numbers, *rule.common_slots)
    known = {*(each.name for each in numbers), "t"}
    asked = [name for name in wanted if name in known]
    if rule.powers:
        asked += [*rule.powers.values(), "t"]

    def prepare(**given: Any) -> dict[str, Any]:
        powers = {name: given[hyper] ** given["t"] for name, hyper in rule.powers.items()}
        own = {**given, **powers}
        made = {} if users is None else users(**{name: own[name] for name in wanted if name in own})
        return {**powers, **made}

    taken: Any = prepare if users is None else update_wrapper(prepare, users)
    taken.__signature__ = Signature(
        [Parameter(name, Parameter.KEYWORD_ONLY) for name in dict.fromkeys(asked)]
    )
    return replace(rule, prepare=taken, powers={})
