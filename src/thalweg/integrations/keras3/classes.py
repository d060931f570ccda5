"""Keras' eight optimizers by their own names, with TensorFlow's numbers."""

from __future__ import annotations

from typing import Any, Self, TypedDict, Unpack

import keras

from thalweg.integrations.keras3.optimizer import FusedOptimizer, Options
from thalweg.integrations.keras3.registry import plain
from thalweg.integrations.keras3.schedules import for_thalweg
from thalweg.keras import optimizers

_WRAPPED = ("clipnorm", "clipvalue", "global_clipnorm", "decay", "schedule_decay")


class Keywords(Options, total=False):
    """The keywords that all eight optimizers have: those of Keras, and TensorFlow's `decay`."""

    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    decay: float


class _Split(TypedDict):
    wrapped: dict[str, Any]
    around: Options


def _split(keywords: Any) -> _Split:
    own = {key: value for key, value in keywords.items() if key in _WRAPPED}
    around: Any = {key: value for key, value in keywords.items() if key not in _WRAPPED}
    return {"wrapped": own, "around": around}


class NamedOptimizer(FusedOptimizer):
    """What the eight optimizers share: a configuration as that of Keras' classes."""

    def get_config(self) -> dict[str, Any]:
        """The configuration: the arguments of the constructor, by name."""
        config = keras.optimizers.Optimizer.get_config(self)
        own = plain(self.wrapped)
        if isinstance(self.wrapped, optimizers.Nadam):
            own["schedule_decay"] = own.pop("decay")
        return {**own, **config}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """An optimizer made of a configuration; schedules are found where Keras has them."""
        return super(FusedOptimizer, cls).from_config(dict(config), custom_objects)


@keras.saving.register_keras_serializable(package="thalweg")
class SGD(NamedOptimizer):
    """Gradient descent with momentum; see `thalweg.keras.optimizers.SGD` and `FusedOptimizer`."""

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: Any = 0.0,
        nesterov: bool = False,
        name: str | None = "SGD",
        **keywords: Unpack[Keywords],
    ) -> None:
        parts = _split(keywords)
        rate = for_thalweg(learning_rate)
        own = optimizers.SGD(rate, momentum, nesterov, name, **parts["wrapped"])
        super().__init__(own, **parts["around"])


@keras.saving.register_keras_serializable(package="thalweg")
class Adam(NamedOptimizer):
    """Adam and AMSGrad; see `thalweg.keras.optimizers.Adam` and `FusedOptimizer`."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: Any = 0.9,
        beta_2: Any = 0.999,
        epsilon: float | None = 1e-7,
        amsgrad: bool = False,
        name: str | None = "Adam",
        **keywords: Unpack[Keywords],
    ) -> None:
        parts = _split(keywords)
        rate = for_thalweg(learning_rate)
        own = optimizers.Adam(rate, beta_1, beta_2, epsilon, amsgrad, name, **parts["wrapped"])
        super().__init__(own, **parts["around"])


@keras.saving.register_keras_serializable(package="thalweg")
class Adamax(NamedOptimizer):
    """Adamax; see `thalweg.keras.optimizers.Adamax` and `FusedOptimizer`."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: Any = 0.9,
        beta_2: Any = 0.999,
        epsilon: float | None = 1e-7,
        name: str | None = "Adamax",
        **keywords: Unpack[Keywords],
    ) -> None:
        parts = _split(keywords)
        rate = for_thalweg(learning_rate)
        own = optimizers.Adamax(rate, beta_1, beta_2, epsilon, name, **parts["wrapped"])
        super().__init__(own, **parts["around"])


@keras.saving.register_keras_serializable(package="thalweg")
class Nadam(NamedOptimizer):
    """Nadam; see `thalweg.keras.optimizers.Nadam` and `FusedOptimizer`."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: Any = 0.9,
        beta_2: Any = 0.999,
        epsilon: float | None = 1e-7,
        name: str | None = "Nadam",
        *,
        schedule_decay: float = 0.004,
        **keywords: Unpack[Keywords],
    ) -> None:
        parts = _split(keywords)
        rate = for_thalweg(learning_rate)
        given = {**parts["wrapped"], "schedule_decay": schedule_decay}
        own = optimizers.Nadam(rate, beta_1, beta_2, epsilon, name, **given)
        super().__init__(own, **parts["around"])


@keras.saving.register_keras_serializable(package="thalweg")
class Adagrad(NamedOptimizer):
    """Adagrad; see `thalweg.keras.optimizers.Adagrad` and `FusedOptimizer`."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float | None = 1e-7,
        name: str | None = "Adagrad",
        **keywords: Unpack[Keywords],
    ) -> None:
        parts = _split(keywords)
        rate = for_thalweg(learning_rate)
        start = initial_accumulator_value
        own = optimizers.Adagrad(rate, start, epsilon, name, **parts["wrapped"])
        super().__init__(own, **parts["around"])


@keras.saving.register_keras_serializable(package="thalweg")
class Adadelta(NamedOptimizer):
    """Adadelta; see `thalweg.keras.optimizers.Adadelta` and `FusedOptimizer`."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: Any = 0.95,
        epsilon: float | None = 1e-7,
        name: str | None = "Adadelta",
        **keywords: Unpack[Keywords],
    ) -> None:
        parts = _split(keywords)
        rate = for_thalweg(learning_rate)
        own = optimizers.Adadelta(rate, rho, epsilon, name, **parts["wrapped"])
        super().__init__(own, **parts["around"])


@keras.saving.register_keras_serializable(package="thalweg")
class RMSprop(NamedOptimizer):
    """RMSprop in its four forms; see `thalweg.keras.optimizers.RMSprop` and `FusedOptimizer`."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: Any = 0.9,
        momentum: Any = 0.0,
        epsilon: float | None = 1e-7,
        centered: bool = False,
        name: str | None = "RMSprop",
        **keywords: Unpack[Keywords],
    ) -> None:
        parts = _split(keywords)
        rate = for_thalweg(learning_rate)
        own = optimizers.RMSprop(rate, rho, momentum, epsilon, centered, name, **parts["wrapped"])
        super().__init__(own, **parts["around"])


@keras.saving.register_keras_serializable(package="thalweg")
class Ftrl(NamedOptimizer):
    """FTRL-proximal; see `thalweg.keras.optimizers.Ftrl` and `FusedOptimizer`."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        name: str | None = "Ftrl",
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        **keywords: Unpack[Keywords],
    ) -> None:
        parts = _split(keywords)
        own = optimizers.Ftrl(
            for_thalweg(learning_rate),
            learning_rate_power,
            initial_accumulator_value,
            l1_regularization_strength,
            l2_regularization_strength,
            name,
            l2_shrinkage_regularization_strength,
            beta,
            **parts["wrapped"],
        )
        super().__init__(own, **parts["around"])
