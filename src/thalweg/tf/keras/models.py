"""`tf.keras.Model` and `tf.keras.Sequential`, which compile with optimizers of thalweg."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from thalweg._base.execution_context import eagerly
from thalweg.distribute import get_strategy
from thalweg.errors import CheckpointWarning, InvalidArgumentError, InvalidTypeError, warn
from thalweg.integrations.keras3.keras_subclassing import Lender
from thalweg.keras import optimizers
from thalweg.tf.data import Dataset
from thalweg.tf.keras.lookup import namespace
from thalweg.tf.keras.train_optimizer import TFOptimizer
from thalweg.v1 import train

import keras  # isort: skip

if TYPE_CHECKING:
    from keras import Model as _Model
else:
    _Model = object

# Set while a model, perhaps without weights yet, prints its summary.
_is_printed = ContextVar("_is_printed", default=False)
_NAMES = {name.lower() for name in optimizers.__all__} - {"optimizer", "ruleoptimizer"}


class _Elements(torch.utils.data.IterableDataset[Any]):
    """Iterable of the batches of a dataset, for Keras on its torch backend."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset)


class _Counted(_Elements):
    def __len__(self) -> int:
        return len(self._dataset)


def _readable(data: object) -> Any:
    """Return a torch DataLoader for a dataset of batches; return other data unchanged."""
    if not isinstance(data, Dataset):
        return data
    kind = _Elements if data.cardinality() < 0 else _Counted
    # The elements of the dataset are batches already.
    return torch.utils.data.DataLoader(kind(data), batch_size=None)


def as_optimizer(optimizer: object) -> Any:
    """Return an optimizer that Keras' `compile` accepts.

    Wrap an optimizer of thalweg or `tf.train`. A name such as "adam" selects a class of thalweg.
    Return any other object unchanged.
    """
    if isinstance(optimizer, str) and optimizer.lower() in _NAMES:
        optimizer = optimizers.get(optimizer)
    if isinstance(optimizer, optimizers.Optimizer):
        return Lender(optimizer)
    return TFOptimizer(optimizer) if isinstance(optimizer, train.Optimizer) else optimizer


def _label_columns(labels: object) -> object:
    def column(label: object) -> object:
        is_flat = len(getattr(label, "shape", ())) == 1
        return keras.ops.expand_dims(label, -1) if is_flat else label

    return keras.tree.map_structure(column, labels)


def _for_each(outputs: object, metrics: object) -> object:
    """Return metrics for each output, copied if given once, as in TensorFlow's Keras."""
    if metrics is None or isinstance(metrics, dict):
        return metrics
    entries = list(metrics) if isinstance(metrics, list | tuple) else [metrics]
    is_flat = not any(isinstance(metric, list | tuple | dict) for metric in entries)
    if not (isinstance(outputs, list | tuple) and len(outputs) > 1 and is_flat):
        return entries
    return [[_copy_metric(metric) for metric in entries if metric is not None] for _ in outputs]


def _copy_metric(metric: object) -> object:
    """Return a new Keras metric with the configuration of `metric`; return other objects unchanged.

    Raise InvalidTypeError if the metric cannot be created from its configuration.
    """
    if not isinstance(metric, keras.metrics.Metric):
        return metric
    try:
        return type(metric).from_config(metric.get_config())
    except Exception as error:
        raise InvalidTypeError(
            f"The metric '{metric.name}' is to count for each output, but cannot be made again from"
            f" its get_config(): {error} Give each output its own: metrics=[[...], [...]]."
        ) from error


def _check_distinct(*nests: object) -> None:
    """Raise InvalidArgumentError if a metric object occurs twice in `nests`."""
    seen_ids: set[int] = set()
    for metric in keras.tree.flatten(nests):
        if isinstance(metric, keras.metrics.Metric):
            if id(metric) in seen_ids:
                raise InvalidArgumentError(
                    f"The metric '{metric.name}' is given twice, and would count all in one number."
                    " Give each place a metric of its own."
                )
            seen_ids.add(id(metric))


def _as_in_keras(name: str) -> object:
    """Return a method that runs Keras' method of this name eagerly."""

    @wraps(getattr(keras.Model, name))
    @eagerly()
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return getattr(super(Compiling, self), name)(*args, **options)

    return method


class Compiling(_Model):
    """Mixin of models that accepts optimizers of thalweg, and labels as in TensorFlow's Keras.

    Keras' training loops run eagerly, also in graph mode.
    """

    if not TYPE_CHECKING:

        @property
        def optimizer(self) -> Any:
            """Optimizer passed to `compile`, by object or name."""
            if "optimizer" not in vars(self):
                raise AttributeError("The model is not compiled: it has no optimizer.")
            current = vars(self)["optimizer"]
            return current.shown() if isinstance(current, Lender) else current

        @optimizer.setter
        def optimizer(self, optimizer: object) -> None:
            current = vars(self).get("optimizer")
            # The getter shows the wrapped optimizer, which may be assigned again.
            if isinstance(current, Lender) and current.wrapped is optimizer:
                return
            if isinstance(optimizer, optimizers.Optimizer):
                optimizer = Lender(optimizer)
            if isinstance(optimizer, Lender):
                optimizer.shown()
            vars(self)["optimizer"] = optimizer
            if "_compile_config" in vars(self):
                self._compile_config.config["optimizer"] = optimizer

    @eagerly()
    def compile(self, optimizer: object = "rmsprop", *args: object, **options: object) -> None:
        """Compile the model as in Keras, with an optimizer of thalweg, of `tf.train` or of Keras.

        A name selects an optimizer of thalweg. In the scope of a strategy of `thalweg.distribute`
        the model is a replica. Steps use the mean gradient over the examples of all replicas.

        Raises:
            InvalidArgumentError: A metric object is passed twice.
            InvalidTypeError: A metric of several outputs cannot be created from its configuration.
        """
        names = options.keys() & {"metrics", "weighted_metrics"}
        _check_distinct(*(options[name] for name in names))
        for name in names:
            options[name] = _for_each(getattr(self, "outputs", None), options[name])
        super().compile(as_optimizer(optimizer), *args, **options)
        self._strategy = get_strategy()

    @eagerly()
    def fit(self, x: object = None, *args: object, **options: object) -> Any:
        """Train as in Keras; `x` and `validation_data` may be datasets of `tf.data`."""
        if "validation_data" in options:
            options["validation_data"] = _readable(options["validation_data"])
        loaded = _readable(x)
        if loaded is not x:
            # The dataset has its own order.
            options["shuffle"] = False
        return super().fit(loaded, *args, **options)

    @eagerly()
    def evaluate(self, x: object = None, *args: object, **options: object) -> Any:
        """Evaluate as in Keras; `x` may be a dataset of `tf.data`."""
        return super().evaluate(_readable(x), *args, **options)

    @eagerly()
    def predict(self, x: object, *args: object, **options: object) -> Any:
        """Predict as in Keras; `x` may be a dataset of `tf.data`."""
        return super().predict(_readable(x), *args, **options)

    train_on_batch = _as_in_keras("train_on_batch")
    test_on_batch = _as_in_keras("test_on_batch")
    predict_on_batch = _as_in_keras("predict_on_batch")

    def summary(self, *args: Any, **options: Any) -> Any:
        """Print a summary as in Keras, also before there are weights."""
        token = _is_printed.set(True)
        try:
            return super().summary(*args, **options)
        finally:
            _is_printed.reset(token)

    def train_step(self, *args: object, **options: object) -> Any:
        """Run Keras' training step as a replica of the strategy that the model was compiled in."""
        return self._strategy.run(super().train_step, args, options)

    def compute_loss(
        self, x: object = None, y: object = None, *args: object, **options: object
    ) -> Any:
        """Compute Keras' loss with a vector of labels as a column, as in TensorFlow's Keras."""
        return super().compute_loss(x, _label_columns(y), *args, **options)

    def compute_metrics(self, x: object, y: object, *args: object, **options: object) -> Any:
        """Compute metrics as in Keras; for the labels see `compute_loss`."""
        return super().compute_metrics(x, _label_columns(y), *args, **options)

    def get_compile_config(self) -> dict[str, Any]:
        """Return the configuration of `compile`; warn and return {} for a `tf.train` optimizer."""
        if isinstance(vars(self).get("optimizer"), TFOptimizer):
            warn(
                "An optimizer of tf.train is neither saved nor copied with its model: compile the"
                " other model, too.",
                CheckpointWarning,
            )
            return {}
        return super().get_compile_config()

    def compile_from_config(self, config: dict[str, object]) -> None:
        """Compile as a saved model was compiled, if it was."""
        if not config:
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)


@keras.saving.register_keras_serializable(package="thalweg")
class Sequential(Compiling, keras.Sequential):
    """`keras.Sequential` that accepts optimizers of thalweg in `compile`."""

    @property
    def trainable_weights(self) -> Any:
        """Trained weights.

        Raise ValueError if the model has no weights yet.
        """
        self._check_weights()
        return super().trainable_weights

    @property
    def weights(self) -> Any:
        """All weights.

        Raise ValueError if the model has no weights yet.
        """
        self._check_weights()
        return super().weights

    def _check_weights(self) -> None:
        if self.layers and not self.built and not _is_printed.get():
            raise InvalidArgumentError(
                f"Weights for model '{self.name}' have not yet been created: they are when the"
                " model is first called on inputs, or by `build(input_shape)`."
            )


@keras.saving.register_keras_serializable(package="thalweg")
class Model(Compiling, keras.Model):
    """`keras.Model` that compiles with optimizers of thalweg, to derive from or to call."""

    def __new__(cls, *args: object, **kwargs: object) -> Any:
        model_class: Any = Functional if cls is Model and _has_ends(args, kwargs) else cls
        return super().__new__(model_class, *args, **kwargs)

    def __init__(self, *args: object, **kwargs: object) -> None:
        if _has_ends(args, kwargs) and not isinstance(self, Functional):
            _derive_from_functional(type(self))
        super().__init__(*args, **kwargs)


def _has_ends(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    return len(args) >= 2 or (len(args) == 1 and "outputs" in kwargs) or "inputs" in kwargs


def _derive_from_functional(user_class: type[Model]) -> None:
    """Replace `Model` by `Functional` among the bases of a user's class, in place.

    Keras itself would also change the bases of thalweg's `Model`, for all classes.
    """
    for base in user_class.__bases__:
        if base is not Model and issubclass(base, Model):
            _derive_from_functional(base)
    user_class.__bases__ = tuple(
        Functional if base is Model else base for base in user_class.__bases__
    )


_functional: object = type(keras.Model(inputs=(_end := keras.Input((1,))), outputs=_end))


@keras.saving.register_keras_serializable(package="thalweg")
class Functional(Model, _functional):
    """Model defined by its inputs and outputs."""


def __getattr__(name: str) -> Any:
    return getattr(namespace().models, name)
