"""Conversion of TensorFlow's checkpoints to the library's and back, without a module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from golden_files import FOLDER
from tensorflow_files import RULES, TRAINED, Network, counter, held, load_vars, prefix_of, recorded
from thalweg import (
    CheckpointMismatchError,
    InvalidArgumentError,
    InvalidConfigError,
    UnsupportedCheckpointError,
    optim,
)
from thalweg._formats import bundle, container
from thalweg._formats.stored_tensor import of_tensor
from thalweg.checkpoint import restore, save, tensorflow
from thalweg.errors import OptionError
from thalweg.keras.optimizers import Adam
from thalweg.v1 import train

SAVERS = [name for name in TRAINED if tensorflow.load(prefix_of(name)).kind == "saver"]


def _state(optimizer: Any, variables: list[Any]) -> dict[str, Any]:
    if isinstance(optimizer, train.Optimizer):
        return optimizer.state_dict(variables)
    state = optimizer.state_dict()
    slots = {f"{title}|{n}": s for title, part in state["slots"].items() for n, s in part.items()}
    return {**slots, **state["weights"], "iterations": state["iterations"]}


@pytest.mark.parametrize("name", TRAINED)
def test_converted_file_restores_the_same_state(name: str, tmp_path: Path) -> None:
    tensorflow.convert(prefix_of(name), tmp_path / "run", RULES, **TRAINED[name])
    target, reference = Network(), Network()
    thalweg.named_variables(target)
    loaded = restore(tmp_path / "run", module=target)
    opt = tensorflow.restore(prefix_of(name), reference, RULES, **TRAINED[name])
    assert type(loaded.optimizer) is type(opt)
    assert loaded.extra["tensorflow"]["global_step"] == 5
    for a, b in zip(target.parameters(), reference.parameters(), strict=True):
        assert torch.equal(a, b)
    actual = _state(loaded.optimizer, list(target.parameters()))
    expected = _state(opt, list(reference.parameters()))
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[key], expected[key]) for key in actual)


@pytest.mark.parametrize("rules", [None, RULES], ids=["same names", "rules"])
@pytest.mark.parametrize("name", SAVERS)
def test_conversion_round_trip_has_the_original_bytes(
    name: str, rules: Any, tmp_path: Path
) -> None:
    tensorflow.convert(prefix_of(name), tmp_path / "run", rules, **TRAINED[name])
    tensorflow.convert(tmp_path / "run", tmp_path / "back", rules, to="tf1")
    for ending in (".index", ".data-00000-of-00001"):
        original = Path(prefix_of(name) + ending).read_bytes()
        assert Path(f"{tmp_path / 'back'}{ending}").read_bytes() == original


@pytest.mark.parametrize("name", [name for name in TRAINED if name not in SAVERS])
def test_object_checkpoints_round_trip_every_value(name: str, tmp_path: Path) -> None:
    tensorflow.convert(prefix_of(name), tmp_path / "run", **TRAINED[name])
    tensorflow.convert(tmp_path / "run", tmp_path / "back", to="tf")
    initial = held(tensorflow.load(prefix_of(name)))
    final = held(tensorflow.load(tmp_path / "back"))
    initial.pop("step", None)  # a variable of the root, which no optimizer has
    assert final.pop("save_counter") == 1
    assert initial.keys() == final.keys()
    assert all(initial[key].tobytes() == final[key].tobytes() for key in initial)


@pytest.mark.parametrize("file", ["adam.keras", "nadam.h5", "adam_schedule.keras", "rmsprop.h5"])
def test_keras_files_are_converted(file: str, tmp_path: Path) -> None:
    tensorflow.convert(FOLDER / "keras_files" / file, tmp_path / "run")
    original = tensorflow.load(FOLDER / "keras_files" / file)
    params = load_vars(original.variables, zeros=True)
    loaded = restore(tmp_path / "run", variables=params)
    assert loaded.optimizer.iterations.item() == 5
    for name, var in params.items():
        assert np.array_equal(var.numpy(), original.variables[name].array())
        for kind, slot in original.slots[name].items():
            assert np.array_equal(loaded.optimizer.get_slot(var, kind).numpy(), slot.array())


def test_weights_of_keras_need_the_class(tmp_path: Path) -> None:
    path = FOLDER / "keras_files" / "adam_weights.weights.h5"
    with pytest.raises(CheckpointMismatchError, match="fits no optimizer for certain"):
        tensorflow.convert(path, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    tensorflow.convert(path, tmp_path / "run", optimizer=thalweg.keras.optimizers.Adam, beta_1=0.8)
    assert container.is_container(tmp_path / "run")


def test_masters_need_their_step(tmp_path: Path) -> None:
    case = recorded()["openseq2seq/momentum_backoff"]
    path = FOLDER / "checkpoints_with_gradients" / case["prefix"]
    with pytest.raises(UnsupportedCheckpointError, match="belong to a step of optimize_loss"):
        tensorflow.convert(path, tmp_path / "run", learning_rate=0.1, momentum=0.9)
    assert list(tmp_path.iterdir()) == []


def _with_more(prefix: str, target: Path, *extra_names: str) -> dict[str, torch.Tensor]:
    """Write a checkpoint with further tensors beside one of its variables; return those tensors."""
    tensors = bundle.read(prefix).tensors
    extra = {name: torch.rand(tensors["layer1/kernel"].shape) for name in extra_names}
    bundle.write(target, {**tensors, **{name: of_tensor(new) for name, new in extra.items()}}, None)
    return extra


SLOTS = ("/Adam", "/Adam_1")
AVERAGE = "layer1/kernel/ExponentialMovingAverage"


def test_moving_averages_round_trip(tmp_path: Path) -> None:
    extra = _with_more(prefix_of("ckpt_v1/adam"), tmp_path / "model", AVERAGE)
    kwargs = TRAINED["ckpt_v1/adam"]
    assert tensorflow.convert(tmp_path / "model", tmp_path / "run", RULES, **kwargs) == ()
    averages = restore(tmp_path / "run", module=Network()).extra["tensorflow"]["averages"]
    assert list(averages) == ["layer1.weight"]
    assert torch.equal(averages["layer1.weight"], extra[AVERAGE].T)
    assert tensorflow.convert(tmp_path / "run", tmp_path / "back", RULES, "tf1") == ()
    original, round_trip = (bundle.read(tmp_path / name).tensors for name in ("model", "back"))
    assert {name: bytes(tensor.data) for name, tensor in original.items()} == {
        name: bytes(tensor.data) for name, tensor in round_trip.items()
    }
    leftover = tensorflow.convert(tmp_path / "run", tmp_path / "objects", RULES, "tf")
    assert leftover == ("extra/tensorflow/averages/layer1.weight",)


def test_omitted_tensors_are_named(tmp_path: Path) -> None:
    slot_names = ("layer1/kernel/Momentum", "layer1/kernel/RMSProp", "layer1/kernel/RMSProp_1")
    _with_more(prefix_of("ckpt_v1/adam"), tmp_path / "model", *slot_names, AVERAGE)
    index = [opt.name for opt in tensorflow.load(tmp_path / "model").optimizers].index("Adam")
    kwargs = TRAINED["ckpt_v1/adam"]
    gaps = tensorflow.convert(tmp_path / "model", tmp_path / "run", RULES, which=index, **kwargs)
    assert sorted(gaps) == sorted(slot_names)
    rules = {"layer1/*": "-", "*/kernel": "*.weight dense", "*/bias": "*.bias"}
    gaps = tensorflow.convert(tmp_path / "model", tmp_path / "run", rules, which=index, **kwargs)
    slots = [f"layer1/{name}{part}" for name in ("kernel", "bias") for part in ("", *SLOTS)]
    assert sorted(gaps) == sorted([*slot_names, AVERAGE, *slots])


def test_extra_parts_of_own_files_are_named(tmp_path: Path) -> None:
    w = thalweg.Variable(torch.ones(3), "w")
    save(tmp_path / "run", variables=[w], extra={"epoch": 3, "tensorflow": {"kind": "saver"}})
    assert tensorflow.convert(tmp_path / "run", tmp_path / "back", to="tf1") == ("extra/epoch",)
    save(tmp_path / "run", variables=[w], extra=[3])
    assert tensorflow.convert(tmp_path / "run", tmp_path / "back", to="tf1") == ("extra",)
    save(tmp_path / "run", variables=[w], optimizer=optim.Adam([w]))
    assert tensorflow.convert(tmp_path / "run", tmp_path / "back", to="tf1") == ("optimizer",)


def test_a_step_that_an_optimizer_reads_is_a_variable(tmp_path: Path) -> None:
    w, step = thalweg.Variable(torch.ones(3), "w"), counter()
    opt = train.AdagradDAOptimizer(0.1, step)
    for _ in range(3):
        opt.apply_gradients([(torch.ones(3), w)], global_step=step)
    tensorflow.save(tmp_path / "model", opt, [w], kind="tf1", global_step=step)
    tensorflow.convert(tmp_path / "model", tmp_path / "run", learning_rate=0.1)
    target, count = thalweg.Variable(torch.zeros(3), "w"), counter()
    loaded = restore(tmp_path / "run", variables={"w": target, "global_step": count})
    assert count.item() == 3
    for optimizer, var, number in ((opt, w, step), (loaded.optimizer, target, count)):
        optimizer.apply_gradients([(torch.ones(3), var)], global_step=number)
    assert torch.equal(w, target)
    tensorflow.convert(tmp_path / "run", tmp_path / "back", to="tf1")
    assert tensorflow.load(tmp_path / "back").step == 3


def test_missing_arguments_raise_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="learning_rate and momentum of MomentumOptimizer"):
        tensorflow.convert(prefix_of("ckpt_v1/momentum"), tmp_path / "run")
    for rules, name in (
        ({"*/kernel": "*.weight dense"}, "layer1/bias"),
        ({"*/kernel": "*.weight conv2d", "*/bias": "*.bias"}, "layer1/kernel"),
    ):
        with pytest.raises(CheckpointMismatchError, match=f"no rule that fits is for '{name}'"):
            tensorflow.convert(prefix_of("ckpt_v1/adam"), tmp_path / "run", rules)
    with pytest.raises(
        OptionError, match=r"takes no 'nonsense'\. It takes beta1, beta2, epsilon, lea"
    ):
        tensorflow.convert(prefix_of("ckpt_v1/adam"), tmp_path / "run", nonsense=1)
    with pytest.raises(InvalidConfigError, match=r"'beta_1'\? The file's is AdamOptimizer\."):
        tensorflow.convert(
            prefix_of("ckpt_v1/adam"), tmp_path / "run", optimizer=Adam, learning_rate=0.1
        )
    with pytest.raises(InvalidArgumentError, match="to must be one of thalweg, tf, tf1"):
        tensorflow.convert(prefix_of("ckpt_v1/adam"), tmp_path / "run", to="torch")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("document", [{}, {"variables": [1]}, {"variables": {"w": 3}}], ids=str)
def test_files_without_a_training_raise(document: dict[str, Any], tmp_path: Path) -> None:
    container.write(tmp_path / "run", {}, document)
    with pytest.raises(InvalidConfigError, match="checkpoint of a training"):
        tensorflow.convert(tmp_path / "run", tmp_path / "back", to="tf")


def test_own_files_are_not_converted_again(tmp_path: Path) -> None:
    save(tmp_path / "run")
    with pytest.raises(UnsupportedCheckpointError, match='thalweg already: to="tf" turns it'):
        tensorflow.convert(tmp_path / "run", tmp_path / "again")


def test_variables_without_optimizer_are_converted(tmp_path: Path) -> None:
    model = Network()
    tensorflow.save(tmp_path / "model", None, model, kind="tf1")
    tensorflow.convert(tmp_path / "model", tmp_path / "run", {"**": "**"})
    target = Network()
    assert restore(tmp_path / "run", module=target).optimizer is None
    assert all(map(torch.equal, model.parameters(), target.parameters()))
    tensorflow.convert(tmp_path / "run", tmp_path / "back", {"model/**": "**"}, to="tf")
    assert "model/layer1/weight" in tensorflow.load(tmp_path / "back").variables
