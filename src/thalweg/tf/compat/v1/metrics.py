"""`tf.metrics`: numbers that are counted over many runs.

Each function gives a value and an operation that updates it, whose own value is the new one. What
they count is in local variables: `tf.local_variables_initializer()` begins anew. `weights`
broadcast to the values, as in `tf.losses`; the value goes to the collections
`metrics_collections`, and the update to `updates_collections`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg._graph import GraphKeys
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.tf.compat.v1.loss_weights import check_weights, quotient
from thalweg.tf.convert import call, tensor
from thalweg.tf.missing import attribute_of

__all__ = [
    "accuracy",
    "auc",
    "false_negatives",
    "false_positives",
    "mean",
    "mean_absolute_error",
    "mean_squared_error",
    "precision",
    "recall",
    "root_mean_squared_error",
    "true_negatives",
    "true_positives",
]

Metric = tuple[Any, Any]


def _counting_metric(
    name: str,
    counts: dict[str, tuple[int, ...]],
    measure: Callable[..., Sequence[object]],
    inputs: Sequence[object],
    result: Callable[..., object],
    metrics_collections: object,
    updates_collections: object,
) -> Metric:
    """A metric that adds up what `measure(*inputs)` gives in each run.

    Args:
        name: That of the scope.
        counts: The names and shapes of the float32 variables that hold the sums.
        measure: Gives what is added to each.
        inputs: What it is given.
        result: The value, given the sums.
        metrics_collections: Where the value goes.
        updates_collections: Where the update goes.
    """
    if _graph.executing_eagerly():
        raise FailedPreconditionError(
            f"tf.metrics.{name} counts in variables of a graph: build one, or use tf.keras.metrics."
        )
    keys = [GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES]
    zeros = partial(torch.zeros, dtype=torch.float32, device=torch.get_default_device())
    with _graph.name_scope(name):
        sums = [
            _graph.Variable(zeros(shape), False, keys, name=title)
            for title, shape in counts.items()
        ]
        value = call(result, *(each.read_value() for each in sums), name="value")
        added = call(lambda *given: tuple(measure(*given)), *inputs, name="measured")
        later = [each.assign_add(more) for each, more in zip(sums, added, strict=True)]
        update = call(result, *later, name="update_op")
    for names, each in ((metrics_collections, value), (updates_collections, update)):
        if names:
            _graph.get_default_graph().add_to_collections(names, each)
    return value, update


def _broadcast_weights(weights: Tensor | None, values: Tensor) -> Tensor:
    """The weights as float32 of the shape of the values; a last dimension of size 1 may be missing
    or too many.

    Raises:
        InvalidArgumentError: They do not broadcast.
    """
    if weights is None:
        return torch.ones_like(values, dtype=torch.float32)
    weights = weights.float()
    if weights.dim() == values.dim() + 1 and weights.shape[-1] == 1:
        weights = weights.squeeze(-1)
    elif weights.dim() and weights.dim() == values.dim() - 1:
        weights = weights.unsqueeze(-1)
    check_weights(weights, values, "values")
    return weights.expand_as(values)


def _optional_tensor(weights: object) -> Tensor | None:
    return None if weights is None else tensor(weights)


def _mean_metric(
    name: str,
    of: Callable[..., Any],
    inputs: Sequence[object],
    weights: object,
    collections: tuple[object, object],
    result: Callable[[Tensor, Tensor], object] = quotient,
) -> Metric:
    """The weighted mean of what `of(*inputs)` gives."""

    def measure(weight: Tensor | None, *given: Any) -> tuple[Tensor, Tensor]:
        values = of(*given).float()
        share = _broadcast_weights(weight, values)
        return (values * share).sum(), share.sum()

    counts = {"total": (), "count": ()}
    parts = [_optional_tensor(weights), *(tensor(each) for each in inputs)]
    return _counting_metric(name, counts, measure, parts, result, *collections)


def mean(
    values: object,
    weights: object = None,
    metrics_collections: object = None,
    updates_collections: object = None,
    name: str | None = None,
) -> Metric:
    """Return the weighted mean of values."""
    collections = (metrics_collections, updates_collections)
    return _mean_metric(name or "mean", lambda given: given, [values], weights, collections)


def accuracy(
    labels: object,
    predictions: object,
    weights: object = None,
    metrics_collections: object = None,
    updates_collections: object = None,
    name: str | None = None,
) -> Metric:
    """Measure how often predictions are equal to labels."""

    def correct(wanted: Tensor, given: Tensor) -> Tensor:
        wanted, given = _squeeze_alike(wanted, given)
        return wanted == given.to(wanted.dtype)

    collections = (metrics_collections, updates_collections)
    return _mean_metric(name or "accuracy", correct, [labels, predictions], weights, collections)


def _squeeze_alike(labels: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor]:
    """One of them without its last dimension, if that is 1 and the other has none."""
    if labels.dim() == predictions.dim() + 1 and labels.shape[-1] == 1:
        return labels.squeeze(-1), predictions
    if predictions.dim() == labels.dim() + 1 and predictions.shape[-1] == 1:
        return labels, predictions.squeeze(-1)
    if labels.shape != predictions.shape:
        raise InvalidArgumentError(
            f"labels of shape {tuple(labels.shape)} and predictions of shape"
            f" {tuple(predictions.shape)} are not compatible."
        )
    return labels, predictions


def _error_metric(
    title: str, of: Callable[[Any], Any], what: str, result: Callable[[Any, Any], object] = quotient
) -> Callable[..., Metric]:
    def metric(
        labels: object,
        predictions: object,
        weights: object = None,
        metrics_collections: object = None,
        updates_collections: object = None,
        name: str | None = None,
    ) -> Metric:
        def error(wanted: Tensor, given: Tensor) -> Tensor:
            wanted, given = _squeeze_alike(wanted, given)
            return of(given.float() - wanted.float())

        collections = (metrics_collections, updates_collections)
        return _mean_metric(
            name or title, error, [labels, predictions], weights, collections, result
        )

    metric.__name__ = metric.__qualname__ = title
    metric.__doc__ = f"The {what} of labels and predictions."
    return metric


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
    title: str, counts: dict[str, str], result: Callable[..., object], what: str
) -> Callable[..., Metric]:
    """A metric of how often labels and predictions, as bools, agree or not.

    Args:
        title: Its name.
        counts: The names of its variables, and which of `_KINDS` each counts.
        result: The value, given the counts.
        what: What that is.
    """

    def metric(
        labels: object,
        predictions: object,
        weights: object = None,
        metrics_collections: object = None,
        updates_collections: object = None,
        name: str | None = None,
    ) -> Metric:
        def measure(weight: Tensor | None, wanted: Tensor, given: Tensor) -> list[Tensor]:
            wanted, given = _squeeze_alike(wanted.bool(), given.bool())
            share = _broadcast_weights(weight, wanted)
            kinds = [_KINDS[kind] for kind in counts.values()]
            return [(share * ((wanted == a) & (given == b))).sum() for a, b in kinds]

        parts = [_optional_tensor(weights), tensor(labels), tensor(predictions)]
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(counts, ())
        collections = (metrics_collections, updates_collections)
        return _counting_metric(name or title, shapes, measure, parts, result, *collections)

    metric.__name__ = metric.__qualname__ = title
    metric.__doc__ = f"{what}; labels and predictions count as bools."
    return metric


def _count_metric(title: str, what: str) -> Callable[..., Metric]:
    return _confusion_metric(title, {"count": title}, torch.clone, f"Count how often {what}")


true_positives = _count_metric("true_positives", "a prediction is true, rightly")
false_positives = _count_metric("false_positives", "a prediction is true, wrongly")
false_negatives = _count_metric("false_negatives", "a prediction is false, wrongly")
true_negatives = _count_metric("true_negatives", "a prediction is false, rightly")


def _share_metric(other: str, title: str, what: str) -> Callable[..., Metric]:
    counts = {"true_positives/count": "true_positives", f"{other}/count": other}
    return _confusion_metric(
        title, counts, lambda right, wrong: quotient(right, right + wrong), what
    )


precision = _share_metric(
    "false_positives",
    "precision",
    "The share of the predictions that are true in which the label is",
)
recall = _share_metric(
    "false_negatives", "recall", "The share of the labels that are true in which the prediction is"
)


def auc(
    labels: object,
    predictions: object,
    weights: object = None,
    num_thresholds: int = 200,
    metrics_collections: object = None,
    updates_collections: object = None,
    curve: str = "ROC",
    name: str | None = None,
    summation_method: str = "trapezoidal",
    thresholds: Sequence[float] | None = None,
) -> Metric:
    """Return the area under the curve of rates at several thresholds, of labels that count as bools
    and predictions in [0, 1].

    Args:
        labels: The labels.
        predictions: The predictions, of the same shape.
        weights: Optional.
        num_thresholds: How many thresholds there are.
        metrics_collections: Optional.
        updates_collections: Optional.
        curve: "ROC", the rate of true positives over that of false ones, or "PR", precision over
            recall.
        name: Optional.
        summation_method: "trapezoidal", "minoring" or "majoring"; of the curve "PR" also
            "careful_interpolation" (Davis & Goadrich 2006).
        thresholds: Those between 0 and 1, instead of `num_thresholds` at equal distances.

    Raises:
        ValueError: The curve or the method is none of these.
    """
    edge = 1e-7
    if curve not in ("ROC", "PR"):
        raise InvalidArgumentError(f"curve must be ROC or PR, not {show_value(curve)}.")
    heights = {
        "trapezoidal": lambda y: (y[:-1] + y[1:]) / 2,
        "minoring": lambda y: torch.minimum(y[:-1], y[1:]),
        "majoring": lambda y: torch.maximum(y[:-1], y[1:]),
    }
    methods = [*heights, "careful_interpolation"] if curve == "PR" else [*heights]
    if summation_method not in methods:
        known = ", ".join(methods)
        raise InvalidArgumentError(f"summation_method {summation_method!r} is none of {known}.")
    inner = [(i + 1) / (num_thresholds - 1) for i in range(num_thresholds - 2)]
    inner = inner if thresholds is None else sorted(thresholds)
    levels = torch.tensor(
        [-edge, *inner, 1 + edge], dtype=torch.float32, device=torch.get_default_device()
    )

    def measure(weight: Tensor | None, wanted: Tensor, given: Tensor) -> list[Tensor]:
        wanted, given = _squeeze_alike(wanted.bool(), given)
        share = _broadcast_weights(weight, wanted).reshape(-1)
        is_label = wanted.reshape(-1)
        is_guess = given.reshape(-1) > levels.to(given.device).unsqueeze(1)
        return [
            (share * ((is_label == label) & (is_guess == guess))).sum(1)
            for label, guess in _KINDS.values()
        ]

    def area(right: Tensor, missed: Tensor, rest: Tensor, wrong: Tensor) -> Tensor:
        if summation_method == "careful_interpolation":
            return _interpolated_area(right, missed, wrong)
        small = 1e-6
        recalled = (right + small) / (right + missed + small)
        if curve == "ROC":
            x, y = wrong / (wrong + rest + small), recalled
        else:
            x, y = recalled, (right + small) / (right + wrong + small)
        return ((x[:-1] - x[1:]) * heights[summation_method](y)).sum()

    counts = {title: (len(levels),) for title in _KINDS}
    parts = [_optional_tensor(weights), tensor(labels), tensor(predictions)]
    collections = (metrics_collections, updates_collections)
    return _counting_metric(name or "auc", counts, measure, parts, area, *collections)


def _interpolated_area(right: Tensor, missed: Tensor, wrong: Tensor) -> Tensor:
    """The area below precision over recall, where between two thresholds the wrong positives grow
    in proportion to the right ones (Davis & Goadrich 2006).
    """
    guessed = right + wrong
    more, fewer = guessed[:-1], guessed[1:]
    slope = quotient(right[:-1] - right[1:], (more - fewer).clamp(min=0))
    start = right[1:] - slope * fewer
    ratio = torch.where((more > 0) & (fewer > 0), quotient(more, fewer), 1)
    grown = slope * (right[:-1] - right[1:] + start * ratio.log())
    return quotient(grown, right[1:] + missed[1:]).sum()


__getattr__ = attribute_of("compat.v1.metrics")
