"""`StepWrapper`: an option that is a wrapper of any rule; see `thalweg.rules.wrappers`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from thalweg.core.options.option import Option, Others
from thalweg.engines.transcribe import transcribe
from thalweg.errors import InvalidArgumentError, RuleError
from thalweg.formula import Rule


@dataclass(frozen=True, kw_only=True)
class StepWrapper(Option):
    """One whose only keyword is a bool. Sparse gradients are made dense.

    Attributes:
        without: A slot that it adds, and what is said of parameters that are 0 when they get it.
    """

    without: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def keyword(cls) -> str:
        """What constructors call it."""
        return cls.keywords()[0].name

    def __post_init__(self) -> None:
        self._check_bool(self.keyword())

    def rule(self, rule: Rule) -> Rule:
        """The rule with the wrapper around its step.

        Raises:
            RuleError: The rule cannot have it; says why.
        """
        raise NotImplementedError

    def _refuse_beside(
        self, others: Others, kinds: tuple[type[StepWrapper], ...], why: str
    ) -> None:
        for kind in kinds:
            if others.of(kind).on:
                raise InvalidArgumentError(
                    f"{self.keyword()}=True and {kind.keyword()}=True cannot be together: {why}."
                )


@cache
def read(rule: Rule) -> Rule:
    """A rule whose formula is read at once, so that it is refused before its first step."""
    try:
        transcribe(rule.update)
    except RuleError as error:
        raise RuleError(f"Rule {rule.name!r}: {error}") from None
    return rule
