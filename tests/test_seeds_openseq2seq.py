"""The formula on OpenSeq2Seq's page about its optimizers: clipping by the global norm."""

from __future__ import annotations

import numpy as np
import pytest

import thalweg.tf as tf

VALUES = [[3.0, 0.0], [0.0, 4.0, 0.0]]


@pytest.mark.parametrize("clip_norm", [1.0, 2.5, 5.0, 10.0])
@pytest.mark.parametrize("use_norm", [None, 5.0, 20.0])
def test_clip_by_global_norm(clip_norm: float, use_norm: float | None) -> None:
    t_list = [tf.constant(value) for value in VALUES]
    l2norms = [np.linalg.norm(value) for value in VALUES]
    global_norm = np.sqrt(np.sum(np.square(l2norms))) if use_norm is None else use_norm
    list_clipped, norm = tf.clip_by_global_norm([*t_list, None], clip_norm, use_norm)
    assert list_clipped.pop() is None
    assert float(norm) == global_norm
    for value, clipped in zip(VALUES, list_clipped, strict=True):
        expected = np.multiply(value, clip_norm / max(global_norm, clip_norm))
        np.testing.assert_allclose(clipped.numpy(), expected, rtol=1e-6)


def test_t_list_must_be_a_sequence() -> None:
    with pytest.raises(TypeError, match="t_list should be a sequence"):
        tf.clip_by_global_norm(iter([1.0]), 1.0)
