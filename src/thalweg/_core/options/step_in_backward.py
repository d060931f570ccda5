"""Option that runs each update during the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._base.exports import exported_from
from thalweg._core.options.accumulation import Accumulation
from thalweg._core.options.base import Option, Others
from thalweg._core.options.clipping import Clipping
from thalweg._core.options.loss_scale import Unscaling
from thalweg.errors import InvalidArgumentError


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class InBackward(Option):
    """Separate update of each parameter during the backward pass.

    Attributes:
        in_backward: True applies and frees each gradient as it arrives; `step` then only counts.
            Not with options that need all gradients: `clip_grad_norm`, `accumulate`,
            `fused_unscale`.
    """

    has_resources = True
    in_backward: bool = False

    def check_beside(self, options: Others) -> None:
        """Raise InvalidArgumentError if another option needs all gradients of a step at once."""
        needing = {
            "clip_grad_norm": options.of(Clipping).clip_grad_norm,
            "accumulate": options.of(Accumulation).accumulate > 1,
            "fused_unscale": options.of(Unscaling).fused_unscale,
        }
        for name in (name for name, is_enabled in needing.items() if is_enabled):
            raise InvalidArgumentError(
                f"in_backward applies each gradient as it arrives, and {name} needs all of"
                " them first."
            )
