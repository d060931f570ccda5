"""Files with one value changed and all checksums right, given to all that reads them.

`restores` changes several things of a file at random, and checksums or readers of bytes refuse most
of that. Here a file says one wrong thing and is whole otherwise, so that what stands furthest above
the bytes has to notice: a document of ours, the JSON of Keras, the graph of a bundle, and dtype,
shape or value of one tensor. Each is taken, or refused by one of the library's errors.
"""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import torch

import storage_files
from attack import files, restores, resumed, watched
from attack.figures import Figures
from attack.restores import Dice
from attack.server import figures_of
from attack.torch_trainings import encode_all
from golden_files import FOLDER
from thalweg import ThalwegError, Variable, checkpoint
from thalweg._formats import bundle
from thalweg._formats.bundle import ObjectGraph
from thalweg._formats.stored_tensor import StoredTensor, of_tensor
from thalweg.checkpoint import CheckpointManager, tensorflow
from thalweg.checkpoint import inspection as inspected
from thalweg.v1.train.experimental import DynamicLossScale

SUMMARY = "files with one value changed under right checksums, given to all that reads them"
CASES = {False: 500, True: 40_000}
GOOD = ("refused", "taken")
BATCH = 100

MARKS: tuple[Any, ...] = (
    {"$tensor": "no such"}, {"$tensor": []}, {"$tensor": 1}, {"$scalar": ["float32", 1]},
    {"$scalar": ["int8", 10**80]}, {"$scalar": ["bool", "x"]}, {"$scalar": []}, {"$float": "nan"},
    {"$float": "-inf"}, {"$float": []}, {"$tuple": [1, [2]]}, {"$tuple": 3}, {"$dict": [[[], 1]]},
    {"$dict": [[1, 2], [None, 3]]}, {"$dict": 1}, {"$none": 1}, {"$schedule": {}},
    {"$schedule": {"class_name": "ExponentialDecay", "config": {}}}, {"$schedule": "x"},
    {"$schedule": {"class_name": [], "config": {"initial_learning_rate": {}}}},
    {"$schedule": {"class_name": "PiecewiseConstantDecay", "config": {"boundaries": 1}}},
    {"$rate": {"function": "train.exponential_decay", "arguments": {}}}, {"$rate": []},
    {"$rate": {"function": [], "arguments": {}}}, {"$rate": {"function": "x", "arguments": 3}},
    {"$rule": "Adam"}, {"$rule": []}, {"$optimizer": {}}, {"$optimizer": []},
    {"$optimizer": {"class": "SGD", "arguments": {"learning_rate": 0.1}}},
    {"$optimizer": {"class": [], "arguments": {}}}, {"$loss_scaler": {}}, {"$loss_scaler": [1]},
    {"$loss_scaler": {"algorithm": "Backoff", "params": {"scale_max": "x"}}},
    {"$variable": "w"}, {"$variable": []}, {"$number": ["float32", 1]}, {"$number": ["float32"]},
    {"$number": [[], {}]}, {"$number": ["float32", "x"]}, {"$number": ["float16", 10**80]},
    {"$yours": "x"}, {"$yours": []},
)  # fmt: skip
VALUES = (*files.VALUES, *MARKS, "Adam", "nan", "w", ["w"], {"w": 1}, [[1, 2], [3, 4]], -(2**70))
KERAS: tuple[Any, ...] = (
    *files.VALUES, "SGD", "LossScaleOptimizer", "PiecewiseConstantDecay", "x" * 5000,
    {"class_name": "ExponentialDecay", "config": {}}, {"class_name": [], "config": []},
    {"class_name": "PiecewiseConstantDecay", "config": {"boundaries": [1], "values": 1}},
    {"class_name": "CosineDecay", "config": {"initial_learning_rate": "x", "decay_steps": -1}},
    {"class_name": "Adam", "config": {}}, {"module": "os", "class_name": "system", "config": {}},
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    torch.tensor(float("nan")), torch.tensor(float("inf")), torch.tensor(-1.0), torch.tensor(0),
    torch.tensor(0.5), torch.tensor(1e38), torch.tensor(-(2**63)), torch.tensor(2**63 - 1),
    torch.tensor(True), torch.tensor(1j), torch.tensor(3, dtype=torch.uint8), torch.zeros(0),
    torch.tensor([1.0, 2.0]), torch.zeros(2, 2, 2), torch.tensor(0.5, dtype=torch.float64),
    torch.tensor(5.0), torch.tensor(2.0**70), torch.tensor(-2, dtype=torch.int8),
)  # fmt: skip
NAMES = ("", "m", "w", "iter", "Adam", "Adam/m/w", "beta1_power", "global_step", "a/b")

_folder = restores._folder
_bundles: list[bundle.Bundle] = []
_keras: dict[str, bytes] = {}


def _one(value: Any, dice: Dice, values: tuple[Any, ...]) -> None:
    """Change one place in nested dictionaries and lists."""
    holder, key = dice.choice(files._places(value))
    kind = dice.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[dice.choice(["", "x", "$tensor", "$", "class", "m", "w"])] = holder.pop(key)
    elif kind == 2:
        holder[key] = dice.choice([[holder[key]], {"x": holder[key]}, {"$tuple": [holder[key]]}])
    else:
        holder[key] = copy.deepcopy(dice.choice(values))


# Files of ours.


def of_ours(dice: Dice) -> str:
    """Return a document, or a tensor, of ours."""
    name = dice.choice(list(restores._ours))
    ending = ".safetensors" if name in ("objects", "saver") else ""
    path = _folder[0] / "case"
    _write_changed(f"{path}{ending}", restores._ours[name], dice, lambda _: _number(dice), 0.75)
    return str(path)


def of_trainings(dice: Dice) -> str:
    """Return a document, or a tensor, of a training that goes on from the file."""
    path = _folder[0] / "case"
    resumed.save_training(resumed.choose_training(dice), path)
    change = partial(resumed.damage_tensor, dice=dice)
    _write_changed(str(path), path.read_bytes(), dice, change, 0.5)
    return str(path)


def _write_changed(
    path: str, raw: bytes, dice: Dice, change: Callable[..., Any], share: float
) -> None:
    """Write a file with one change, in its document with the probability `share`."""
    header, manifest, data = storage_files.parts(raw)
    if dice.random() < share:
        _one(manifest["document"], dice, VALUES)
        Path(path).write_bytes(storage_files.packed(header, manifest, data))
        return
    Path(path).write_bytes(raw)
    read = checkpoint.save_restore.container.read(path)
    tensors = dict(read.tensors)
    name = dice.choice(list(tensors))
    tensors[name] = change(tensors[name])
    checkpoint.save_restore.container.write(path, tensors, dict(read.document))


def _number(dice: Dice) -> StoredTensor:
    return of_tensor(dice.choice(NUMBERS))


# Bundles of TensorFlow.


def of_tensorflow(dice: Dice) -> str:
    """Return a node of the graph of objects, or a tensor, of a bundle."""
    seed = dice.choice(_bundles)
    tensors, graph = dict(seed.tensors), seed.graph
    if graph is not None and dice.random() < 0.6:
        graph = _graph(graph, dice)
    else:
        name = dice.choice(list(tensors))
        if dice.random() < 0.7:
            tensors[name] = _number(dice)
        else:
            tensors[dice.choice([*NAMES[1:], f"{name}/Adam", f"{name}/x"])] = tensors.pop(name)
    path = _folder[0] / "case"
    bundle.write(path, tensors, graph)
    return str(path)


def _graph(graph: ObjectGraph, dice: Dice) -> ObjectGraph:
    nodes = list(graph.nodes)
    full = [index for index, node in enumerate(nodes) if node.children or node.attributes]
    index = dice.choice(full)
    node, number = nodes[index], dice.choice([0, index, dice.choice(full), len(nodes), 2**31 - 1])
    if node.attributes:
        attribute = node.attributes[0]
        field = dice.choice(["name", "full_name", "key"])
        value = dice.choice([*NAMES, *(attribute.key for n in nodes for attribute in n.attributes)])
        attributes = dice.choice([(), (attribute._replace(**{field: value}),), (attribute,) * 2])
        nodes[index] = replace(node, attributes=attributes)
    elif node.slots and dice.random() < 0.5:
        slots, place = list(node.slots), dice.randrange(len(node.slots))
        change = dice.choice([{"original": number}, {"slot": number}, {"name": dice.choice(NAMES)}])
        slots[place] = slots[place]._replace(**change)
        nodes[index] = replace(node, slots=tuple(slots))
    else:
        children = dict(node.children)
        name = dice.choice(list(children))
        kind = dice.randrange(4)
        if kind == 0:
            del children[name]
        elif kind == 1:
            children[name] = number
        elif kind == 2:
            children[dice.choice(LINKS)] = children.pop(name)
        else:
            children[dice.choice(LINKS)] = dice.choice([number, children[name]])
        nodes[index] = replace(node, children=children)
    return ObjectGraph(tuple(nodes))


LINKS = (
    "", "0", "1", "99999999999999999999", "_variables", "_iterations", "_trainable_variables",
    "_momentums", "_velocities", "inner_optimizer", "base_optimizer", "loss_scale", "dynamic_scale",
    "current_loss_scale", "good_steps", "step_counter", "iter", "learning_rate", "_learning_rate",
    "decay", "beta_1", "beta1_power", "momentum_cache", "_u_product", "optimizer", "layer-0",
)  # fmt: skip


# Files of Keras.


def of_keras(dice: Dice) -> str:
    """Return the description, or an array, in a file of Keras."""
    name = dice.choice(list(_keras))
    path = _folder[0] / "case"
    if name.endswith(".keras"):
        path.write_bytes(_archive(_keras[name], dice))
        return str(path)
    path.write_bytes(_keras[name])
    with h5py.File(path, "r+") as file:
        if "training_config" in file.attrs and dice.random() < 0.6:
            config = json.loads(file.attrs["training_config"])
            _one(config, dice, KERAS)
            file.attrs["training_config"] = json.dumps(config)
        else:
            _array(file, dice)
    return str(path)


def _archive(data: bytes, dice: Dice) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            inner = old.read(name)
            if name == "config.json" and dice.random() < 0.7:
                config = json.loads(inner)
                compiled = config.get("compile_config")
                _one(compiled if compiled and dice.random() < 0.8 else config, dice, KERAS)
                inner = json.dumps(config).encode()
            elif name == "model.weights.h5" and dice.random() < 0.5:
                weights = io.BytesIO(inner)
                with h5py.File(weights, "r+") as file:
                    _array(file, dice)
                inner = weights.getvalue()
            new.writestr(name, inner)
    return buffer.getvalue()


def _array(file: Any, dice: Dice) -> None:
    names: list[str] = []
    file.visititems(
        lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None
    )
    name = dice.choice([*names, *(dataset for dataset in names if "optimizer" in dataset)])
    value = dice.choice([number for number in NUMBERS if not number.is_complex()]).numpy()
    kind = dice.randrange(4)
    if kind:
        del file[name]
    if kind > 1:
        file[name] = value
    if not kind:
        place = f"{name.rpartition('/')[0]}/{dice.choice(['0', '1', '2', '99', 'x', 'vars/0'])}"
        if place not in file:
            file[place] = value


# All that reads them.


def converted(path: str, dice: Dice) -> list[Any]:
    out_path = _folder[1] / "out"
    hypers: dict[str, Any] = {"learning_rate": 0.1, "momentum": 0.9, "epsilon": 1e-6}
    options = {name: hypers[name] for name in hypers if dice.random() < 0.5}
    try:
        form = dice.choice(["thalweg", "thalweg", "tf", "tf1"])
        tensorflow.convert(path, out_path, to=form, **(options if form == "thalweg" else {}))
    except ThalwegError:
        return [torch.ones(1)]
    return []


def compared(path: str, dice: Dice) -> list[Any]:
    target = dice.choice([FOLDER / "checkpoints/ckpt_v1/adam/model.ckpt-5", _folder[1] / "ours"])
    pair = [path, str(target)]
    dice.shuffle(pair)
    try:
        inspected.differences(*pair)
    except ThalwegError:
        return [torch.ones(1)]
    return []


def managed(path: str, dice: Dice) -> list[Any]:
    for file in (Path(path), Path(f"{path}.safetensors")):
        if file.exists():
            file.rename(file.with_name("checkpoint-3.safetensors"))
    variables = restores.variables()
    try:
        manager = CheckpointManager(_folder[0], keep=2, best="loss")
        manager.checkpoints()
        manager.restore_or_initialize(variables=variables)
    except ThalwegError:
        return variables
    return []


def with_a_scale(path: str, dice: Dice) -> list[Any]:
    variables: list[Variable] = []
    try:
        file = tensorflow.load(path)
        file.summary()
        variables = [Variable(torch.ones(var.shape), name) for name, var in file.variables.items()]
        by_name = {var.name.split(":")[0]: var for var in variables}
        scale = dice.choice([{"loss_scale": DynamicLossScale()}, {}])
        index = dice.choice([None, 0, 1])
        tensorflow.restore(
            file, by_name, which=index, optimizer=dice.choice([None, False]), **scale
        )
    except ThalwegError:
        return variables
    return []


WRITERS = (converted, compared, managed, resumed.resumed)
READERS: dict[str, tuple[Callable[[Dice], str], tuple[restores.Take, ...]]] = {
    "ours": (
        of_ours,
        (
            *[restores.restored] * 4, restores.as_objects, restores.in_a_session, restores.listed,
            converted, compared, managed,
        ),
    ),
    "trainings": (of_trainings, (resumed.resumed,)),
    "tensorflow": (
        of_tensorflow,
        (
            restores.from_tensorflow, with_a_scale, converted, compared, restores.listed,
            restores.as_objects, restores.in_a_session,
        ),
    ),
    "keras": (
        of_keras,
        (restores.from_tensorflow, with_a_scale, converted, compared, restores.listed),
    ),
}  # fmt: skip


def attempt(seed: int, number: int) -> str:
    """Change a file for one reader; return "taken", "refused", or the failure."""
    dice = random.Random(f"{seed}/{number}")
    for folder in _folder:
        for child in folder.iterdir():
            if child.name != "ours":
                child.unlink()
    make, readers = READERS[list(READERS)[number % len(READERS)]]
    path, take = make(dice), dice.choice(readers)
    title = f"{make.__name__} by {take.__name__}"
    work = partial(restores.judged, take, path, dice, title)
    return work() if take in WRITERS else watched.watched(work, _folder[0])


def warm() -> None:
    """Import all modules, and write files of each kind."""
    encode_all()
    restores.warm()
    out_folder = _folder[0].with_name(f"{_folder[0].name}-out")
    out_folder.mkdir()
    _folder.append(out_folder)
    golden = FOLDER / "checkpoints/ckpt_v1/adam/model.ckpt-5"
    tensorflow.convert(golden, out_folder / "ours", learning_rate=0.1, epsilon=1e-6)
    _bundles.extend(
        bundle.read(path.with_suffix(""))
        for folder in ("checkpoints/ckpt_v1", "checkpoints/ckpt_v2", "keras_objects")
        for path in sorted((FOLDER / folder).glob("**/*.index"))
    )
    _keras.update(
        (name, data) for name, data in restores._keras if name.endswith((".keras", ".h5"))
    )


def attack(long: bool, seed: int) -> Figures:
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
