"""Option for per-parameter diagnostics."""

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
    """Periodic statistics of gradients, updates and weights.

    Attributes:
        diagnostics: Number of steps between updates of the table `optimizer.diagnostics`, with the
            sizes of each parameter's gradient, update and weight. Or a
            `thalweg.optim.diagnostics.Diagnostics`, which also has an output. Not with
            `in_backward` or DTensors.
    """

    has_resources = True
    diagnostics: int | Any | None = None

    def __post_init__(self) -> None:
        interval = self.every
        if interval is not None and interval < 1:
            raise InvalidArgumentError(f"diagnostics must be 1 or more, not {interval}.")

    @property
    def every(self) -> int | None:
        """Number of steps between two tables; None if diagnostics are off."""
        interval = getattr(self.diagnostics, "every", self.diagnostics)
        if self.diagnostics is not None and type(interval) is not int:
            raise InvalidTypeError(
                "diagnostics must be an integer from 1 on, or a Diagnostics of"
                f" thalweg.optim.diagnostics, not {show_value(self.diagnostics)}."
            )
        return interval

    def check_beside(self, options: Others) -> None:
        if options.of(InBackward).in_backward:
            raise InvalidArgumentError(
                f"diagnostics={self.diagnostics!r} is of whole steps, and in_backward=True updates"
                " each parameter by itself: choose one."
            )
