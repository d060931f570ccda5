"""Clipping of gradients: of their elements, and by the norm that all have in common."""

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
    """Clipping by torch's names.

    Attributes:
        clip_grad_norm: All gradients are scaled so that their common norm is no higher.
        clip_grad_value: Elements of gradients are clipped to [-value, value]. With either, rows of
            sparse gradients are added up before.
    """

    clip_grad_norm: float | None = None
    clip_grad_value: float | None = None

    def __post_init__(self) -> None:
        for name in ("clip_grad_norm", "clip_grad_value"):
            value = getattr(self, name)
            if value is not None:
                number = float(as_number(name, value))
                if number < 0 or number == float("inf"):
                    raise InvalidArgumentError(
                        f"{name} must be a number from 0 on, not {show_value(value)}."
                    )
                object.__setattr__(self, name, number)

    def gradient_transforms(self) -> dict[str, float | bool | None]:
        return {
            "clipvalue": self.clip_grad_value,
            "global_clipnorm": self.clip_grad_norm,
            "overflow": False,  # not even with TensorFlow's numbers: the option is ours
        }
