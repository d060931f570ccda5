"""`tf.contrib.layers.adaptive_clipping_fn`, compared with its formula in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import thalweg.tf.compat.v1 as tf
from thalweg._base.execution_context import eagerly

NORMS = [1.0, 2.0, 1.5, 1.0, 50.0, 50.0, 2.0, 1e-3, 0.0]
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "a deviation": {"std_factor": 1.1, "decay": 0.5},
    "a largest norm": {"static_max_norm": 1.2, "decay": 0.5},
    "counted steps": {"global_step": True, "decay": 0.9},
    "a large epsilon": {"epsilon": 0.1},
}


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def compute_norms(
    std_factor: float = 2.0,
    decay: float = 0.95,
    static_max_norm: float | None = None,
    global_step: bool = False,
    epsilon: float = 1e-8,
) -> Iterator[float]:
    """Yield the norm of each step after clipping."""
    mean = squares = 0.0
    for step, norm in enumerate(NORMS):
        share = min(decay, step / (step + 1)) if global_step else decay
        log_norm = np.log(norm + epsilon)
        mean = share * mean + (1 - share) * log_norm
        squares = share * squares + (1 - share) * log_norm**2
        limit = np.exp(mean + std_factor * np.sqrt(max(epsilon, squares - mean**2)))
        clipped = norm if norm < limit else float(np.exp(mean))
        yield clipped if static_max_norm is None else min(clipped, static_max_norm)


@pytest.mark.parametrize("name", OPTIONS)
def test_adaptive_norms_equal_the_formula(name: str) -> None:
    options = OPTIONS[name]
    norm, step = tf.placeholder(tf.float32, []), tf.placeholder(tf.int64, [])
    part = norm * np.sqrt(0.5).astype(np.float32)
    slices = tf.IndexedSlices(tf.reshape(part, [1, 1]), tf.constant([2]), tf.constant([3, 1]))
    tensors = {"global_step": step} if options.get("global_step") else {}
    clip = tf.contrib.layers.adaptive_clipping_fn(**{**options, **tensors})
    (dense, a), (rows, b), (missing, c) = clip([(part, "a"), (slices, "b"), (None, "c")])
    assert (a, b, c, missing) == ("a", "b", "c", None)
    assert [var.op.name for var in tf.global_variables()] == [
        "AdaptiveMaxNorm/mean",
        "AdaptiveMaxNorm/sq_mean",
    ]
    assert not tf.trainable_variables()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for index, expected in enumerate(compute_norms(**options)):
            feeds = {norm: NORMS[index], step: index}
            got = session.run([dense, rows.values, rows.indices], feeds)
            assert np.hypot(got[0], got[1].item()) == pytest.approx(expected, rel=1e-4)
            assert got[2].tolist() == [2]


def test_optimize_loss_clips_an_exploding_gradient() -> None:
    w = tf.get_variable("w", initializer=0.0)
    slope = tf.placeholder(tf.float32, [])
    clip = tf.contrib.layers.adaptive_clipping_fn(report_summary=True)
    step = tf.contrib.layers.optimize_loss(w * slope, None, 1.0, "SGD", clip_gradients=clip)
    titles = [op.name for op in tf.get_default_graph().get_operations()]
    assert any(title.endswith("adaptive_max_gradient_norm") for title in titles)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for value in (1.0,) * 9:
            session.run(step, {slope: value})
        w_before = session.run(w)
        session.run(step, {slope: 1e6})
        assert w_before == pytest.approx(-9.0, rel=1e-3)
        assert w_before - session.run(w) == pytest.approx(1e6**0.05, rel=1e-3)


def test_pairs_without_gradients_are_kept() -> None:
    assert tf.contrib.layers.adaptive_clipping_fn()([(None, "a")]) == [(None, "a")]


def test_adaptive_clipping_in_eager_mode_raises() -> None:
    with eagerly(), pytest.raises(RuntimeError, match=r"adaptive_clipping_fn .* eager mode"):
        tf.contrib.layers.adaptive_clipping_fn()([(tf.constant(1.0), "a")])
