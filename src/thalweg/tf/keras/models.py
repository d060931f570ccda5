"""`tf.keras.Model` and `tf.keras.Sequential`, which compile with optimizers of thalweg."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thalweg.distribute import get_strategy
from thalweg.errors import InvalidArgumentError
from thalweg.integrations.keras3 import FusedOptimizer, from_thalweg
from thalweg.keras import optimizers
from thalweg.running import eagerly
from thalweg.tf.keras.lookup import namespace
from thalweg.tf.keras.reading import readable

import keras  # isort: skip

if TYPE_CHECKING:
    from keras import Model as _Model
else:
    _Model = object

_NAMES = {name.lower() for name in optimizers.__all__} - {"optimizer", "ruleoptimizer"}


def as_optimizer(optimizer: Any) -> Any:
    """What `compile` of Keras takes: an optimizer of thalweg is wrapped, and so is the one that a
    name such as "adam" stands for.
    """
    if isinstance(optimizer, str) and optimizer.lower() in _NAMES:
        optimizer = optimizers.get(optimizer)
    if isinstance(optimizer, optimizers.Optimizer):
        return from_thalweg(optimizer)
    return optimizer


def _columns(labels: Any) -> Any:
    def column(label: Any) -> Any:
        is_flat = len(getattr(label, "shape", ())) == 1
        return keras.ops.expand_dims(label, -1) if is_flat else label

    return keras.tree.map_structure(column, labels)


def _for_each(outputs: Any, metrics: Any) -> Any:
    """Metrics that are told once are those of each output, as in TensorFlow's Keras."""
    several = isinstance(outputs, list | tuple) and len(outputs) > 1
    is_flat = isinstance(metrics, list | tuple) and not any(
        isinstance(each, list | tuple | dict) for each in metrics
    )
    return [list(metrics) for _ in outputs] if several and is_flat else metrics


def _run_eagerly(name: str) -> Callable[..., Any]:
    """A method of Keras' models, in eager mode whatever is being built."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        with eagerly():
            return getattr(super(Compiling, self), name)(*args, **options)

    method.__name__, method.__doc__ = name, "As in Keras."
    method.__qualname__ = f"Compiling.{name}"
    return method


class Compiling(_Model):
    """The part of a model that wraps the optimizer, and takes labels as TensorFlow's Keras did.

    Keras' loops run eagerly, also while a graph is built.
    """

    if not TYPE_CHECKING:

        @property
        def optimizer(self) -> Any:
            """The optimizer that `compile` was given, or that of the name it was given.

            Keras' own code sees what that is wrapped in.
            """
            if "optimizer" not in vars(self):
                raise AttributeError("The model is not compiled: it has no optimizer.")
            kept = vars(self)["optimizer"]
            asker = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
            is_shown = vars(self).get("_unwraps", False) and asker not in ("keras", "thalweg")
            return kept.wrapped if is_shown else kept

        @optimizer.setter
        def optimizer(self, optimizer: Any) -> None:
            vars(self)["optimizer"] = optimizer

    def compile(self, optimizer: Any = "rmsprop", *args: Any, **options: Any) -> None:
        """As in Keras; an optimizer of thalweg, or its name, is wrapped for it.

        In the scope of a strategy of `thalweg.distribute` the model trains as one of its replicas:
        the step is that of the mean over the examples of all of them.
        """
        for name in options.keys() & {"metrics", "weighted_metrics"}:
            options[name] = _for_each(getattr(self, "outputs", None), options[name])
        with eagerly():
            taken = as_optimizer(optimizer)
            super().compile(taken, *args, **options)
        self.__dict__["_unwraps"] = isinstance(taken, FusedOptimizer) and taken is not optimizer
        self._strategy = get_strategy()

    def fit(self, x: Any = None, *args: Any, **options: Any) -> Any:
        """As in Keras; `x` and `validation_data` may be datasets of `tf.data`."""
        if "validation_data" in options:
            options["validation_data"] = readable(options["validation_data"])
        loaded = readable(x)
        if loaded is not x:
            options["shuffle"] = False  # the dataset has its own order
        with eagerly():
            return super().fit(loaded, *args, **options)

    def evaluate(self, x: Any = None, *args: Any, **options: Any) -> Any:
        """As in Keras; `x` may be a dataset of `tf.data`."""
        with eagerly():
            return super().evaluate(readable(x), *args, **options)

    def predict(self, x: Any, *args: Any, **options: Any) -> Any:
        """As in Keras; `x` may be a dataset of `tf.data`."""
        with eagerly():
            return super().predict(readable(x), *args, **options)

    train_on_batch = _run_eagerly("train_on_batch")
    test_on_batch = _run_eagerly("test_on_batch")
    predict_on_batch = _run_eagerly("predict_on_batch")

    def train_step(self, *args: Any, **options: Any) -> Any:
        """As in Keras, as a replica of the strategy that the model was compiled in."""
        return self._strategy.run(super().train_step, args, options)

    def compute_loss(self, x: Any = None, y: Any = None, *args: Any, **options: Any) -> Any:
        """As in Keras, but labels of one number each are a column, as TensorFlow's Keras had it."""
        return super().compute_loss(x, _columns(y), *args, **options)

    def compute_metrics(self, x: Any, y: Any, *args: Any, **options: Any) -> Any:
        """As in Keras; for the labels see `compute_loss`."""
        return super().compute_metrics(x, _columns(y), *args, **options)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile as a saved model was compiled."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.__dict__["_unwraps"] = isinstance(vars(self).get("optimizer"), FusedOptimizer)
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)


@keras.saving.register_keras_serializable(package="thalweg")
class Sequential(Compiling, keras.Sequential):
    """`keras.Sequential` that compiles with optimizers of thalweg."""

    @property
    def trainable_weights(self) -> Any:
        """The weights that are trained.

        Raises:
            ValueError: There are none yet.
        """
        self._check_weights()
        return super().trainable_weights

    @property
    def weights(self) -> Any:
        """The weights, trained or not.

        Raises:
            ValueError: There are none yet.
        """
        self._check_weights()
        return super().weights

    def _check_weights(self) -> None:
        if self.layers and not self.built:
            raise InvalidArgumentError(
                f"Weights for model '{self.name}' have not yet been created: they are when the"
                " model is first called on inputs, or by `build(input_shape)`."
            )


@keras.saving.register_keras_serializable(package="thalweg")
class Model(Compiling, keras.Model):
    """`keras.Model` that compiles with optimizers of thalweg; derive from it, or give it inputs and
    outputs.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        has_ends = len(args) >= 2 or (len(args) == 1 and "outputs" in kwargs) or "inputs" in kwargs
        wanted: Any = Functional if cls is Model and has_ends else cls
        return super().__new__(wanted, *args, **kwargs)


_functional: Any = type(keras.Model(inputs=(_end := keras.Input((1,))), outputs=_end))


@keras.saving.register_keras_serializable(package="thalweg")
class Functional(Model, _functional):
    """A model given by its inputs and outputs."""


def __getattr__(name: str) -> Any:
    return getattr(namespace().models, name)
