"""Graph mode: whose calls of modules are caught while a graph is built, and for how long."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

import thalweg._graph as tf
from thalweg._base.execution_context import eagerly


class Passing(nn.Module):
    """Returns its input, and keeps what `forward` was given."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.inputs.append(x)
        return x


def test_module_call_is_restored_after_the_graph() -> None:
    original = nn.Module.__call__
    with tf.Graph().as_default(), tf.Graph().as_default():
        assert nn.Module.__call__ is not original
    assert nn.Module.__call__ is original


def test_interception_affects_only_the_building_thread() -> None:
    module, outputs = Passing(), []
    with tf.Graph().as_default():
        x = tf.placeholder("float32", [2])
        thread = threading.Thread(target=lambda: outputs.append(module(x)))
        thread.start()
        thread.join()
        assert outputs == [x]
        assert module.inputs == [x]
        assert module(x) is not x
        with eagerly():
            assert module(x) is x


def test_a_wrapper_of_another_tracer_may_outlive_the_graph() -> None:
    """It puts back what it found, which by then belongs to a graph that is complete."""
    original = nn.Module.__call__
    try:
        with tf.Graph().as_default():
            call = nn.Module.__call__
            nn.Module.__call__ = lambda module, *args, **kwargs: call(module, *args, **kwargs)
        nn.Module.__call__ = call
        with tf.Graph().as_default():
            x = tf.placeholder("float32", [None, 2])
            assert nn.Linear(2, 1)(x).op.type == "Linear"
            assert nn.Linear(2, 1)(torch.ones(1, 2)).shape == (1, 1)
        assert nn.Linear(2, 1)(torch.ones(1, 2)).shape == (1, 1)
    finally:
        nn.Module.__call__ = original
