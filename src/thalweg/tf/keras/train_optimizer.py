"""`TFOptimizer`: Keras adapter of `tf.train` optimizers for `model.compile`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn, Self

from thalweg.errors import InvalidTypeError
from thalweg.integrations.keras3.optimizer import replica_shares
from thalweg.v1.train import Optimizer
from thalweg.variable import named_variables

import keras  # isort: skip


class TFOptimizer(keras.optimizers.Optimizer):
    """Keras optimizer that takes steps with an optimizer of `tf.train`.

    Learning rate and slots are those of the inner optimizer. There is no configuration: a model is
    saved and cloned without the optimizer.

    Args:
        optimizer: The inner optimizer.
        iterations: Optional. Initial count of steps.

    Reference: tf_keras.src.optimizers.optimizer_v1.TFOptimizer
    """

    def __init__(self, optimizer: Optimizer, iterations: int = 0) -> None:
        super().__init__(learning_rate=math.nan, name=optimizer.get_name())
        self.optimizer = optimizer
        self._iterations.assign(int(iterations))

    def _backend_update_step(
        self, grads: Sequence[object], trainable_variables: Sequence[Any], learning_rate: object
    ) -> None:
        tensors = named_variables([(var.path, var.value) for var in trainable_variables])
        self.optimizer.apply_gradients(list(zip(replica_shares(grads), tensors, strict=True)))

    @property
    def learning_rate(self) -> Any:
        """NaN: Keras can neither read nor set the rate of a `tf.train` optimizer."""
        return self._get_current_learning_rate()

    @learning_rate.setter
    def learning_rate(self, learning_rate: object) -> NoReturn:
        raise InvalidTypeError(
            f"The learning rate of the tf.train optimizer '{self.name}' cannot be set by Keras."
            " Compile the model with an optimizer of tf.keras, or give this one a callable."
        )

    @property
    def weights(self) -> NoReturn:
        """Not available, as in TensorFlow: NotImplementedError. Use `optimizer.variables()`."""
        raise NotImplementedError("Ask the optimizer of tf.train for its variables().")

    def get_config(self) -> NoReturn:
        """Raise NotImplementedError, as in TensorFlow."""
        raise NotImplementedError(
            f"The tf.train optimizer '{self.name}' has no configuration. Make it again, or use an"
            " optimizer of tf.keras."
        )

    @classmethod
    def from_config(cls, config: dict[str, object], custom_objects: object = None) -> Self:
        """Raise NotImplementedError, as in TensorFlow."""
        raise NotImplementedError("An optimizer of tf.train has no configuration.")
