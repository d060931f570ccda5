"""Gradients of a loss that was scaled, so that those of 16 bits do not vanish."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._base.exports import exported_from
from thalweg._core.options.base import Option


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Unscaling(Option):
    """Option that moves the unscaling of `torch.amp.GradScaler` into the step.

    Attributes:
        fused_unscale: Whether `torch.amp.GradScaler` leaves it to the step to unscale. Steps of
            parameters on a GPU are counted there then.
    """

    fused_unscale: bool = False

    def __post_init__(self) -> None:
        self._check_bool("fused_unscale")

    @property
    def is_ours(self) -> bool:
        return False
