"""Classes that make an optimizer of thalweg an optimizer of Keras 3, too, for `model.optimizer`."""

# Keras has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, cast

import keras

from thalweg._base.execution_context import eagerly
from thalweg.integrations.keras3.optimizer import FusedOptimizer
from thalweg.keras.optimizers import Optimizer

# The attribute for the lender. Keras' saving skips only attributes that begin with "__".
_LENDER = "__lender"


@keras.saving.register_keras_serializable(package="thalweg")
class Lender(FusedOptimizer):
    """Keras optimizer that stores Keras' attributes for an optimizer of thalweg in one model.

    `model.optimizer` is `wrapped` itself, which reads Keras' attributes from this object.
    """

    # Eager even while a graph is built, since Keras' variables are torch's.
    @eagerly()
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def shown(self) -> Optimizer:
        """Return `wrapped`; change its class to a subclass that reads attributes from `self`."""
        optimizer = self.wrapped
        vars(optimizer)[_LENDER] = self
        if not isinstance(optimizer, Lent):
            optimizer.__class__ = _lent(type(optimizer))
        return optimizer


class Variables(list[Any]):
    """List of Keras variables; calling it returns the optimizer's weights, as in TensorFlow."""

    def __init__(self, of_keras: Sequence[object], thalweg_variables: Sequence[object]) -> None:
        super().__init__(of_keras)
        self._weights = thalweg_variables

    def __call__(self) -> list[Any]:
        """Return the optimizer's weights, `iterations` first."""
        return list(self._weights)


class Lent(Optimizer):
    """Mixin that makes an optimizer in a Keras model read missing attributes from its `Lender`.

    Copies of the optimizer have the original class and no lender.
    """

    _NOT_COPIED = (*Optimizer._NOT_COPIED, _LENDER)
    _base_class: ClassVar[type[Optimizer]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._base_class(*args, **kwargs)

    def _blank(self) -> Optimizer:
        """Return an empty optimizer of the original class, for copies."""
        return self._base_class.__new__(self._base_class)

    def __reduce_ex__(self, protocol: object) -> Any:
        # A copy or pickle is made by `Optimizer`, not by the class that reads from a lender.
        _, *arguments = super().__reduce_ex__(protocol)
        return (Optimizer.__new__, *arguments)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if not self._lends(name):
                raise
        return getattr(vars(self)[_LENDER], name)

    def __setattr__(self, name: str, value: object) -> None:
        is_field = name in vars(self) or name in self._hyper or hasattr(self._base_class, name)
        if self._lends(name) and not is_field:
            setattr(vars(self)[_LENDER], name, value)
        else:
            super().__setattr__(name, value)

    def _lends(self, name: str) -> bool:
        """Return True if the lender provides an attribute."""
        return name in vars(vars(self)[_LENDER]) or hasattr(Lender, name)

    @property
    def variables(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """List of Keras' variables of all state; a call of it returns the optimizer's weights."""
        return Variables(vars(self)[_LENDER].variables, self.weights)

    def set_weights(self, weights: Sequence[object]) -> None:
        """Set the values of `get_weights`, or values for all of `variables`, as in Keras."""
        keras_optimizer = vars(self)[_LENDER]
        if len(weights) == len(keras_optimizer.variables) != len(self.weights):
            keras_optimizer.set_weights(weights)
        else:
            super().set_weights(weights)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Any:
        """Return an optimizer from a configuration, usable in Keras, too."""
        return Lender(cls._base_class.from_config(config, custom_objects)).shown()


class _OfKeras(keras.optimizers.Optimizer):
    """Base class without code that makes an optimizer a `keras.optimizers.Optimizer`."""

    # Keras' method would raise, since the constructor of Keras' class was not called.
    __setattr__ = object.__setattr__


@cache
def _lent(base: type[Optimizer]) -> Any:
    """Return a new subclass of `base`, `Lent` and Keras' optimizer class, registered with Keras."""
    # Attributes of Keras' class come from the lender, unless thalweg's class defines them.
    properties = {
        name: property(lambda self, name=name: self.__getattr__(name))
        for name in dir(_OfKeras)
        if not (name.startswith("__") or hasattr(Lent, name) or hasattr(base, name))
    }
    texts = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    cls: Any = type(
        base.__name__, (Lent, base, _OfKeras), {**properties, **texts, "_base_class": base}
    )
    register = cast(Any, keras.saving.register_keras_serializable)
    return register("thalweg", f"{base.__module__}.{base.__qualname__}")(cls)
