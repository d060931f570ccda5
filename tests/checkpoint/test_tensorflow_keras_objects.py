"""Object checkpoints of Keras 2.11 and later, whose optimizers list their variables."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from golden_files import FOLDER
from tensorflow_files import load_vars
from thalweg import checkpoint
from thalweg._formats import bundle
from thalweg._formats.stored_tensor import of_tensor
from thalweg.checkpoint import tensorflow
from thalweg.checkpoint.tensorflow.detection.saver_names import sorted_names
from thalweg.checkpoint.tensorflow.save import _Graph
from thalweg.errors import OptionError
from thalweg.keras.optimizers import SGD, Adam
from thalweg.v1 import train
from thalweg.v1.train.experimental import DynamicLossScale, MixedPrecisionLossScaleOptimizer

HOME = FOLDER / "keras_objects"
# What the checkpoint does not hold; defaults are those of Keras.
OPTIONS: dict[str, dict[str, Any]] = {
    "adam": {},
    "amsgrad": {},
    "adamax": {},
    "nadam": {},
    "sgd": {"momentum": 0.0},  # its slots are there, and mean nothing
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "rmsprop": {"momentum": 0.5},
    "adagrad": {},
    "adadelta": {},
    "ftrl": {},
}


@cache
def _arrays() -> Any:
    return np.load(HOME / "cases.npz")


def _variables(file: tensorflow.TensorFlowCheckpoint) -> dict[str, thalweg.Variable]:
    names = file.other_names
    return {
        names[path]: thalweg.Variable(entry.tensor() * 0, names[path])
        for path, entry in file.variables.items()
    }


@pytest.mark.parametrize("name", OPTIONS)
def test_five_more_steps_have_the_values_of_keras(name: str) -> None:
    file = tensorflow.load(HOME / name)
    assert file.step == 5
    assert not file.unknown
    targets = _variables(file)
    opt = tensorflow.restore(file, targets, **OPTIONS[name])
    assert opt.iterations.item() == 5
    for number in range(5):
        opt.apply_gradients(
            [
                (torch.from_numpy(_arrays()[f"{name}|gradient|{title}"][number].copy()), var)
                for title, var in targets.items()
            ]
        )
    for title, var in targets.items():
        expected = _arrays()[f"{name}|after|{title}"]
        np.testing.assert_allclose(var.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "nesterov", "rmsprop"])
def test_missing_momentum_argument_raises(name: str) -> None:
    file = tensorflow.load(HOME / name)
    targets = _variables(file)
    with pytest.raises(OptionError, match="does not hold momentum of"):
        tensorflow.restore(file, targets)
    assert all(not var.detach().any() for var in targets.values())


def test_a_momentum_that_was_used_is_not_dropped() -> None:
    file = tensorflow.load(HOME / "nesterov")
    with pytest.raises(thalweg.CheckpointMismatchError, match="momentum' belongs to nothing here"):
        tensorflow.restore(file, _variables(file), optimizer=SGD(0.1))


# Keras 3, whose optimizers list what they train.


@cache
def _recorded() -> Any:
    return np.load(HOME / "keras3.npz")


@pytest.mark.parametrize(
    ("name", "options", "form"),
    [
        (name, options, form)
        for name, options in {"keras3_adam": {}, "keras3_scaled": {"momentum": 0.9}}.items()
        for form in ("new", "class", "instance")
    ],
)
def test_keras_3_training_resumes(name: str, options: dict[str, Any], form: str) -> None:
    file = tensorflow.load(HOME / name)
    targets = load_vars(file.variables, zeros=True)
    cls = SGD if options else Adam
    optimizer = {"new": None, "class": cls, "instance": cls(0.01, **options)}[form]
    opt = tensorflow.restore(
        file, targets, optimizer=optimizer, **({} if form == "instance" else options)
    )
    assert opt.iterations.item() == 5
    for key in _recorded():
        if key.startswith(f"{name}|slot|"):
            slots = [
                opt.get_slot(var, kind) for var in targets.values() for kind in opt.get_slot_names()
            ]
            assert any(np.array_equal(slot.numpy(), _recorded()[key]) for slot in slots), key
    for number in range(5):
        grads = [_recorded()[f"{name}|gradient|{index}"][number] for index in range(len(targets))]
        opt.apply_gradients(zip(map(torch.from_numpy, grads), targets.values(), strict=True))
    for index, var in enumerate(targets.values()):
        expected = _recorded()[f"{name}|after|{index}"]
        np.testing.assert_allclose(var.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_keras_3_loss_scale_is_restored() -> None:
    file = tensorflow.load(HOME / "keras3_scaled")
    targets = load_vars(file.variables, zeros=True)
    scale = DynamicLossScale()
    tensorflow.restore(file, targets, momentum=0.9, loss_scale=scale)
    assert scale._current_loss_scale.item() == _recorded()["keras3_scaled|scale"] == 128
    assert scale._num_good_steps.item() == _recorded()["keras3_scaled|good"] == 2


# What names leave open, and loss scales of `tf.keras` and `tf.train.experimental`.

VariableSpec = tuple[str, str, tuple[int, ...]]  # path and full name of a variable, and its shape


def _written(
    folder: Path, variables: list[VariableSpec], order: list[int], title: str = "Adam", **extra: Any
) -> tensorflow.TensorFlowCheckpoint:
    """Write a file as Keras 2.11: slots m and v of the k-th variable are full of k and 10 + k."""
    graph = _Graph()
    for path, full, shape in variables:
        graph.add_variable(path, of_tensor(torch.zeros(shape)), full)
    graph.add_variable("optimizer/_iterations", of_tensor(torch.tensor(3)), "iteration")
    graph.add_variable("optimizer/_learning_rate", of_tensor(torch.tensor(0.5)), "learning_rate")
    slots = [(index, *variables[index][1:], kind) for index in order for kind in ("m", "v")]
    for number, (index, full, shape, kind) in enumerate(slots, 1):
        value = torch.full(shape, index + 10.0 * (kind == "v"))
        graph.add_variable(
            f"optimizer/_variables/{number}", of_tensor(value), f"{title}/{kind}/{full}"
        )
    for path, value in extra.items():
        graph.add_variable(path.replace("__", "/"), of_tensor(value), path.rpartition("__")[2])
    bundle.write(folder / "ckpt", graph.tensors, graph.as_object_graph())
    return tensorflow.load(folder / "ckpt")


def _layers(*places: str, shapes: tuple[tuple[int, ...], ...] = ()) -> list[VariableSpec]:
    """Return layers of one name at several places."""
    layer_shapes = shapes or ((2, 2),) * len(places)
    return [
        (f"model/{place}/{part}", f"dense/{part}", shape if part == "kernel" else shape[1:])
        for place, shape in zip(places, layer_shapes, strict=True)
        for part in ("kernel", "bias")
    ]


SHAPES = ((2, 3), (3, 4))
ORDERS: dict[str, tuple[list[VariableSpec], list[int]]] = {
    "by names": ([("model/a", "a", (2,)), ("model/b", "b", (2,))], [1, 0]),
    "by shapes": (_layers("encoder", "decoder", shapes=SHAPES), [2, 3, 0, 1]),
    "by numbers": (_layers("layer-0", "layer-1", "layer-2"), [0, 1, 2, 3, 4, 5]),
    "by many numbers": (_layers(*(f"layer-{n}" for n in range(12))), list(range(24))),
    "in a list": ([("model/w/0", "w", (2,)), ("model/w/1", "w", (2,))], [0, 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_variables_of_one_name_keep_their_slots(name: str, tmp_path: Path) -> None:
    variables, order = ORDERS[name]
    file = _written(tmp_path, variables, order)
    targets = load_vars(file.variables)
    for optimizer in (None, Adam(0.5)):
        opt = tensorflow.restore(file, targets, optimizer=optimizer)
        for index, (path, _, _) in enumerate(variables):
            assert (opt.get_slot(targets[path], "m") == index).all()
            assert (opt.get_slot(targets[path], "v") == 10 + index).all()


TWO_LAYERS = _layers("layer-0", "layer-1")
OPEN: dict[str, tuple[list[VariableSpec], list[int], str, str]] = {
    "layers without numbers": (
        _layers("encoder", "decoder"),
        [0, 1, 2, 3],
        "Adam",
        r"2 variables of shape \(2, 2\) are called 'dense/kernel', and nothing says which slots",
    ),
    "another order": (TWO_LAYERS, [1, 0, 2, 3], "Adam", "nothing says which slots belong to which"),
    "one is not trained": (TWO_LAYERS, [0, 1], "Adam", "nothing says which slots belong to which"),
    "attributes": (
        [("model/a", "w", (2,)), ("model/b", "w", (2,))],
        [0, 1],
        "Adam",
        "nothing says which slots belong to which; give them names of their own in TensorFlow",
    ),
    "more slots": (
        [("model/a", "w", (2,))],
        [0, 0],
        "Adam",
        r"2 variables of shape \(2,\) are called 'w', and nothing says",
    ),
    "another class": ([("model/a", "w", (2,))], [0], "AdamW", "steps like AdamW"),
}  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize("optimizer", [None, Adam, Adam(0.5)], ids=["new", "class", "instance"])
def test_slots_are_not_dropped(name: str, optimizer: Any, tmp_path: Path) -> None:
    variables, order, title, message = OPEN[name]
    file = _written(tmp_path, variables, order, title)
    targets = {n: thalweg.Variable(entry.tensor() - 1, n) for n, entry in file.variables.items()}
    with pytest.raises(thalweg.CheckpointMismatchError, match=message):
        tensorflow.restore(file, targets, optimizer=optimizer)
    with pytest.raises(thalweg.CheckpointMismatchError, match=message):
        tensorflow.convert(tmp_path / "ckpt", tmp_path / "out", optimizer=optimizer)
    assert all((var.detach() == -1).all() for var in targets.values())
    assert tensorflow.restore(file, targets, optimizer=False) is None
    assert all((var.detach() == 0).all() for var in targets.values())


@pytest.mark.parametrize("steps", ["good_steps", "num_good_steps"])
def test_tf_keras_loss_scale_is_not_a_model_variable(steps: str, tmp_path: Path) -> None:
    scale = {"current_loss_scale": torch.tensor(512.0), steps: torch.tensor(7)}
    tensors = {f"optimizer__loss_scale__{name}": entry for name, entry in scale.items()}
    file = _written(tmp_path, [("model/w", "w", (2,))], [0], **tensors)
    targets = load_vars(file.variables)
    assert [*targets] == ["model/w"]
    loss_scale = DynamicLossScale()
    tensorflow.restore(file, targets, loss_scale=loss_scale)
    assert (loss_scale().item(), loss_scale._num_good_steps.item()) == (512, 7)
    assert tensorflow.convert(tmp_path / "ckpt", tmp_path / "out") == ()
    extra = checkpoint.restore(tmp_path / "out", variables=targets).extra["tensorflow"]
    assert extra["loss_scale"] == {"current_loss_scale": 512, "good_steps": 7}


def test_tf_train_loss_scale_restores_into_loss_scale_wrapper(tmp_path: Path) -> None:
    graph, w = _Graph(), thalweg.Variable(torch.zeros(2), "w")
    node = graph.add_variable("w", of_tensor(torch.ones(2)), "w")
    inner = graph.find_or_add(["optimizer", "base_optimizer"])
    graph.add_slot(inner, node, "w", "momentum", of_tensor(torch.full((2,), 3.0)), "w/Momentum")
    for name, value in (("current_loss_scale", 64.0), ("good_steps", 5)):
        graph.add_variable(f"optimizer/loss_scale/{name}", of_tensor(torch.tensor(value)), name)
    bundle.write(tmp_path / "ckpt", graph.tensors, graph.as_object_graph())
    momentum = train.MomentumOptimizer(0.1, 0.9)
    opt = MixedPrecisionLossScaleOptimizer(momentum, "dynamic")
    tensorflow.restore(tmp_path / "ckpt", {"w": w}, optimizer=opt)
    assert (w.sum().item(), momentum.get_slot(w, "momentum").sum().item()) == (2, 6)
    assert (opt._loss_scale().item(), opt._loss_scale._num_good_steps.item()) == (64, 5)


def test_saver_loss_scale_is_not_a_model_variable() -> None:
    values = {
        "w": torch.ones(2),
        "w/Momentum": torch.full((2,), 3.0),
        "global_step": torch.tensor(9),
    }
    values |= {"current_loss_scale": torch.tensor(64.0), "good_steps": torch.tensor(5)}
    file = sorted_names("run", {name: of_tensor(array) for name, array in values.items()})
    w, scale = thalweg.Variable(torch.zeros(2), "w"), DynamicLossScale()
    kwargs: dict[str, Any] = {"learning_rate": 0.1, "momentum": 0.9}
    tensorflow.restore(file, {"w": w}, loss_scale=scale, **kwargs)
    assert (scale().item(), scale._num_good_steps.item(), file.step) == (64, 5, 9)
    del values["w/Momentum"]
    plain_file = sorted_names("run", {name: of_tensor(array) for name, array in values.items()})
    assert [*plain_file.variables] == ["w", "current_loss_scale", "good_steps"]
