"""`Option`: one thing that is done around the update of a step.

An option is one file. It says what it refuses, what it keeps in the state of a parameter, what the
rule becomes with it, and what happens to gradients before. Steps, files and loaders ask all options
of an optimizer these questions. What decides when a step is taken (accumulation, the backward pass,
scalers, flat gradients) is asked for by name, by `thalweg.optim.fused_optimizer`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor

from thalweg._base.showing import show_value
from thalweg.errors import InvalidTypeError
from thalweg.formula import Rule

Own = TypeVar("Own", bound="Option")


class Others(Protocol):
    """All options of an optimizer, one of each kind."""

    def of(self, kind: type[Own]) -> Own:
        """That of a kind; one that is off, if it was not asked for."""
        ...


@dataclass(frozen=True, kw_only=True)
class Option:
    """One thing around the update. What a subclass does not say is as if there were no option.

    The fields of a subclass are keywords of constructors, and their defaults leave it off.

    Attributes:
        begins: Names of what is kept in the state of a parameter, as entries that begin at the
            parameter's value, such as slots that `rule` adds.
        keeps_beside: Names of what else the state of a parameter has with it alone.
        changes_state: Whether the state of a parameter is another one with it.
        counts: Whether `scalars` asks for the number of a step. Classes whose rules ask for none
            then keep one in the state of a parameter, too, as `step`, which begins at 0.
    """

    begins: ClassVar[tuple[str, ...]] = ()
    keeps_beside: ClassVar[tuple[str, ...]] = ()
    changes_state: ClassVar[bool] = False
    counts: ClassVar[bool] = False

    @property
    def is_ours(self) -> bool:
        """True if a step that torch would take itself would ignore the option."""
        return True

    @classmethod
    def keywords(cls) -> tuple[Field[Any], ...]:
        """Return the fields of the option, which are keywords of constructors."""
        return fields(cls)

    @property
    def on(self) -> dict[str, Any]:
        """Values of the option that differ from its defaults, by keyword."""
        own = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        return {name: value for name, (value, default) in own.items() if value != default}

    def check_beside(self, others: Others) -> None:
        """Refuse others that it cannot be together with.

        Raises:
            InvalidArgumentError: Names both.
        """

    def check_param(self, param: Tensor, title: str) -> None:
        """Refuse a parameter that cannot have it.

        Raises:
            InvalidTypeError: Names it.
        """

    def keeps(self, param: Tensor) -> bool:
        """Return True if the state of a parameter has the entries that `begins` names."""
        return True

    def rule(self, rule: Rule) -> Rule:
        """Return the rule with the option's work added, in the same pass over memory."""
        return rule

    def scalars(self, lacked: Container[str], step: object) -> Mapping[str, Any]:
        """Return the scalars for the formulas that `rule` adds, by name.

        Args:
            lacked: Names of the slots that the parameters of the step did not have before it.
            step: The number of steps they have taken before; a tensor where only a device has it. 1
                in classes that keep no count, if no option `counts`. Under `optim.tensorflow` the
                steps of the optimizer.
        """
        return {}

    def gradient_transforms(self) -> Mapping[str, Any]:
        """Return the transforms of gradients before the rule, as arguments of
        `GradientTransforms`.
        """
        return {}

    def _check_bool(self, name: str) -> None:
        if not isinstance(getattr(self, name), bool):
            raise InvalidTypeError(f"{name} must be a bool, not {show_value(getattr(self, name))}.")
