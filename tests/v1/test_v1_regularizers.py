"""`tf.contrib.layers.l2_regularizer`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thalweg.v1 as tf


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_gradient_is_scale_times_weights(dtype: torch.dtype) -> None:
    weights = torch.tensor([[1.0, -2.0], [0.5, 4.0]], dtype=dtype, requires_grad=True)
    penalty = tf.contrib.layers.l2_regularizer(0.25)(weights)
    assert (penalty.dtype, penalty.shape) == (dtype, ())
    assert penalty.item() == 0.125 * 21.25
    penalty.backward()
    assert weights.grad is not None
    assert torch.equal(weights.grad, 0.25 * weights)


def test_graph_variable_penalty_is_computed() -> None:
    with tf.Graph().as_default():
        weights = tf.Variable([1.0, 2.0])
        penalty = tf.contrib.layers.l2_regularizer(0.1)(weights)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            assert session.run(penalty) == pytest.approx(0.25)


def test_zero_scale_regularizer_gives_none() -> None:
    assert tf.contrib.layers.l2_regularizer(0.0)(torch.ones(2)) is None


@pytest.mark.parametrize(
    ("scale", "error"),
    [(1, TypeError), ("0.1", TypeError), (-0.1, ValueError), (float("nan"), ValueError)],
)
def test_invalid_regularizer_scales_raise(scale: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="scale must be a"):
        tf.contrib.layers.l2_regularizer(scale)
