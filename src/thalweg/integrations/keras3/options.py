"""Clipping options of `FusedOptimizer`, delegated to the wrapped optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def _delegate(name: str, description: str) -> property:
    """Return a property that reads and sets the attribute `name` of `self.wrapped`.

    As long as `self.wrapped` is not set, reads return None and writes do nothing.
    """

    def read(self: Any) -> float | None:
        wrapped = self.__dict__.get("wrapped")
        return None if wrapped is None else getattr(wrapped, name)

    def write(self: Any, value: float | None) -> None:
        wrapped = self.__dict__.get("wrapped")
        # Keras' constructor sets all three options to None before `wrapped` is set.
        if wrapped is not None:
            setattr(wrapped, name, value)

    return property(read, write, doc=description)


class ClippingOptions:
    """Mixin with properties `clipvalue`, `clipnorm` and `global_clipnorm` of `wrapped`."""

    clipvalue = _delegate(
        "clipvalue", "Elements of gradients are clipped to [-clipvalue, clipvalue]."
    )
    clipnorm = _delegate(
        "clipnorm", "Largest norm of each gradient, to which larger ones are scaled; None if off."
    )
    global_clipnorm = _delegate(
        "global_clipnorm",
        "Largest common norm of all gradients, to which larger ones are scaled; None if off.",
    )

    def _clip_gradients(self, grads: Sequence[object]) -> Sequence[object]:
        """Return the gradients unchanged: the wrapped optimizer clips them."""
        return grads
