"""Crafted checkpoints: only the documented errors, in bounded time, and nothing changes."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflow_files import RULES, Network, fresh, prefix_of
from thalweg import (
    CheckpointMismatchError,
    DataLossError,
    MissingFileError,
    NumericsWarning,
    ThalwegError,
    UnsupportedCheckpointError,
)
from thalweg._formats import container
from thalweg._formats.bundle import Node, ObjectGraph, SavedAttribute, SlotVariable
from thalweg._formats.keras_files import KerasFile
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor
from thalweg.checkpoint import tensorflow
from thalweg.checkpoint.tensorflow.detection.keras_file import sorted_file
from thalweg.checkpoint.tensorflow.detection.object_checkpoint import sorted_objects
from thalweg.checkpoint.tensorflow.detection.saver_names import sorted_names
from thalweg.keras.optimizers import Adam
from thalweg.v1 import train

PARTS = [
    *("w", "b", "Adam", "Adam_1", "Momentum", "RMSProp", "RMSProp_2", "beta1_power"),
    *("beta2_power_1", "iter", "global_step", "Variable", "Variable_1"),
    *("FP32-master-copy", "nvgrad2_ema0"),
]
KEYS = ["iter", "learning_rate", "decay", "beta_1", "momentum", "beta1_power", "m", "v", "w"]
OPTIONS = [
    *("learning_rate", "beta_1", "epsilon", "amsgrad", "momentum", "centered", "name", "clipnorm"),
    *("decay", "inner_optimizer", "weight_decay", "nesterov"),
]


# Strategies are made once, for Hypothesis looks at each: that takes longer than to draw from it.
KINDS = st.sampled_from(["F32", "F32", "F32", "I64", *ITEM_BYTES])
SHAPES = st.lists(st.integers(0, 2), max_size=2).map(tuple)


@functools.cache
def contents(size: int) -> Any:
    return st.binary(min_size=size, max_size=size)


@st.composite
def named(draw: Any, lists: Any) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for name in draw(lists):
        dtype, shape = draw(KINDS), draw(SHAPES)
        size = ITEM_BYTES[dtype] * math.prod(shape)
        tensors[name] = StoredTensor(dtype, shape, memoryview(draw(contents(size))))
    return tensors


def tensors(names: Any) -> Any:
    """Draw tensors of any dtypes and small shapes, full of any bytes."""
    return named(st.lists(names, max_size=12, unique=True))


paths = st.lists(st.sampled_from([*PARTS, ""]), min_size=1, max_size=4).map("/".join)


def _tried(file: tensorflow.TensorFlowCheckpoint) -> None:
    """Restore a file: either a documented error is raised, or all variables are set."""
    assert isinstance(file.summary(), str)
    assert file.counters is not None
    shapes = {name: entry.shape for name, entry in file.variables.items()}
    for optimizer in (None, train.AdamOptimizer(0.1), Adam(0.1), train.MomentumOptimizer):
        targets = fresh(shapes)
        options = {"learning_rate": 0.1, "momentum": 0.9} if isinstance(optimizer, type) else {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NumericsWarning)
                tensorflow.restore(file, targets, optimizer=optimizer, **options)
        except ThalwegError:
            assert all(not var.detach().any() for var in targets.values())


# As many cases as a day has time for; THALWEG_CASES=20000 with `-m slow` is for a night.
CASE_COUNT = int(os.environ.get("THALWEG_CASES", "800"))
case_counts = pytest.mark.parametrize(
    "count",
    [50, pytest.param(CASE_COUNT, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
    ids=["few", "many"],
)


def cases(count: int, strategy: Any) -> Callable[[Callable[[Any], None]], None]:
    """Return a decorator that calls a function with so many draws."""
    return lambda check: settings(max_examples=count)(given(strategy)(check))()


@case_counts
def test_arbitrary_saver_names_load_or_raise(count: int) -> None:
    @cases(count, tensors(paths))
    def _(tensors: dict[str, StoredTensor]) -> None:
        with contextlib.suppress(ThalwegError):
            _tried(sorted_names("m", tensors))


TENSORS, COUNTS = tensors(st.sampled_from(KEYS)), st.integers(0, 6)


@functools.cache
def parts_of_nodes(count: int, names: int) -> Any:
    """Draw children, attributes and slots of a node."""
    index, keys = st.integers(-1, count), st.sampled_from(KEYS)
    kind, name = st.sampled_from(["VARIABLE_VALUE", "OTHER"]), st.integers(0, names - 1)
    return st.tuples(
        st.dictionaries(st.sampled_from([*KEYS, "model"]), index, max_size=4),
        st.lists(st.tuples(kind, paths, name), max_size=2),
        st.lists(st.builds(SlotVariable, index, keys, index), max_size=3).map(tuple),
    )


@st.composite
def graphs(draw: Any) -> tuple[dict[str, StoredTensor], ObjectGraph]:
    """Draw tensors, and a graph that may or may not fit them."""
    tensors, count = draw(TENSORS), draw(COUNTS)
    names = [*tensors, "missing"]
    nodes = []
    for _ in range(count):
        children, attributes, slots = draw(parts_of_nodes(count, len(names)))
        attrs = tuple(SavedAttribute(kind, path, names[name]) for kind, path, name in attributes)
        nodes.append(Node(children, attrs, slots))
    return tensors, ObjectGraph(tuple(nodes))


@case_counts
def test_arbitrary_object_graphs_load_or_raise(count: int) -> None:
    @cases(count, graphs())
    def _(parts: tuple[dict[str, StoredTensor], ObjectGraph]) -> None:
        with contextlib.suppress(ThalwegError):
            _tried(sorted_objects("m", *parts))


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    st.just({"class_name": "ExponentialDecay", "config": {"initial_learning_rate": 0.1}}),
    st.just({"class_name": "os.system", "config": {}}),
)
configs = st.dictionaries(st.sampled_from(OPTIONS), values, max_size=5)


CLASSES = [None, "Adam", "SGD", "RMSprop", "Nadam", "LossScaleOptimizer", "os.system"]
files_of_keras = st.tuples(
    st.sampled_from(["keras", "weights.h5", "h5"]),
    st.sampled_from(CLASSES),
    st.none() | configs,
    tensors(st.sampled_from([f"optimizer/vars/{index}" for index in range(9)])),
    tensors(st.sampled_from(["a/kernel", "a/bias", "b_1/kernel", "b/kernel"])),
)


@case_counts
def test_arbitrary_keras_files_load_or_raise(count: int) -> None:
    @cases(count, files_of_keras)
    def _(parts: Any) -> None:
        with contextlib.suppress(ThalwegError):
            _tried(sorted_file("m", KerasFile(*parts)))


def test_numbers_beyond_float32_are_compared() -> None:
    slots = {"optimizer/vars/0": StoredTensor("F32", (), memoryview(bytes(4)))}
    file = KerasFile("keras", "SGD", {"momentum": 1e39}, slots, {})
    kwargs = {"learning_rate": 0.1, "momentum": 0.9}
    with pytest.raises(CheckpointMismatchError, match=r"momentum is 1e\+39 in the file, not 0\.9"):
        tensorflow.restore(sorted_file("m", file), {}, optimizer=train.MomentumOptimizer, **kwargs)


def test_very_long_names_are_matched_quickly() -> None:
    small = StoredTensor("F32", (), memoryview(bytes(4)))
    names = [
        "/" * 500_000 + "Adam",
        "a" * 1_000_000,
        "w/" * 100_000 + "beta1_power",
        "w" + "_1" * 300_000,
    ]
    tensors = dict.fromkeys(names, small)
    start = time.process_time()
    file = sorted_names("m", tensors)
    model = torch.nn.Linear(3, 3)
    with pytest.raises(CheckpointMismatchError):
        tensorflow.restore(file, model, {"**/kernel/**/**": "**.weight.**.**"})
    with pytest.raises(CheckpointMismatchError):
        tensorflow.restore(file, model)
    assert time.process_time() - start < 5


def test_many_unmatched_names_fail_quickly() -> None:
    small = StoredTensor("F32", (), memoryview(bytes(4)))
    file = sorted_names("m", {f"net/layer{index}/kernel": small for index in range(5_000)})
    model = torch.nn.ParameterDict({f"layer{index}": torch.zeros(()) for index in range(1000)})
    start = time.process_time()
    for rules in (None, {"net/*/kernel": "*.weigth"}):
        with pytest.raises(CheckpointMismatchError, match=r"and \d+ more"):
            tensorflow.restore(file, model, rules)
    assert time.process_time() - start < 10


def test_slot_of_a_non_variable_node_raises() -> None:
    small = StoredTensor("F32", (), memoryview(bytes(4)))
    value = SavedAttribute("VARIABLE_VALUE", "", "m")
    nodes = (Node({"optimizer": 1}, (), (SlotVariable(1, "m", 2),)), Node(), Node({}, (value,)))
    with pytest.raises(DataLossError, match="node 1 has a slot, but is no variable"):
        sorted_objects("run", {"m": small}, ObjectGraph(nodes))


def _damaged(tmp_path: Path, suffix: str, position: int) -> str:
    home = Path(prefix_of("ckpt_v1/adam")).parent
    for path in home.glob("model.ckpt-5*"):
        data = bytearray(path.read_bytes())
        if path.name.endswith(suffix):
            data[position] ^= 1
        (tmp_path / path.name).write_bytes(data)
    return str(tmp_path / "model.ckpt-5")


@pytest.mark.parametrize("suffix", ["00001", "index"])
def test_damage_raises_and_changes_nothing(suffix: str, tmp_path: Path) -> None:
    model = Network()
    initial = [param.detach().clone() for param in model.parameters()]
    with pytest.raises(DataLossError, match=r"model\.ckpt-5"):
        tensorflow.restore(_damaged(tmp_path, suffix, 100), model, RULES, learning_rate=0.1)
    assert all(map(torch.equal, initial, model.parameters()))


def test_files_without_a_checkpoint_raise_by_name(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"none does not exist.* or \.index after it"):
        tensorflow.load(tmp_path / "none")
    with pytest.raises(MissingFileError, match="is a folder"):
        tensorflow.load(tmp_path)
    for kind, reader in (
        ("training", r"thalweg\.checkpoint\.restore reads it"),
        ("tf.train.Saver", r"thalweg\.v1\.train\.Saver reads it"),
        (None, "`thalweg inspect` shows"),
    ):
        container.write(tmp_path / "ours", {}, {"kind": kind})
        with pytest.raises(UnsupportedCheckpointError, match=reader):
            tensorflow.load(tmp_path / "ours")
    (tmp_path / "text").write_text("no checkpoint")
    with pytest.raises(DataLossError, match="text: It is no checkpoint of thalweg, TensorFlow or"):
        tensorflow.load(tmp_path / "text")


@pytest.mark.parametrize("ending", ["", ".index", ".meta"])
def test_checkpoint_is_found_by_the_name_of_any_of_its_files(ending: str) -> None:
    assert tensorflow.load(prefix_of("ckpt_v1/adam") + ending).step == 5


def test_load_can_read_a_subset_of_tensors() -> None:
    names = ["layer1/bias", "layer1/bias/Adam", "layer1/bias/Adam_1"]
    file = tensorflow.load(prefix_of("ckpt_v1/adam"), names=names)
    assert list(file.variables) == ["layer1/bias"]
    assert list(file.slots["layer1/bias"]) == ["m", "v"]
    bias = "model/layer_with_weights-0/bias"
    ending = ".ATTRIBUTES/VARIABLE_VALUE"
    names = [f"{bias}/{ending}", f"{bias}/.OPTIMIZER_SLOT/optimizer/m/{ending}"]
    file = tensorflow.load(prefix_of("ckpt_v2/adam"), names=names)
    assert list(file.variables) == [bias]
    assert list(file.slots[bias]) == ["m"]


def test_load_reports_progress() -> None:
    calls: list[tuple[int, int]] = []
    tensorflow.load(prefix_of("ckpt_v1/adam"), lambda count, total: calls.append((count, total)))
    assert calls[-1][0] == calls[-1][1] == 628
