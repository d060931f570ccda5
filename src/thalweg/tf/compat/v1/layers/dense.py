"""`tf.layers.dense`, `dropout` and `flatten`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from thalweg.tf import arrays, nn
from thalweg.tf.compat.v1.initializers import zeros_initializer
from thalweg.tf.compat.v1.layers.base import Layer, activation_of, as_function
from thalweg.tf.convert import call, tensor


class Dense(Layer):
    """Layer that computes `activation(inputs @ kernel + bias)`.

    Args:
        units: The size of the outputs' last dimension.
        activation, use_bias, kernel_initializer, bias_initializer, kernel_regularizer,
            bias_regularizer, activity_regularizer, kernel_constraint, bias_constraint, trainable,
            name: As in `Convolution`.
    """

    RANK = (2, None)

    def __init__(
        self,
        units: int,
        activation: object = None,
        use_bias: bool = True,
        kernel_initializer: object = None,
        bias_initializer: object = zeros_initializer,
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **kwargs)
        self.units, self.activation, self.use_bias = int(units), activation_of(activation), use_bias
        self._of_kernel = (kernel_initializer, kernel_regularizer, True, kernel_constraint)
        self._of_bias = (bias_initializer, bias_regularizer, True, bias_constraint)
        self.kernel: Any = None
        self.bias: Any = None

    def build(self, input_shape: Sequence[int | None]) -> None:
        size = self.channels(input_shape)
        self.kernel = self.add_weight("kernel", (size, self.units), None, *self._of_kernel)
        if self.use_bias:
            self.bias = self.add_weight("bias", (self.units,), None, *self._of_bias)

    def call(self, inputs: object) -> Tensor:
        outputs = arrays.matmul(inputs, self.kernel)
        if self.use_bias:
            outputs = nn.bias_add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)


class Dropout(Layer):
    """Layer that zeroes elements with probability `rate` in training, and scales the rest.

    Args:
        noise_shape: Optional; as in `tf.nn.dropout`.
    """

    def __init__(
        self,
        rate: object = 0.5,
        noise_shape: object = None,
        seed: int | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.rate, self.noise_shape, self.seed = rate, noise_shape, seed

    def call(self, inputs: object, training: object = False) -> Tensor:
        training = decided(training)
        if training is False:
            return arrays.identity(inputs)
        options = (self.rate, self.noise_shape, self.seed, "dropout")
        return nn.apply_dropout(inputs, *options, training)


def decided(training: object) -> Any:
    """Return a bool, or a tensor that each run evaluates; None means False."""
    if training is None or isinstance(training, bool | int):
        return bool(training)
    return tensor(training)


class Flatten(Layer):
    """Layer that flattens all dimensions but the first into one.

    Args:
        data_format: "channels_last"; "channels_first" moves channels last before.
    """

    RANK = (1, None)

    def __init__(
        self, data_format: str = "channels_last", name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.data_format = data_format

    def call(self, inputs: object) -> Tensor:
        first = self.data_format == "channels_first"

        def flatten(operand: Tensor) -> Tensor:
            if first and operand.dim() > 2:
                operand = operand.movedim(1, -1)
            return operand.flatten(1) if operand.dim() > 1 else operand.unsqueeze(1)

        return call(flatten, inputs, name="Reshape")


dense = as_function(Dense, "dense")
flatten = as_function(Flatten, "flatten")


def dropout(
    inputs: object,
    rate: object = 0.5,
    noise_shape: object = None,
    seed: int | None = None,
    training: object = False,
    name: str | None = None,
) -> Tensor:
    """Return the outputs of `Dropout`; `training` is a bool, or a tensor that a run evaluates."""
    return Dropout(rate, noise_shape, seed, name)(inputs, training=training)
