"""Names of optimizers in files, registered by front ends that are imported when needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fresh_process
from thalweg import NotFoundError, Variable, checkpoint
from thalweg._core import config_registry
from thalweg._core.config_registry import LOSS_SCALERS, OPTIMIZERS, RATES, Names
from thalweg.keras.optimizers import SGD
from thalweg.openseq2seq.micro_batches import MicroBatchStep
from thalweg.openseq2seq.optimizers import lr_policies
from thalweg.openseq2seq.optimizers.optimizers import TrainingStep
from thalweg.v1 import train

FACES = ("keras", "v1", "openseq2seq")

# As they are in files: none may ever go, or be of something else.
NAMES = """
    SGD Adam Adamax Nadam Adagrad Adadelta RMSprop Ftrl RuleOptimizer
    v1:AdadeltaOptimizer v1:AdagradDAOptimizer v1:AdagradOptimizer v1:AdamOptimizer v1:FtrlOptimizer
    v1:GradientDescentOptimizer v1:MomentumOptimizer v1:ProximalAdagradOptimizer
    v1:ProximalGradientDescentOptimizer v1:RMSPropOptimizer
    v1:AdaMaxOptimizer v1:AdamWOptimizer v1:LARSOptimizer v1:LazyAdamOptimizer v1:MomentumWOptimizer
    v1:MovingAverageOptimizer v1:NadamOptimizer v1:VariableClippingOptimizer
    openseq2seq:NovoGrad openseq2seq:MixedPrecisionOptimizerWrapper openseq2seq:optimize_loss
"""
RECORDED_RATES = """
    train.cosine_decay train.exponential_decay train.inverse_time_decay train.linear_cosine_decay
    train.natural_exp_decay train.noisy_linear_cosine_decay train.piecewise_constant
    train.piecewise_constant_decay train.polynomial_decay
    lr_policies.fixed_lr lr_policies.piecewise_constant lr_policies.exp_decay lr_policies.poly_decay
    lr_policies.cosine_decay lr_policies.transformer_policy lr_policies.inv_poly_decay
"""


class Mine(SGD):
    """A class of one's own, which no face tells."""


@pytest.fixture
def loads() -> Iterator[list[str]]:
    """The faces that were asked for, of two that tell nothing."""
    loaders, requested = dict(config_registry.faces), list[str]()
    config_registry.faces.clear()
    config_registry.faces.update(
        {face: lambda face=face: requested.append(face) for face in ("a", "b")}
    )
    yield requested
    config_registry.faces.clear()
    config_registry.faces.update(loaders)


@pytest.mark.parametrize(("kind", "names"), [(OPTIMIZERS, NAMES), (RATES, RECORDED_RATES)])
def test_registry_names_match_earlier_files(kind: Names, names: str) -> None:
    names_told = kind.load_all()
    assert sorted(names_told) == sorted(names.split())
    for name, thing in names_told.items():
        assert kind.find(name) is thing
        class_name = name.replace(":", ".").rpartition(".")[2]
        if name not in ("openseq2seq:optimize_loss", "train.piecewise_constant_decay"):
            assert thing.__name__ == class_name


def test_alias_is_read_and_the_first_name_written() -> None:
    assert RATES.name_of(train.piecewise_constant) == "train.piecewise_constant_decay"
    assert RATES.find("train.piecewise_constant") is train.piecewise_constant


def test_name_of_two_classes_finds_the_first() -> None:
    name = "openseq2seq:optimize_loss"
    assert OPTIMIZERS.name_of(TrainingStep) == OPTIMIZERS.name_of(MicroBatchStep) == name
    assert OPTIMIZERS.find(name) is TrainingStep


def test_duplicate_registration_raises() -> None:
    names = Names()
    names.add("a", int)
    names.add("a", int)
    with pytest.raises(
        ValueError, match="'a' is registered for <class 'int'> and cannot name <class 'float'>"
    ):
        names.add("a", float)
    assert names.find("a") is int
    assert names.name_of(float) is None


def test_front_ends_load_until_a_class_is_found(loads: list[str]) -> None:
    names = Names()
    assert names.find("c") is None
    assert names.find("b:c") is None
    assert loads == ["a", "b", "b", "a"]
    config_registry.faces["a"] = lambda: names.add("c", int)
    assert names.find("c") is int
    assert loads == ["a", "b", "b", "a"]


def test_a_user_class_is_stored_by_name(tmp_path: Path) -> None:
    assert OPTIMIZERS.name_of(Mine) is None
    assert OPTIMIZERS.find("mine:Mine") is None
    checkpoint.save(tmp_path / "run", optimizer=Mine())
    with pytest.raises(NotFoundError, match="of your own class 'Mine'"):
        checkpoint.restore(tmp_path / "run", variables=False)


def _files(folder: Path) -> dict[str, Any]:
    """Files by name, and the faces that a process needs to go on from them."""
    step = Variable(0, "global_step", trainable=False)
    cases: dict[str, tuple[Any, tuple[str, ...]]] = {
        "keras": (SGD(0.5, momentum=0.9), ("keras",)),
        "v1": (train.MomentumOptimizer(0.5, 0.9), ("v1",)),
        "decay": (SGD(train.exponential_decay(0.5, step, 10, 0.9)), ("keras", "v1")),
        "policy": (SGD(lr_policies.poly_decay(step, 0.5, 10)), FACES),
    }
    for name, (optimizer, _) in cases.items():
        variables = {"w": Variable([1.0, 2.0]), "global_step": step}
        optimizer.apply_gradients([(Variable([1.0, -1.0]), variables["w"])])
        checkpoint.save(folder / name, optimizer=optimizer, variables=variables)
    return {name: faces for name, (_, faces) in cases.items()}


GOING_ON = """
import json, sys
from pathlib import Path
from thalweg import Variable, checkpoint

step = Variable(0, "global_step", trainable=False)
known = {"w": Variable([0.0, 0.0]), "global_step": step}
before = [face for face in ("keras", "v1", "openseq2seq") if f"thalweg.{face}" in sys.modules]
made = checkpoint.restore(sys.argv[1], variables=known).optimizer
made.apply_gradients([(Variable([1.0, -1.0]), known["w"])])
loaded = [face for face in ("keras", "v1", "openseq2seq") if f"thalweg.{face}" in sys.modules]
print(json.dumps([before, loaded, type(made).__name__, known["w"].tolist()]))
"""


def test_restoring_a_file_imports_only_its_front_ends(tmp_path: Path) -> None:
    for name, faces in _files(tmp_path).items():
        process = fresh_process.run(GOING_ON, str(tmp_path / name))
        assert process.returncode == 0, process.stderr
        loaded_before, loaded, cls, value = json.loads(process.stdout)
        assert (loaded_before, set(loaded)) == ([], set(faces)), name
        restored = checkpoint.restore(tmp_path / name, variables=(variables := _known())).optimizer
        restored.apply_gradients([(Variable([1.0, -1.0]), variables["w"])])
        assert (type(restored).__name__, variables["w"].tolist()) == (cls, value), name


def _known() -> dict[str, Variable]:
    step = Variable(0, "global_step", trainable=False)
    return {"w": Variable([0.0, 0.0]), "global_step": step}


TRAINING = """
import sys, tempfile, torch
from thalweg import checkpoint, optim

model = torch.nn.Linear(4, 3)
optimizer = optim.Adam(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
folder = tempfile.mkdtemp()
checkpoint.save(f"{folder}/run", optimizer=optimizer, module=model)
checkpoint.restore(f"{folder}/run", optimizer=optimizer, module=model)
checkpoint.save_async(f"{folder}/run", optimizer=optimizer, module=model).wait()
manager = checkpoint.CheckpointManager(folder)
manager.save(0, optimizer=optimizer, module=model)
manager.restore(optimizer=optimizer, module=model)
print(*sorted(name for name in sys.modules if name.startswith("thalweg.")))
"""
UNUSED = """
    v1 openseq2seq keras graph distribute tf catalogue storage.bundle storage.hdf5
    storage.keras_files checkpoint.tensorflow checkpoint.torch_optim checkpoint.files
"""


def test_torch_models_import_no_tensorflow_names() -> None:
    process = fresh_process.run(TRAINING)
    assert process.returncode == 0, process.stderr
    loaded = process.stdout.split()
    assert "thalweg.checkpoint.manager" in loaded
    inner = [
        name
        for name in loaded
        for part in UNUSED.split()
        if f"{name}.".startswith(f"thalweg.{part}.")
    ]
    assert inner == []


def test_lazy_import_targets_exist() -> None:
    process = fresh_process.run(
        "from thalweg import checkpoint\n"
        "assert {'from_torch', 'to_torch', 'tensorflow'} <= set(dir(checkpoint))\n"
        "assert checkpoint.from_torch is checkpoint.torch_optim.from_torch\n"
        "from thalweg.checkpoint import to_torch, tensorflow\n"
        "assert tensorflow.restore and to_torch is checkpoint.to_torch\n"
    )
    assert process.returncode == 0, process.stderr


def test_loss_scaler_registry_lists_one_class() -> None:
    assert list(LOSS_SCALERS.load_all()) == ["AutomaticLossScaler"]
