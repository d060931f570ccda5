"""`tf.train.Saver` saves what optimizers of other faces keep in a graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import thalweg.v1 as tf
from graph_training import bits
from thalweg._cli.registry import KERAS, by_class
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1 import train

STEPS, OVERFLOWS = 7, 2  # how many, and which gradient is infinite


class Training:
    """A graph with one variable, and a session.

    Args:
        begin: Makes the operation of a step, of the variable, what its gradient depends on, and a
            bool: whether the step is the first of two that are added up.
        dtype: Of the variable.
    """

    def __init__(self, begin: Callable[[Any, Any, Any], Any], dtype: Any = torch.float32) -> None:
        with tf.Graph().as_default() as graph:
            self.x, self.skip = tf.placeholder(dtype, [4]), tf.placeholder("bool", [])
            w = tf.Variable(torch.arange(4.0).to(dtype), name="w")
            self.op = begin(w, self.x, self.skip)
            self.saver = train.Saver(max_to_keep=None)
            self.init = tf.global_variables_initializer()
        self.session = tf.Session(graph=graph)

    def take(self, first: int, stop: int) -> None:
        """Take the steps of these numbers."""
        for number in range(first, stop):
            x = torch.tensor([number + 1.0, 1.0, -2.0, 0.5])
            x = x * math.inf if number == OVERFLOWS else x
            self.session.run(self.op, {self.x: x, self.skip: number % 2 == 0})


def of_keras(name: str) -> Callable[[], Training]:
    def begin(w: Any, x: Any, skip: Any) -> Any:
        optimizer = by_class()[name].make(0.1, **({} if name == "Nadam" else {"decay": 0.25}))
        finite = torch.nan_to_num(x, posinf=9.0, neginf=-9.0)
        return optimizer.apply_gradients([(finite, w)])

    return lambda: Training(begin)


def of_loss(rule: Any, **options: Any) -> Callable[[], Training]:
    def begin(w: Any, x: Any, skip: Any) -> Any:
        def rate(step: Any) -> Any:
            return 0.1 / (1 + tf.cast(step, "float32"))

        arguments = {key: skip if value is ... else value for key, value in options.items()}
        loss = (w.float() * w.float() * x.float()).sum()
        return optimize_loss(loss, rule, {}, rate, dtype="mixed", **arguments)

    return partial(Training, begin, torch.float16)


TRAININGS: dict[str, Callable[[], Training]] = {
    **{name: of_keras(name) for name in KERAS},
    **{
        f"{name}, {scaling}": of_loss(rule, loss_scaling=scaling)
        for name, rule in (("Adam", "Adam"), ("NovoGrad", NovoGrad))
        for scaling in ("Backoff", "LogMax")
    },
    "sums": of_loss("Adam", loss_scaling="Backoff", iter_size=2, skip_update_ph=...),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TRAININGS)
def test_training_resumes_from_every_step(name: str, tmp_path: Path) -> None:
    uninterrupted = TRAININGS[name]()
    uninterrupted.session.run(uninterrupted.init)
    stops = []
    for number in range(STEPS):
        stops.append(uninterrupted.saver.save(uninterrupted.session, tmp_path / f"m-{number}"))
        uninterrupted.take(number, number + 1)
    wrong = []
    for number, stop in enumerate(stops):
        resumed = TRAININGS[name]()
        resumed.saver.restore(resumed.session, stop)
        resumed.take(number, STEPS)
        wrong += [number] if bits(resumed.session) != bits(uninterrupted.session) else []
    assert wrong == []


def test_saver_names_equal_session_names(tmp_path: Path) -> None:
    training = TRAININGS["NovoGrad, Backoff"]()
    training.session.run(training.init)
    prefix = training.saver.save(training.session, tmp_path / "m")
    names = [name for name, _ in train.list_variables(prefix)]
    assert names == sorted(
        var.op.name for var in training.session.graph.get_collection("variables")
    )
    assert "Loss_Optimization/FP32-master-copy/w" in names
    assert NovoGrad.__name__ == "NovoGrad"
