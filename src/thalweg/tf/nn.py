"""`tf.nn`: activations, losses and lookups."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from thalweg import _graph
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.tf import convolution, normalization, operators, ranking, sampled_losses
from thalweg.tf.clipping import global_norm
from thalweg.tf.convert import call, is_tensor, named_in_graphs, newer_axis, pair, sizes, tensor
from thalweg.tf.convolution import *
from thalweg.tf.elementwise import sigmoid, softplus, tanh
from thalweg.tf.missing import attribute_of
from thalweg.tf.normalization import *
from thalweg.tf.partitioned_lookup import look_up
from thalweg.tf.ranking import *
from thalweg.tf.sampled_losses import *
from thalweg.variable import dtype_name

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    *sampled_losses.__all__, *convolution.__all__, *normalization.__all__, *ranking.__all__,
    "bias_add", "crelu", "dropout", "elu", "embedding_lookup", "gelu", "global_norm", "l2_loss",
    "l2_normalize", "leaky_relu", "log_softmax", "relu", "relu6", "selu", "sigmoid",
    "sigmoid_cross_entropy_with_logits", "silu", "softmax", "softmax_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits_v2", "softplus", "softsign",
    "sparse_softmax_cross_entropy_with_logits", "swish", "tanh",
    "weighted_cross_entropy_with_logits", "xw_plus_b", "zero_fraction",
]  # fmt: skip

unary = partial(operators.unary, __name__)
relu = unary(torch.relu, "relu")
relu6 = unary(functional.relu6, "relu6")
elu = unary(functional.elu, "elu")
selu = unary(functional.selu, "selu")
silu = swish = unary(functional.silu, "silu")
softsign = unary(functional.softsign, "softsign")


def leaky_relu(features: object, alpha: float = 0.2, name: str | None = None) -> Tensor:
    """Return positive elements unchanged, and the others times `alpha`."""
    return call(functional.leaky_relu, tensor(features), alpha, name=name or "LeakyRelu")


def crelu(features: object, axis: int = -1, name: str | None = None) -> Tensor:
    """Return the positive parts of elements and of their negatives, joined along an axis."""

    def both(operand: Tensor) -> Tensor:
        return torch.cat([torch.relu(operand), torch.relu(-operand)], axis)

    return call(both, tensor(features), name=name or "CRelu")


def gelu(features: object, approximate: bool = False, name: str | None = None) -> Tensor:
    """Return the Gaussian error linear unit, or its approximation by tanh."""
    kind = "tanh" if approximate else "none"
    return call(
        lambda x: functional.gelu(x, approximate=kind), tensor(features), name=name or "Gelu"
    )


def softmax(logits: object, axis: int = -1, name: str | None = None) -> Tensor:
    """Return probabilities along an axis."""
    return call(torch.softmax, tensor(logits), axis, name=name or "Softmax")


def log_softmax(logits: object, axis: int = -1, name: str | None = None) -> Tensor:
    """Return the logarithms of `softmax`."""
    return call(torch.log_softmax, tensor(logits), axis, name=name or "LogSoftmax")


def softmax_cross_entropy_with_logits(
    labels: object, logits: object, axis: int = -1, name: str | None = None
) -> Tensor:
    """Return the cross entropy of probabilities `labels` and `softmax(logits)`, for each row.

    Raises:
        InvalidArgumentError: In graph mode the labels depend on trainable variables.
    """
    logits, labels = pair(logits, labels)
    if isinstance(labels, _graph.SymbolicTensor) and _is_trained(labels):
        raise InvalidArgumentError(
            "softmax_cross_entropy_with_logits has labels that depend on variables: TensorFlow 1"
            " stops the gradient there under this name, and TensorFlow 2 does not. Give it"
            " tf.stop_gradient(labels), or call that of thalweg.tf.compat.v1.nn, whose name ends in"
            " _v2 where the gradient flows."
        )
    return cross_entropy(labels, logits, axis, name)


def cross_entropy(
    labels: object,
    logits: object,
    axis: int | None = None,
    name: str | None = None,
    dim: int | None = None,
) -> Tensor:
    """Return the cross entropy of `labels` and `softmax(logits)`; gradients flow to both.

    `axis` is by default the last axis; `dim` is an older name of `axis`.
    """
    axis = newer_axis(axis, dim, "dim")
    class_axis = -1 if axis is None else axis

    def entropy(logit: Tensor, label: Tensor) -> Tensor:
        return -(label * torch.log_softmax(logit, class_axis)).sum(class_axis)

    return call(entropy, *pair(logits, labels), name=name or "softmax_cross_entropy_with_logits")


# TensorFlow 1's name.
softmax_cross_entropy_with_logits_v2 = cross_entropy


def _is_trained(target: _graph.SymbolicTensor) -> bool:
    """Return True if a gradient of the tensor reaches a trainable variable."""
    pending, visited = [target], {target}
    while pending:
        symbol = pending.pop()
        if isinstance(symbol, _graph.GraphVariable) and symbol.trainable:
            return True
        sources = [source for source in symbol.op.flows_to(symbol) if source not in visited]
        visited.update(sources)
        pending += sources
    return False


def sparse_softmax_cross_entropy_with_logits(
    labels: object, logits: object, name: str | None = None
) -> Tensor:
    """Return the cross entropy of class numbers `labels` and `softmax(logits)`, for each row.

    Args:
        labels: Integers of the shape of `logits` without its last dimension.
        logits: Unscaled logarithms of probabilities, with the classes along the last dimension.

    Raises:
        InvalidTypeError: The labels are not integers.
        InvalidArgumentError: The labels have another shape. On the CPU, also if a label is below 0
            or not below the number of classes.
    """

    def entropy(logit: Tensor, label: Tensor) -> Tensor:
        _check_labels(label, logit.shape)
        log_probs = torch.log_softmax(logit, -1).gather(-1, label.long().unsqueeze(-1))
        return -log_probs.squeeze(-1)

    op_name = name or "SparseSoftmaxCrossEntropyWithLogits"
    return call(entropy, tensor(logits), tensor(labels), name=op_name)


def _check_labels(labels: torch.Tensor, shape: Sequence[int]) -> None:
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InvalidTypeError(f"labels must be integers, not {dtype_name(labels.dtype)}.")
    if not shape or labels.shape != shape[:-1]:
        raise InvalidArgumentError(
            f"labels of shape {tuple(labels.shape)} do not fit logits of shape {tuple(shape)}:"
            " a label stands for each row of logits."
        )
    # On a GPU the check would wait for the device.
    if labels.device.type != "cpu":
        return
    wrong = ((labels < 0) | (labels >= shape[-1])).nonzero().tolist()
    if wrong:
        position = ", ".join(map(str, wrong[0]))
        raise InvalidArgumentError(
            f"labels[{position}] = {labels[tuple(wrong[0])].item()} is not in [0, {shape[-1]})."
        )


def sigmoid_cross_entropy_with_logits(
    labels: object, logits: object, name: str | None = None
) -> Tensor:
    """Return the cross entropy of probabilities and `sigmoid(logits)`, for each element."""

    def entropy(logit: Tensor, label: Tensor) -> Tensor:
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        return loss(logit, label, reduction="none")

    return call(entropy, *pair(logits, labels), name=name or "logistic_loss")


def l2_loss(t: object, name: str | None = None) -> Tensor:
    """Return half the sum of the squares."""
    return call(lambda source: (source * source).sum() / 2, tensor(t), name=name or "L2Loss")


def l2_normalize(
    x: object, axis: object = None, epsilon: float = 1e-12, name: str | None = None
) -> Tensor:
    """Return `x` divided by its Euclidean norm along `axis`, by default over all elements.

    The divisor is at least the square root of `epsilon`.
    """
    axes = None if axis is None else sizes(axis)

    def scale(operand: Tensor) -> Tensor:
        squares = (operand * operand).sum(axes, keepdim=True)
        return operand * torch.rsqrt(squares.clamp(min=epsilon))

    return call(scale, tensor(x), name=name or "l2_normalize")


def bias_add(
    value: object, bias: object, data_format: str | None = None, name: str | None = None
) -> Tensor:
    """Add a bias along the last dimension of `value`, or for "NCHW" and the like along the second.

    Raise InvalidArgumentError if the bias is not a vector of the size of this dimension.
    """
    first = data_format is not None and data_format.startswith("NC")

    def add(operand: Tensor, bias_row: Tensor) -> Tensor:
        if operand.dim() < 2 or bias_row.shape != operand.shape[1 if first else -1 :][:1]:
            raise InvalidArgumentError(
                f"A bias of shape {tuple(bias_row.shape)} does not fit the channels of a tensor of"
                f" shape {tuple(operand.shape)}."
            )
        if first:
            bias_row = bias_row.reshape(-1, *[1] * (operand.dim() - 2))
        return operand + bias_row

    return call(add, *pair(value, bias), name=name or "BiasAdd")


def xw_plus_b(x: object, weights: object, biases: object, name: str | None = None) -> Tensor:
    """Return the product of two matrices, plus a bias."""
    x, weights = pair(x, weights)
    operands = (x, weights, pair(x, biases)[1])
    return call(lambda lhs, rhs, shift: lhs @ rhs + shift, *operands, name=name or "xw_plus_b")


def zero_fraction(value: object, name: str | None = None) -> Tensor:
    """Return the share of the elements that are 0, as float32."""
    return call(lambda source: (source == 0).float().mean(), tensor(value), name=name or "fraction")


def weighted_cross_entropy_with_logits(
    labels: object, logits: object, pos_weight: object, name: str | None = None
) -> Tensor:
    """Return `sigmoid_cross_entropy_with_logits`, with positive labels weighted by `pos_weight`."""
    logits, labels = pair(logits, labels)

    def entropy(logit: Tensor, label: Tensor, weight: Tensor) -> Tensor:
        positive_weight = 1 + (weight - 1) * label
        # `softplus(-x)` is log(1 + exp(-x)) without the overflow at large negative x.
        return (1 - label) * logit + positive_weight * softplus(-logit)

    weight = pair(logits, pos_weight)[1]
    return call(entropy, logits, labels, weight, name=name or "logistic_loss")


@named_in_graphs(1, "keep_prob")
def dropout(
    x: object,
    rate: object,
    noise_shape: object = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Set elements to 0 with probability `rate`; scale the rest by 1 / (1 - rate).

    Args:
        noise_shape: Optional. The shape of the random mask, which is broadcast. A size of -1 or
            None is the size of `x`.

    Raises:
        InvalidArgumentError: `rate` is a number that is not in [0, 1).
        InvalidTypeError: `x` has integers; or in graph mode `rate` is given by position.
    """
    return apply_dropout(tensor(x), rate, noise_shape, seed, name or "dropout")


def apply_dropout(
    x: Any, rate: object, noise_shape: Any, seed: int | None, name: str, training: object = True
) -> Tensor:
    """Return `dropout` of the tensor `x`, or the values of `x` if `training` is a False tensor.

    Args:
        training: True, or a bool tensor of shape (). Other arguments are those of `dropout`.

    Raises:
        InvalidArgumentError: `rate` is a number that is not in [0, 1).
        InvalidTypeError: `x` has integers.
    """
    if isinstance(rate, int | float) and not 0 <= rate < 1:
        raise InvalidArgumentError(f"rate must be in [0, 1), not {rate}.")
    if x.dtype is not None and not (x.dtype.is_floating_point or x.dtype.is_complex):
        kind = dtype_name(x.dtype)
        raise InvalidTypeError(f"x must be of a floating-point type to be scaled, not {kind}.")
    generator = _graph.numbers_of(seed)

    def drop(input: Tensor, drop_rate: Any, active: Any, dims: Any) -> Tensor:
        shape = input.shape
        if dims is not None:
            pairs = zip(dims, shape, strict=True)
            shape = [size if n is None or int(n) == -1 else int(n) for n, size in pairs]
        source = generator()
        device = input.device if source is None else source.device
        noise = torch.rand(shape, generator=source, dtype=torch.float32, device=device)
        noise = noise.to(input.device)
        output = torch.where(
            noise >= drop_rate, input * (1 / (1 - drop_rate)), torch.zeros_like(input)
        )
        return output if active is True else torch.where(active.bool(), output, input)

    dims = noise_shape if noise_shape is None or is_tensor(noise_shape) else list(noise_shape)
    rate, training = (tensor(arg) if is_tensor(arg) else arg for arg in (rate, training))
    if _graph.executing_eagerly():
        return drop(x, rate, training, dims)
    # Its shape is known even where that of the rate is not.
    output = _graph.Output(x.dtype, x.shape, (x,) if isinstance(x, _graph.SymbolicTensor) else ())
    return _graph.operation(drop, [x, rate, training, dims], name, kind="pure", outputs=output)


@named_in_graphs(2, "partition_strategy")
def embedding_lookup(
    params: object,
    ids: object,
    max_norm: object = None,
    name: str | None = None,
    *,
    partition_strategy: str | None = None,
) -> Tensor:
    """Return the rows of `params` at `ids`; the gradient of a variable is `IndexedSlices`.

    Args:
        params: A table, a list of tables, or a partitioned variable.
        ids: Integers of any shape.
        max_norm: Not supported; clip the rows with `clip_by_norm`.
        partition_strategy: Order of rows in several tables, see `partitioned_lookup.look_up`.

    Raises:
        InvalidTypeError, InvalidArgumentError: `max_norm` is given, or an error of
            `partitioned_lookup.look_up`.
    """
    if max_norm is not None:
        raise InvalidArgumentError(
            "embedding_lookup does not clip: use clip_by_norm(rows, max_norm, axes=[-1])."
        )
    return look_up(params, ids, partition_strategy, name)


__getattr__ = attribute_of("nn")
