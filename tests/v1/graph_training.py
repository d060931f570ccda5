"""Trainings in graph mode by any optimizer of TensorFlow 1: dense variables, a table, a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import thalweg.v1 as tf
from thalweg._cli.registry import RegistryEntry, by_class, by_rule
from thalweg._formats.stored_tensor import of_tensor
from thalweg.v1 import train

ENTRIES: dict[str, RegistryEntry] = {
    name: entry
    for name, entry in {**by_class(), **by_rule()}.items()
    if issubclass(entry.cls, train.Optimizer)
}
SHAPES = {"w": (19,), "net/b": (2, 3), "table": (6, 3)}
ROWS = [[0, 5, 1, 5], [3], [2, 2, 4], [5, 0]]

Bits = dict[str, tuple[str, tuple[int, ...], bytes]]


def optimizer(name: str, step: Any) -> Any:
    """Return an optimizer whose learning rate depends on the step wherever it can."""
    entry = ENTRIES[name]
    options = dict(entry.options)
    if issubclass(entry.cls, train.AdagradDAOptimizer):
        options["global_step"] = step
    rate = train.exponential_decay(0.1, step, 2, 0.5) if entry.cls.CALLABLES else 0.1
    return entry.cls(learning_rate=rate, **options)


def normal(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Training:
    """A graph of its own, and a session that it runs in.

    Args:
        make: The name of an optimizer, or a function that makes one of the global step.
        start: The seed of the variables' initial values.
    """

    def __init__(self, make: str | Callable[[Any], Any], start: int = 0) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.variables = [
                tf.Variable(normal(shape, start + place), name=name)
                for place, (name, shape) in enumerate(SHAPES.items())
            ]
            self.step = train.get_or_create_global_step()
            make_optimizer = partial(optimizer, make) if isinstance(make, str) else make
            self.optimizer = make_optimizer(self.step)
            self.feeds = [tf.placeholder("float32", var.shape) for var in self.variables[:2]]
            self.values = tf.placeholder("float32", [None, 3])
            self.rows = tf.placeholder("int64", [None])
            slices = tf.IndexedSlices(self.values, self.rows, SHAPES["table"])
            pairs = list(zip([*self.feeds, slices], self.variables, strict=True))
            self.train_op = self.optimizer.apply_gradients(pairs, self.step)
            self.saver = train.Saver()
            self.init = tf.global_variables_initializer()
        self.session = tf.Session(graph=self.graph)

    def take(self, first: int, stop: int) -> None:
        """Take the steps of these numbers."""
        for number in range(first, stop):
            rows = ROWS[number % len(ROWS)]
            feed = {x: normal(tuple(x.shape), 10 * number + i) for i, x in enumerate(self.feeds)}
            feed |= {self.values: normal((len(rows), 3), 10 * number + 5), self.rows: rows}
            self.session.run(self.train_op, feed)

    def bits(self) -> Bits:
        """All that the session keeps."""
        return bits(self.session)


def bits(session: tf.Session) -> Bits:
    """Return dtype, shape and bytes of each global variable that has a value, by name."""
    variables = session.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
    initialized = [var for var in variables if session.is_initialized(var)]
    values = map(of_tensor, session.snapshot(initialized))
    pairs = zip(initialized, values, strict=True)
    return {var.op.name: (tensor.dtype, tensor.shape, bytes(tensor.data)) for var, tensor in pairs}
