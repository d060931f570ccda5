"""Wrappers of any rule's step, as `thalweg.rules.wrappers` has them."""

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

_LENGTHS = "both say how long a step is"


@dataclass(frozen=True, kw_only=True)
class Wrapper(Option):
    """The wrapper of the name of its only keyword. Sparse gradients are made dense.

    Attributes:
        without: A slot that it adds, and what is said of parameters that are 0 when they get it.
    """

    without: ClassVar[tuple[str, ...]] = ()
    beside: ClassVar[dict[str, str]] = {}  # what it cannot be together with, and why

    def __post_init__(self) -> None:
        self._check_bool(self.keywords()[0].name)

    def check_beside(self, others: Others) -> None:
        own = self.keywords()[0].name
        for kind in (CautiousDecay, Cautious, TrustRatio, Sphere, RowFloor, RadialBrake):
            (other,) = (each.name for each in kind.keywords())
            if other in self.beside and others.of(kind).on:
                raise InvalidArgumentError(
                    f"{own} and {other} cannot be together: {self.beside[other]}."
                )

    def rule(self, rule: Rule) -> Rule:
        """The rule with the wrapper around its step.

        Raises:
            RuleError: The rule cannot have it; says why.
        """
        (name,) = (each.name for each in self.keywords())
        given = getattr(self, name)
        return _wrapped(rule, name, *(() if given is True else (given,)))


@lru_cache(None)
def _wrapped(rule: Rule, name: str, *given: float) -> Rule:
    with importing:
        from thalweg._engines.formula_parser import transcribe
        from thalweg.rules import wrappers
    found = getattr(wrappers, name)(rule, *given)
    try:
        transcribe(found.update)
    except RuleError as error:
        if name == CautiousDecay.keywords()[0].name:
            raise RuleError(
                f"cautious_decay needs decoupled weight decay, as AdamW's, and {rule.name!r} has"
                f" none: leave it out, or use another optimizer. {error}"
            ) from None
        raise RuleError(f"Rule {found.name!r}: {error}") from None
    return found


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class CautiousDecay(Wrapper):
    """Option that decays only those elements whose step makes them smaller.

    Attributes:
        cautious_decay: Decoupled decay, as AdamW's, is left out of the elements that a step moves
            away from 0. Rules without it are refused. https://arxiv.org/abs/2510.12402
    """

    beside = {"sphere": "a sphere has no decay"}
    cautious_decay: bool = False


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Cautious(Wrapper):
    """Option that leaves elements unchanged whose step would go uphill.

    Attributes:
        cautious: An element whose step has the sign of its gradient would go uphill, and stays. The
            steps of the others are divided by their share of the parameter, at least 0.001.
            https://arxiv.org/abs/2411.16085
    """

    cautious: bool = False


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class TrustRatio(Wrapper):
    """Option that makes steps as long as their parameters, times the rate.

    Attributes:
        trust_ratio: The step of each parameter is multiplied by the parameter's norm over that of
            the step without its rate, where neither is 0: LAMB's way with Adam, LARS' with SGD.
            https://arxiv.org/abs/1904.00962
    """

    beside = {"sphere": _LENGTHS}
    trust_ratio: bool = False


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Sphere(Wrapper):
    """Option that keeps parameters at the norm that they begin with.

    Attributes:
        sphere: A step is as long as its parameter, times the rate, and leads to one of the norm
            that the parameter had before its first step, which is `radius` in its state. Decay
            beside the step has no effect. A parameter that begins at 0 takes the rule's own steps,
            of which a warning tells. https://arxiv.org/abs/2606.16899
    """

    changes_state = True
    keeps_beside = ("radius",)
    without = ("radius", "is 0 and has no sphere, so sphere=True leaves its steps as they are.")
    sphere: bool = False


class _Share(Wrapper):
    """A wrapper by a number, of which there is a usual one."""

    usual: ClassVar[float]
    highest: ClassVar[float | None]

    def __post_init__(self) -> None:
        name = self.keywords()[0].name
        given = getattr(self, name)
        if isinstance(given, bool):
            given = self.usual if given else None
            object.__setattr__(self, name, given)  # as others are compared by it
        if given is not None:
            with importing:
                from thalweg.rules.wrappers.base import check_share
            check_share(name, given, self.highest)


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class RowFloor(_Share):
    """Option that moves rows of matrices at least by a share of their length, times the rate.

    Attributes:
        row_floor: Each row's step is made at least that long, as a share of the row, times the
            rate; True is 0.3825. Parameters that have not two dimensions are refused.
            https://github.com/KellerJordan/modded-nanogpt/pull/328
    """

    usual, highest = 0.3825, None
    row_floor: bool | float | None = None

    def check_param(self, param: Tensor, title: str) -> None:
        if self.row_floor is not None and param.dim() != 2:
            raise InvalidArgumentError(
                f"'{title}' has shape {tuple(param.shape)}, and row_floor is for parameters of two"
                " dimensions: leave it to another optimizer, or to a group of Mixed whose rule is"
                " not wrapped by thalweg.rules.wrappers.row_floor."
            )


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class RadialBrake(_Share):
    """Multiplication of parameters whose norm a step makes larger.

    Attributes:
        radial_brake: Where a step makes the norm of its parameter larger than it was after the
            decay beside the step, this share of the growth is left; True is 0.5, and 0 leaves
            none. Other steps are as they are. https://github.com/KellerJordan/modded-nanogpt/pull/294
    """

    usual, highest = 0.5, 1.0
    beside = {"sphere": "on a sphere no norm grows"}
    radial_brake: bool | float | None = None
