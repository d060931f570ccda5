"""`tf.layers.batch_normalization`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.context_managers import no_grad
from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError
from thalweg.tf.compat.v1.initializers import ones_initializer, zeros_initializer
from thalweg.tf.compat.v1.layers.base import Layer, as_function
from thalweg.tf.compat.v1.layers.dense import decided
from thalweg.tf.convert import call
from thalweg.tf.normalization import batch_moments, normalized


def _check_unsupported(**arguments: object) -> None:
    """Raise NotImplementedError if an argument of `batch_normalization` is set."""
    for argument, value in arguments.items():
        if value:
            raise NotImplementedError(f"batch_normalization has no {argument} here.")


def _single_axis(axis: Any) -> Any:
    """Return the only axis; raise NotImplementedError if there are several."""
    axes = list(axis) if isinstance(axis, Sequence) else [axis]
    if len(axes) != 1:
        raise NotImplementedError(f"batch_normalization takes one axis, not {show_value(axis)}.")
    return axes[0]


class BatchNormalization(Layer):
    """Layer that normalizes inputs by batch moments in training, otherwise by moving averages.

    The variables are gamma, beta and the untrained moving_mean and moving_variance. Calls with a
    true `training`, a bool or tensor, update the averages: in eager mode at once. In a graph the
    operations in UPDATE_OPS do so, as in
    `with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS))`.

    Args:
        axis: The dimension of channels, as a number or a list of one.
        momentum: Fraction of a moving average that an update keeps.
        epsilon: Added to the variance.
        center: True to add `beta`.
        scale: True to multiply by `gamma`.
        beta_initializer, gamma_initializer: Initializers.
        moving_mean_initializer, moving_variance_initializer: Initializers.
        beta_regularizer: A function of beta that returns a penalty.
        gamma_regularizer: A function of gamma that returns a penalty.
        beta_constraint: A function that optimizers apply to beta after each update.
        gamma_constraint: A function that optimizers apply to gamma after each update.
        renorm, virtual_batch_size, adjustment: Not supported.
        renorm_clipping, renorm_momentum: Ignored.
        fused: True to average the unbiased variance, as TensorFlow's fused kernel does; by default
            True for inputs of four dimensions.
        trainable: True to train beta and gamma, and to add updates.

    Raises:
        NotImplementedError: An argument that is not supported is given.
    """

    RANK = (2, None)

    def __init__(
        self,
        axis: Any = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: object = zeros_initializer,
        gamma_initializer: object = ones_initializer,
        moving_mean_initializer: object = zeros_initializer,
        moving_variance_initializer: object = ones_initializer,
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        renorm: bool = False,
        renorm_clipping: object = None,
        renorm_momentum: float = 0.99,
        fused: bool | None = None,
        trainable: bool = True,
        virtual_batch_size: int | None = None,
        adjustment: object = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, **kwargs)
        _check_unsupported(
            renorm=renorm, virtual_batch_size=virtual_batch_size, adjustment=adjustment
        )
        self.axis = _single_axis(axis)
        self.momentum, self.epsilon, self.fused = momentum, epsilon, fused
        self._of_gamma = (gamma_initializer, gamma_regularizer, True, gamma_constraint)
        self._of_beta = (beta_initializer, beta_regularizer, True, beta_constraint)
        self._moving_initializers = (moving_mean_initializer, moving_variance_initializer)
        self._parts = (scale, center)  # pickles contain this name
        self.gamma: Any = None
        self.beta: Any = None
        self.moving_mean: Any = None
        self.moving_variance: Any = None
        self._unbiased = False

    def build(self, input_shape: Sequence[int | None]) -> None:
        if not -len(input_shape) <= self.axis < len(input_shape):
            raise InvalidArgumentError(
                f"axis {self.axis} is none of inputs of shape {tuple(input_shape)}."
            )
        shape = (self.channels(input_shape, self.axis),)
        # As in TensorFlow, variables are float32 also for inputs of 16 bits.
        kind = torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else self.dtype
        scale, center = self._parts
        if scale:
            self.gamma = self.add_weight("gamma", shape, kind, *self._of_gamma)
        if center:
            self.beta = self.add_weight("beta", shape, kind, *self._of_beta)
        mean, variance = self._moving_initializers
        self.moving_mean = self.add_weight("moving_mean", shape, kind, mean, trainable=False)
        self.moving_variance = self.add_weight(
            "moving_variance", shape, kind, variance, trainable=False
        )
        self._unbiased = len(input_shape) == 4 if self.fused is None else self.fused

    def call(self, inputs: Any, training: object = False) -> Any:
        training = decided(training)
        moving = (self.moving_mean, self.moving_variance)
        operands = (inputs, self.gamma, self.beta)
        if isinstance(training, _graph.SymbolicTensor):
            flows = tuple(x for x in operands if isinstance(x, _graph.SymbolicTensor))
            output = _graph.Output(inputs.dtype, inputs.shape, flows)
            operands = [*operands, *moving, training]
            outputs = _graph.operation(
                self._normalize, operands, "batchnorm", kind="pure", outputs=output
            )
        else:
            training = bool(training)
            averages = (None, None) if training else moving
            outputs = call(self._normalize, *operands, *averages, training, name="batchnorm")
        if training is not False:
            self._update_averages(inputs, training)
        return outputs

    def _normalize(
        self, inputs: Any, gamma: Any, beta: Any, mean: Any, variance: Any, training: Any
    ) -> Tensor:
        moments = (None, None) if training is True or bool(training) else (mean, variance)
        return normalized(inputs, gamma, beta, *moments, self.epsilon, self.axis)

    def _update_averages(self, inputs: Any, training: object) -> None:
        """Update the moving averages if `training` is true: now, or in runs of UPDATE_OPS."""
        fraction = 1 - self.momentum

        def measure(batch: Any) -> Any:
            return batch_moments(batch, self.axis, self._unbiased)

        @no_grad()
        def move(average: Tensor, value: Tensor, active: object) -> None:
            if bool(active):
                average.sub_((average - value) * fraction)

        moments = call(measure, inputs, name="moments")
        for average, value in zip((self.moving_mean, self.moving_variance), moments, strict=True):
            if _graph.executing_eagerly():
                move(average, value, training)
            else:
                operands = [_graph.by_reference(average), value, training]
                self.add_update(_graph.operation(move, operands, "AssignMovingAvg"))


batch_normalization = as_function(
    BatchNormalization,
    "batch_normalization",
    "inputs axis momentum epsilon center scale beta_initializer gamma_initializer"
    " moving_mean_initializer moving_variance_initializer beta_regularizer gamma_regularizer"
    " beta_constraint gamma_constraint training trainable name reuse renorm renorm_clipping"
    " renorm_momentum fused virtual_batch_size adjustment",
)
