"""Checkpoints written for TensorFlow, which has restored these very files and trained on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from golden_files import FOLDER
from tensorflow_files import RULES as READING
from tensorflow_files import TRAINED, Network, counter, held, prefix_of, values_of
from thalweg import CheckpointMismatchError, CheckpointWriteError, InvalidTypeError
from thalweg._formats import bundle
from thalweg.checkpoint import tensorflow
from thalweg.keras import optimizers as keras
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib
from written_cases import CASES, SEQUENTIAL_RULES, step, turned, variables, write

HOME = FOLDER / "written"
FILES = ("ckpt.index", "ckpt.data-00000-of-00001")


@pytest.mark.parametrize("name", CASES)
def test_files_are_those_that_tensorflow_restored(name: str, tmp_path: Path) -> None:
    write(CASES[name], tmp_path / "ckpt")
    sums = json.loads((HOME / "sha256.json").read_text())
    for file in FILES:
        digest = hashlib.sha256((tmp_path / file).read_bytes()).hexdigest()
        assert digest == sums[f"{name}/{file}"], file
        assert digest == hashlib.sha256((HOME / name / file).read_bytes()).hexdigest()


@pytest.mark.parametrize("name", CASES)
def test_tensorflow_resumed_with_the_same_bits(name: str) -> None:
    case = CASES[name]
    is_saver = case.kind == "tf1"
    targets, steps = variables(), counter()
    with torch.no_grad():
        for var in targets.values():
            var.zero_()
    opt = tensorflow.restore(
        HOME / name / "ckpt",
        targets,
        case.rules,
        optimizer=case.optimizer(),
        global_step=steps if is_saver else None,
    )
    for number in range(5, 10):
        step(opt, targets, number, steps if is_saver else None)
    arrays = np.load(HOME / "values.npz")
    for title, var in targets.items():
        key = title.replace(".", "/").replace("weight", "kernel")
        assert np.array_equal(var.numpy(), turned(title, arrays[f"{name}|{key}"])), title
    if is_saver:
        assert steps.item() == arrays[f"{name}|global_step"] == 10


@pytest.mark.parametrize("name", TRAINED)
def test_files_are_equal_after_reading_and_writing(name: str, tmp_path: Path) -> None:
    model, steps = Network(), counter()
    opt = tensorflow.restore(prefix_of(name), model, READING, global_step=steps, **TRAINED[name])
    file = tensorflow.load(prefix_of(name))
    kind = "tf1" if file.kind == "saver" else "tf2"
    rules: Any = READING
    if kind == "tf2":
        rules = SEQUENTIAL_RULES
    tensorflow.save(
        tmp_path / "again", opt, model, rules, kind, global_step=steps if kind == "tf1" else None
    )
    second_file = tensorflow.load(tmp_path / "again")
    initial, final = held(file), held(second_file)
    extra = {"save_counter", "step"} if kind == "tf2" else set()
    assert initial.keys() - extra == final.keys() - extra
    for key in initial.keys() - extra:
        assert initial[key].tobytes() == final[key].tobytes(), key
    assert second_file.optimizers[0].family == file.optimizers[0].family
    assert values_of(name)["x"].shape == (10, 8, 4)


def _trained(optimizer: Any, *names: str) -> tuple[Any, dict[str, thalweg.Variable]]:
    params = {name: thalweg.Variable(torch.arange(3.0), name) for name in names or ("w",)}
    optimizer.apply_gradients([(torch.ones(3), var) for var in params.values()])
    return optimizer, params


V1: list[Any] = [
    lambda: train.AdagradOptimizer(0.1),
    lambda: train.AdadeltaOptimizer(0.1),
    lambda: train.ProximalAdagradOptimizer(0.1),
    lambda: contrib.AdaMaxOptimizer(0.1),
    lambda: contrib.LARSOptimizer(0.1),
    lambda: contrib.MomentumWOptimizer(0.01, 0.1, 0.9),
    lambda: train.FtrlOptimizer(0.1, accum_name="A", linear_name="L"),
    lambda: train.AdamOptimizer(0.1, name="MyAdam"),
    lambda: thalweg.openseq2seq.optimizers.novograd.NovoGrad(0.1),
]


@pytest.mark.parametrize("kind", ["tf1", "tf2"])
@pytest.mark.parametrize("make", V1, ids=range(len(V1)))
def test_other_optimizers_round_trip(make: Any, kind: str, tmp_path: Path) -> None:
    opt, params = _trained(make(), "a", "b")
    tensorflow.save(
        tmp_path / "ckpt", opt, params, {"model/*": "*"} if kind == "tf2" else None, kind
    )
    targets = {name: thalweg.Variable(torch.zeros(3), name) for name in params}
    rules = {"model/*": "*"} if kind == "tf2" else None
    target_opt = tensorflow.restore(tmp_path / "ckpt", targets, rules, optimizer=make())
    for name, value in opt.state_dict(params.values()).items():
        assert torch.equal(target_opt.state_dict(targets.values())[name], value), name
    assert all(torch.equal(params[name], targets[name]) for name in params)


KERAS: list[Any] = [
    lambda: keras.Adagrad(0.1),
    lambda: keras.Adadelta(0.1),
    lambda: keras.Adamax(0.1),
    lambda: keras.RMSprop(0.1),
    lambda: keras.Ftrl(0.1, beta=0.5),
    lambda: keras.SGD(np.float64(0.1)),
    lambda: keras.SGD(1),
    lambda: keras.Adam(keras.schedules.ExponentialDecay(0.1, 10, 0.5)),
]


@pytest.mark.parametrize("make", KERAS, ids=range(len(KERAS)))
def test_other_keras_optimizers_round_trip(make: Any, tmp_path: Path) -> None:
    opt, params = _trained(make())
    tensorflow.save(tmp_path / "ckpt", opt, params)
    targets = {"w": thalweg.Variable(torch.zeros(3), "w")}
    scheduled = isinstance(opt._hyper.raw("learning_rate"), keras.schedules.LearningRateSchedule)
    kwargs = {"learning_rate": opt.learning_rate} if scheduled else {}
    target_opt = tensorflow.restore(tmp_path / "ckpt", targets, **kwargs)
    assert type(target_opt) is type(opt)
    for optimizer, weights in ((opt, params), (target_opt, targets)):
        optimizer.apply_gradients([(torch.ones(3), weights["w"])])
    assert params["w"].numpy().tobytes() == targets["w"].numpy().tobytes()


def test_checkpoint_before_the_first_step_has_hyperparameters(tmp_path: Path) -> None:
    params = {"w": thalweg.Variable(torch.ones(3), "w")}
    tensorflow.save(tmp_path / "ckpt", keras.Adam(0.25, beta_1=0.5), params, global_step=counter())
    file = tensorflow.load(tmp_path / "ckpt")
    assert file.optimizer is not None
    assert file.optimizer.hyperparameters["learning_rate"] == 0.25
    assert file.optimizer.candidates == ()  # it has no slots yet
    assert file.step == 0
    opt = tensorflow.restore(file, params, {"model/*": "*"}, optimizer=keras.Adam())
    assert (opt.learning_rate.item(), opt.beta_1.item()) == (0.25, 0.5)


def test_names_without_rules_are_module_names(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    tensorflow.save(tmp_path / "tf2", None, model)
    tensorflow.save(tmp_path / "tf1", None, model, kind="tf1")
    names = {name.replace(".", "/") for name in model.state_dict() if "num_batches" not in name}
    assert set(tensorflow.load(tmp_path / "tf1").variables) == names
    assert set(tensorflow.load(tmp_path / "tf2").variables) == {f"model/{name}" for name in names}


def test_dots_in_names_are_written_as_tensorflow_does(tmp_path: Path) -> None:
    params = {"net.v1/w": thalweg.Variable(torch.ones(2), "net.v1/w")}
    tensorflow.save(tmp_path / "ckpt", None, params, {"model/net.v1/*": "net.v1/*"})
    assert "model/net..v1/w/.ATTRIBUTES/VARIABLE_VALUE" in bundle.read(tmp_path / "ckpt").tensors


INVALID_RULES: list[tuple[Any, str]] = [
    ({"a*": "b*"}, "no rule says what 'w' is called in TensorFlow"),
    ({"k": "w conv2d"}, "'w' has 1 axes, its rule 4"),
    ({"optimizer/w": "w"}, "begins with 'optimizer', which is another object"),
    ({"save_counter": "w"}, "begins with 'save_counter'"),
]


@pytest.mark.parametrize(("rules", "message"), INVALID_RULES, ids=range(len(INVALID_RULES)))
def test_invalid_rules_raise(rules: Any, message: str, tmp_path: Path) -> None:
    opt, params = _trained(train.AdamOptimizer(0.1))
    with pytest.raises(CheckpointMismatchError, match=f"{message}.*Nothing was written"):
        tensorflow.save(tmp_path / "ckpt", opt, params, rules)
    assert list(tmp_path.iterdir()) == []


def test_two_variables_of_one_name_raise(tmp_path: Path) -> None:
    params = {name: thalweg.Variable(torch.ones(2), name) for name in ("a.b", "a/b")}
    with pytest.raises(CheckpointMismatchError, match="'a/b' would be several variables"):
        tensorflow.save(tmp_path / "ckpt", None, params, kind="tf1")


def test_variable_that_is_called_like_a_slot_raises(tmp_path: Path) -> None:
    opt, params = _trained(train.MomentumOptimizer(0.1, 0.9), "w", "w/Momentum")
    with pytest.raises(CheckpointMismatchError, match="'w/Momentum' is a variable and a slot"):
        tensorflow.save(tmp_path / "ckpt", opt, params, kind="tf1")
    params = {"beta1_power": thalweg.Variable(torch.ones(2), "beta1_power")}
    opt = train.AdamOptimizer(0.1)
    opt.apply_gradients([(torch.ones(2), params["beta1_power"])])
    with pytest.raises(CheckpointMismatchError, match="a variable and the optimizer's"):
        tensorflow.save(tmp_path / "ckpt", opt, params, kind="tf1")


def test_slots_of_other_variables_raise(tmp_path: Path) -> None:
    opt, params = _trained(train.AdamOptimizer(0.1), "a", "b")
    with pytest.raises(CheckpointMismatchError, match="the optimizer has slots of 'b'"):
        tensorflow.save(tmp_path / "ckpt", opt, {"a": params["a"]})


def test_unsupported_optimizers_raise(tmp_path: Path) -> None:
    params = {"w": thalweg.Variable(torch.ones(2), "w")}
    with pytest.raises(InvalidTypeError, match="write an optimizer of Keras as 'tf2'"):
        tensorflow.save(tmp_path / "ckpt", keras.SGD(0.1), params, kind="tf1")
    averaging = contrib.MovingAverageOptimizer(train.GradientDescentOptimizer(0.1))
    with pytest.raises(InvalidTypeError, match="wraps another optimizer"):
        tensorflow.save(tmp_path / "ckpt", averaging, params)
    with pytest.raises(InvalidTypeError, match=r"must be one of thalweg\.v1"):
        tensorflow.save(tmp_path / "ckpt", torch.optim.SGD(params.values(), 0.1), params)
    with pytest.raises(thalweg.InvalidArgumentError, match="kind must be one of tf2, tf1"):
        tensorflow.save(tmp_path / "ckpt", None, params, kind="tf3")  # pyright: ignore
    with pytest.raises(CheckpointWriteError):
        tensorflow.save(tmp_path / "none" / "ckpt", None, params)
