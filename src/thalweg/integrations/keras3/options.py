"""Clipping options of a wrapped optimizer as attributes of the one that Keras knows."""

from __future__ import annotations

from collections.abc import Sequence


class ClippingOptions:
    """`clipvalue`, `clipnorm` and `global_clipnorm`, which belong to `wrapped`."""

    def _option(self, name: str) -> float | None:
        """Return a clipping option of the wrapped optimizer; None if off."""
        wrapped = self.__dict__.get("wrapped")
        return None if wrapped is None else getattr(wrapped, name)

    def _set_option(self, name: str, value: float | None) -> None:
        """Set a clipping option of the wrapped optimizer."""
        wrapped = self.__dict__.get("wrapped")
        if wrapped is not None:  # Keras' constructor sets all three to None before
            setattr(wrapped, name, value)

    @property
    def clipvalue(self) -> float | None:
        """Elements of gradients are clipped to [-clipvalue, clipvalue]."""
        return self._option("clipvalue")

    @clipvalue.setter
    def clipvalue(self, value: float | None) -> None:
        self._set_option("clipvalue", value)

    @property
    def clipnorm(self) -> float | None:
        """Largest norm of each gradient, to which larger ones are scaled; None if off."""
        return self._option("clipnorm")

    @clipnorm.setter
    def clipnorm(self, value: float | None) -> None:
        self._set_option("clipnorm", value)

    @property
    def global_clipnorm(self) -> float | None:
        """Largest common norm of all gradients, to which larger ones are scaled; None if off."""
        return self._option("global_clipnorm")

    @global_clipnorm.setter
    def global_clipnorm(self, value: float | None) -> None:
        self._set_option("global_clipnorm", value)

    def _clip_gradients(self, grads: Sequence[object]) -> Sequence[object]:
        """Return the gradients unchanged: the wrapped optimizer clips them."""
        return grads
