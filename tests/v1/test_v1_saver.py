"""`tf.train.Saver`: what is saved, how it is restored, and all that is refused without a trace."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thalweg
import thalweg.v1 as tf
from captured_log import Logged
from graph_training import ENTRIES, Training, bits
from sessions import initialized
from thalweg._formats import bundle, container
from thalweg._formats.stored_tensor import of_tensor
from thalweg.errors import (
    CheckpointMismatchError,
    CheckpointWriteError,
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
)
from thalweg.v1 import train
from thalweg.v1.contrib.opt import MovingAverageOptimizer

GOLDENS = Path(__file__).parents[1] / "goldens" / "checkpoints" / "ckpt_v1"


def saved(folder: Path, values: dict[str, Any], name: str = "model.ckpt") -> str:
    """A checkpoint of ours with these values."""
    tensors = {key: of_tensor(torch.as_tensor(value)) for key, value in values.items()}
    container.write(folder / f"{name}.safetensors", tensors, {})
    return str(folder / name)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- Trainings that go on -------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ENTRIES)
def test_restored_training_resumes_with_the_same_bits(name: str, tmp_path: Path) -> None:
    uninterrupted = Training(name)
    uninterrupted.session.run(uninterrupted.init)
    for number in range(3):
        uninterrupted.saver.save(uninterrupted.session, tmp_path / "model.ckpt", uninterrupted.step)
        uninterrupted.take(number, number + 1)
    uninterrupted.take(3, 6)
    for number in range(3):
        resumed = Training(name, start=50)
        if number % 2:
            resumed.session.run(resumed.init)
            resumed.take(0, 1)
        resumed.saver.restore(resumed.session, tmp_path / f"model.ckpt-{number}")
        resumed.take(number, 6)
        assert resumed.bits() == uninterrupted.bits()


def test_different_starts_give_different_bits() -> None:
    base, shifted = Training("v1:AdamOptimizer"), Training("v1:AdamOptimizer", start=50)
    for training in (base, shifted):
        training.session.run(training.init)
        training.take(0, 2)
    assert all(base.bits()[name] != shifted.bits()[name] for name in ("w", "net/b", "table"))
    assert base.bits()["w/Adam"] == shifted.bits()["w/Adam"]  # the gradients are the same


def test_beta_powers_are_those_of_the_graph(tmp_path: Path) -> None:
    training, second_graph = Training(lambda step: train.AdamOptimizer(0.1)), tf.Graph()
    with second_graph.as_default():  # the same optimizer in a second graph, which is made later
        v = tf.Variable([1.0], name="v")
        late = training.optimizer.minimize((v * v).sum())
        saver, session = train.Saver(), initialized()
        session.run(late)
    training.session.run(training.init)
    training.take(0, 3)
    first = training.saver.save(training.session, tmp_path / "one")
    second = saver.save(session, tmp_path / "other")
    assert train.load_variable(first, "beta1_power") == np.float32(0.9) ** 4
    assert train.load_variable(second, "beta1_power") == np.float32(0.9) ** 2
    assert [name for name, _ in train.list_variables(second)] == [
        "beta1_power",
        "beta2_power",
        "v",
        "v/Adam",
        "v/Adam_1",
    ]


# --- TensorFlow's checkpoints ---------------------------------------------------------------------

_OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "adam": train.AdamOptimizer,
    "momentum": train.MomentumOptimizer,
    "rmsprop_centered": train.RMSPropOptimizer,
    "adam_object": train.AdamOptimizer,
}


class Network:
    """The network of TensorFlow's checkpoints, two layers, in a graph of its own."""

    def __init__(self, folder: str) -> None:
        self.facts = json.loads((GOLDENS / folder / "values.json").read_text())
        with np.load(GOLDENS / folder / "values.npz") as expected:
            self.values = dict(expected)
        self.prefix = str(GOLDENS / folder / self.facts["prefix"])
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x, self.y = (tf.placeholder("float32", [None, n]) for n in (4, 3))
            activation, sizes = self.x, (4, 6, 3)
            for number in (1, 2):
                with tf.variable_scope(f"layer{number}"):
                    kernel = tf.get_variable("kernel", sizes[number - 1 : number + 1])
                    bias = tf.get_variable("bias", sizes[number : number + 1])
                activation = activation @ kernel + bias
                activation = torch.relu(activation) if number == 1 else activation
            self.loss = ((activation - self.y) ** 2).mean()
            self.step = train.get_or_create_global_step()
            opt = _OPTIMIZERS[folder](**self.facts["hyper"])
            self.train_op = opt.minimize(self.loss, global_step=self.step)
        self.session = tf.Session(graph=self.graph)

    def saver(self) -> train.Saver:
        with self.graph.as_default():
            return train.Saver()

    def take(self, first: int, stop: int) -> list[float]:
        """The losses before the steps of these numbers, which are taken."""
        losses = []
        for number in range(first, stop):
            feed = {key: self.values[name][number] for key, name in ((self.x, "x"), (self.y, "y"))}
            losses.append(self.session.run([self.loss, self.train_op], feed)[0])
        return losses


@pytest.mark.parametrize("folder", ["adam", "momentum", "rmsprop_centered"])
def test_tensorflow_checkpoint_resumes(folder: str) -> None:
    network = Network(folder)
    network.saver().restore(network.session, network.prefix)
    variables = {var.op.name: var for var in network.graph.get_collection("variables")}
    assert variables.keys() == network.facts["tensors"].keys()  # the names are TensorFlow's
    for name, var in variables.items():
        value = network.session.run(var)
        expected = network.values[f"value|{name}"]
        assert value.dtype == expected.dtype
        assert value.tobytes() == expected.tobytes(), name
    losses = network.take(5, 10)
    # The recorded gradients are TensorFlow's, these are torch's: sums differ in the last bits.
    np.testing.assert_allclose(losses, network.values["losses"][5:], rtol=1e-5)
    for name, var in variables.items():
        expected = network.values[f"after10|{name}"]
        np.testing.assert_allclose(
            network.session.run(var), expected, rtol=1e-5, atol=1e-6, err_msg=name
        )
    assert network.session.run(network.step) == 10


def test_saved_names_and_values_equal_tensorflow(tmp_path: Path) -> None:
    network = Network("adam")
    network.saver().restore(network.session, network.prefix)
    prefix = network.saver().save(network.session, tmp_path / "model.ckpt", network.step)
    assert prefix == str(tmp_path / "model.ckpt-5")
    assert train.list_variables(prefix) == train.list_variables(network.prefix)
    saved_tensors = container.read(f"{prefix}.safetensors").tensors
    original_tensors = bundle.read(network.prefix).tensors
    assert {name: (x.dtype, x.shape, bytes(x.data)) for name, x in saved_tensors.items()} == {
        name: (x.dtype, x.shape, bytes(x.data)) for name, x in original_tensors.items()
    }


def test_an_object_checkpoint_is_restored_by_the_names_of_its_variables() -> None:
    network = Network("adam_object")
    network.saver().restore(network.session, network.prefix)
    loaded = bundle.read(network.prefix)
    keys = {entry.full_name: entry.key for node in loaded.graph.nodes for entry in node.attributes}
    current = bits(network.session)
    assert current.keys() == keys.keys()
    for name, (_, _, data) in current.items():
        assert data == bytes(loaded.tensors[keys[name]].data), name


def test_objects_that_were_saved_here_are_restored_by_name(graph: tf.Graph, tmp_path: Path) -> None:
    w = tf.Variable([1.0, 2.0], name="w")
    optimizer = train.AdamOptimizer(0.1)
    train_op = optimizer.minimize((w * w).sum())
    session = initialized()
    session.run(train_op)
    bits_before = bits(session)
    with session.as_default():
        prefix = train.Checkpoint(model=[w], optimizer=optimizer).save(str(tmp_path / "m"))
    session.run(train_op)
    train.Saver().restore(session, prefix)
    assert bits(session) == bits_before
    with pytest.raises(NotFoundError, match=r"^Key other not found in checkpoint"):
        train.Saver({"other": w}).restore(session, prefix)


@pytest.mark.parametrize("folder", ["partitioned", "sharded", "version_1"])
def test_slices_shards_and_old_formats_are_restored(folder: str) -> None:
    prefix = str(GOLDENS.parent / "bundles" / folder / "model.ckpt")
    shapes = dict(train.list_variables(prefix))
    dtypes = train.load_checkpoint(prefix).get_variable_to_dtype_map()
    with tf.Graph().as_default(), tf.Session() as session:
        variables = {name: tf.get_variable(name, shapes[name], dtypes[name]) for name in shapes}
        train.Saver().restore(session, prefix)
        for name, var in variables.items():
            assert session.run(var).tobytes() == train.load_variable(prefix, name).tobytes()


def test_a_checkpoint_of_tensorflow_restores_partitioned_variables(tmp_path: Path) -> None:
    prefix = str(GOLDENS.parent / "bundles" / "partitioned" / "model.ckpt")
    with tf.Graph().as_default():
        rows = tf.get_variable("rows", [7, 3], partitioner=tf.fixed_size_partitioner(3))
        columns = tf.get_variable("columns", [4, 5], partitioner=tf.fixed_size_partitioner(2, 1))
        optimizer = train.AdamOptimizer(0.1)
        optimizer.minimize((rows * rows).sum() + (columns * columns).sum())
        session, saver = initialized(), train.Saver()
        saver.restore(session, prefix)
        for var, axis in ((rows, 0), (columns, 1)):
            for name, slot in (("", None), ("/Adam", "m"), ("/Adam_1", "v")):
                parts = [part if slot is None else optimizer.get_slot(part, slot) for part in var]
                got = np.concatenate(session.run(parts), axis)
                assert got.tobytes() == train.load_variable(prefix, var.name + name).tobytes()
        path = saver.save(session, tmp_path / "m")
    named_shapes = dict(train.list_variables(path))
    assert named_shapes["rows/Adam"] == [7, 3]
    assert not any("part_" in name for name in named_shapes)


def test_complete_partitions_are_saved_as_one_tensor(graph: tf.Graph, tmp_path: Path) -> None:
    v = tf.get_variable("v", [4], initializer=None, partitioner=tf.fixed_size_partitioner(2))
    session = initialized()
    first, second = v
    path = train.Saver([v]).save(session, tmp_path / "whole")
    part = train.Saver([first]).save(session, tmp_path / "alone")
    alias = train.Saver({"x": [first, second]}).save(session, tmp_path / "named")
    lists = [dict(train.list_variables(prefix)) for prefix in (path, part, alias)]
    assert lists == [{"v": [4]}, {"v/part_0": [2]}, {"x": [4]}]
    initial = session.run(v)
    session.run([var.assign(torch.zeros(2)) for var in v])
    train.Saver([second]).restore(session, path)
    assert session.run(v).tolist() == [0.0, 0.0, *initial[2:]]
    train.Saver([first]).restore(session, part)
    assert session.run(v).tolist() == initial.tolist()
    train.Saver({"x": v}).restore(session, alias)
    with pytest.raises(NotFoundError, match="v"):
        train.Saver([v]).restore(session, part)
    with tf.Graph().as_default():
        variable = tf.get_variable("v", [6], partitioner=tf.fixed_size_partitioner(3))
        with pytest.raises(CheckpointMismatchError, match="v/part_0"):
            train.Saver([variable]).restore(initialized(), alias.replace("named", "whole"))


# --- Which variables ------------------------------------------------------------------------------


def named(saver: train.Saver, session: Any, folder: Path) -> list[str]:
    return [name for name, _ in train.list_variables(saver.save(session, folder / "named"))]


def test_only_global_variables_are_saved(graph: tf.Graph, tmp_path: Path) -> None:
    tf.Variable(1.0, name="b")
    tf.Variable(2.0, name="a", trainable=False)
    tf.Variable(3.0, name="here", collections=[tf.GraphKeys.LOCAL_VARIABLES])
    custom = tf.Variable(4.0, name="custom", collections=[tf.GraphKeys.SAVEABLE_OBJECTS])
    saver, late = train.Saver(), train.Saver(defer_build=True)
    tf.Variable(5.0, name="later")
    session = initialized()
    session.run(custom.initializer)
    assert named(saver, session, tmp_path) == ["a", "b", "custom"]
    late.build()
    assert named(late, session, tmp_path) == ["a", "b", "custom", "later"]
    late.build()  # once is enough


def test_var_list_selects_saved_variables(graph: tf.Graph, tmp_path: Path) -> None:
    a, b = tf.Variable(1.0, name="a"), tf.Variable(2.0, name="b")
    session = initialized()
    assert named(train.Saver([b]), session, tmp_path) == ["b"]
    assert named(train.Saver((b, a)), session, tmp_path) == ["a", "b"]
    assert named(train.Saver({a}), session, tmp_path) == ["a"]
    saver = train.Saver({"old/b": b, "other": a})
    assert named(saver, session, tmp_path) == ["old/b", "other"]
    prefix = saved(tmp_path, {"old/b": 7.0, "other": 8.0, "more": 9.0}, "theirs")
    saver.restore(session, prefix)
    assert session.run([a, b]) == [8.0, 7.0]


def test_parameters_and_buffers_stand_for_their_variables(graph: tf.Graph, tmp_path: Path) -> None:
    norm = torch.nn.BatchNorm1d(2)
    output = norm(tf.placeholder("float32", [None, 2]))
    session = initialized()
    saver = train.Saver([norm.weight, norm.running_mean])
    assert len(named(saver, session, tmp_path)) == 2
    assert named(train.Saver(), session, tmp_path) == sorted(
        var.op.name for var in tf.global_variables()
    )
    assert output.graph is graph


FAULTY: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "no variables": (lambda a, b: [], ValueError, r"^No variables to save$"),
    "no dict or list": (
        lambda a, b: a,
        TypeError,
        r"^Variables to save should be passed in a dict or a list: <tf.Variable 'a:0'",
    ),
    "no variable": (
        lambda a, b: [a + 1],
        TypeError,
        r"^Variable to save is not a Variable: <tf.Tensor",
    ),
    "a number": (lambda a, b: [a, 3], TypeError, "^Variable to save is not a Variable: 3"),
    "one name twice": (
        lambda a, b: [a, b, a],
        ValueError,
        "^At least two variables have the same name: a$",
    ),
    "two names": (
        lambda a, b: {"x": a, "y": a},
        ValueError,
        "^The same saveable will be restored with two names: y",
    ),
    "no text for a name": (lambda a, b: {3: a}, TypeError, r"Name is not a string: 3$"),
    "no variable in a dict": (lambda a, b: {"x": a * 2}, TypeError, r"Not a variable: <tf.Tensor"),
    "slices": (lambda a, b: {"x": [a, b]}, TypeError, r"Not a variable: \[<tf.Variable"),
    "several graphs": (lambda a, b: [a, _of_another_graph()], ValueError, "belong to 2 graphs"),
}


def _of_another_graph() -> Any:
    with tf.Graph().as_default():
        return tf.Variable(1.0, name="stranger")


@pytest.mark.parametrize("case", FAULTY)
def test_invalid_var_lists_raise(graph: tf.Graph, case: str) -> None:
    make, kind, message = FAULTY[case]
    a, b = tf.Variable(1.0, name="a"), tf.Variable(2.0, name="b")
    with pytest.raises(kind, match=message):
        train.Saver(make(a, b))


def test_invalid_saver_arguments_raise(graph: tf.Graph, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^No variables to save$"):
        train.Saver()
    a = tf.Variable(1.0, name="a")
    with pytest.raises(ValueError, match=r"^If `var_list` is provided then build cannot be defer"):
        train.Saver([a], defer_build=True)
    with pytest.raises(NotImplementedError, match=r"saver_def and builder: there are no protocol"):
        train.Saver([a], saver_def=object())
    saver = train.Saver()
    for method in (saver.as_saver_def, saver.to_proto, saver.export_meta_graph):
        with pytest.raises(
            NotImplementedError, match=r"same Python code, and restore its variables"
        ):
            method()
    with pytest.raises(NotImplementedError, match="from_proto"):
        train.Saver.from_proto(None)
    late, session = train.Saver(defer_build=True), initialized()
    with pytest.raises(RuntimeError, match=r"^`build\(\)` should be called before save if defer"):
        late.save(session, tmp_path / "x")
    with pytest.raises(RuntimeError, match=r"^`build\(\)` should be called before restore if de"):
        late.restore(session, tmp_path / "x")


def test_eager_saver_needs_var_list(graph: tf.Graph, tmp_path: Path) -> None:
    a = tf.Variable(1.0, name="a")
    session = initialized()
    with tf.Graph().as_default():
        saver = train.Saver([a])  # the graph is that of the variables, wherever it is made
    assert named(saver, session, tmp_path) == ["a"]


def test_eager_saver_without_var_list_raises() -> None:
    with pytest.raises(RuntimeError, match=r"^When eager execution is enabled, `var_list` must sp"):
        train.Saver()


def test_saver_without_variables_does_nothing(graph: tf.Graph, tmp_path: Path) -> None:
    saver, session = train.Saver(allow_empty=True), tf.Session()
    assert saver.save(session, tmp_path / "model.ckpt") is None
    saver.restore(session, tmp_path / "nowhere")
    assert files(tmp_path) == []


# --- Values ---------------------------------------------------------------------------------------

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"]
DTYPES += ["bool", "complex64", "complex128"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_keeps_its_bits(graph: tf.Graph, dtype: str, tmp_path: Path) -> None:
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)) * 40
    if dtype == "uint8":
        values = values.abs()
    var = tf.Variable(values.to(getattr(torch, dtype)), name="v", trainable=False)
    empty = tf.Variable(torch.empty(0, 4, dtype=getattr(torch, dtype)), name="e", trainable=False)
    scalar = tf.Variable(values[0, 0].to(getattr(torch, dtype)), name="s", trainable=False)
    saver, session = train.Saver(), initialized()
    bits_before = bits(session)
    prefix = saver.save(session, tmp_path / "model.ckpt")
    second_session = tf.Session()
    saver.restore(second_session, prefix)
    assert bits(second_session) == bits_before
    assert len(bits_before) == len([var, empty, scalar])


def test_special_values_keep_their_bits(graph: tf.Graph, tmp_path: Path) -> None:
    patterns = torch.tensor([0x7FC00001, 0x7F800000, -0x800000, -(2**31), 1], dtype=torch.int32)
    tf.Variable(patterns.view(torch.float32), name="v")  # a NaN's payload, Inf, -Inf, -0, denormal
    saver, session, second_session = train.Saver(), initialized(), tf.Session()
    saver.restore(second_session, saver.save(session, tmp_path / "model.ckpt"))
    assert bits(second_session) == bits(session)


def test_a_restored_session_needs_no_initialization(graph: tf.Graph, tmp_path: Path) -> None:
    w = tf.Variable(1.0, name="w")
    saver = train.Saver()
    saver.restore(session := tf.Session(), saved(tmp_path, {"w": 5.0}))
    assert session.run(w) == 5.0
    assert session.run(tf.is_variable_initialized(w))
    assert not len(session.run(tf.report_uninitialized_variables()))


def test_restore_writes_into_existing_memory(graph: tf.Graph, tmp_path: Path) -> None:
    w = tf.Variable([1.0, 2.0], name="w")
    train_op = train.AdamOptimizer(0.1).minimize((w * w).sum())
    saver, session = train.Saver([w]), initialized()
    session.run(train_op)
    address = session.leaf(w).data_ptr()
    saver.restore(session, saved(tmp_path, {"w": torch.tensor([5.0, 6.0])}))
    assert session.run(w).tolist() == [5.0, 6.0]
    assert session.leaf(w).data_ptr() == address


def test_variables_of_unknown_shape_accept_any_shape(graph: tf.Graph, tmp_path: Path) -> None:
    w = tf.Variable([1.0, 2.0], name="w", validate_shape=False)
    saver, session = train.Saver(), initialized()
    saver.restore(session, saved(tmp_path, {"w": torch.ones(3, 2)}))
    assert session.run(w).shape == (3, 2)
    assert session.run(w + 1).sum() == 12


def test_reshape_option_reshapes_values(graph: tf.Graph, tmp_path: Path) -> None:
    w = tf.Variable(torch.zeros(2, 3), name="w")
    session, prefix = initialized(), saved(tmp_path, {"w": torch.arange(6.0)})
    with pytest.raises(ValueError, match=r"'w' has shape \(6,\) in .* has shape \(2, 3\)"):
        train.Saver().restore(session, prefix)
    train.Saver(reshape=True).restore(session, prefix)
    assert session.run(w).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match=r"'w' has shape \(5,\)"):
        train.Saver(reshape=True).restore(session, saved(tmp_path, {"w": torch.arange(5.0)}))


# --- All or nothing -------------------------------------------------------------------------------

_SHAPE = r"^'b' has shape \(3,\) in .*model.ckpt but the variable has shape \(2,\)\. Nothing was"
_DTYPE = r"^'b' is float64 in .*model.ckpt but the variable is float32\. Nothing was loaded\.$"
UNFIT: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "missing": ({"a": 5.0}, NotFoundError, r"^Key b not found in checkpoint\n.*Nothing was load"),
    "renamed": ({"a": 5.0, "B": [1.0, 2.0]}, KeyError, r"1 of 2 variables: 'b'\. Nothing was"),
    "shape": ({"a": 5.0, "b": torch.ones(3)}, CheckpointMismatchError, _SHAPE),
    "dtype": ({"a": 5.0, "b": torch.ones(2, dtype=torch.float64)}, InvalidArgumentError, _DTYPE),
}


@pytest.mark.parametrize("case", UNFIT)
@pytest.mark.parametrize("is_initialized", [True, False], ids=["initialized", "not initialized"])
def test_mismatched_checkpoint_restores_nothing(
    graph: tf.Graph, case: str, is_initialized: bool, tmp_path: Path
) -> None:
    values, kind, message = UNFIT[case]
    tf.Variable(1.0, name="a")
    tf.Variable([1.0, 2.0], name="b")
    saver, session = train.Saver(), initialized() if is_initialized else tf.Session()
    bits_before = bits(session)
    with pytest.raises(kind, match=message):
        saver.restore(session, saved(tmp_path, values))
    assert bits(session) == bits_before


def test_ten_differences_are_listed(graph: tf.Graph, tmp_path: Path) -> None:
    for number in range(13):
        tf.Variable(1.0, name=f"v{number:02}")
    session, prefix = initialized(), saved(tmp_path, {"other": 1.0})
    with pytest.raises(NotFoundError, match=r"13 of 13 variables: 'v00', .* 'v09' and 3 more\."):
        train.Saver().restore(session, prefix)
    saved(tmp_path, {f"v{number:02}": [1.0] for number in range(13)})
    with pytest.raises(ValueError, match=r"^'v00' has .*'v09' has [^;]*; and 3 more\. Nothing"):
        train.Saver().restore(session, prefix)


def test_damaged_files_change_nothing(graph: tf.Graph, tmp_path: Path) -> None:
    tf.Variable(torch.zeros(50), name="a")
    tf.Variable(torch.zeros(50), name="b")
    saver, session = train.Saver(), initialized()
    prefix = saver.save(session, tmp_path / "model.ckpt")
    path = Path(f"{prefix}.safetensors")
    raw = bytearray(path.read_bytes())
    raw[-4] ^= 1
    path.write_bytes(raw)
    bits_before = bits(session)
    with pytest.raises(DataLossError, match=r"'[ab]': Checksum does not match: stored \d+ vs\."):
        saver.restore(session, prefix)
    path.write_bytes(raw[:300])
    with pytest.raises(DataLossError):
        saver.restore(session, prefix)
    assert bits(session) == bits_before


@pytest.mark.parametrize("part", [".index", ".data-00000-of-00001"])
def test_damaged_files_of_tensorflow_change_nothing(part: str, tmp_path: Path) -> None:
    network = Network("adam")
    for path in (GOLDENS / "adam").glob("model.ckpt-5.*"):
        raw = bytearray(path.read_bytes())
        raw[90] ^= path.name.endswith(part)
        (tmp_path / path.name).write_bytes(raw)
    with pytest.raises(DataLossError):
        network.saver().restore(network.session, tmp_path / "model.ckpt-5")
    assert bits(network.session) == {}


def test_memory_error_changes_nothing(
    graph: tf.Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tf.Variable([1.0], name="a")
    b = tf.Variable([2.0], name="b")
    saver, session = train.Saver(), initialized()
    prefix = saver.save(session, tmp_path / "model.ckpt")
    session.run([var.assign([7.0]) for var in tf.global_variables()])
    bits_before, real = bits(session), torch.Tensor.to

    def fail(tensor: Tensor, *args: Any) -> torch.Tensor:
        if tensor.tolist() == [2.0]:
            raise torch.OutOfMemoryError("no memory")
        return real(tensor, *args)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "to", fail)
        with pytest.raises(torch.OutOfMemoryError, match="no memory"):
            saver.restore(session, prefix)
    assert bits(session) == bits_before
    saver.restore(session, prefix)
    assert session.run(b) == [2.0]


def test_invalid_paths_raise(graph: tf.Graph, tmp_path: Path) -> None:
    tf.Variable(1.0, name="a")
    saver, session = train.Saver(), initialized()
    with pytest.raises(ValueError, match=r"^Can't load save_path when it is None\.$"):
        saver.restore(session, None)
    for name in ("nothing", ""):
        path = tmp_path / name  # the second one is a folder
        with pytest.raises(ValueError, match=r"^The passed save_path is not a valid checkpoint: /"):
            saver.restore(session, path)
    (tmp_path / "old.ckpt").write_bytes(b"of something else")
    with pytest.raises(
        DataLossError, match=r"/old\.ckpt: It is no checkpoint of thalweg, TensorFlow or"
    ):
        saver.restore(session, tmp_path / "old.ckpt")
    with pytest.raises(ValueError, match=r"^Parent directory of .*/no/x doesn't exist, can't save"):
        saver.save(session, tmp_path / "no" / "x")
    with pytest.raises(ValueError, match=r"^'latest_filename' must not contain path components$"):
        saver.save(session, tmp_path / "x", latest_filename="a/b")
    for name, latest in (("checkpoint", None), ("x", "x"), ("x", "x.safetensors")):
        with pytest.raises(ValueError, match=r"^'latest_filename' collides with 'save_path'"):
            saver.save(session, tmp_path / name, latest_filename=latest)
    assert files(tmp_path) == ["old.ckpt"]


def test_a_sharded_checkpoint_may_have_the_name_of_the_list(
    graph: tf.Graph, tmp_path: Path
) -> None:
    w = tf.Variable(1.0, name="w")
    saver, session = train.Saver(sharded=True), initialized()
    saver.save(session, tmp_path / "checkpoint")
    w.load(2.0, session)
    saver.restore(session, train.latest_checkpoint(tmp_path))
    assert session.run(w) == 1.0
    with pytest.raises(ValueError, match="collides with"):
        saver.save(session, tmp_path / "x", latest_filename="x.safetensors")


def test_eager_variables_are_saved_without_a_session(tmp_path: Path) -> None:
    w, v = thalweg.Variable([1.0, 2.0], name="w"), thalweg.Variable(3, name="v")
    for saver in (train.Saver([w, v]), train.Saver({"w": w, "v": v})):
        w.assign([1.0, 2.0])
        v.assign(3)
        prefix = saver.save(None, tmp_path / "m", 5)
        assert prefix == str(tmp_path / "m-5")
        assert sorted(name for name, _ in train.list_variables(prefix)) == ["v", "w"]
        w.assign([0.0, 0.0])
        v.assign(0)
        saver.restore(None, prefix)
        assert (w.tolist(), v.item()) == ([1.0, 2.0], 3)
        v.assign(0)
    longer = thalweg.Variable([0.0, 0.0, 0.0], name="w")
    with pytest.raises(CheckpointMismatchError, match="Nothing was loaded"):
        train.Saver([longer, v]).restore(None, prefix)
    assert (longer.tolist(), v.item()) == ([0.0, 0.0, 0.0], 0)


def test_non_session_argument_raises(graph: tf.Graph, tmp_path: Path) -> None:
    tf.Variable(1.0, name="a")
    saver, session = train.Saver(), initialized()
    prefix = saver.save(session, tmp_path / "x")
    calls = [
        lambda sess: saver.save(sess, tmp_path / "y"),
        lambda sess: saver.restore(sess, prefix),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"^'sess' must be a Session; None"):
            call(None)
        with pytest.raises(ValueError, match="is not an element of"):
            call(tf.Session(graph=tf.Graph()))
    session.close()
    for call in calls:
        with pytest.raises(RuntimeError, match=r"^Attempted to use a closed Session"):
            call(session)
    assert files(tmp_path) == ["checkpoint", "x.safetensors"]


def test_uninitialized_variables_raise_on_save(graph: tf.Graph, tmp_path: Path) -> None:
    w = tf.Variable([1.0], name="w")
    train.MomentumOptimizer(0.1, 0.9).minimize((w * w).sum())
    saver, session = train.Saver(), tf.Session()
    session.run(w.initializer)
    with pytest.raises(RuntimeError, match=r"^Attempting to use uninitialized value w/Momentum"):
        saver.save(session, tmp_path / "x")
    assert files(tmp_path) == []
    assert saver.last_checkpoints == []


def test_a_full_disk_leaves_the_checkpoint_before(
    graph: tf.Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tf.Variable(torch.ones(1000), name="w")
    saver, session = train.Saver(), initialized()
    saver.save(session, tmp_path / "x", 1)
    files_before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", fail)
        for step in (1, 2):
            with pytest.raises(
                CheckpointWriteError, match=r"No space left on device after 0\.0 of "
            ):
                saver.save(session, tmp_path / "x", step)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files_before
    assert saver.last_checkpoints == [str(tmp_path / "x-1")]


# --- Steps, names, and what is kept ---------------------------------------------------------------


def test_the_step_is_part_of_the_name(graph: tf.Graph, tmp_path: Path) -> None:
    step = tf.Variable(np.int64(7), name="step", trainable=False)
    session = initialized()
    saver, padded = train.Saver(), train.Saver(pad_step_number=True)
    steps = [3, np.int32(4), torch.tensor(5), tf.constant(6), step, step + 1, "step:0"]
    paths = [saver.save(session, tmp_path / "m", step) for step in steps]
    assert paths == [str(tmp_path / f"m-{number}") for number in (3, 4, 5, 6, 7, 8, 7)]
    assert padded.save(session, str(tmp_path / "m"), 12).endswith("m-00000012")
    assert saver.save(session, tmp_path / "m") == str(tmp_path / "m")
    for wrong in (1.5, [1], object()):
        with pytest.raises(TypeError, match=r"^global_step must be a number, a variable or a tens"):
            saver.save(session, tmp_path / "m", wrong)


def test_relative_paths_use_the_working_directory(
    graph: tf.Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tf.Variable(1.0, name="w")
    saver, session = train.Saver(), initialized()
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    assert saver.save(session, "model.ckpt", 1) == "model.ckpt-1"
    assert saver.save(session, "run/model.ckpt", 2) == "run/model.ckpt-2"
    assert train.latest_checkpoint("") == "model.ckpt-1"
    assert train.latest_checkpoint("run") == "run/model.ckpt-2"
    saver.restore(session, "run/model.ckpt-2")
    assert Path("run/checkpoint").read_text() == (
        'model_checkpoint_path: "model.ckpt-2"\nall_model_checkpoint_paths: "model.ckpt-2"\n'
    )
    Path("run").rename("moved")
    saver.restore(session, train.latest_checkpoint("moved"))


def steps_of(folder: Path) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("*.safetensors"))


class Clock:
    """A time that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1_000_000.0
        monkeypatch.setattr("time.time", lambda: self.seconds)


def test_saver_keeps_the_newest_checkpoints(graph: tf.Graph, tmp_path: Path) -> None:
    tf.Variable(1.0, name="w")
    session = initialized()
    for keep in (1, 2, 5):
        folder = tmp_path / str(keep)
        folder.mkdir()
        saver = train.Saver(max_to_keep=keep)
        for step in range(7):
            saver.save(session, folder / "m", step)
        assert steps_of(folder) == list(range(7 - keep, 7))
        assert saver.last_checkpoints == [str(folder / f"m-{n}") for n in range(7 - keep, 7)]
        state = train.get_checkpoint_state(folder)
        assert list(state.all_model_checkpoint_paths) == saver.last_checkpoints
        assert state.model_checkpoint_path == str(folder / "m-6")


@pytest.mark.parametrize("keep", [0, None])
def test_max_to_keep_zero_keeps_all_unlisted(graph: tf.Graph, keep: Any, tmp_path: Path) -> None:
    tf.Variable(1.0, name="w")
    saver, session = train.Saver(max_to_keep=keep), initialized()
    for step in range(7):
        saver.save(session, tmp_path / "m", step)
    assert steps_of(tmp_path) == list(range(7))
    assert saver.last_checkpoints == []
    assert list(train.get_checkpoint_state(tmp_path).all_model_checkpoint_paths) == [
        str(tmp_path / "m-6")
    ]


def test_keep_checkpoint_every_n_hours_keeps_one(
    graph: tf.Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    tf.Variable(1.0, name="w")
    saver = train.Saver(max_to_keep=2, keep_checkpoint_every_n_hours=1.0)
    session = initialized()
    for step in range(12):  # a checkpoint each twenty minutes
        saver.save(session, tmp_path / "m", step)
        clock.seconds += 1200
    # Those after one hour, two and three, of the ones that are old by now.
    assert steps_of(tmp_path) == [4, 7, 10, 11]
    assert saver.last_checkpoints == [str(tmp_path / "m-10"), str(tmp_path / "m-11")]


def test_saving_again_lists_a_checkpoint_once(graph: tf.Graph, tmp_path: Path) -> None:
    tf.Variable(1.0, name="w")
    saver, session = train.Saver(max_to_keep=2), initialized()
    for step in (1, 2, 1, 3):
        saver.save(session, tmp_path / "m", step)
    assert steps_of(tmp_path) == [1, 3]


def test_write_state_off_does_not_change_the_list(graph: tf.Graph, tmp_path: Path) -> None:
    tf.Variable(1.0, name="w")
    saver, session = train.Saver(max_to_keep=1), initialized()
    saver.save(session, tmp_path / "m", 1)
    saver.save(session, tmp_path / "m", 2, write_state=False)
    assert steps_of(tmp_path) == [1, 2]
    assert train.latest_checkpoint(tmp_path) == str(tmp_path / "m-1")
    saver.save(session, tmp_path / "m", 3, latest_filename="best")
    assert train.latest_checkpoint(tmp_path) == str(tmp_path / "m-1") or steps_of(tmp_path) == [
        2,
        3,
    ]
    assert train.latest_checkpoint(tmp_path, "best") == str(tmp_path / "m-3")


def test_checkpoints_of_another_folder_are_listed_in_it(graph: tf.Graph, tmp_path: Path) -> None:
    tf.Variable(1.0, name="w")
    saver, session = train.Saver(max_to_keep=3), initialized()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        saver.save(session, tmp_path / name / "m", 1)
    state = train.get_checkpoint_state(tmp_path / "other")
    assert list(state.all_model_checkpoint_paths) == [str(tmp_path / "other" / "m-1")]
    assert len(saver.last_checkpoints) == 2


def test_a_new_saver_recovers_the_list(graph: tf.Graph, tmp_path: Path) -> None:
    tf.Variable(1.0, name="w")
    old, new, session = train.Saver(), train.Saver(max_to_keep=3), initialized()
    paths = [old.save(session, tmp_path / "m", step) for step in range(4)]
    new.recover_last_checkpoints([*paths[1:3], str(tmp_path / "gone"), paths[3]])
    assert new.last_checkpoints == paths[1:]
    new.save(session, tmp_path / "m", 4)
    assert steps_of(tmp_path) == [0, 2, 3, 4]
    new.set_last_checkpoints(paths[2:])
    for step in (5, 6):
        new.save(session, tmp_path / "m", step)
    assert steps_of(tmp_path) == [0, 2, 3, 4, 5, 6]  # no time was given: 2 is kept for good
    late = train.Saver(defer_build=True)
    late.set_last_checkpoints_with_time([(paths[0], 1.0)])
    late.build()
    assert late.last_checkpoints == [paths[0]]


def test_old_files_of_tensorflow_are_deleted_too(graph: tf.Graph, tmp_path: Path) -> None:
    tf.Variable(1.0, name="w")
    for end in ("index", "data-00000-of-00002", "data-00001-of-00002", "meta", "data-x", "indexed"):
        (tmp_path / f"m-1.{end}").write_bytes(b"")
    (tmp_path / "m-11.index").write_bytes(b"")
    saver, session = train.Saver(max_to_keep=1), initialized()
    saver.set_last_checkpoints_with_time([(str(tmp_path / "m-1"), 1.0)])
    saver.save(session, tmp_path / "m", 2)
    assert files(tmp_path) == [
        "checkpoint",
        "m-1.data-x",
        "m-1.indexed",
        "m-11.index",
        "m-2.safetensors",
    ]


def test_undeletable_checkpoint_is_logged(graph: tf.Graph, tmp_path: Path, logged: Logged) -> None:
    tf.Variable(1.0, name="w")
    saver, session = train.Saver(max_to_keep=1), initialized()
    (tmp_path / "m-1.index").mkdir()
    saver.set_last_checkpoints_with_time([(str(tmp_path / "m-1"), 1.0)])
    assert saver.save(session, tmp_path / "m", 2) == str(tmp_path / "m-2")
    assert [record.getMessage()[:9] for record in logged.records] == ["Ignoring:"]


# --- Threads --------------------------------------------------------------------------------------


def test_save_uses_the_passed_session_in_any_thread(tmp_path: Path) -> None:
    base, shifted = (Training("v1:AdamOptimizer", start) for start in (0, 50))
    for training in (base, shifted):
        training.session.run(training.init)
    paths: list[Any] = []

    def save() -> None:
        # Another graph and session are this thread's own; they have no part in it.
        with shifted.graph.as_default(), shifted.session.as_default():
            paths.append(base.saver.save(base.session, tmp_path / "one", base.step))

    thread = threading.Thread(target=save)
    with tf.Graph().as_default():
        thread.start()
        thread.join()
    third_training = Training("v1:AdamOptimizer", 99)
    third_training.saver.restore(third_training.session, paths[0])
    assert third_training.bits() == base.bits() != shifted.bits()


@pytest.mark.usefixtures("threads_change_often")
def test_concurrent_save_is_consistent(graph: tf.Graph, tmp_path: Path) -> None:
    step = train.get_or_create_global_step()
    names = [f"v{number}" for number in range(6)]
    variables = [tf.Variable(torch.zeros(300), name=name) for name in names]
    ones = [(torch.full((300,), -1.0), var) for var in variables]
    train_op = train.GradientDescentOptimizer(1.0).apply_gradients(ones, step)
    saver, session = train.Saver(max_to_keep=0), initialized()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            session.run(train_op)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        paths = [saver.save(session, tmp_path / "m", step) for _ in range(12)]
    finally:
        stop.set()
        thread.join()
    for path in paths:
        tensors = container.read(f"{path}.safetensors").tensors
        number = int(tensors["global_step"].tensor())
        assert path.endswith(f"m-{number}")
        assert all((tensors[name].tensor() == number).all() for name in names)


def test_saver_works_within_an_operation(graph: tf.Graph, tmp_path: Path) -> None:
    w = tf.Variable(1.0, name="w")
    saver, session = train.Saver(), initialized()
    paths: list[Any] = []
    save = tf.operation(lambda: paths.append(saver.save(session, tmp_path / "m")), [], "save")
    restore = tf.operation(lambda: saver.restore(session, paths[0]), [], "restore")
    pure = tf.operation(
        lambda: saver.restore(session, paths[0]), [], "pure", kind="pure", outputs=tf.Output()
    )
    session.run(save)
    session.run(w.assign(3.0).op)
    session.run(restore)
    assert session.run(w) == 1.0
    with pytest.raises(RuntimeError, match="declared as pure gives a variable a value"):
        session.run(pure)


def test_threads_take_turns_with_one_saver(graph: tf.Graph, tmp_path: Path) -> None:
    tf.Variable(torch.ones(100), name="w")
    saver, session = train.Saver(max_to_keep=3), initialized()
    threads = [
        threading.Thread(target=saver.save, args=(session, tmp_path / "m", number))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [f"{path}.safetensors" for path in saver.last_checkpoints] == sorted(
        map(str, tmp_path.glob("*.safetensors")), key=lambda path: Path(path).stat().st_mtime
    )
    state = train.get_checkpoint_state(tmp_path)
    assert list(state.all_model_checkpoint_paths) == saver.last_checkpoints


# --- Averages -------------------------------------------------------------------------------------


def averaged(step: Any) -> MovingAverageOptimizer:
    return MovingAverageOptimizer(train.AdamOptimizer(0.1), average_decay=0.5, num_updates=step)


def test_a_swapping_saver_saves_averages_under_the_names_of_variables(tmp_path: Path) -> None:
    uninterrupted = Training(averaged)
    with uninterrupted.graph.as_default():
        swapping = uninterrupted.optimizer.swapping_saver()
    uninterrupted.session.run(uninterrupted.init)
    uninterrupted.take(0, 3)
    prefix = swapping.save(uninterrupted.session, tmp_path / "m")
    current = uninterrupted.bits()
    tensors = container.read(f"{prefix}.safetensors").tensors
    on_disk = {name: (x.dtype, x.shape, bytes(x.data)) for name, x in tensors.items()}
    for name in ("w", "net/b", "table"):
        average = f"{name}/ExponentialMovingAverage"
        assert on_disk[name] == current[average] != on_disk[average] == current[name]
        on_disk[name], on_disk[average] = on_disk[average], on_disk[name]
    assert on_disk == current

    resumed = Training(averaged, start=50)
    with resumed.graph.as_default():
        saver = resumed.optimizer.swapping_saver(name="other", max_to_keep=1)
        saver.restore(resumed.session, prefix)
    resumed.take(3, 6)
    uninterrupted.take(3, 6)
    assert resumed.bits() == uninterrupted.bits()


def test_a_plain_saver_of_another_graph_reads_the_averages(tmp_path: Path) -> None:
    training = Training(averaged)
    with training.graph.as_default():
        swapping = training.optimizer.swapping_saver(
            training.variables + [training.optimizer.average(var) for var in training.variables]
        )
    training.session.run(training.init)
    training.take(0, 2)
    prefix = swapping.save(training.session, tmp_path / "m")
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.get_variable("w", (19,))
        train.Saver().restore(session, prefix)
        average = training.session.run(training.optimizer.average(training.variables[0]))
        assert session.run(w).tobytes() == average.tobytes()


def test_invalid_swapping_savers_raise(graph: tf.Graph) -> None:
    w = tf.Variable([1.0], name="w")
    optimizer = averaged(train.get_or_create_global_step())
    with pytest.raises(RuntimeError, match=r"^Must call apply_gradients or minimize before"):
        optimizer.swapping_saver()
    optimizer.minimize((w * w).sum())
    message = "^Variable to swap w/ExponentialMovingAverage is not part of variables to save"
    with pytest.raises(ValueError, match=message):
        optimizer.swapping_saver([w])


def test_variables_to_restore_read_averages_in_another_graph(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.get_variable("w", initializer=1.0)
        step = train.get_or_create_global_step()
        averages = train.ExponentialMovingAverage(0.5)
        apply = averages.apply([w])
        session.run(tf.global_variables_initializer())
        session.run(w.assign(3.0).op)
        session.run(step.assign(9).op)
        session.run(apply)
        prefix = train.Saver().save(session, tmp_path / "m")
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.get_variable("w", initializer=0.0)
        step = train.get_or_create_global_step()
        names = train.ExponentialMovingAverage(0.5).variables_to_restore()
        assert names == {"w/ExponentialMovingAverage": w, "global_step": step}
        train.Saver(names).restore(session, prefix)
        assert session.run([w, step]) == [2.0, 9]


def test_optimizers_in_graphs_name_the_saver(graph: tf.Graph) -> None:
    w = tf.Variable([1.0], name="w")
    optimizer = train.AdamOptimizer(0.1)
    optimizer.minimize((w * w).sum())
    with pytest.raises(RuntimeError, match=r"thalweg\.v1\.train\.Saver"):
        optimizer.state_dict()


def test_failed_saves_release_locks() -> None:
    """Locks are given back: saving after an error neither waits nor fails."""
    start = time.monotonic()
    training = Training("v1:GradientDescentOptimizer")
    for _ in range(3):
        with pytest.raises(RuntimeError):
            training.saver.save(training.session, "x")
    assert time.monotonic() - start < 60


def test_a_prefix_may_have_the_ending_of_the_file(tmp_path: Path) -> None:
    prefix = str(tmp_path / "model.safetensors")
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.Variable([1.0], name="w")
        saver = train.Saver()
        session.run(w.initializer)
        path = saver.save(session, prefix)
        session.run(w.assign([2.0]))
        saver.restore(session, path)
        assert session.run(w) == [1.0]
    checkpoint = train.Checkpoint(w=thalweg.Variable([3.0]))
    path = checkpoint.write(prefix)
    assert sorted(path.name for path in tmp_path.glob("model*")) == ["model.safetensors"]
    checkpoint.w.assign([4.0])
    checkpoint.restore(path).assert_consumed()
    assert checkpoint.w.item() == 3.0
