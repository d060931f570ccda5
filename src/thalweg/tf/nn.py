"""`tf.nn`: activations, losses and lookups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from thalweg import graph
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import table_of
from thalweg.tf.clipping import global_norm
from thalweg.tf.convert import call, named_in_graphs, pair, sizes, tensor
from thalweg.tf.elementwise import sigmoid, softplus, tanh
from thalweg.tf.missing import attribute_of
from thalweg.tf.operators import unary
from thalweg.variable import dtype_name

__all__ = [
    "bias_add",
    "dropout",
    "elu",
    "embedding_lookup",
    "gelu",
    "global_norm",
    "l2_loss",
    "l2_normalize",
    "leaky_relu",
    "log_softmax",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "sigmoid_cross_entropy_with_logits",
    "silu",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "softplus",
    "softsign",
    "sparse_softmax_cross_entropy_with_logits",
    "swish",
    "tanh",
]

relu = unary(torch.relu, "relu")
relu6 = unary(functional.relu6, "relu6")
elu = unary(functional.elu, "elu")
selu = unary(functional.selu, "selu")
silu = swish = unary(functional.silu, "silu")
softsign = unary(functional.softsign, "softsign")


def leaky_relu(features: Any, alpha: float = 0.2, name: str | None = None) -> Any:
    """The elements that are positive, `alpha` times the others."""
    return call(functional.leaky_relu, tensor(features), alpha, name=name or "LeakyRelu")


def gelu(features: Any, approximate: bool = False, name: str | None = None) -> Any:
    """The Gaussian error linear unit, or its approximation by tanh."""
    kind = "tanh" if approximate else "none"
    return call(
        lambda x: functional.gelu(x, approximate=kind), tensor(features), name=name or "Gelu"
    )


def softmax(logits: Any, axis: int = -1, name: str | None = None) -> Any:
    """Probabilities along an axis."""
    return call(torch.softmax, tensor(logits), axis, name=name or "Softmax")


def log_softmax(logits: Any, axis: int = -1, name: str | None = None) -> Any:
    """The logarithms of `softmax`."""
    return call(torch.log_softmax, tensor(logits), axis, name=name or "LogSoftmax")


def softmax_cross_entropy_with_logits(
    labels: Any, logits: Any, axis: int = -1, name: str | None = None
) -> Any:
    """The cross entropy of probabilities `labels` and `softmax(logits)`, for each row.

    Raises:
        InvalidArgumentError: In graph mode the labels depend on variables that are trained.
    """
    logits, labels = pair(logits, labels)
    if isinstance(labels, graph.SymbolicTensor) and _trains(labels):
        raise InvalidArgumentError(
            "softmax_cross_entropy_with_logits has labels that depend on variables: TensorFlow 1"
            " stops the gradient there under this name, and TensorFlow 2 does not. Give it"
            " tf.stop_gradient(labels), or call that of thalweg.tf.compat.v1.nn, whose name ends in"
            " _v2 where the gradient flows."
        )
    return cross_entropy(labels, logits, axis, name)


def cross_entropy(labels: Any, logits: Any, axis: int = -1, name: str | None = None) -> Any:
    """That of TensorFlow 2, whose gradient flows into the labels, too."""

    def entropy(given: Any, wanted: Any) -> Any:
        return -(wanted * torch.log_softmax(given, axis)).sum(axis)

    return call(entropy, *pair(logits, labels), name=name or "softmax_cross_entropy_with_logits")


def _trains(target: graph.SymbolicTensor) -> bool:
    """Whether a gradient of the tensor reaches a variable that is trained."""
    pending, seen = [target], {target}
    while pending:
        found = pending.pop()
        if isinstance(found, graph.GraphVariable) and found.trainable:
            return True
        below = [each for each in found.op.flows_to(found) if each not in seen]
        seen.update(below)
        pending += below
    return False


def sparse_softmax_cross_entropy_with_logits(
    labels: Any, logits: Any, name: str | None = None
) -> Any:
    """The cross entropy of class numbers `labels` and `softmax(logits)`, for each row.

    Args:
        labels: Integers of the shape of `logits` without its last dimension.
        logits: Unscaled logarithms of probabilities, with the classes along the last dimension.
        name: Optional.

    Raises:
        InvalidTypeError: The labels are not integers.
        InvalidArgumentError: Their shape is wrong, or, on the CPU, one is not a class number.
    """

    def entropy(given: Any, wanted: Any) -> Any:
        _check_labels(wanted, given.shape)
        chosen = torch.log_softmax(given, -1).gather(-1, wanted.long().unsqueeze(-1))
        return -chosen.squeeze(-1)

    title = name or "SparseSoftmaxCrossEntropyWithLogits"
    return call(entropy, tensor(logits), tensor(labels), name=title)


def _check_labels(labels: torch.Tensor, shape: Sequence[int]) -> None:
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InvalidTypeError(f"labels must be integers, not {dtype_name(labels.dtype)}.")
    if not shape or labels.shape != shape[:-1]:
        raise InvalidArgumentError(
            f"labels of shape {tuple(labels.shape)} do not fit logits of shape {tuple(shape)}:"
            " a label stands for each row of logits."
        )
    if labels.device.type != "cpu":  # elsewhere the check would wait for the device
        return
    wrong = ((labels < 0) | (labels >= shape[-1])).nonzero().tolist()
    if wrong:
        place = ", ".join(map(str, wrong[0]))
        raise InvalidArgumentError(
            f"labels[{place}] = {labels[tuple(wrong[0])].item()} is not in [0, {shape[-1]})."
        )


def sigmoid_cross_entropy_with_logits(labels: Any, logits: Any, name: str | None = None) -> Any:
    """The cross entropy of probabilities `labels` and `sigmoid(logits)`, for each element."""

    def entropy(given: Any, wanted: Any) -> Any:
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        return loss(given, wanted, reduction="none")

    return call(entropy, *pair(logits, labels), name=name or "logistic_loss")


def l2_loss(t: Any, name: str | None = None) -> Any:
    """Half the sum of the squares."""
    return call(lambda given: (given * given).sum() / 2, tensor(t), name=name or "L2Loss")


def l2_normalize(x: Any, axis: Any = None, epsilon: float = 1e-12, name: str | None = None) -> Any:
    """The tensor divided by its Euclidean norm, along axes or of all elements."""
    axes = None if axis is None else sizes(axis)

    def scale(given: Any) -> Any:
        squares = (given * given).sum(axes, keepdim=True)
        return given * torch.rsqrt(squares.clamp(min=epsilon))

    return call(scale, tensor(x), name=name or "l2_normalize")


def bias_add(value: Any, bias: Any, data_format: str | None = None, name: str | None = None) -> Any:
    """A bias added along the last dimension, or with "NC..." along the second."""

    def add(given: Any, one: Any) -> Any:
        if data_format is not None and data_format.startswith("NC"):
            one = one.reshape(-1, *[1] * (given.dim() - 2))
        return given + one

    return call(add, *pair(value, bias), name=name or "BiasAdd")


@named_in_graphs(1, "keep_prob")
def dropout(
    x: Any, rate: float, noise_shape: Any = None, seed: Any = None, name: str | None = None
) -> Any:
    """Elements set to 0 with probability `rate`, the others scaled by 1 / (1 - rate).

    Raises:
        InvalidArgumentError: `noise_shape` or `seed` is given, which torch's dropout does not have.
        InvalidTypeError: In graph mode `rate` is given by position.
    """
    if noise_shape is not None or seed is not None:
        raise InvalidArgumentError("dropout takes neither noise_shape nor seed.")
    return call(torch.dropout, tensor(x), rate, True, name=name or "dropout")


@named_in_graphs(2, "partition_strategy")
def embedding_lookup(params: Any, ids: Any, max_norm: Any = None, name: str | None = None) -> Any:
    """The rows that `ids` names; the gradient of `params` is slices.

    Raises:
        InvalidTypeError: `params` is a list of several tables.
        InvalidArgumentError: `max_norm` is given; clip the rows with `clip_by_norm`.
    """
    if max_norm is not None:
        raise InvalidArgumentError(
            "embedding_lookup does not clip: use clip_by_norm(rows, max_norm, axes=[-1])."
        )
    return graph.embedding_lookup(tensor(table_of(params)), tensor(ids), name)


__getattr__ = attribute_of("nn")
