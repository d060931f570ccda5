"""Hostile files of every kind, each given to all that restores from such a file, and to `inspect`.

What `files`, `bundles` and `keras_files` change is read here by what stands above their readers:
`checkpoint.restore`, `checkpoint.tensorflow.restore`, `train.Checkpoint` and `train.Saver`. Each
takes it, or raises one of the library's errors, and then no variable and no state has changed.
"""

from __future__ import annotations

import os
import random
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import thalweg.v1 as tf
from attack import bundles, files, keras_files, watched
from attack.figures import Figures
from attack.planted import DEFECTS
from attack.server import figures_of
from golden_files import FOLDER
from thalweg import ThalwegError, Variable, checkpoint, optim
from thalweg.checkpoint import inspection as inspected
from thalweg.checkpoint import save_restore, tensorflow
from thalweg.keras.optimizers import SGD, Adam, schedules
from thalweg.openseq2seq.optimizers.optimizers import optimize_loss
from thalweg.v1 import train
from thalweg.v1.contrib.opt import MovingAverageOptimizer

SUMMARY = "hostile files of all kinds, restored by all that reads them"
CASES = {False: 1000, True: 20_000}
GOOD = ("refused", "taken")
BATCH = 100

Dice = random.Random
Take = Callable[[str, Dice], list[Any]]  # restores, and returns what must not change on errors

_folder: list[Path] = []
_ours: dict[str, bytes] = {}
_keras: list[tuple[str, bytes]] = []


def variables() -> list[Variable]:
    return [Variable(torch.ones(3, 2), "w"), Variable(torch.ones(2), "b")]


def trainings() -> dict[str, Callable[[list[Variable]], Any]]:
    """Optimizers of every face, by what their files are called here."""
    rate = schedules.ExponentialDecay(0.1, 2, 0.5)
    noisy = schedules.NoisyLinearCosineDecay(0.1, 9, seed=1)
    return {
        "keras": lambda _: Adam(rate, amsgrad=True, clipnorm=1.0),
        "noisy": lambda _: SGD(noisy, momentum=0.9),
        "v1": lambda _: train.MomentumOptimizer(0.1, 0.9),
        "averages": lambda params: MovingAverageOptimizer(train.AdamOptimizer(0.1), 0.5),
        "step": lambda params: optimize_loss(
            lambda: sum((param * param).sum() for param in params),
            "Adam",
            {},
            lambda step: 0.1,
            var_list=params,
        ),
        "torch": optim.Adam,
        "rule": optim.tensorflow.Adam,
    }


def in_a_graph() -> tuple[Any, list[Any]]:
    params = [tf.get_variable(name, initializer=np.ones(2, np.float32)) for name in ("w", "b")]
    train.AdamOptimizer(0.1).minimize(sum((param * param).sum() for param in params))
    return tf.Session(), tf.global_variables()


def seeds() -> None:
    """Write files of Thalweg of each kind."""
    path = _folder[0] / "seed"
    for name, make in trainings().items():
        params = variables()
        optimizer = make(params)
        if name == "step":
            optimizer()
        elif isinstance(optimizer, torch.optim.Optimizer):
            for param in params:
                param.grad = torch.ones_like(param)
            optimizer.step()
        else:
            optimizer.apply_gradients([(torch.ones_like(param), param) for param in params])
        checkpoint.save(path, optimizer=optimizer, variables=params, extra={"epoch": [1, (2, "x")]})
        _ours[name] = path.read_bytes()
    params = variables()
    optimizer = train.AdamOptimizer(0.1)
    optimizer.apply_gradients([(torch.ones_like(param), param) for param in params])
    written_path = train.Checkpoint(model=params, optimizer=optimizer).write(path)
    _ours["objects"] = Path(f"{written_path}.safetensors").read_bytes()
    with tf.Graph().as_default():
        session, _ = in_a_graph()
        with session:
            session.run(tf.global_variables_initializer())
            written_path = train.Saver().save(session, str(path), write_state=False)
    _ours["saver"] = Path(f"{written_path}.safetensors").read_bytes()
    for file in _folder[0].iterdir():
        file.unlink()


# What is given the files. Each returns the tensors that must be as they were if it raises.


def restored(path: str, dice: Dice) -> list[Any]:
    name, params = dice.choice(list(trainings())), variables()
    needs_optimizer = name in ("step", "torch", "rule")
    optimizer = trainings()[name](params) if needs_optimizer or dice.random() < 0.5 else None
    state_before = _state(optimizer)
    try:
        checkpoint.restore(
            path,
            optimizer=optimizer,
            variables=params,
            check_arguments=dice.random() < 0.8,
            convert=dice.random() < 0.3,
        )
    except ThalwegError:
        return [*params, *_differing(state_before, _state(optimizer))]
    return []


def _state(optimizer: Any) -> dict[str, Any]:
    if optimizer is None or not hasattr(optimizer, "state_dict"):
        return {}
    state = optimizer.state_dict()
    return {
        name: tensor.clone() if isinstance(tensor, torch.Tensor) else repr(tensor)
        for name, tensor in state.items()
    }


def _differing(first: dict[str, Any], second: dict[str, Any]) -> list[torch.Tensor]:
    """Zeros, which are no ones, if two states differ."""
    is_equal = first.keys() == second.keys() and all(
        torch.equal(tensor, second[name])
        if isinstance(tensor, torch.Tensor)
        else tensor == second[name]
        for name, tensor in first.items()
    )
    return [] if is_equal else [torch.zeros(1)]


def as_objects(path: str, dice: Dice) -> list[Any]:
    model = variables()
    optimizer: Any = dice.choice([train.AdamOptimizer(0.1), Adam(0.1), None])
    objects = {"model": model} if optimizer is None else {"model": model, "optimizer": optimizer}
    try:
        train.Checkpoint(**objects).restore(path)
    except ThalwegError:
        return model
    return []


def in_a_session(path: str, dice: Dice) -> list[Any]:
    with tf.Graph().as_default():
        session, fetches = in_a_graph()
        with session:
            session.run(tf.global_variables_initializer())
            values_before = session.run(fetches)
            try:
                train.Saver().restore(session, path)
            except ThalwegError:
                values_after = session.run(fetches)
                is_equal = all(map(np.array_equal, values_before, values_after))
                return [] if is_equal else [torch.zeros(1)]
    return []


def from_tensorflow(path: str, dice: Dice) -> list[Any]:
    variables: list[Variable] = []
    try:
        file = tensorflow.load(path)
        variables = [Variable(torch.ones(var.shape), name) for name, var in file.variables.items()]
        optimizer = dice.choice([None, None, Adam(0.1), train.AdamOptimizer(0.1)])
        options = {} if optimizer else {"learning_rate": 0.1, "momentum": 0.9}
        by_name = {var.name.split(":")[0]: var for var in variables}
        tensorflow.restore(file, by_name, optimizer=optimizer, **dice.choice([options, {}]))
    except ThalwegError:
        return variables
    return []


def listed(path: str, dice: Dice) -> list[Any]:
    try:
        inspected.list_file(path)
        inspected.list_verified(path)
    except ThalwegError:
        return [torch.ones(1)]
    return []


TAKES: tuple[tuple[str, Take], ...] = (
    ("keras", restored), ("noisy", restored), ("v1", restored), ("averages", restored),
    ("step", restored), ("objects", as_objects), ("saver", in_a_session), ("bundle", as_objects),
    ("bundle", in_a_session), ("bundle", from_tensorflow), ("bundle", from_tensorflow),
    ("keras file", from_tensorflow), ("any", listed), ("any", restored),
)  # fmt: skip


def written(kind: str, dice: Dice) -> str:
    """Return a mutated file of a kind; the path that its readers are given."""
    path = _folder[0] / "case"
    if kind == "any":
        kind = dice.choice([*_ours, "bundle", "keras file"])
    if kind == "bundle":
        damaged = dice.choice(bundles.CHANGES)(dice.choice(bundles.SEEDS), dice)
        bundles.put(path, damaged)
    elif kind == "keras file":
        name, data = dice.choice(_keras)
        is_packed = name.endswith(".keras") and dice.random() < 0.8
        path.write_bytes((keras_files.repacked if is_packed else keras_files.changed)(data, dice))
    else:
        raw = _ours[kind]
        if dice.random() < 0.8:
            content = files.rewritten(raw, dice)
        else:
            damaged = bytearray(raw)
            dice.choice(files.BYTES)(damaged, dice)
            content = bytes(damaged)
        ending = ".safetensors" if kind in ("objects", "saver") else ""
        Path(f"{path}{ending}").write_bytes(content)
    return str(path)


def judged(take: Take, path: str, dice: Dice, title: str) -> str:
    """Restore one file; return "taken", "refused", or the failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tensors = take(path, dice)
        except Exception as error:
            return f"{title}: {type(error).__name__}: {str(error)[:200]}"
    if not all(bool((tensor.detach() == 1).all()) for tensor in tensors):
        return f"{title}: it was refused, and something changed"
    return "refused" if tensors else "taken"


def attempt(seed: int, number: int) -> str:
    """Change a file and restore it; return the outcome."""
    dice = random.Random(f"{seed}/{number}")
    for file in _folder[0].iterdir():
        file.unlink()
    kind, take = TAKES[number % len(TAKES)]
    path = written(kind, dice)
    names = sorted(file.name for file in _folder[0].iterdir())
    work = partial(judged, take, path, dice, f"{kind} by {take.__name__}")
    outcome = watched.watched(work, _folder[0])
    if sorted(file.name for file in _folder[0].iterdir()) != names:
        return f"{kind} by {take.__name__}: other files are there"
    return outcome


def warm() -> None:
    _folder.append(Path(tempfile.mkdtemp()))
    seeds()
    bundles.warm()
    files._seeds.extend(_ours.values())
    _keras.extend(keras_files.seeds())
    for number in range(60 * len(TAKES)):
        attempt(-1, number)
    for name in ("ckpt_v1/adam/model.ckpt-5", "ckpt_v2/adam/ckpt-1"):
        listed(str(FOLDER / "checkpoints" / name), random.Random(0))
    os.chdir(_folder[0])  # a file that is opened by its folder is told by its name alone
    watched.begin()


DEFECTS["documents are believed"] = lambda: setattr(
    save_restore,
    "_check_document",
    lambda document, path: {"extra": None, "step": None, "rates": {}, **document},
)


def attack(long: bool, seed: int) -> Figures:
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
