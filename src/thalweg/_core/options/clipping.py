"""Clipping of gradients by element and by global norm."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._base.exports import exported_from
from thalweg._base.showing import show_value
from thalweg._core.hyperparameters import as_number
from thalweg._core.options.base import Option
from thalweg.errors import InvalidArgumentError


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Clipping(Option):
    """Gradient clipping with torch's keywords. It first adds up repeated rows of sparse gradients.

    Attributes:
        clip_grad_norm: Maximum of the global norm; larger gradients are scaled down together.
        clip_grad_value: Elements of gradients are clipped to [-value, value].
    """

    clip_grad_norm: float | None = None
    clip_grad_value: float | None = None

    def __post_init__(self) -> None:
        for name in ("clip_grad_norm", "clip_grad_value"):
            limit = getattr(self, name)
            if limit is not None:
                bound = float(as_number(name, limit))
                if bound < 0 or bound == float("inf"):
                    raise InvalidArgumentError(
                        f"{name} must be a number from 0 on, not {show_value(limit)}."
                    )
                object.__setattr__(self, name, bound)

    def gradient_transforms(self) -> dict[str, float | bool | None]:
        return {
            "clipvalue": self.clip_grad_value,
            "global_clipnorm": self.clip_grad_norm,
            # TensorFlow's overflow rules do not apply: TensorFlow does not have this option.
            "overflow": False,
        }
