"""Wrappers of any rule's step, as `thalweg.rules.wrappers` has them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from thalweg.core.options.option import Option, Others
from thalweg.errors import InvalidArgumentError, RuleError
from thalweg.formula import Rule
from thalweg.ground.locks import importing

_MEASURES = "what one measures of a step would follow from what the other has measured"


@dataclass(frozen=True, kw_only=True)
class Wrapper(Option):
    """The wrapper of the name of its only keyword, a bool. Sparse gradients are made dense.

    Attributes:
        without: A slot that it adds, and what is said of parameters that are 0 when they get it.
    """

    without: ClassVar[tuple[str, ...]] = ()
    beside: ClassVar[dict[str, str]] = {}  # what it cannot be together with, and why

    def __post_init__(self) -> None:
        self._check_bool(self.keywords()[0].name)

    def check_beside(self, others: Others) -> None:
        own = self.keywords()[0].name
        for kind in Wrapper.__subclasses__():
            (other,) = (each.name for each in kind.keywords())
            if other in self.beside and others.of(kind).on:
                raise InvalidArgumentError(
                    f"{own}=True and {other}=True cannot be together: {self.beside[other]}."
                )

    def rule(self, rule: Rule) -> Rule:
        """The rule with the wrapper around its step.

        Raises:
            RuleError: The rule cannot have it; says why.
        """
        return _wrapped(rule, self.keywords()[0].name)


@cache
def _wrapped(rule: Rule, name: str) -> Rule:
    with importing:
        from thalweg.engines.transcribe import transcribe
        from thalweg.rules import wrappers
    found = getattr(wrappers, name)(rule)
    try:
        transcribe(found.update)
    except RuleError as error:
        raise RuleError(f"Rule {found.name!r}: {error}") from None
    return found


@dataclass(frozen=True, kw_only=True)
class CautiousDecay(Wrapper):
    """Elements decay where their step makes them smaller, and nowhere else.

    Attributes:
        cautious_decay: Decoupled decay, as AdamW's, is left out of the elements that a step moves
            away from 0. Rules without it are refused. https://arxiv.org/abs/2510.12402
    """

    beside = {"sphere": "a sphere has no decay"}
    cautious_decay: bool = False


@dataclass(frozen=True, kw_only=True)
class Cautious(Wrapper):
    """No element moves against its gradient.

    Attributes:
        cautious: Elements whose step would go against their gradient stay, and the steps of others
            are divided by their share of the parameter, which counts as at least 0.001.
            https://arxiv.org/abs/2411.16085
    """

    beside = {"trust_ratio": _MEASURES, "sphere": _MEASURES}
    cautious: bool = False


@dataclass(frozen=True, kw_only=True)
class TrustRatio(Wrapper):
    """Steps are as long as their parameters, times the rate.

    Attributes:
        trust_ratio: The step of each parameter is multiplied by the parameter's norm over that of
            the step without its rate, where neither is 0: LAMB's way with Adam, LARS' with SGD.
            https://arxiv.org/abs/1904.00962
    """

    beside = {"sphere": _MEASURES}
    trust_ratio: bool = False


@dataclass(frozen=True, kw_only=True)
class Sphere(Wrapper):
    """Parameters keep the norm that they begin with.

    Attributes:
        sphere: A step is as long as its parameter, times the rate, and leads to one of the norm
            that the parameter had before its first step, which is `radius` in its state. Decay
            beside the step has no effect. A parameter that begins at 0 takes the rule's own steps,
            of which a warning tells. https://arxiv.org/abs/2606.16899
    """

    changes_state = True
    without = ("radius", "is 0 and has no sphere, so sphere=True leaves its steps as they are.")
    sphere: bool = False
