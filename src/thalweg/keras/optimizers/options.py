"""Options of an optimizer that are not hyperparameters: clipping and functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from thalweg._base.showing import show_value
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.grads_and_vars import Pair
from thalweg._core.hyperparameters import as_number
from thalweg.errors import InvalidTypeError

CLIPPING = ("clipvalue", "clipnorm", "global_clipnorm")
Transformer = Callable[[list[Pair]], Iterable[Pair]]


def as_option(key: str, value: Any) -> Any:
    """Return `value` as a number; return None for None.

    Raises:
        TypeError: The value is not a number.
        ValueError: The value is negative or NaN, or infinite for a `key` that ends with "norm".
    """
    if value is None:
        return None
    value = as_number(key, value)
    if value < 0:
        raise ValueError(f"Expected {key} >= 0, received: {value}")
    if key.endswith("norm") and value == np.inf:
        raise ValueError(f"{key} must be finite; None does not clip. Received: {value}")
    return value


def _check_aggregator(function: object) -> Any:
    """Return the aggregator; raise TypeError unless it is None or callable."""
    if function is not None and not callable(function):
        raise InvalidTypeError(
            f"gradient_aggregator must be a function, not {show_value(function)}."
        )
    return function


def _check_transformers(functions: object) -> list[Transformer]:
    """Return the transformers as a list, [] for None; raise TypeError unless all are callable."""
    if functions is None:
        return []
    transformers: list[Any] = list(functions) if isinstance(functions, Iterable) else [functions]
    if not isinstance(functions, Iterable) or not all(map(callable, transformers)):
        raise InvalidTypeError(
            f"gradient_transformers must be a list of functions, not {show_value(functions)}."
        )
    return transformers


def _clipping_property(key: str, doc: str) -> property:
    """Return a property that reads and sets the clipping option `key` of a `KerasOptions`."""

    def read(self: KerasOptions) -> float | None:
        return getattr(self._clipping, key)

    def write(self: KerasOptions, value: float | None) -> None:
        self._set_clipping(**{key: value})

    return property(read, write, doc=f"`float` or `None`. {doc}")


class KerasOptions:
    """Mixin of `Optimizer` that stores clipping, aggregator and transformers."""

    def __init__(
        self,
        gradient_aggregator: Transformer | None,
        gradient_transformers: Sequence[Transformer] | None,
        clipping: dict[str, Any],
    ) -> None:
        self._aggregator = _check_aggregator(gradient_aggregator)
        self._transformers = _check_transformers(gradient_transformers)
        self._clipping = GradientTransforms()
        self._set_clipping(**clipping)

    def _set_clipping(self, **changes: object) -> None:
        """Set clipping options; raise ValueError, and change nothing, for excluded combinations."""
        checked_changes = {key: as_option(key, value) for key, value in changes.items()}
        clipping = GradientTransforms(**{**self._clipping_options(), **checked_changes})
        if clipping.clipnorm is not None and clipping.global_clipnorm is not None:
            raise ValueError("Cannot accept both `clipnorm` and `global_clipnorm`.")
        if clipping and self._transformers:
            raise ValueError("Clipping options cannot be combined with `gradient_transformers`.")
        self._clipping = clipping

    def _clipping_options(self) -> dict[str, float | None]:
        """Return {option: value or None} of clipping."""
        return {key: getattr(self._clipping, key) for key in CLIPPING}

    clipvalue = _clipping_property(
        "clipvalue", "Elements of gradients are clipped to [-clipvalue, clipvalue]."
    )
    clipnorm = _clipping_property("clipnorm", "Each gradient is scaled to a norm of at most this.")
    global_clipnorm = _clipping_property(
        "global_clipnorm", "All gradients are scaled to a common norm of at most this."
    )

    @property
    def gradient_aggregator(self) -> Transformer | None:
        """The function that aggregates gradients over replicas, or None."""
        return self._aggregator

    @gradient_aggregator.setter
    def gradient_aggregator(self, function: Transformer | None) -> None:
        self._aggregator = _check_aggregator(function)

    @property
    def gradient_transformers(self) -> list[Transformer]:
        """The functions applied to the gradients last."""
        return list(self._transformers)

    @gradient_transformers.setter
    def gradient_transformers(self, functions: Sequence[Transformer] | None) -> None:
        previous, self._transformers = self._transformers, _check_transformers(functions)
        # `_set_clipping` without changes raises if clipping and transformers exclude each other.
        try:
            self._set_clipping()
        except ValueError:
            self._transformers = previous
            raise
