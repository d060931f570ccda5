"""`tf.losses`: weighted losses, which a graph collects.

Each function has `weights` that are a number, or a tensor that broadcasts to the losses: as many
dimensions, each the same or 1. The loss goes to the collection `loss_collection` of the graph,
unless that is None or the mode is eager. `scope` names the operations.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph, distribute
from thalweg._base.static_shape import UNKNOWN
from thalweg._graph import GraphKeys
from thalweg.errors import InvalidArgumentError
from thalweg.tf import nn
from thalweg.tf.compat.v1.loss_weights import check_weights, quotient, squeeze_column
from thalweg.tf.convert import call, newer_axis, tensor
from thalweg.tf.elementwise import add_n, cast, stop_gradient
from thalweg.tf.missing import attribute_of
from thalweg.tf.signatures import with_common_arguments

__all__ = [
    "Reduction", "absolute_difference", "add_loss", "compute_weighted_loss", "cosine_distance",
    "get_losses", "get_regularization_loss", "get_regularization_losses", "get_total_loss",
    "hinge_loss", "huber_loss", "log_loss", "mean_squared_error", "sigmoid_cross_entropy",
    "softmax_cross_entropy", "sparse_softmax_cross_entropy",
]  # fmt: skip

_LOSSES = GraphKeys.LOSSES


class Reduction(enum.StrEnum):
    """Reductions of weighted losses to one number.

    NONE returns the weighted losses, SUM the sum. The others divide the sum: MEAN by the sum of
    weights, SUM_OVER_BATCH_SIZE by the number of losses, SUM_BY_NONZERO_WEIGHTS by the number of
    weights that are not 0. A quotient by 0 is 0.
    """

    NONE = "none"
    SUM = "weighted_sum"
    MEAN = "weighted_mean"
    SUM_OVER_BATCH_SIZE = "weighted_sum_over_batch_size"
    SUM_BY_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"
    SUM_OVER_NONZERO_WEIGHTS = SUM_BY_NONZERO_WEIGHTS

    @classmethod
    def all(cls) -> tuple[Reduction, ...]:
        """Return all reductions."""
        return tuple(cls)


_DEFAULT = Reduction.SUM_BY_NONZERO_WEIGHTS


def add_loss(loss: object, loss_collection: str | None = _LOSSES) -> None:
    """Add a loss to a collection of the default graph; nothing in eager mode."""
    if loss_collection and not _graph.executing_eagerly():
        _graph.add_to_collection(loss_collection, loss)


def get_losses(scope: str | None = None, loss_collection: str = _LOSSES) -> list[Any]:
    """Return the collected losses, optionally only those in a name scope."""
    return _graph.get_collection(loss_collection, scope)


def get_regularization_losses(scope: str | None = None) -> list[Any]:
    """Return the collected penalties of variables."""
    return _graph.get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)


def get_regularization_loss(
    scope: str | None = None, name: str = "total_regularization_loss"
) -> Tensor:
    """Return the sum of the penalties of variables, 0 if there are none."""
    penalties = get_regularization_losses(scope)
    return add_n(penalties, name=name) if penalties else _graph.constant(0.0)


def get_total_loss(
    add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None
) -> Tensor:
    """Return the sum of the losses that the graph has collected.

    `add_regularization_losses` adds the collection REGULARIZATION_LOSSES, too. `scope` is a regular
    expression: only losses whose names begin with a match count. Raise ValueError if none are left.
    """
    losses = get_losses(scope)
    if add_regularization_losses:
        losses += get_regularization_losses(scope)
    if not losses:
        raise InvalidArgumentError("No losses were collected of which there is a total.")
    return add_n(losses, name=name)


def compute_weighted_loss(
    losses: object,
    weights: object = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: object = _DEFAULT,
) -> Tensor:
    """Return losses times weights, reduced to one number; unreduced for `Reduction.NONE`.

    In graph mode, add the result to `loss_collection`, unless it is None. Raise ValueError if the
    weights do not broadcast to the losses, or the reduction is unknown.
    """
    if reduction not in list(Reduction):
        raise InvalidArgumentError(
            f"reduction {reduction!r} is none of tf.losses.Reduction: {', '.join(Reduction)}."
        )
    kind = Reduction(reduction)
    losses, weights = tensor(losses), cast(weights, torch.float32)
    op = distribute.ReduceOp.SUM if kind is Reduction.SUM else distribute.ReduceOp.MEAN
    distribute.record_loss_reduction(op)

    def reduce(raw_losses: Tensor, weight: Tensor) -> Tensor:
        check_weights(weight, raw_losses, "losses")
        float_losses = raw_losses.float()
        weighted = float_losses * weight
        if kind is Reduction.NONE:
            return weighted.to(raw_losses.dtype)
        total = weighted.sum()
        if kind is Reduction.MEAN:
            total = quotient(total, weight.expand_as(float_losses).sum())
        elif kind is Reduction.SUM_OVER_BATCH_SIZE:
            total = quotient(total, torch.full_like(total, float_losses.numel()))
        elif kind is Reduction.SUM_BY_NONZERO_WEIGHTS:
            total = quotient(total, (weight != 0).float().expand_as(float_losses).sum())
        return total.to(raw_losses.dtype)

    loss = call(reduce, losses, weights, name=scope or "weighted_loss")
    add_loss(loss, loss_collection)
    return loss


def _alike_tensors(**pairs: object) -> list[Tensor]:
    """Return the values of two keyword arguments as a list of two tensors.

    Raise ValueError, which names the arguments, if one is None, or if their known shapes differ.
    """
    for argument, value in pairs.items():
        if value is None:
            raise InvalidArgumentError(f"{argument} must not be None.")
    first, second = (tensor(value) for value in pairs.values())
    if not _graph.Shape(first.shape).accepts(second.shape):
        a, b = pairs
        raise InvalidArgumentError(
            f"{a} have shape {tuple(first.shape)} and {b} have {tuple(second.shape)}, which are"
            " not compatible."
        )
    return [first, second]


def _alike_floats(**pairs: object) -> list[Tensor]:
    return [cast(operand, torch.float32) for operand in _alike_tensors(**pairs)]


def _weighted(
    default_scope: str, names: str, extra_names: str = "", trailing_names: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Tensor]]:
    """Return a decorator that weights and reduces the losses that a function returns.

    The decorated function has four further arguments: `weights`, `scope`, `loss_collection` and
    `reduction`; see `compute_weighted_loss`.

    Args:
        default_scope: Scope of the reduction if `scope` is None.
        names: The arguments before `weights`, separated by spaces.
        extra_names: The arguments after `weights`.
        trailing_names: The arguments after `reduction`.
    """

    def reduce(
        losses: Any,
        weights: object = 1.0,
        scope: str | None = None,
        loss_collection: str | None = _LOSSES,
        reduction: object = _DEFAULT,
    ) -> Tensor:
        return compute_weighted_loss(
            losses, weights, scope or default_scope, loss_collection, reduction
        )

    order = f"{names} weights {extra_names} scope loss_collection reduction {trailing_names}"
    return with_common_arguments(reduce, order)


@_weighted("absolute_difference", "labels predictions")
def absolute_difference(labels: object, predictions: object) -> Tensor:
    """Reduce the absolute differences of labels and predictions of one shape."""
    operands = _alike_floats(labels=labels, predictions=predictions)
    return call(lambda label, guess: (guess - label).abs(), *operands, name="absolute_difference")


@_weighted("mean_squared_error", "labels predictions")
def mean_squared_error(labels: object, predictions: object) -> Tensor:
    """Reduce the squared differences of labels and predictions of one shape."""
    operands = _alike_floats(labels=labels, predictions=predictions)
    return call(lambda label, guess: (guess - label).square(), *operands, name="mean_squared_error")


@_weighted("cosine_distance_loss", "labels predictions axis", trailing_names="dim")
def cosine_distance(
    labels: object, predictions: object, axis: int | None = None, dim: int | None = None
) -> Tensor:
    """Return the losses 1 - sum(labels * predictions) along `axis`, after reduction.

    Vectors along `axis` must have norm 1. `dim` is an older name of `axis`. Raise ValueError if no
    axis is given.
    """
    dimension = newer_axis(axis, dim, "dim")
    if dimension is None:
        raise InvalidArgumentError("You must specify 'axis'.")

    def distance(label: Tensor, prediction: Tensor) -> Tensor:
        return 1 - (label * prediction).sum(dimension, keepdim=True)

    operands = _alike_floats(labels=labels, predictions=predictions)
    return call(distance, *operands, name="cosine_distance")


@_weighted("hinge_loss", "labels logits")
def hinge_loss(labels: object, logits: object) -> Tensor:
    """Reduce max(0, 1 - s logits) with s = 1 for the label 1 and -1 for 0."""

    def hinge(label: Tensor, logit: Tensor) -> Tensor:
        return torch.relu(1 - (2 * label - 1) * logit)

    return call(hinge, *_alike_floats(labels=labels, logits=logits), name="hinge")


@_weighted("huber_loss", "labels predictions", "delta")
def huber_loss(labels: object, predictions: object, delta: float = 1.0) -> Tensor:
    """Reduce half the squared differences up to `delta`, and a linear loss beyond."""

    def huber(label: Tensor, prediction: Tensor) -> Tensor:
        error = (prediction - label).abs()
        inner = error.clamp(max=delta)
        return inner * inner * 0.5 + delta * (error - inner)

    return call(huber, *_alike_floats(labels=labels, predictions=predictions), name="huber")


@_weighted("log_loss", "labels predictions", "epsilon")
def log_loss(labels: object, predictions: object, epsilon: float = 1e-7) -> Tensor:
    """Reduce the cross entropies of labels and probabilities; logarithms are of p + `epsilon`."""

    def entropy(label: Tensor, probability: Tensor) -> Tensor:
        return (
            -label * (probability + epsilon).log() - (1 - label) * (1 - probability + epsilon).log()
        )

    return call(entropy, *_alike_floats(labels=labels, predictions=predictions), name="log")


@_weighted("sigmoid_cross_entropy_loss", "multi_class_labels logits", "label_smoothing")
def sigmoid_cross_entropy(
    multi_class_labels: object, logits: object, label_smoothing: float = 0
) -> Tensor:
    """Reduce cross entropies of labels and `sigmoid(logits)`, one per element; return the loss.

    `label_smoothing` is the fraction by which labels move toward 1/2.
    """
    labels, logits = _alike_tensors(multi_class_labels=multi_class_labels, logits=logits)
    labels = cast(labels, logits.dtype)
    if label_smoothing > 0:
        labels = labels * (1 - label_smoothing) + 0.5 * label_smoothing
    return nn.sigmoid_cross_entropy_with_logits(labels, logits, name="xentropy")


@_weighted("softmax_cross_entropy_loss", "onehot_labels logits", "label_smoothing")
def softmax_cross_entropy(
    onehot_labels: object, logits: object, label_smoothing: float = 0
) -> Tensor:
    """Reduce cross entropies of labels and `softmax(logits)`, one per row; return the loss.

    `label_smoothing` is the fraction by which labels move toward equal probabilities. No gradient
    flows into labels.
    """
    labels, logits = _alike_tensors(onehot_labels=onehot_labels, logits=logits)
    labels = cast(labels, logits.dtype)
    if label_smoothing > 0:

        def smooth(one_hot: Tensor) -> Tensor:
            return one_hot * (1 - label_smoothing) + label_smoothing / one_hot.shape[1]

        labels = call(smooth, labels)
    return nn.cross_entropy(stop_gradient(labels), logits, -1, "xentropy")


def sparse_softmax_cross_entropy(
    labels: object,
    logits: object,
    weights: object = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: object = _DEFAULT,
) -> Tensor:
    """Reduce cross entropies of class numbers and `softmax(logits)`, one per row; return the loss.

    Labels and weights may have a last dimension of size 1. See `compute_weighted_loss`.
    """
    for argument, value in (("labels", labels), ("logits", logits)):
        if value is None:
            raise InvalidArgumentError(f"{argument} must not be None.")
    labels, logits, weights = tensor(labels), tensor(logits), tensor(weights)

    def narrow(class_ids: Tensor, logit_rows: Tensor) -> Tensor:
        return squeeze_column(class_ids, logit_rows.dim() - 1)

    labels = call(narrow, labels, logits, name="labels")
    row_losses = nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="xentropy")
    op_name = scope or "sparse_softmax_cross_entropy_loss"
    if weights.shape is UNKNOWN or len(weights.shape):

        def fit(weight: Tensor, losses: Tensor) -> Tensor:
            return squeeze_column(weight, losses.dim())

        weights = call(fit, weights, row_losses, name="weights")
    return compute_weighted_loss(row_losses, weights, op_name, loss_collection, reduction)


__getattr__ = attribute_of("compat.v1.losses")
