"""`tf.contrib.layers.optimize_loss`: training steps from named parts; `adaptive_clipping_fn`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from thalweg import _graph
from thalweg._base.execution_context import executing_eagerly
from thalweg._base.showing import show_value
from thalweg._graph import GraphKeys
from thalweg._graph.eager_or_graph import IndexedSlices
from thalweg.errors import InvalidArgumentError
from thalweg.tf.clipping import clip_by_global_norm, global_norm, scale_values
from thalweg.tf.convert import is_tensor, tensor
from thalweg.v1 import summary, train
from thalweg.v1.train.assigned_averages import assign_moving_average

OPTIMIZER_CLS_NAMES: dict[str, Callable[..., Any]] = {
    "Adagrad": train.AdagradOptimizer,
    "Adam": train.AdamOptimizer,
    "Ftrl": train.FtrlOptimizer,
    "Momentum": partial(train.MomentumOptimizer, momentum=0.9),
    "RMSProp": train.RMSPropOptimizer,
    "SGD": train.GradientDescentOptimizer,
}
OPTIMIZER_SUMMARIES = [
    "learning_rate",
    "loss",
    "gradients",
    "gradient_norm",
    "global_gradient_norm",
]
_DEFAULT_SUMMARIES = ("loss", "learning_rate", "global_gradient_norm")

Pairs = list[tuple[Any, Any]]


def optimize_loss(
    loss: Any,
    global_step: Any,
    learning_rate: Any,
    optimizer: Any,
    gradient_noise_scale: float | None = None,
    gradient_multipliers: Mapping[Any, Any] | None = None,
    clip_gradients: Any = None,
    learning_rate_decay_fn: Callable[[Any, Any], Any] | None = None,
    update_ops: Sequence[Any] | None = None,
    variables: Sequence[Any] | None = None,
    name: str | None = None,
    summaries: Sequence[str] | None = None,
    colocate_gradients_with_ops: bool = False,
    increment_global_step: bool = True,
) -> Any:
    """Return a tensor of the graph: its evaluation takes a training step and returns the loss.

    Args:
        loss: A scalar of the graph.
        global_step: The variable that counts steps; by default the graph's global step, if any.
        learning_rate: A float, which becomes the variable `learning_rate`; a scalar of the graph;
            or None if the optimizer has a learning rate.
        optimizer: A name in `OPTIMIZER_CLS_NAMES`, an optimizer class, an optimizer, or a function:
            `optimizer(rate)`, or `optimizer()` without a learning rate, returns an optimizer.
        gradient_noise_scale: Optional. Standard deviation of noise added to gradients.
        gradient_multipliers: Optional. {variable or its name: factor of the gradient}.
        clip_gradients: Optional. The maximum global norm, a float, or a function:
            `clip_gradients(pairs)` returns new (gradient, variable) pairs.
        learning_rate_decay_fn: Optional. `f(learning_rate, step)` returns the rate of a step.
        update_ops: Operations that run before the loss; by default the collection UPDATE_OPS.
        variables: Variables to train; by default all trainable variables.
        summaries: Names in `OPTIMIZER_SUMMARIES` of the summaries to add; by default "loss",
            "learning_rate" and "global_gradient_norm".
        colocate_gradients_with_ops: Ignored.
        increment_global_step: True to increment `global_step`.

    Raises:
        ValueError: An argument is not valid, or there are no gradients to multiply.
        RuntimeError: Called in eager mode.
    """
    loss = tensor(loss)
    step = train.get_global_step() if global_step is None else global_step
    if step is not None:
        train.assert_global_step(step)
    names = _check_summaries(summaries)
    with _graph.variable_scope(name, "OptimizeLoss"):
        loss = _after(_graph.get_collection(GraphKeys.UPDATE_OPS), update_ops, loss)
        rate = _make_rate(learning_rate, learning_rate_decay_fn, step, names)
        opt = _make_optimizer(optimizer, rate)
        targets = _graph.trainable_variables() if variables is None else variables
        colocation = {"colocate_gradients_with_ops": colocate_gradients_with_ops}
        pairs = opt.compute_gradients(loss, targets, **colocation)
        if gradient_noise_scale is not None:
            pairs = [(_add_noise(grad, gradient_noise_scale), var) for grad, var in pairs]
        if gradient_multipliers is not None:
            pairs = [(_multiply(grad, var, gradient_multipliers), var) for grad, var in pairs]
            if not pairs:
                raise InvalidArgumentError("There is no gradient that gradient_multipliers keeps.")
        pairs = _clip_and_summarize(pairs, clip_gradients, names, loss)
        counter = step if increment_global_step else None
        update = opt.apply_gradients(pairs, global_step=counter, name="train")
        with _graph.control_dependencies([update]):
            return _graph.identity(loss)


def _check_summaries(summaries: Sequence[str] | None) -> Sequence[str]:
    """Return `summaries`; for None, return the default summaries.

    Raise ValueError if a name is not in `OPTIMIZER_SUMMARIES`.
    """
    for summary_name in summaries or ():
        if summary_name not in OPTIMIZER_SUMMARIES:
            expected = ", ".join(OPTIMIZER_SUMMARIES)
            raise InvalidArgumentError(
                f"Summaries should be one of [{expected}], not {summary_name}."
            )
    return _DEFAULT_SUMMARIES if summaries is None else summaries


def _after(collected: list[Any], update_ops: Sequence[Any] | None, loss: Any) -> Any:
    """Return the loss, computed after the given or collected update operations."""
    updates = collected if update_ops is None else update_ops
    if not updates:
        return loss
    with _graph.control_dependencies(list(dict.fromkeys(updates))):
        return _graph.identity(loss)


def _make_rate(
    learning_rate: Any, decay: Callable[[Any, Any], Any] | None, step: Any, summaries: Sequence[str]
) -> Any:
    """Return the learning rate as a scalar variable or tensor; return None for None.

    With `decay`, return `decay(rate, step)`, and add a summary if "learning_rate" is in
    `summaries`.

    Raises:
        InvalidArgumentError: `learning_rate` is an int, a negative float, a tensor with dimensions,
            or another object. Or `decay` is given, but `step` is None.
    """
    if learning_rate is None:
        return None
    # An unknown shape of a graph's tensor is false, as that of a scalar.
    if is_tensor(learning_rate) and not learning_rate.shape:
        rate = learning_rate
    elif isinstance(learning_rate, float) and learning_rate >= 0:
        start = _graph.constant_initializer(learning_rate)
        rate = _graph.get_variable("learning_rate", [], trainable=False, initializer=start)
    else:
        raise InvalidArgumentError(
            "learning_rate must be a float of at least 0 or a tensor of shape (), not"
            f" {show_value(learning_rate)}."
        )
    if decay is not None:
        if step is None:
            raise InvalidArgumentError("global_step is required for learning_rate_decay_fn.")
        rate = decay(rate, step)
        if "learning_rate" in summaries:
            summary.scalar("learning_rate", rate)
    return rate


def _make_optimizer(optimizer: Any, rate: Any) -> train.Optimizer:
    """Return an optimizer unchanged; for a name, a class or a function, make one with `rate`.

    Raise InvalidArgumentError for anything else, or if a name or class gets the rate None.
    """
    if isinstance(optimizer, train.Optimizer):
        return optimizer
    make: Any = optimizer
    is_class = isinstance(optimizer, type) and issubclass(optimizer, train.Optimizer)
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZER_CLS_NAMES:
            names = ", ".join(OPTIMIZER_CLS_NAMES)
            raise InvalidArgumentError(
                f"Optimizer name should be one of [{names}], not {optimizer}."
            )
        make = OPTIMIZER_CLS_NAMES[optimizer]
    if is_class or isinstance(optimizer, str):
        if rate is None:
            raise InvalidArgumentError(
                "Learning rate is None, but is needed to make the optimizer"
                f" {show_value(optimizer)}."
            )
        return make(learning_rate=rate)
    result = None
    if callable(make):
        result = make() if rate is None else make(rate)
    if not isinstance(result, train.Optimizer):
        candidate = optimizer if result is None else result
        raise InvalidArgumentError(
            "optimizer must be a name, a class of optimizer, an optimizer, or a function of the"
            f" learning rate that returns one, not {show_value(candidate)}."
        )
    return result


def _add_noise(grad: Any, scale: float) -> Any:
    """Return a gradient with random numbers of a deviation added; slices become dense."""
    if grad is None:
        return None
    dense = tensor(grad)
    return dense + _graph.truncated_normal(dense.shape, dtype=dense.dtype) * scale


def _multiply(grad: Any, var: Any, multipliers: Mapping[Any, Any]) -> Any:
    """Return `grad` times `multipliers[var]` or `multipliers[var.name]`, or `grad` if unlisted."""
    factor = multipliers.get(var, multipliers.get(var.name))
    if grad is None or factor is None:
        return grad
    if is_tensor(factor) and grad.dtype is not None:
        factor = _graph.cast(factor, grad.dtype)
    if isinstance(grad, IndexedSlices):
        return IndexedSlices(grad.values * factor, grad.indices, grad.dense_shape)
    return grad * factor


def _clip_and_summarize(
    pairs: Pairs, clip: Any, summaries: Sequence[str], loss: Any
) -> list[tuple[Any, Any]]:
    """Return the pairs with clipped gradients; add the summaries of loss and gradients.

    `clip` is a float, the maximum global norm, or a function: `clip(pairs)` returns new pairs. None
    clips nothing. Raise InvalidArgumentError for any other object, even an int.
    """
    has_norms = "global_gradient_norm" in summaries or "gradient_norm" in summaries
    if has_norms:
        summary.scalar("global_norm/gradient_norm", global_norm([grad for grad, _ in pairs]))
    # As in TensorFlow, which also raises an error for an int.
    if isinstance(clip, float):
        clipped, _ = clip_by_global_norm([grad for grad, _ in pairs], clip)
        pairs = [(grad, var) for grad, (_, var) in zip(clipped, pairs, strict=True)]
    elif callable(clip):
        clipping: Any = clip
        pairs = list(clipping(pairs))
    elif clip is not None:
        raise InvalidArgumentError(
            f"clip_gradients must be a float or a function, not {show_value(clip)}."
        )
    if "loss" in summaries:
        summary.scalar("loss", loss)
    for grad, var in pairs:
        if grad is not None:
            _summarize_gradient(grad, var.name.replace(":", "_"), summaries)
    if clip is not None and has_norms:
        norm = global_norm([grad for grad, _ in pairs])
        summary.scalar("global_norm/clipped_gradient_norm", norm)
    return pairs


def _summarize_gradient(grad: Any, summary_name: str, summaries: Sequence[str]) -> None:
    values = grad.values if isinstance(grad, IndexedSlices) else grad
    if "gradients" in summaries:
        summary.histogram(f"gradients/{summary_name}", values)
    if "gradient_norm" in summaries:
        summary.scalar(f"gradient_norm/{summary_name}", global_norm([values]))


def adaptive_clipping_fn(
    std_factor: Any = 2.0,
    decay: Any = 0.95,
    static_max_norm: Any = None,
    global_step: Any = None,
    report_summary: bool = False,
    epsilon: float = 1e-8,
    name: str | None = None,
) -> Callable[[Sequence[tuple[Any, Any]]], Pairs]:
    """Return a function that clips gradients of an unusual global norm, for `optimize_loss`.

        mean, mean_of_squares <- moving averages of log(norm + epsilon) and of its square
        limit = exp(mean + std_factor sqrt(max(epsilon, mean_of_squares - mean^2)))

    Gradients whose norm is not below `limit` are scaled to the norm exp(mean).

    Args:
        std_factor: Number of allowed standard deviations above the mean.
        decay: Decay factor of the averages per step.
        static_max_norm: Optional. Maximum norm in all cases.
        global_step: Optional. The number n of a step limits `decay` to n / (n + 1), so that the
            averages adapt quickly in the first steps.
        report_summary: True to add a summary of `limit`.
        epsilon: Minimum variance, added to norms too.
        name: Optional. Name of the scope of the averages, which are variables of the graph.

    Returns:
        `clip(pairs)` returns (clipped gradient, variable) pairs for (gradient, variable) pairs. A
        call raises RuntimeError in eager mode.

    Reference: tf.contrib.layers.adaptive_clipping_fn; https://arxiv.org/abs/1412.1602, 3.2.1
    """

    def clip(grads_and_vars: Sequence[tuple[Any, Any]]) -> Pairs:
        """Return the pairs with clipped gradients."""
        if executing_eagerly():
            raise RuntimeError(
                "adaptive_clipping_fn clips gradients of a graph, and eager mode is on. Build a"
                " tf.Graph, or call tf.disable_eager_execution() first."
            )
        norm = global_norm([grad for grad, _ in grads_and_vars])
        if norm is None:
            return list(grads_and_vars)
        kept_fraction = decay
        if global_step is not None:
            step = _graph.cast(global_step, torch.float32)
            kept_fraction = torch.clamp(step / (step + 1), max=decay)
        with _graph.variable_scope(name, "AdaptiveMaxNorm"):
            mean, limit = _measure(norm, std_factor, kept_fraction, epsilon)
        if report_summary:
            summary.scalar("global_norm/adaptive_max_gradient_norm", limit)
        factor = torch.where(norm < limit, torch.ones_like(norm), torch.exp(mean) / norm)
        if static_max_norm is not None:
            factor = torch.minimum(static_max_norm / norm, factor)
        return [
            (None if grad is None else scale_values(grad, factor), var)
            for grad, var in grads_and_vars
        ]

    return clip


def _measure(norm: Any, std_factor: Any, decay: Any, epsilon: float) -> tuple[Any, Any]:
    """Return the mean of logarithms of norms and the largest norm, both updated in each run."""
    log_norm = torch.log(norm + epsilon)
    mean = _average("mean", log_norm, decay)
    squares = _average("sq_mean", torch.square(log_norm), decay)
    deviation = torch.sqrt(torch.clamp(squares - torch.square(mean), min=epsilon))
    return mean, torch.exp(mean + std_factor * deviation)


def _average(name: str, value: Any, decay: Any) -> Any:
    """Return the moving average of a scalar as a tensor. Its evaluation updates the average."""
    zeros = _graph.zeros_initializer()
    variable = _graph.get_variable(name, [], value.dtype, zeros, trainable=False)
    return assign_moving_average(variable, value, decay, zero_debias=False)
