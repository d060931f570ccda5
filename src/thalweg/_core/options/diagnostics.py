"""Per-parameter numbers of some steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg._base.exports import exported_from
from thalweg._base.showing import show_value
from thalweg._core.options.base import Option, Others
from thalweg._core.options.step_in_backward import InBackward
from thalweg.errors import InvalidArgumentError, InvalidTypeError


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Diagnosed(Option):
    """Numbers of gradients, updates and weights.

    Attributes:
        diagnostics: Every so many steps `optimizer.diagnostics` becomes a table of how large each
            parameter's gradient, update and weight are, and more: an integer, or a
            `thalweg.optim.diagnostics.Diagnostics`, which also says where they are written. Not
            with `in_backward`, and not for DTensors.
    """

    diagnostics: int | Any | None = None

    def __post_init__(self) -> None:
        every = self.every
        if every is not None and every < 1:
            raise InvalidArgumentError(f"diagnostics must be 1 or more, not {every}.")

    @property
    def every(self) -> int | None:
        """Number of steps from one table to the next; None if diagnostics are off."""
        given = self.diagnostics
        every = given if given is None or type(given) is int else getattr(given, "every", None)
        if given is not None and type(every) is not int:
            raise InvalidTypeError(
                "diagnostics must be an integer from 1 on, or a Diagnostics of"
                f" thalweg.optim.diagnostics, not {show_value(given)}."
            )
        return every

    def check_beside(self, others: Others) -> None:
        if others.of(InBackward).in_backward:
            raise InvalidArgumentError(
                f"diagnostics={self.diagnostics!r} is of whole steps, and in_backward=True updates"
                " each parameter by itself: choose one."
            )
