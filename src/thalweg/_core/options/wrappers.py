"""Options that wrap the step of a rule with `thalweg.rules.wrappers`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from torch import Tensor

from thalweg._base.exports import exported_from
from thalweg._base.locks import importing
from thalweg._core.options.base import Option, Others
from thalweg.errors import InvalidArgumentError, RuleError
from thalweg.formula import Rule


@dataclass(frozen=True, kw_only=True)
class Wrapper(Option):
    """Option of one keyword that changes the step of a rule and makes sparse gradients dense.

    Attributes:
        sphere_conflict: The reason why the option excludes `Sphere`; "" if it does not.
    """

    sphere_conflict: ClassVar[str] = ""

    def check_beside(self, options: Others) -> None:
        if self.sphere_conflict and options.of(Sphere).on:
            raise InvalidArgumentError(
                f"{self.keywords()[0].name} and sphere cannot be together: {self.sphere_conflict}."
            )

    def rule(self, rule: Rule) -> Rule:
        """Return the rule with its step wrapped.

        Raises:
            RuleError: The rule does not support the wrapper.
        """
        (keyword,) = (field.name for field in self.keywords())
        setting = getattr(self, keyword)
        return _wrap_rule(rule, keyword, *(() if setting is True else (setting,)))


# Rules are compared by identity, so equal settings must give the same rule to share plans.
@lru_cache(None)
def _wrap_rule(rule: Rule, name: str, *factors: float) -> Rule:
    """Call the function `name` of `thalweg.rules.wrappers` with a rule, and return the result.

    Raises:
        RuleError: The wrapped formula cannot be compiled, or a codec does not support it.
    """
    with importing:
        from thalweg._engines.formula_parser import trace_formula
        from thalweg.rules import wrappers
    wrapped_rule = getattr(wrappers, name)(rule, *factors)
    try:
        trace_formula(wrapped_rule.update)
    except RuleError as error:
        if name == CautiousDecay.keywords()[0].name:
            raise RuleError(
                f"cautious_decay needs decoupled weight decay, as AdamW's, and {rule.name!r} has"
                f" none: leave it out, or use another optimizer. {error}"
            ) from None
        raise RuleError(f"Rule {wrapped_rule.name!r}: {error}") from None
    if wrapped_rule.codecs:
        with importing:
            from thalweg._engines.codecs.rules import find_storage_fault
        if fault := find_storage_fault(wrapped_rule):
            raise RuleError(f"Rule {wrapped_rule.name!r}: {fault}.")
    return wrapped_rule


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class CautiousDecay(Wrapper):
    """Weight decay of only those elements that the step moves toward 0.

    Attributes:
        cautious_decay: True if decoupled decay, as in AdamW, skips elements that the step moves
            away from 0. Rules without decoupled decay raise RuleError.
            https://arxiv.org/abs/2510.12402
    """

    sphere_conflict = "a sphere has no decay"
    cautious_decay: bool = False


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Cautious(Wrapper):
    """Steps that skip elements that would move uphill.

    Attributes:
        cautious: True skips elements whose step and gradient differ in sign. The remaining steps
            are divided by the fraction of remaining elements, at least 0.001.
            https://arxiv.org/abs/2411.16085
    """

    cautious: bool = False


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class TrustRatio(Wrapper):
    """Steps whose norm is the parameter's norm times the learning rate.

    Attributes:
        trust_ratio: True multiplies a step by the parameter's norm over the norm of the step
            without learning rate, unless a norm is 0. Adam becomes LAMB, and SGD becomes LARS.
            https://arxiv.org/abs/1904.00962
    """

    sphere_conflict = "both say how long a step is"
    trust_ratio: bool = False


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Sphere(Wrapper):
    """Steps on the sphere of each parameter's initial norm.

    Attributes:
        sphere: True gives a step the norm of its parameter times the learning rate, and restores
            the parameter's initial norm, `radius` in the state. Decoupled decay has no effect. A
            parameter that is 0 at first has ordinary steps, with a warning.
            https://arxiv.org/abs/2606.16899
    """

    changes_state = True
    keeps_beside = ("radius",)
    without = ("radius", "is 0 and has no sphere, so sphere=True leaves its steps as they are.")
    sphere: bool = False


class _Share(Wrapper):
    """Wrapper whose value is a number; True is the default number, and False is None."""

    default: ClassVar[float]
    maximum: ClassVar[float | None]

    def __post_init__(self) -> None:
        name = self.keywords()[0].name
        factor = getattr(self, name)
        if isinstance(factor, bool):
            factor = self.default if factor else None
            # Options are compared by their fields, so equal settings need equal values.
            object.__setattr__(self, name, factor)
        if factor is not None:
            with importing:
                from thalweg.rules.wrappers.base import check_share
            check_share(name, factor, self.maximum)


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class RowFloor(_Share):
    """Minimum norm of the steps of matrix rows.

    Attributes:
        row_floor: Minimum norm of a row's step, divided by the row's norm times the learning rate.
            True is 0.3825. Parameters that are not matrices raise InvalidArgumentError.
            https://github.com/KellerJordan/modded-nanogpt/pull/328
    """

    default, maximum = 0.3825, None
    row_floor: bool | float | None = None

    def check_param(self, param: Tensor, label: str) -> None:
        if self.row_floor is not None and param.dim() != 2:
            raise InvalidArgumentError(
                f"'{label}' has shape {tuple(param.shape)}, and row_floor is for parameters of two"
                " dimensions: leave it to another optimizer, or to a group of Mixed whose rule is"
                " not wrapped by thalweg.rules.wrappers.row_floor."
            )


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class RadialBrake(_Share):
    """Limit on the growth of parameter norms.

    Attributes:
        radial_brake: Factor of the growth of a parameter's norm in a step, relative to the norm
            after decoupled decay. True is 0.5, and 0 keeps the norm. Steps that shrink the norm are
            unchanged. https://github.com/KellerJordan/modded-nanogpt/pull/294
    """

    default, maximum = 0.5, 1.0
    sphere_conflict = "on a sphere no norm grows"
    radial_brake: bool | float | None = None
