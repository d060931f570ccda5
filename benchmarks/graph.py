"""A training step through `Session.run` against the same step in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from figure import Figure, measure_ratio
from torch import nn

import thalweg
from thalweg import v1
from thalweg._cli.bench.timing import Contender
from thalweg._cli.race.run import set_threads

BATCH, PIXELS, CLASSES = 64, 64, 10
# Contradictory labels, because a model that has learned its labels has no gradients.
LABELLINGS = 16
TARGET = 1.5

Step = Callable[[], None]


def sessions() -> list[Figure]:
    """Measure the model of `examples/tf1_digits.py`, and one of 40 layers, which is host-bound.

    Both sides use one thread: matrices of 64 by 64 are too small to share, and how long a second
    thread takes to wake up depends on what came before it, not on who calls.
    """
    with set_threads(1):
        return [_compared("digits", 1), _compared("deep", 39)]


def _compared(name: str, hidden_layers: int) -> Figure:
    rows = np.random.default_rng(0)
    images = rows.random((BATCH, PIXELS), np.float32)
    labels = rows.integers(0, CLASSES, (LABELLINGS, BATCH))
    contenders = [
        Contender("Session.run", _in_session(_model(hidden_layers), images, labels)),
        Contender("eager", _eagerly(_model(hidden_layers), images, labels)),
    ]
    return measure_ratio(f"session_{name}", contenders, TARGET, rounds=15, block=0.2)


def _model(hidden_layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(hidden_layers):
        layers += [nn.Linear(PIXELS, PIXELS), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(PIXELS, CLASSES))


def _optimizer(step: Any) -> tuple[Any, Any]:
    rate = v1.train.exponential_decay(0.001, step, 100, 0.9, staircase=True)
    return v1.train.AdamOptimizer(rate), rate


def _in_session(model: nn.Module, images: np.ndarray, labels: np.ndarray) -> Step:
    with v1.Graph().as_default():
        x = v1.placeholder("float32", [None, PIXELS])
        y = v1.placeholder("int64", [None])
        loss = F.cross_entropy(model(x), y)
        count = v1.train.get_or_create_global_step()
        optimizer, rate = _optimizer(count)
        train = optimizer.minimize(loss, global_step=count)
        session = v1.Session()
        session.run(v1.global_variables_initializer())

    supply = cycle(labels)

    def step() -> None:
        session.run([train, loss, rate], feed_dict={x: images, y: next(supply)})

    return step


def _eagerly(model: nn.Module, images: np.ndarray, labels: np.ndarray) -> Step:
    count = thalweg.Variable(np.int64(0), trainable=False)
    optimizer, rate = _optimizer(count)
    variables, supply = list(model.parameters()), cycle(labels)

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(torch.from_numpy(images)), torch.from_numpy(next(supply)))

    def step() -> None:
        rate().numpy()
        value = []
        optimizer.minimize(lambda: value.append(loss()) or value[0], count, variables)
        value[0].item()

    return step
