"""`tf.contrib.layers.adaptive_clipping_fn`: clipping of gradients with an unusual norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thalweg import _graph
from thalweg._base.execution_context import executing_eagerly
from thalweg.tf.clipping import global_norm, scale_values
from thalweg.v1 import summary
from thalweg.v1.train.assigned_averages import assign_moving_average

Pairs = list[tuple[Any, Any]]


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
        `clip(pairs)` returns (clipped gradient, variable) pairs for (gradient, variable) pairs. It
        raises RuntimeError in eager mode.

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
