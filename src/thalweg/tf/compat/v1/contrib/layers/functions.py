"""Layers of `tf.contrib.layers`: layers of `tf.layers` with different names and defaults.

Variables are called weights and biases. They are in the collection MODEL_VARIABLES and in
`variables_collections`, a list or {name: collections}. Outputs are in `outputs_collections`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg._base.static_shape import UNKNOWN
from thalweg._graph import GraphKeys
from thalweg.errors import InvalidArgumentError
from thalweg.tf import arrays, nn
from thalweg.tf.compat.v1 import layers
from thalweg.tf.compat.v1.contrib.layers.weights import xavier_initializer
from thalweg.tf.compat.v1.initializers import ones_initializer, zeros_initializer
from thalweg.tf.convert import tensor
from thalweg.tf.operators import name_function
from thalweg.tf.signatures import with_common_arguments

_NAMES = {"kernel": "weights", "bias": "biases"}
_FORMATS = {None: "channels_last", "NHWC": "channels_last", "NCHW": "channels_first"}


class _Dense(layers.Dense):
    NAMES = _NAMES


class _Conv2D(layers.Conv2D):
    NAMES = _NAMES


class _Conv2DTranspose(layers.Conv2DTranspose):
    NAMES = _NAMES


def _format_of(data_format: str | None) -> str:
    if data_format not in _FORMATS:
        raise InvalidArgumentError(
            f"data_format must be NHWC or NCHW, not {show_value(data_format)}."
        )
    return _FORMATS[data_format]


@contextlib.contextmanager
def _layer_scope(scope: Any, default: str, reuse: Any) -> Iterator[dict[str, Any]]:
    """Enter a variable scope; yield the arguments of a layer in it."""
    with _graph.variable_scope(scope, default, reuse=reuse) as opened_scope:
        yield {"_scope": opened_scope, "_reuse": reuse, "name": default}


def _collect_outputs(outputs: object, layer: Any, variables: Any, collections: object) -> Any:
    """Add a layer's variables and outputs to collections of the graph; return the outputs.

    `variables` are the collections for all variables of the layer, or {variable name: collections}.
    `layer` is None if it has no variables. `collections` are the collections for `outputs`.
    """
    for variable in [] if layer is None else layer.variables:
        _graph.add_to_collection(GraphKeys.MODEL_VARIABLES, variable)
        variable_name = variable.op.name.rpartition("/")[2]
        keys = variables.get(variable_name, ()) if isinstance(variables, dict) else variables or ()
        _graph.get_default_graph().add_to_collections(keys, variable)
    if collections:
        _graph.get_default_graph().add_to_collections(collections, outputs)
    return outputs


def _apply_layer(
    layer: type[Any],
    default: str,
    arguments: tuple[object, Sequence[object]],
    activation_fn: Callable[[Any], object] | None = nn.relu,
    normalizer_fn: Callable[..., object] | None = None,
    normalizer_params: dict[str, object] | None = None,
    weights_initializer: object = None,
    weights_regularizer: object = None,
    biases_initializer: object = zeros_initializer,
    biases_regularizer: object = None,
    reuse: object = None,
    variables_collections: object = None,
    outputs_collections: object = None,
    trainable: bool = True,
    scope: object = None,
) -> Any:
    """Create and call a layer with weights; return its outputs.

    Args:
        default: Name of the layer's scope if `scope` is None.
        arguments: (inputs, first arguments of the constructor).
        activation_fn: Applied to the outputs. Further arguments are as in `tf.contrib.layers`.
    """
    inputs, sizes = arguments
    with _layer_scope(scope, default, reuse) as scope_args:
        instance = layer(
            *sizes,
            use_bias=normalizer_fn is None and biases_initializer is not None,
            kernel_initializer=weights_initializer or xavier_initializer(),
            bias_initializer=biases_initializer,
            kernel_regularizer=weights_regularizer,
            bias_regularizer=biases_regularizer,
            trainable=trainable,
            **scope_args,
        )
        outputs = instance(inputs)
        if normalizer_fn is not None:
            outputs = normalizer_fn(outputs, **(normalizer_params or {}))
        if activation_fn is not None:
            outputs = activation_fn(outputs)
        return _collect_outputs(outputs, instance, variables_collections, outputs_collections)


@with_common_arguments(partial(_apply_layer, _Dense, "fully_connected"))
def fully_connected(inputs: object, num_outputs: int) -> Any:
    """Apply a layer as `tf.layers.dense` does, with `relu` and `xavier_initializer` by default.

    `normalizer_fn`, called with `normalizer_params`, replaces the biases.
    """
    return inputs, (num_outputs,)


@with_common_arguments(partial(_apply_layer, _Conv2D, "Conv"))
def conv2d(
    inputs: object,
    num_outputs: int,
    kernel_size: object,
    stride: object = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: object = 1,
) -> Any:
    """Return `tf.layers.conv2d` of the inputs, by default with `relu` and `xavier_initializer`."""
    return inputs, (num_outputs, kernel_size, stride, padding, _format_of(data_format), rate)


@with_common_arguments(partial(_apply_layer, _Conv2DTranspose, "Conv2d_transpose"))
def conv2d_transpose(
    inputs: object,
    num_outputs: int,
    kernel_size: object,
    stride: object = 1,
    padding: str = "SAME",
    data_format: str | None = "NHWC",
) -> Any:
    """Apply `tf.layers.conv2d_transpose`, with the defaults of `tf.contrib.layers.conv2d`."""
    return inputs, (num_outputs, kernel_size, stride, padding, _format_of(data_format))


def batch_norm(
    inputs: object,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    activation_fn: Callable[[Any], object] | None = None,
    param_initializers: dict[str, object] | None = None,
    param_regularizers: dict[str, object] | None = None,
    updates_collections: object = GraphKeys.UPDATE_OPS,
    is_training: object = True,
    reuse: object = None,
    variables_collections: object = None,
    outputs_collections: object = None,
    trainable: bool = True,
    batch_weights: object = None,
    fused: bool | None = None,
    data_format: str = "NHWC",
    zero_debias_moving_mean: bool = False,
    scope: object = None,
    renorm: bool = False,
    renorm_clipping: object = None,
    renorm_decay: float = 0.99,
    adjustment: object = None,
) -> Tensor:
    """Return inputs normalized by `tf.layers.batch_normalization`, by default without `gamma`.

    With `updates_collections=None` the outputs wait for updates of the moving averages. Unbiased
    variances enter the moving variance for inputs of 2 or 4 dimensions, and biased variances for
    other inputs, or if `fused` is False. `renorm_clipping` and `renorm_decay` are ignored. Raise
    NotImplementedError for `batch_weights`, `zero_debias_moving_mean`, `renorm` or `adjustment`.
    """
    _check_unsupported(batch_weights=batch_weights, renorm=renorm, adjustment=adjustment)
    _check_unsupported(zero_debias_moving_mean=zero_debias_moving_mean)
    inputs = tensor(inputs)
    by_kernel = fused is not False and inputs.shape is not UNKNOWN and len(inputs.shape) in (2, 4)
    axis = 1 if _format_of(data_format) == "channels_first" else -1
    options = {f"{name}_initializer": init for name, init in (param_initializers or {}).items()}
    options |= {f"{name}_regularizer": reg for name, reg in (param_regularizers or {}).items()}
    with _layer_scope(scope, "BatchNorm", reuse) as scope_args:
        scope_args |= {**options, "trainable": trainable, "fused": by_kernel}
        layer = layers.BatchNormalization(axis, decay, epsilon, center, scale, **scope_args)
        outputs = _normalize(layer, inputs, is_training, updates_collections)
        if activation_fn is not None:
            outputs = activation_fn(outputs)
        return _collect_outputs(outputs, layer, variables_collections, outputs_collections)


def _check_unsupported(**arguments: object) -> None:
    """Raise NotImplementedError unless all arguments of `batch_norm` are None or False."""
    for argument, value in arguments.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"batch_norm has no {argument} here.")


def _normalize(
    layer: layers.BatchNormalization,
    inputs: Tensor,
    is_training: object,
    updates_collections: object,
) -> Any:
    """Return a layer's outputs; add the layer's updates to `updates_collections`.

    If `updates_collections` is None, the outputs wait for the updates instead.
    """
    layer.UPDATES = updates_collections or ()
    outputs = layer(inputs, training=is_training)
    if updates_collections is not None:
        return outputs
    with _graph.control_dependencies(layer.updates):
        return arrays.identity(outputs)


class _LayerNorm(layers.Layer):
    """Layer that normalizes each example, then scales and shifts along the last axes."""

    def __init__(self, center: bool, scale: bool, starts: tuple[int, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Pickles contain this name.
        self._parts = (center, scale)
        self._first_axes = starts
        self._beta: object = None
        self._gamma: object = None

    def build(self, input_shape: Sequence[int | None]) -> None:
        axes = range(len(input_shape))[self._first_axes[1] :]
        shape = [self.channels(input_shape, axis) for axis in axes]
        if self._parts[0]:
            self._beta = self.add_weight("beta", shape, None, zeros_initializer)
        if self._parts[1]:
            self._gamma = self.add_weight("gamma", shape, None, ones_initializer)

    def call(self, inputs: Tensor) -> Any:
        axes = list(range(len(inputs.shape))[self._first_axes[0] :])
        mean, variance = nn.moments(inputs, axes, keepdims=True)
        epsilon = 1e-3 if inputs.dtype == torch.float16 else 1e-12
        moments_and_weights = (mean, variance, self._beta, self._gamma, epsilon)
        return nn.batch_normalization(inputs, *moments_and_weights)


def layer_norm(
    inputs: object,
    center: bool = True,
    scale: bool = True,
    activation_fn: Callable[[Any], object] | None = None,
    reuse: object = None,
    variables_collections: object = None,
    outputs_collections: object = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: object = None,
) -> Tensor:
    """Normalize each example over the axes from `begin_norm_axis` on; return the outputs.

    `beta` and `gamma` have the sizes of the axes from `begin_params_axis` on.
    """
    first_axes = (begin_norm_axis, begin_params_axis)
    with _layer_scope(scope, "LayerNorm", reuse) as scope_args:
        layer = _LayerNorm(center, scale, first_axes, trainable=trainable, **scope_args)
        outputs = layer(inputs)
        if activation_fn is not None:
            outputs = activation_fn(outputs)
        return _collect_outputs(outputs, layer, variables_collections, outputs_collections)


def flatten(inputs: object, outputs_collections: object = None, scope: str | None = None) -> Tensor:
    """Flatten all dimensions but the first into one."""
    outputs = layers.flatten(inputs, name=scope or "Flatten")
    return _collect_outputs(outputs, None, None, outputs_collections)


def dropout(
    inputs: object,
    keep_prob: Any = 0.5,
    noise_shape: Any = None,
    is_training: Any = True,
    outputs_collections: object = None,
    scope: str | None = None,
    seed: int | None = None,
) -> Tensor:
    """Return `tf.layers.dropout` of the inputs; `keep_prob` is the fraction of kept elements."""
    options = (1 - keep_prob, noise_shape, seed, is_training)
    return _collect_outputs(layers.dropout(inputs, *options), None, None, outputs_collections)


def _pooling_function(
    function: Callable[..., Tensor], function_name: str, doc: str
) -> Callable[..., Tensor]:
    def apply(
        inputs: object,
        kernel_size: object,
        stride: object = 2,
        padding: str = "VALID",
        data_format: str = "NHWC",
        outputs_collections: object = None,
        scope: str | None = None,
    ) -> Tensor:
        outputs = function(inputs, kernel_size, stride, padding, _format_of(data_format))
        return _collect_outputs(outputs, None, None, outputs_collections)

    return name_function(apply, function_name, doc)


max_pool2d = _pooling_function(
    layers.max_pooling2d, "max_pool2d", "Take maxima as `tf.layers.max_pooling2d` does."
)
avg_pool2d = _pooling_function(
    layers.average_pooling2d, "avg_pool2d", "Take means as `tf.layers.average_pooling2d` does."
)


def relu(inputs: object, num_outputs: int, **options: object) -> Tensor:
    """Apply `fully_connected` with `tf.nn.relu`."""
    return fully_connected(inputs, num_outputs, nn.relu, **options)


def linear(inputs: object, num_outputs: int, **options: object) -> Tensor:
    """Apply `fully_connected` without an activation."""
    return fully_connected(inputs, num_outputs, None, **options)
