"""Option for gradients of a scaled loss."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._base.exports import exported_from
from thalweg._core.options.base import Option


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Unscaling(Option):
    """Option to unscale gradients in the step instead of in `torch.amp.GradScaler`.

    Attributes:
        fused_unscale: True if the step unscales gradients instead of `torch.amp.GradScaler`. The
            steps of parameters on a GPU are then counted on the GPU.
    """

    fused_unscale: bool = False

    @property
    def is_ours(self) -> bool:
        return False
