"""Classes for user-defined rules in groups of `Mixed`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, update_wrapper
from inspect import Parameter, Signature, signature
from typing import Any, ClassVar

import torch

from thalweg._core.param_groups import Group, Params
from thalweg._core.step_scalars import defaults_of
from thalweg._engines.rule_check import check_rule
from thalweg.formula import Rule
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.optim.group_options import as_options, hypers_of, members_of
from thalweg.optim.modern.optimizer import Arguments
from thalweg.optim.step_options import check_hypers


class UserRuleArguments(Arguments):
    """Base class of constructors with the hyperparameters of a user-defined rule."""

    _declared_rule: ClassVar[Rule]
    _torch: ClassVar[Any]
    __signature__: Signature

    def __init__(self, params: Params, **options: Any) -> None:
        args = self._torch.__signature__.parameters.values()
        defaults = {arg.name: arg.default for arg in args if arg.name != "params"} | options
        hypers_of(defaults, self._declared_rule)
        torch.optim.Optimizer.__init__(self, params, defaults)


UserRuleArguments.__signature__ = Signature([Parameter("params", Parameter.POSITIONAL_OR_KEYWORD)])


class UserRuleOptimizer(FusedTorchOptimizer, UserRuleArguments):
    """Optimizer of a user-defined rule, with torch's numbers."""

    _number_dtype = torch.float32
    _declared_rule: ClassVar[Rule]
    _prepared_rule: ClassVar[Rule]

    @classmethod
    def _signature(cls) -> Signature:
        return cls._torch.__signature__

    @classmethod
    def _choose_rule(cls, group: Group) -> Rule:
        return cls._prepared_rule


@cache
def class_of(rule: Rule) -> type[UserRuleOptimizer]:
    """Return the optimizer class of a user-defined rule, which is created once per rule.

    The class has the name of the rule.

    Raises:
        RuleError: The rule cannot take a step, or a hyperparameter has a reserved name.
    """
    hypers = defaults_of(rule)
    check_rule(rule, hypers)
    kind = Parameter.POSITIONAL_OR_KEYWORD
    options = as_options(hypers)
    check_hypers(rule, options)
    parameters = [Parameter(name, kind, default=value) for name, value in options.items()]
    accepted = Signature([Parameter("params", kind), *parameters])
    namespace = {"_declared_rule": rule, "__signature__": accepted}
    # In place of a class of torch, `_torch` has the constructor, but no step.
    body = {
        "_torch": type(rule.name, (UserRuleArguments,), namespace),
        "_declared_rule": rule,
        "_prepared_rule": _with_powers(rule),
        "_of_matrices": bool(rule.passes),
        "_betas": len(members_of("betas", hypers)),
    }
    return type(rule.name, (UserRuleOptimizer,), body)


def _with_powers(rule: Rule) -> Rule:
    """Return a copy of a rule whose `prepare` also returns the powers `hyper ** t`.

    The engines compute `Rule.powers` with TensorFlow's rounding. Torch-style optimizers need Python
    floats instead. The copy has no `powers`.
    """
    users = rule.prepare
    user_args = () if users is None else tuple(signature(users).parameters)
    scalars = (*rule.hypers, *rule.numbers, *rule.common_slots)
    # Powers among the arguments of the user's `prepare` are computed here.
    available = {*(scalar.name for scalar in scalars), "t"}
    names = [name for name in user_args if name in available]
    if rule.powers:
        names += [*rule.powers.values(), "t"]

    def prepare(**arguments: Any) -> dict[str, Any]:
        """Return {name: scalar}: powers and results of the given `prepare`."""
        powers = {name: arguments[hyper] ** arguments["t"] for name, hyper in rule.powers.items()}
        values = {**arguments, **powers}
        if users is None:
            return powers
        return {**powers, **users(**{name: values[name] for name in user_args if name in values})}

    wrapped: Any = prepare if users is None else update_wrapper(prepare, users)
    wrapped.__signature__ = Signature(
        [Parameter(name, Parameter.KEYWORD_ONLY) for name in dict.fromkeys(names)]
    )
    return replace(rule, prepare=wrapped, powers={})
