"""State of one parameter in another package, with checked access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from thalweg._core.param_groups import Group
from thalweg._core.state import flaw, mismatch, shown
from thalweg.optim.state_mismatch import are_numbers, is_number, kind_of, told


@dataclass
class Report:
    """Report on a conversion: exact, rounded and lost parts of a state.

    Attributes:
        source: The class of the other package.
        exact: Names of parts that keep their value.
        rounded: Names of parts that are rounded, with the reason.
        lost: Names of parts without a counterpart, with the reason.
    """

    source: str
    target: str
    exact: dict[str, str] = field(default_factory=dict[str, str])
    rounded: dict[str, str] = field(default_factory=dict[str, str])
    lost: dict[str, str] = field(default_factory=dict[str, str])

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        exact_names = [
            name for name in self.exact if name not in self.rounded and name not in self.lost
        ]
        lines = [f"{self.source} to {self.target}", f"exact: {', '.join(exact_names)}"]
        for label, entries in (("rounded", self.rounded), ("lost", self.lost)):
            lines += [f"{label}: {name}, {reason}" for name, reason in entries.items()]
        return lines


@dataclass(frozen=True)
class Member:
    """State of a parameter, and the options of its group, in another package.

    Attributes:
        label: Name of the parameter in messages.
        entries: The state of the parameter.
        group: The group.
        param: The parameter here.
        target_group: The group here.
        report: Report to which the conversion adds.
    """

    label: str
    entries: Mapping[str, Any]
    group: Mapping[str, Any]
    param: Tensor
    target_group: Group
    report: Report

    def fail(self, name: str, problem: str) -> Exception:
        """Return the error about an entry or option of this parameter; raise nothing."""
        return mismatch([f"'{self.label}/{name}' {problem}"], self.report.source)

    def read(self, name: str) -> Any:
        """Return the entry `name` of the parameter's state, or else the option `name` of its group.

        Raises:
            CheckpointMismatchError: Neither exists.
        """
        for values in (self.entries, self.group):
            if name in values:
                return values[name]
        raise self.fail(name, "is missing")

    def number(self, name: str) -> float:
        """Return the entry or option `name` as a number.

        Raises:
            CheckpointMismatchError: `name` is missing, or not a number.
        """
        value = self.read(name)
        if not is_number(value):
            raise self.fail(name, f"is {told(value)}, not a number")
        return value.item() if isinstance(value, Tensor) else value

    def beta(self, index: int) -> float:
        """Return the beta at index `index` of the group's two or three betas.

        Raises:
            CheckpointMismatchError: `betas` is missing, or not two or three numbers in [0, 1).
        """
        betas = self.read("betas")
        if not any(are_numbers(betas, count) for count in (2, 3)):
            raise self.fail("betas", f"is {told(betas)}, not numbers")
        if not 0 <= float(betas[index]) < 1:
            raise self.fail("betas", f"is {told(betas)}, not numbers from 0 to below 1")
        return float(betas[index])

    def tensor(self, name: str, shape: Sequence[int] | None = None) -> Tensor:
        """Return the entry `name`, a floating-point tensor.

        Args:
            shape: The required shape; None for the parameter's shape.

        Raises:
            CheckpointMismatchError: The entry is missing, or has another type or shape.
        """
        return self.checked(name, self.read(name), self.param.shape if shape is None else shape)

    def checked(self, name: str, value: object, shape: Sequence[int]) -> Tensor:
        """Return `value` if it is a floating-point tensor of shape `shape`.

        Raises:
            CheckpointMismatchError: The value is anything else.
        """
        if problem := flaw(value):
            raise self.fail(name, f"is {problem}")
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise self.fail(name, f"is {told(value)}, not floating-point numbers")
        if tuple(value.shape) != tuple(shape):
            raise self.fail(name, f"is {kind_of(value)}, not of shape {tuple(shape)}")
        return value.detach()

    def items(self, name: str, count: int) -> list[Any]:
        """Return the entry or option `name`, a list of `count` items.

        Raises:
            CheckpointMismatchError: `name` is missing, or not a list of `count` items.
        """
        value = self.read(name)
        if not isinstance(value, list | tuple) or len(value) != count:  # pyright: ignore[reportUnknownArgumentType]
            raise self.fail(name, f"is {shown(value)}, not a list of {count}")
        return [*value]  # pyright: ignore[reportUnknownVariableType]
