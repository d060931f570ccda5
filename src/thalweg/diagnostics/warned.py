"""Warnings of unusual events in a training."""

from __future__ import annotations

import math
from typing import NamedTuple

KINDS = ("spike", "silent", "loss", "batch", "norm")


class Warned(NamedTuple):
    """Warning of an unusual event.

    Attributes:
        name: The name of the parameter; "" for the loss, the norm of all gradients and a batch.
        step: The first step of the event.
        what: The description of the event.
        number: The measured number; for a batch, the number of the layer farthest from its band.
        usual: The usual number; NaN if there is none.
        kind: One of `KINDS`.
        layers: The parameters that left their band, if the kind is "batch".
    """

    name: str
    step: int
    what: str
    number: float
    usual: float
    kind: str
    layers: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name of the parameter, or "loss", "norm" or "batch"."""
        return self.name or self.kind

    def __str__(self) -> str:
        number = "" if math.isnan(self.number) else f" {self.number:.3g}"
        usual_text = "" if math.isnan(self.usual) else f", usually {self.usual:.3g}"
        return f"step {self.step:,}: {self.title}: {self.what}{number}{usual_text}"
