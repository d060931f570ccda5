"""Kinds of files that trainings keep: how each is written, and how a training goes on from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import thalweg.v1 as tf
from openseq2seq_small import make_step
from recorded_kinds import TRAININGS, Training, gradient
from thalweg import Variable, checkpoint
from thalweg.v1 import train


class Folder(NamedTuple):
    """A writer of a folder, and a reader that continues from there."""

    write: Callable[[Path], Any]
    tell: Callable[[Path], Any]


def _named(params: list[Any]) -> dict[str, Any]:
    return dict(zip("ab", params, strict=True))


def of_checkpoint(training: Training) -> Folder:
    """Return a file of `thalweg.checkpoint`."""

    def write(folder: Path) -> None:
        optimizer, params = training.begun()
        extra = {"epoch": 3, "order": torch.tensor([2, 0, 1])}
        checkpoint.save(folder / "run", optimizer=optimizer, variables=_named(params), extra=extra)

    def tell(folder: Path) -> Any:
        optimizer, params = training.begun(0)
        loaded = checkpoint.restore(folder / "run", optimizer=optimizer, variables=_named(params))
        return [loaded.extra, training.gone_on((optimizer, params))]

    return Folder(write, tell)


def _write_kept(folder: Path) -> None:
    training = TRAININGS["named-Adam"]
    manager = checkpoint.CheckpointManager(folder, keep=1, best="loss", mode="min")
    optimizer, params = training.begun()
    for step, loss in ((1, 0.5), (2, 0.25), (3, 1.0)):
        training.step(optimizer, params, step)
        manager.save(step, optimizer=optimizer, variables=_named(params), metrics={"loss": loss})


def _tell_kept(folder: Path) -> Any:
    training = TRAININGS["named-Adam"]
    manager = checkpoint.CheckpointManager(folder, keep=1, best="loss", mode="min")
    optimizer, params = training.begun(0)
    manager.restore(optimizer=optimizer, variables=_named(params))
    entries = [[entry.step, dict(entry.metrics)] for entry in manager.checkpoints()]
    names = [path.name for path in (manager.latest(), manager.best()) if path]
    return [entries, names, training.gone_on((optimizer, params))]


def _of_loss(half: bool) -> tuple[Any, Any]:
    var = Variable(torch.ones(3, dtype=torch.float16 if half else torch.float32), name="w")
    dtype = "mixed" if half else torch.float32
    return make_step([var], "Momentum", params={"momentum": 0.5}, dtype=dtype), var


def of_optimize_loss(half: bool) -> Folder:
    """Return a step of `optimize_loss`, with its masters and its loss scale."""

    def write(folder: Path) -> None:
        step, var = _of_loss(half)
        step.apply_gradients([gradient(var, 0)])
        checkpoint.save(folder / "run", optimizer=step, variables={"w": var})

    def tell(folder: Path) -> Any:
        step, var = _of_loss(half)
        checkpoint.restore(folder / "run", optimizer=step, variables={"w": var})
        step.apply_gradients([gradient(var, 1)])
        return [var, step.state_dict()]

    return Folder(write, tell)


def of_objects(training: Training) -> Folder:
    """Return a manager of `tf.train.Checkpoint`."""

    def write(folder: Path) -> None:
        optimizer, params = training.begun()
        objects = train.Checkpoint(model=params, optimizer=optimizer)
        manager = train.CheckpointManager(objects, str(folder), max_to_keep=2)
        for step in (1, 2, 3):
            training.step(optimizer, params, step)
            manager.save()

    def tell(folder: Path) -> Any:
        optimizer, params = training.begun(0)
        objects = train.Checkpoint(model=params, optimizer=optimizer)
        manager = train.CheckpointManager(objects, str(folder), max_to_keep=2)
        status = objects.restore(manager.latest_checkpoint)
        names = [Path(path).name for path in manager.checkpoints]
        state_after = training.gone_on((optimizer, params))
        status.assert_consumed()
        return [names, objects.save_counter, state_after]

    return Folder(write, tell)


class _Graph:
    """A small graph that trains a variable, with a session."""

    def __init__(self) -> None:
        with tf.Graph().as_default() as graph:
            var = tf.get_variable("w", initializer=[1.0, 2.0])
            step = train.get_or_create_global_step()
            rate = train.exponential_decay(0.1, step, 2, 0.5)
            optimizer = train.AdamOptimizer(rate)
            self.op = optimizer.minimize((var * var).sum(), global_step=step)
            self.variables = [step, var, *optimizer.variables()]
            self.saver = train.Saver(max_to_keep=2)
            self.init = tf.global_variables_initializer()
        self.session = tf.Session(graph=graph)


def _write_graph(folder: Path) -> None:
    run = _Graph()
    run.session.run(run.init)
    for number in range(3):
        run.session.run(run.op)
        run.saver.save(run.session, str(folder / "model"), global_step=number)


def _tell_graph(folder: Path) -> Any:
    run = _Graph()
    run.saver.restore(run.session, train.latest_checkpoint(str(folder)))
    run.session.run(run.op)
    return run.session.run(run.variables)


def _model(optimizer: Any) -> Any:
    import keras

    from thalweg.integrations import keras3

    dense = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((2,)), dense])
    model.compile(optimizer=optimizer or keras3.Adam(0.1), loss="mse")
    return model


def _fitted(model: Any) -> Any:
    model.fit(torch.ones(2, 2), torch.zeros(2, 1), shuffle=False, verbose=0)
    return model


def _tell_weights(folder: Path) -> Any:
    model = _fitted(_model(None))
    model.load_weights(folder / "of.weights.h5")
    return _fitted(model).get_weights()


def _tell_model(folder: Path) -> Any:
    import keras

    return _fitted(keras.saving.load_model(folder / "of.keras")).get_weights()


IN_CHECKPOINTS = (
    "named-SGD",
    "named-Nadam",
    "keras-schedule",
    "keras-RuleOptimizer",
    "named-v1-AdamOptimizer",
    "named-openseq2seq-NovoGrad",
    "v1-MovingAverageOptimizer",
    "v1-loss-scale",
    "openseq2seq-mixed",
    "optim-AdamW-half",
    "optim-SGD-momentum",
    "tensorflow-Ftrl",
    "tensorflow-Adam-half",
)
FILES: dict[str, Folder] = {
    **{f"file-{name}": of_checkpoint(TRAININGS[name]) for name in IN_CHECKPOINTS},
    "file-optimize_loss": of_optimize_loss(half=False),
    "file-optimize_loss-mixed": of_optimize_loss(half=True),
    "folder-kept": Folder(_write_kept, _tell_kept),
    "folder-objects-keras": of_objects(TRAININGS["named-Adam"]),
    "folder-objects-v1": of_objects(TRAININGS["named-v1-AdamOptimizer"]),
    "folder-saver": Folder(_write_graph, _tell_graph),
    "keras3-weights": Folder(
        lambda folder: _fitted(_model(None)).save_weights(folder / "of.weights.h5"), _tell_weights
    ),
    "keras3-model": Folder(
        lambda folder: _fitted(_model(None)).save(folder / "of.keras"), _tell_model
    ),
}
