"""Base class of the options of an optimizer.

An option defines its checks, its entries in the state of a parameter, its change of the rule and
its transforms of the gradients. Steps, files and loaders call these methods of all options. Options
that decide when a step runs (accumulation, step in backward, unscaling, flat gradients) have no
method for that: `thalweg.optim.fused_optimizer` uses them by name.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.formula import Rule

OptionT = TypeVar("OptionT", bound="Option")


class Others(Protocol):
    """Interface to the options of an optimizer, with one option of each class."""

    def of(self, kind: type[OptionT]) -> OptionT:
        """Return the option of the class; a disabled one if the user did not set it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Option:
    """Base class of options. Its methods do nothing, and subclasses override them.

    The fields of a subclass are keywords of optimizer constructors. Their defaults disable the
    option.

    Attributes:
        begins: Names of state entries that are initialized with the parameter's value, such as
            slots that `rule` adds.
        keeps_beside: Names of further state entries that exist only with this option.
        changes_state: True if the option changes the state of a parameter.
        has_file_entry: True if files have the option among the arguments of an optimizer.
        has_resources: True if the option has hooks, buffers or devices, which estimates leave out.
        counts: True if `scalars` uses the number of steps. Every optimizer then has `step` in the
            state of a parameter, beginning at 0.
    """

    begins: ClassVar[tuple[str, ...]] = ()
    keeps_beside: ClassVar[tuple[str, ...]] = ()
    changes_state: ClassVar[bool] = False
    has_file_entry: ClassVar[bool] = True
    has_resources: ClassVar[bool] = False
    counts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Raise InvalidTypeError unless each field whose default is a bool is a bool."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool) and not isinstance(value, bool):
                raise InvalidTypeError(f"{field.name} must be a bool, not {show_value(value)}.")

    @property
    def is_ours(self) -> bool:
        """True if torch's own step would ignore the option."""
        return True

    @classmethod
    def keywords(cls) -> tuple[Field[Any], ...]:
        """Return the fields of the option, which are keywords of constructors."""
        return fields(cls)

    @property
    def on(self) -> dict[str, Any]:
        """{keyword: value} of the fields that differ from their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }

    def check_beside(self, options: Others) -> None:
        """Do nothing; subclasses check the optimizer's other options for conflicts.

        Raises:
            InvalidArgumentError: Another option conflicts with this option.
        """

    def check_param(self, param: Tensor, label: str) -> None:
        """Do nothing; subclasses check whether the option supports a parameter.

        Args:
            label: Name of the parameter, for the message.

        Raises:
            InvalidTypeError: The option does not support the parameter.
        """

    def keeps(self, param: Tensor) -> bool:
        """Return True if the state of a parameter has the entries that `begins` names."""
        return True

    def rule(self, rule: Rule) -> Rule:
        """Return the rule with the option's formulas added to the same pass over memory."""
        return rule

    def scalars(self, lacked: Container[str], step: object) -> Mapping[str, Any]:
        """Return {name: scalar} for the formulas that the method `rule` adds; here {}.

        Args:
            lacked: Names of the slots that this step creates for its parameters.
            step: Number of earlier steps of the parameters, in `optim.tensorflow` of the optimizer.
                It is a tensor if a device counts, and 1 if neither the rule nor an option counts.
        """
        return {}

    def gradient_transforms(self) -> Mapping[str, Any]:
        """Return arguments of `GradientTransforms`, which change gradients before the rule."""
        return {}

    def _check_choice(self, name: str, choice: str) -> None:
        """Raise InvalidArgumentError unless the field `name` is None or the only choice."""
        value = getattr(self, name)
        if value not in (None, choice):
            raise InvalidArgumentError(
                f"{name} must be None or {choice!r}, not {show_value(value)}."
            )
