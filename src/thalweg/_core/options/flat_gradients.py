"""Option that keeps gradients in flat buffers."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._base.exports import exported_from
from thalweg._core.options.accumulation import Accumulation
from thalweg._core.options.base import Option, Others
from thalweg._core.options.step_in_backward import InBackward
from thalweg.errors import InvalidArgumentError


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Flat(Option):
    """Flat buffers for gradients.

    Attributes:
        gradients: "flat" makes all gradients views of a few buffers with fixed addresses, which
            `zero_grad` fills with 0. A parameter without a gradient then has a gradient of 0; a
            frozen parameter has None.
    """

    has_resources = True
    gradients: str | None = None

    def __post_init__(self) -> None:
        self._check_choice("gradients", "flat")

    @property
    def is_ours(self) -> bool:
        return False

    def check_beside(self, options: Others) -> None:
        in_backward = options.of(InBackward).in_backward
        if in_backward or options.of(Accumulation).accumulate > 1:
            option_name = "in_backward" if in_backward else "accumulate"
            raise InvalidArgumentError(
                f"gradients='flat' keeps gradients, which {option_name} frees."
            )
