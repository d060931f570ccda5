"""Gradients that lie in a few buffers."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._base.exports import exported_from
from thalweg._base.showing import show_value
from thalweg._core.options.accumulation import Accumulation
from thalweg._core.options.base import Option, Others
from thalweg._core.options.step_in_backward import InBackward
from thalweg.errors import InvalidArgumentError


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Flat(Option):
    """Buffers for gradients.

    Attributes:
        gradients: "flat" gives all parameters gradients in a few buffers, which stay where they are
            and which `zero_grad` clears at once. A parameter that had no gradient has one of 0, a
            frozen one none.
    """

    gradients: str | None = None

    def __post_init__(self) -> None:
        if self.gradients not in (None, "flat"):
            raise InvalidArgumentError(
                f"gradients must be None or 'flat', not {show_value(self.gradients)}."
            )

    @property
    def is_ours(self) -> bool:
        return False

    def check_beside(self, others: Others) -> None:
        is_applied = others.of(InBackward).in_backward
        if is_applied or others.of(Accumulation).accumulate > 1:
            freed = "in_backward" if is_applied else "accumulate"
            raise InvalidArgumentError(f"gradients='flat' keeps gradients, which {freed} frees.")
