"""`tf.metrics`: statistics over many runs.

Each function returns a value and an operation that updates it and returns the new value. Counts
are local variables, which `tf.local_variables_initializer()` resets. `weights`
broadcast to the values, as in `tf.losses`; the value goes to the collections
`metrics_collections`, and the update to `updates_collections`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg._graph import GraphKeys
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.tf.compat.v1.loss_weights import check_weights, quotient, squeeze_column
from thalweg.tf.convert import call, tensor
from thalweg.tf.missing import attribute_of
from thalweg.tf.operators import name_function
from thalweg.tf.signatures import with_common_arguments

__all__ = [
    "accuracy", "auc", "false_negatives", "false_positives", "mean", "mean_absolute_error",
    "mean_squared_error", "precision", "recall", "root_mean_squared_error", "true_negatives",
    "true_positives",
]  # fmt: skip

Metric = tuple[Any, Any]


class _Counts(NamedTuple):
    """Definition of a metric by sums, to which each run adds.

    Attributes:
        shapes: {name: shape} of the float32 variables of the sums.
        measure: `measure(weights, *values of inputs)` returns an increment for each sum; `weights`
            may be None.
        inputs: The tensors that a run measures.
        finish: `finish(*sums)` returns the metric's value.
    """

    shapes: dict[str, tuple[int, ...]]
    measure: Callable[..., Sequence[object]]
    inputs: Sequence[object]
    finish: Callable[..., object]


def _counting(
    metric_name: str, order: str = ""
) -> Callable[[Callable[..., _Counts]], Callable[..., Metric]]:
    """Return a decorator that turns a function that returns `_Counts` into a metric.

    The metric has four further arguments: `weights`, `metrics_collections`, `updates_collections`
    and `name`.

    Args:
        metric_name: Name of the scope if `name` is None.
        order: Names of all arguments, separated by spaces; by default further arguments are last.
    """
    return with_common_arguments(partial(_count_over_runs, metric_name), order)


def _count_over_runs(
    metric_name: str,
    counts: _Counts,
    weights: object = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """Add a metric and the variables of its sums to the graph; return (value, update operation).

    A run of the update operation adds to the sums, and returns the new value of the metric. Raise
    FailedPreconditionError in eager mode.
    """
    name = name or metric_name
    if _graph.executing_eagerly():
        raise FailedPreconditionError(
            f"tf.metrics.{name} counts in variables of a graph: build one, or use tf.keras.metrics."
        )
    keys = [GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES]
    zeros = partial(torch.zeros, dtype=torch.float32, device=torch.get_default_device())
    shapes, measure, inputs, finish = counts
    with _graph.name_scope(name):
        sums = [
            _graph.Variable(zeros(shape), False, keys, name=label)
            for label, shape in shapes.items()
        ]
        value = call(finish, *(total.read_value() for total in sums), name="value")
        operands = [None if weights is None else tensor(weights), *map(tensor, inputs)]
        increments = call(lambda *values: tuple(measure(*values)), *operands, name="measured")
        updated_sums = [
            total.assign_add(step) for total, step in zip(sums, increments, strict=True)
        ]
        update = call(finish, *updated_sums, name="update_op")
    for collections, target in ((metrics_collections, value), (updates_collections, update)):
        if collections:
            _graph.get_default_graph().add_to_collections(collections, target)
    return value, update


def _broadcast_weights(weights: Tensor | None, values: Tensor) -> Tensor:
    """Return weights as float32, broadcast to the shape of `values`; ones for None.

    A last dimension of size 1 is added or removed. Raise InvalidArgumentError if the weights do not
    broadcast.
    """
    if weights is None:
        return torch.ones_like(values, dtype=torch.float32)
    weights = squeeze_column(weights.float(), values.dim())
    if weights.dim() and weights.dim() == values.dim() - 1:
        weights = weights.unsqueeze(-1)
    check_weights(weights, values, "values")
    return weights.expand_as(values)


def _count_mean(
    function: Callable[..., Any],
    inputs: Sequence[object],
    finish: Callable[[Tensor, Tensor], object] = quotient,
) -> _Counts:
    """Return the definition of a metric: the weighted mean of `function(*inputs)` over all runs.

    `finish(total, count)` returns the metric's value, by default total / count.
    """

    def measure(weight: Tensor | None, *input_values: Any) -> tuple[Tensor, Tensor]:
        values = function(*input_values).float()
        weights = _broadcast_weights(weight, values)
        return (values * weights).sum(), weights.sum()

    return _Counts({"total": (), "count": ()}, measure, inputs, finish)


@_counting("mean")
def mean(values: object) -> _Counts:
    """Return the weighted mean of values."""
    return _count_mean(lambda source: source, [values])


@_counting("accuracy")
def accuracy(labels: object, predictions: object) -> _Counts:
    """Measure how often predictions are equal to labels."""

    def correct(label: Tensor, prediction: Tensor) -> Tensor:
        label, prediction = _squeeze_alike(label, prediction)
        return label == prediction.to(label.dtype)

    return _count_mean(correct, [labels, predictions])


def _squeeze_alike(labels: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tensors. Squeeze a last dimension of size 1 that only one tensor has."""
    columns = squeeze_column(labels, predictions.dim()), squeeze_column(predictions, labels.dim())
    if columns[0] is labels and columns[1] is predictions and labels.shape != predictions.shape:
        raise InvalidArgumentError(
            f"labels of shape {tuple(labels.shape)} and predictions of shape"
            f" {tuple(predictions.shape)} are not compatible."
        )
    return columns


def _error_metric(
    metric_name: str,
    function: Callable[[Any], Any],
    doc_start: str,
    finish: Callable[[Any, Any], object] = quotient,
) -> Callable[..., Metric]:
    def error(label: Tensor, prediction: Tensor) -> Tensor:
        label, prediction = _squeeze_alike(label, prediction)
        return function(prediction.float() - label.float())

    @_counting(metric_name)
    def metric(labels: object, predictions: object) -> _Counts:
        return _count_mean(error, [labels, predictions], finish)

    return name_function(metric, metric_name, f"The {doc_start} of labels and predictions.")


mean_squared_error = _error_metric("mean_squared_error", torch.square, "mean squared difference")
mean_absolute_error = _error_metric("mean_absolute_error", torch.abs, "mean absolute difference")
root_mean_squared_error = _error_metric(
    "root_mean_squared_error",
    torch.square,
    "root of the mean squared difference",
    lambda total, count: quotient(total, count).sqrt(),
)


_KINDS = {
    "true_positives": (True, True),
    "false_negatives": (True, False),
    "true_negatives": (False, False),
    "false_positives": (False, True),
}


def _confusion_metric(
    metric_name: str, counts: dict[str, str], finish: Callable[..., object], doc_start: str
) -> Callable[..., Metric]:
    """Return a metric computed from counts of (label, prediction) pairs, such as true positives.

    Args:
        counts: {variable name: key of `_KINDS` that the variable counts}.
        finish: `finish(*counts)` returns the metric's value.
        doc_start: Description of the value.
    """

    def measure(weight: Tensor | None, label: Tensor, prediction: Tensor) -> list[Tensor]:
        label, prediction = _squeeze_alike(label.bool(), prediction.bool())
        weights = _broadcast_weights(weight, label)
        kinds = [_KINDS[kind] for kind in counts.values()]
        return [(weights * ((label == a) & (prediction == b))).sum() for a, b in kinds]

    @_counting(metric_name)
    def metric(labels: object, predictions: object) -> _Counts:
        return _Counts(dict.fromkeys(counts, ()), measure, [labels, predictions], finish)

    return name_function(
        metric, metric_name, f"{doc_start}; labels and predictions count as bools."
    )


def _count_metric(metric_name: str, event: str) -> Callable[..., Metric]:
    return _confusion_metric(
        metric_name, {"count": metric_name}, torch.clone, f"Count how often {event}"
    )


true_positives = _count_metric("true_positives", "a prediction is true, rightly")
false_positives = _count_metric("false_positives", "a prediction is true, wrongly")
false_negatives = _count_metric("false_negatives", "a prediction is false, wrongly")
true_negatives = _count_metric("true_negatives", "a prediction is false, rightly")


def _share_metric(wrong_kind: str, metric_name: str, doc_start: str) -> Callable[..., Metric]:
    counts = {"true_positives/count": "true_positives", f"{wrong_kind}/count": wrong_kind}
    return _confusion_metric(
        metric_name, counts, lambda right, wrong: quotient(right, right + wrong), doc_start
    )


precision = _share_metric(
    "false_positives",
    "precision",
    "The share of the predictions that are true in which the label is",
)
recall = _share_metric(
    "false_negatives", "recall", "The share of the labels that are true in which the prediction is"
)


@_counting(
    "auc",
    "labels predictions weights num_thresholds metrics_collections updates_collections curve name"
    " summation_method thresholds",
)
def auc(
    labels: object,
    predictions: object,
    num_thresholds: int = 200,
    curve: str = "ROC",
    summation_method: str = "trapezoidal",
    thresholds: Sequence[float] | None = None,
) -> _Counts:
    """Return the area under the ROC or the precision-recall curve, from counts at thresholds.

    Args:
        labels: Bools, or numbers that are converted to bools.
        predictions: Numbers in [0, 1], in the shape of `labels`.
        num_thresholds: Number of thresholds at equal distances.
        curve: "ROC", the true positive rate over the false positive rate, or "PR", precision over
            recall.
        summation_method: "trapezoidal", "minoring" or "majoring". For the curve "PR" also
            "careful_interpolation" (Davis & Goadrich 2006).
        thresholds: Optional. Thresholds between 0 and 1, instead of `num_thresholds`.

    Raises:
        ValueError: The curve or the method is unknown.
    """
    # The outer thresholds lie beyond 0 and 1, so that all or no predictions exceed them.
    edge = 1e-7
    _check_curve(curve, summation_method)
    inner = [(i + 1) / (num_thresholds - 1) for i in range(num_thresholds - 2)]
    inner = inner if thresholds is None else sorted(thresholds)
    levels = torch.tensor(
        [-edge, *inner, 1 + edge], dtype=torch.float32, device=torch.get_default_device()
    )

    def measure(weight: Tensor | None, labelled: Tensor, prediction: Tensor) -> list[Tensor]:
        labelled, prediction = _squeeze_alike(labelled.bool(), prediction)
        weights = _broadcast_weights(weight, labelled).reshape(-1)
        is_label = labelled.reshape(-1)
        is_guess = prediction.reshape(-1) > levels.to(prediction.device).unsqueeze(1)
        return [
            (weights * ((is_label == label) & (is_guess == guess))).sum(1)
            for label, guess in _KINDS.values()
        ]

    area = partial(_area_under, curve, summation_method)
    shapes = {kind: (len(levels),) for kind in _KINDS}
    return _Counts(shapes, measure, [labels, predictions], area)


_HEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "trapezoidal": lambda y: (y[:-1] + y[1:]) / 2,
    "minoring": lambda y: torch.minimum(y[:-1], y[1:]),
    "majoring": lambda y: torch.maximum(y[:-1], y[1:]),
}


def _check_curve(curve: str, summation_method: str) -> None:
    """Raise InvalidArgumentError if the curve or its method of summation is unknown."""
    if curve not in ("ROC", "PR"):
        raise InvalidArgumentError(f"curve must be ROC or PR, not {show_value(curve)}.")
    methods = [*_HEIGHTS, "careful_interpolation"] if curve == "PR" else [*_HEIGHTS]
    if summation_method not in methods:
        names = ", ".join(methods)
        raise InvalidArgumentError(f"summation_method {summation_method!r} is none of {names}.")


def _area_under(curve: str, summation_method: str, *counts: Tensor) -> Tensor:
    """Return the area under a curve; `curve` and `summation_method` are those of `auc`.

    `counts` are four vectors over thresholds: true positives, false negatives, true negatives,
    false positives.
    """
    true_pos, false_neg, true_neg, false_pos = counts
    if summation_method == "careful_interpolation":
        return _interpolated_area(true_pos, false_neg, false_pos)
    small = 1e-6
    recall_values = (true_pos + small) / (true_pos + false_neg + small)
    if curve == "ROC":
        x, y = false_pos / (false_pos + true_neg + small), recall_values
    else:
        x, y = recall_values, (true_pos + small) / (true_pos + false_pos + small)
    return ((x[:-1] - x[1:]) * _HEIGHTS[summation_method](y)).sum()


def _interpolated_area(true_pos: Tensor, false_neg: Tensor, false_pos: Tensor) -> Tensor:
    """Return the area under precision over recall, interpolated as in Davis & Goadrich (2006).

    Between two thresholds false positives grow in proportion to true positives.
    """
    positives = true_pos + false_pos
    upper, lower = positives[:-1], positives[1:]
    slope = quotient(true_pos[:-1] - true_pos[1:], (upper - lower).clamp(min=0))
    start = true_pos[1:] - slope * lower
    ratio = torch.where((upper > 0) & (lower > 0), quotient(upper, lower), 1)
    growth = slope * (true_pos[:-1] - true_pos[1:] + start * ratio.log())
    return quotient(growth, true_pos[1:] + false_neg[1:]).sum()


__getattr__ = attribute_of("compat.v1.metrics")
