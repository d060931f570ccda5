"""Object checkpoints, TensorFlow's and ours: restored values have the same bits and train on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.v1 as tf
from thalweg import CheckpointMismatchError, Variable
from thalweg._formats import container
from thalweg._formats.stored_tensor import of_tensor
from thalweg.errors import (
    CheckpointWriteError,
    DataLossError,
    InvalidArgumentError,
    InvalidTypeError,
    MissingFileError,
    NotConsumedError,
    UnsupportedCheckpointError,
)
from thalweg.keras import optimizers as keras
from thalweg.schedules import ExponentialDecay
from thalweg.v1 import train
from thalweg.v1.train import Checkpoint, CheckpointManager, latest_checkpoint

GOLDENS = Path(__file__).parents[1] / "goldens" / "checkpoints"
ENDING = "/.ATTRIBUTES/VARIABLE_VALUE"
NAMES = ("W1", "b1", "W2", "b2")

# The learning rates are others than those in the files, which win; v1 keeps none in its files.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "ckpt_v1/adam_object": lambda: train.AdamOptimizer(0.01, beta1=0.8),
    "ckpt_v2/adam": lambda: keras.Adam(0.5),
    "ckpt_v2/adam_amsgrad_decay": lambda: keras.Adam(0.5, amsgrad=True, decay=0.1),
    "ckpt_v2/sgd_momentum": lambda: keras.SGD(0.5, momentum=0.5, nesterov=True),
}
every_golden = pytest.mark.parametrize("folder", OPTIMIZERS)


class Golden:
    """Checkpoint of TensorFlow's, and recorded values of its network."""

    def __init__(self, folder: str) -> None:
        self.prefix = str(GOLDENS / folder / "model.ckpt")
        self.arrays = np.load(GOLDENS / folder / "values.npz")
        tensors = json.loads((GOLDENS / folder / "values.json").read_text())["tensors"]
        self.names = [key.removesuffix(ENDING) for key in tensors]

    def value(self, name: str, moment: str = "value") -> np.ndarray:
        return self.arrays[f"{moment}|{name}{ENDING}"]


def names_in(path: str) -> list[str]:
    """Return the names of the values in a file, without TensorFlow's ending."""
    tensors = container.read(f"{path}.safetensors").tensors
    return sorted(key.removesuffix(ENDING) for key in tensors)


class Network:
    """Two layers in TensorFlow's layout, and an optimizer."""

    def __init__(self, opt: Any, make: Callable[..., Any] = Variable) -> None:
        shapes = {"W1": (4, 6), "b1": (6,), "W2": (6, 3), "b2": (3,)}
        self.vars = {name: make(np.zeros(shapes[name], "f4"), name=name) for name in NAMES}
        self.opt = opt
        self.step: Any = make(np.int64(0), name="step", trainable=False)
        layers = {
            f"layer_with_weights-{i}": {
                "kernel": self.vars[f"W{i + 1}"],
                "bias": self.vars[f"b{i + 1}"],
            }
            for i in (0, 1)
        }
        objects = {"model": layers, "optimizer": opt}
        if isinstance(opt, train.Optimizer):
            objects["step"] = self.step
        self.checkpoint = Checkpoint(**objects)

    def loss(self, x: Any, y: Any) -> Any:
        w1, b1, w2, b2 = self.vars.values()
        return ((torch.relu(x @ w1 + b1) @ w2 + b2 - y) ** 2).mean()

    def take(self, golden: Golden, batches: range) -> None:
        for i in batches:
            x, y = (torch.tensor(golden.arrays[key][i]) for key in "xy")
            if isinstance(self.opt, train.Optimizer):
                self.opt.minimize(lambda x=x, y=y: self.loss(x, y), global_step=self.step)
            else:
                self.opt.minimize(lambda x=x, y=y: self.loss(x, y), list(self.vars.values()))

    def values(self) -> dict[str, torch.Tensor]:
        """Return the present values by TensorFlow's keys."""
        _, values = self.checkpoint._snapshot()
        return {key.removesuffix(ENDING): value for key, value in values.items()}


def assert_bits(values: dict[str, torch.Tensor], golden: Golden) -> None:
    assert sorted(values) == sorted(golden.names)
    for name in golden.names:
        assert values[name].numpy().tobytes() == golden.value(name).tobytes(), name


def assert_ends(values: dict[str, torch.Tensor], golden: Golden) -> None:
    for name in golden.names:
        end = golden.value(name, "after10")
        np.testing.assert_allclose(values[name].numpy(), end, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.one_in(3)
@every_golden
@pytest.mark.parametrize("step_count", [0, 1, 3])
def test_tensorflow_object_checkpoint_resumes(folder: str, step_count: int) -> None:
    golden, network = Golden(folder), Network(OPTIMIZERS[folder]())
    network.take(golden, range(step_count))  # slots exist after the first
    status = network.checkpoint.read(golden.prefix)
    assert bool(status.waiting) == (step_count == 0)
    assert_bits(network.values(), golden)
    status.assert_consumed().assert_nontrivial_match().assert_existing_objects_matched()
    network.take(golden, range(5, 10))
    assert_ends(network.values(), golden)


@every_golden
def test_slots_take_their_values_in_the_first_step(folder: str) -> None:
    golden, network = Golden(folder), Network(OPTIMIZERS[folder]())
    status = network.checkpoint.read(golden.prefix)
    slots = [name for name in golden.names if "/.OPTIMIZER_SLOT/" in name]
    assert slots
    assert set(slots) <= set(status.waiting)
    network.take(golden, range(5, 6))
    assert status.assert_consumed().waiting == []
    network.take(golden, range(6, 10))
    assert_ends(network.values(), golden)


@every_golden
def test_written_object_checkpoint_has_tensorflow_names_and_bits(
    folder: str, tmp_path: Path
) -> None:
    golden, network = Golden(folder), Network(OPTIMIZERS[folder]())
    network.checkpoint.read(golden.prefix)
    path = network.checkpoint.write(tmp_path / "ours")  # before anything was made by a step
    assert names_in(path) == sorted(golden.names)
    target = Network(OPTIMIZERS[folder]())
    target.checkpoint.read(path)
    assert_bits(target.values(), golden)


def test_restored_slots_are_readable_before_a_step() -> None:
    golden = Golden("ckpt_v1/adam_object")
    name = "model/layer_with_weights-0/kernel/.OPTIMIZER_SLOT/optimizer/v"
    for look in (
        lambda opt, var: opt.get_slot(var, "v"),
        lambda opt, var: opt.get_slot_names() and opt.get_slot(var, "v"),
        lambda opt, var: opt.variables() and opt.get_slot(var, "v"),
        lambda opt, var: opt.state_dict()["W1/v"],
    ):
        network = Network(OPTIMIZERS["ckpt_v1/adam_object"]())
        network.checkpoint.read(golden.prefix)
        assert (
            look(network.opt, network.vars["W1"]).numpy().tobytes() == golden.value(name).tobytes()
        )
    golden, network = Golden("ckpt_v2/adam"), Network(keras.Adam())
    assert network.opt.weights == []
    network.checkpoint.read(golden.prefix)
    assert [tuple(weight.shape) for weight in network.opt.weights] == [
        (), *[(4, 6), (6,), (6, 3), (3,)] * 2
    ]  # fmt: skip
    assert network.opt.get_weights()[5].tobytes() == golden.value(name).tobytes()


def in_graph(graph: Any, folder: str) -> tuple[Network, Any, Any, Any]:
    network = Network(OPTIMIZERS[folder](), tf.Variable)
    x, y = tf.placeholder(tf.float32, [8, 4]), tf.placeholder(tf.float32, [8, 3])

    def build() -> Any:
        if isinstance(network.opt, train.Optimizer):
            return network.opt.minimize(network.loss(x, y), network.step)
        return network.opt.minimize(lambda: network.loss(x, y), list(network.vars.values()))

    return network, x, y, build


def session_values(network: Network, session: Any) -> dict[str, torch.Tensor]:
    _, values = network.checkpoint._snapshot(session)
    return {key.removesuffix(ENDING): value for key, value in values.items()}


@pytest.mark.parametrize("folder", ["ckpt_v1/adam_object", "ckpt_v2/adam"])
@pytest.mark.parametrize("order", ["built, restored", "restored, built", "restored, run, built"])
def test_graph_training_resumes(graph: Any, folder: str, order: str) -> None:
    golden = Golden(folder)
    network, x, y, build = in_graph(graph, folder)
    session = tf.Session(graph=graph)
    train_op = build() if order.startswith("built") else None
    status = network.checkpoint.read(golden.prefix)
    if "run" in order:
        status.initialize_or_restore(session)
        train_op = build()
        unset = [v for v in tf.global_variables() if not session.run(tf.is_variable_initialized(v))]
        session.run(tf.variables_initializer(unset))
    else:
        train_op = build() if train_op is None else train_op
        status.initialize_or_restore(session)
    status.assert_consumed()
    assert_bits(session_values(network, session), golden)
    for i in range(5, 10):
        session.run(train_op, {x: golden.arrays["x"][i], y: golden.arrays["y"][i]})
    assert_ends(session_values(network, session), golden)


def test_graph_restore_assigns_values_in_a_session(graph: Any, tmp_path: Path) -> None:
    w = tf.Variable([1.0, 2.0], name="w")
    other_var = tf.Variable([7.0], name="other")
    first, two = tf.Session(graph=graph), tf.Session(graph=graph)
    for session in (first, two):
        session.run(tf.global_variables_initializer())
    first.run(w.assign([5.0, 6.0]).op)
    checkpoint = Checkpoint(w=w)
    with pytest.raises(InvalidArgumentError, match="No default session"):
        checkpoint.save(tmp_path / "ckpt")
    assert int(checkpoint.save_counter) == 0
    path = checkpoint.save(tmp_path / "ckpt", session=first)
    with first.as_default():
        assert checkpoint.save(tmp_path / "ckpt") == f"{tmp_path}/ckpt-2"
    status = Checkpoint(w=w, other=other_var).restore(path)
    assert two.run(w).tolist() == [1.0, 2.0]
    two.run(other_var.assign([8.0]).op)
    status.run_restore_ops(two)
    assert (two.run(w).tolist(), two.run(other_var).tolist()) == ([5.0, 6.0], [8.0])
    status.initialize_or_restore(two)
    assert two.run(other_var).tolist() == [7.0]
    with pytest.raises(NotConsumedError, match="no values for 'other'"):
        status.assert_existing_objects_matched()


def test_parameters_have_a_variable_in_each_graph(graph: Any, tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 1)
    x = tf.placeholder(tf.float32, [1, 2])
    train_op = train.MomentumOptimizer(0.5, 0.5).minimize(layer(x).sum())
    session = tf.Session(graph=graph)
    session.run(tf.global_variables_initializer())
    initial = layer.weight.detach().clone()
    session.run(train_op, {x: [[1.0, 2.0]]})
    path = Checkpoint(layer=layer).write(tmp_path / "layer", session)
    assert torch.equal(layer.weight, initial)
    tensor = container.read(f"{path}.safetensors").tensors[f"layer/weight{ENDING}"].tensor()
    assert torch.equal(tensor, initial - 0.5 * torch.tensor([[1.0, 2.0]]))
    session.run(tf.global_variables_initializer())
    Checkpoint(layer=layer).read(path).run_restore_ops(session)
    assert session.run(graph.stand_ins[id(layer.weight)][1]).tolist() == tensor.tolist()


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.stack = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
        self.tied = self.stack[0].weight
        self.register_buffer("passing", torch.ones(1), persistent=False)


def test_modules_are_saved_by_submodule_names(tmp_path: Path) -> None:
    torch.manual_seed(0)
    block = Block()
    with torch.no_grad():
        block.norm.running_mean.add_(3.0)
    path = Checkpoint(net=block).write(tmp_path / "net")
    assert names_in(path) == [
        "net/norm/bias", "net/norm/num_batches_tracked", "net/norm/running_mean",
        "net/norm/running_var", "net/norm/weight", "net/stack/0/bias", "net/tied",
    ]  # fmt: skip
    target = Block()
    Checkpoint(net=target).read(path).assert_consumed()
    assert all(
        torch.equal(a, b) for a, b in zip(block.state_dict().values(), target.state_dict().values())
    )
    parts = Checkpoint(block)  # as root
    assert (
        "norm/running_mean" + ENDING
        in container.read(f"{parts.write(tmp_path / 'root')}.safetensors").tensors
    )
    root_target = Block()
    Checkpoint(root=root_target).read(tmp_path / "root").assert_consumed()
    assert torch.equal(root_target.norm.running_mean, block.norm.running_mean)


def test_optimizer_can_be_the_root_object(tmp_path: Path) -> None:
    w, opt = Variable([1.0, 2.0]), keras.SGD(0.5, momentum=0.5)
    opt.apply_gradients([([1.0, 1.0], w)])
    path = Checkpoint(opt, w=w).write(tmp_path / "root")
    v, target = Variable([0.0, 0.0]), keras.SGD(0.1, momentum=0.1)
    status = Checkpoint(target, w=v).read(path)
    target.apply_gradients([([1.0, 1.0], v)])
    opt.apply_gradients([([1.0, 1.0], w)])
    status.assert_consumed()
    assert torch.equal(v, w)
    assert target.get_config() == {**opt.get_config(), "name": "SGD"}


def test_containers_and_nested_checkpoints_round_trip(tmp_path: Path) -> None:
    values = [Variable(float(i)) for i in range(5)]
    inner = Checkpoint(x=values[0])

    def whole(parts: list[Any], inner: Checkpoint) -> Checkpoint:
        return Checkpoint(
            inner=inner, pair=(parts[1], parts[2]), table={"a.b/c": [parts[3]], "d": parts[4]}
        )

    path = whole(values, inner).save(tmp_path / "ckpt")
    assert names_in(path) == [
        "inner/x", "pair/0", "pair/1", "save_counter", "table/a..b.Sc/0", "table/d"
    ]  # fmt: skip
    targets = [Variable(9.0) for _ in range(5)]
    whole(targets, Checkpoint(x=targets[0])).restore(path).assert_consumed()
    assert [float(target) for target in targets] == [0.0, 1.0, 2.0, 3.0, 4.0]


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64,
    torch.int32, torch.uint8, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)], ids=str)
def test_every_dtype_keeps_its_bits(dtype: torch.dtype, shape: Any, tmp_path: Path) -> None:
    value = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)
    path = Checkpoint(w=value).write(tmp_path / "w")
    target = (
        torch.zeros(shape, dtype=dtype).mT.contiguous().mT
        if len(shape) == 2
        else torch.zeros(shape, dtype=dtype)
    )
    Checkpoint(w=target).read(path).assert_consumed()
    assert torch.equal(target, value)


def test_half_variables_have_float32_slots(tmp_path: Path) -> None:
    trainings = []
    for start in (1.0, 0.0):
        w = Variable(torch.full((3,), start, dtype=torch.bfloat16), name="w")
        opt = keras.Ftrl(0.5)
        trainings.append((w, opt, Checkpoint(w=w, opt=opt)))
    (w, opt, first), (v, other_opt, two) = trainings
    grad = torch.tensor([0.1, 0.2, 0.3], dtype=torch.bfloat16)
    opt.apply_gradients([(grad, w)])
    status = two.read(first.write(tmp_path / "ckpt"))
    opt.apply_gradients([(grad, w)]), other_opt.apply_gradients([(grad, v)])
    status.assert_consumed()
    assert torch.equal(w, v)
    for name in opt.get_slot_names():
        assert torch.equal(opt.get_slot(w, name), other_opt.get_slot(v, name))


def test_schedules_and_callables_store_nothing(tmp_path: Path) -> None:
    w = Variable([1.0])
    opt = keras.Adam(ExponentialDecay(0.1, 10, 0.5), beta_1=lambda: 0.9)
    opt.apply_gradients([([1.0], w)])
    path = Checkpoint(opt=opt).write(tmp_path / "ckpt")
    assert names_in(path) == ["opt/beta_2", "opt/decay", "opt/iter"]


def test_a_variable_given_as_hyperparameter_is_saved(tmp_path: Path) -> None:
    w, rate = Variable([1.0]), Variable(0.25, name="rate", trainable=False)
    opt = keras.SGD(rate)
    opt.apply_gradients([([1.0], w)])
    path = Checkpoint(opt=opt).write(tmp_path / "ckpt")
    rate.assign(1.0)
    Checkpoint(opt=opt).read(path).assert_consumed()
    assert float(rate) == 0.25


def test_nadam_cache_and_added_weights_round_trip(tmp_path: Path) -> None:
    trainings = []
    for _ in range(2):
        w, opt = Variable([1.0, 2.0]), keras.Nadam(0.5)
        trainings.append((w, opt, Checkpoint(w=w, opt=opt)))
    (w, opt, first), (v, other_opt, two) = trainings
    for _ in range(2):
        opt.apply_gradients([([1.0, 1.0], w)])
    weight = opt.add_weight("mine", (2,), initializer="ones")
    status = two.read(first.write(tmp_path / "ckpt"))
    opt.apply_gradients([([1.0, 1.0], w)]), other_opt.apply_gradients([([1.0, 1.0], v)])
    assert torch.equal(w, v)
    assert status.waiting == ["opt/mine"]
    assert torch.equal(other_opt.add_weight("mine", (2,)), weight)
    assert status.waiting == []


# Refusals: nothing has changed after them.


def snapshot(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return checkpoint._snapshot()[1]


def same(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor]) -> bool:
    return old.keys() == new.keys() and all(torch.equal(old[key], new[key]) for key in old)


def trained(*shape: int, opt: Any = None) -> tuple[Variable, Any, Checkpoint]:
    w, opt = Variable(torch.ones(shape or (2,)), name="w"), opt or train.MomentumOptimizer(0.5, 0.5)
    opt.apply_gradients([(torch.ones_like(w), w)])
    return w, opt, Checkpoint(w=w, opt=opt)


def test_stored_values_must_fit(tmp_path: Path) -> None:
    path = trained(2)[2].write(tmp_path / "ckpt")
    checkpoint = trained(3)[2]
    initial = snapshot(checkpoint)
    first = f"{path}: 'w' is float32 of shape (2,), not float32 of shape (3,); 'w/.OPTIMIZER_SLOT"
    with pytest.raises(CheckpointMismatchError) as error:
        checkpoint.read(path)
    assert str(error.value).startswith(first)
    assert str(error.value).endswith("Nothing was loaded.")
    assert same(snapshot(checkpoint), initial)
    fresh = Variable(torch.ones(2, dtype=torch.float64))
    with pytest.raises(CheckpointMismatchError, match=r"'w' is float32 .*, not float64"):
        Checkpoint(w=fresh, opt=train.MomentumOptimizer(0.5, 0.5)).read(path)
    assert torch.equal(fresh, torch.ones(2, dtype=torch.float64))


def test_a_refused_restore_leaves_nothing_waiting(tmp_path: Path) -> None:
    good, bad = trained(2)[2].write(tmp_path / "good"), trained(3)[2].write(tmp_path / "bad")
    w, opt = Variable(torch.zeros(2)), train.MomentumOptimizer(0.5, 0.5)
    checkpoint = Checkpoint(w=w, opt=opt)
    checkpoint.read(good)
    waiting = opt._deferred_slot_restorations
    with pytest.raises(CheckpointMismatchError):
        checkpoint.read(bad)
    assert opt._deferred_slot_restorations == waiting
    assert torch.equal(opt.get_slot(w, "momentum"), torch.ones(2))


@pytest.mark.parametrize("make", [lambda: train.AdamOptimizer(0.5), lambda: keras.Adam(0.5)])
def test_mismatched_deferred_slot_fails_the_step(make: Callable[..., Any], tmp_path: Path) -> None:
    _, _, checkpoint = trained(2, opt=make())
    path = checkpoint.write(tmp_path / "ckpt")
    contents = container.read(f"{path}.safetensors")
    key = f"w/.OPTIMIZER_SLOT/opt/v{ENDING}"
    contents.tensors[key] = of_tensor(torch.ones(5))
    container.write(f"{path}.safetensors", contents.tensors, contents.document)
    w, u, opt = Variable(torch.zeros(2), name="w"), Variable(torch.ones(2), name="u"), make()
    status = Checkpoint(w=w, opt=opt).read(path)  # the slot has no object yet
    initial = w.detach().clone()
    for _ in range(2):
        with pytest.raises(CheckpointMismatchError, match=r"OPTIMIZER_SLOT/opt/v' is .* not"):
            opt.apply_gradients([(torch.ones(2), u), (torch.ones(2), w)])
        assert torch.equal(w, initial)
        assert torch.equal(u, torch.ones(2))
        assert status.waiting == ["w/.OPTIMIZER_SLOT/opt/v"]
    opt.apply_gradients([(torch.ones(2), u)])
    assert not torch.equal(u, torch.ones(2))
    with pytest.raises(NotConsumedError, match=r"'w/.OPTIMIZER_SLOT/opt/v' have no object"):
        status.assert_consumed()
    assert "OPTIMIZER_SLOT/opt/v" in repr(status.expect_partial())


def test_mismatched_deferred_power_fails_the_step(tmp_path: Path) -> None:
    _, _, checkpoint = trained(2, opt=train.AdamOptimizer(0.5, beta1=np.float64(0.5)))
    path = checkpoint.write(tmp_path / "ckpt")
    w, opt = Variable(torch.zeros(2), name="w"), train.AdamOptimizer(0.5)
    status = Checkpoint(w=w, opt=opt).read(path)
    initial = w.detach().clone()
    for _ in range(2):
        with pytest.raises(
            CheckpointMismatchError, match=r"'beta1_power' is float64 .* not float32"
        ):
            opt.apply_gradients([(torch.ones(2), w)])
        assert torch.equal(w, initial)
        assert "opt/beta1_power" in status.waiting


def test_mismatched_hyperparameter_raises(tmp_path: Path) -> None:
    _, _, checkpoint = trained(2, opt=keras.SGD(1))  # an int32 variable
    path = checkpoint.write(tmp_path / "ckpt")
    opt = keras.SGD(0.5)
    Checkpoint(opt=opt).read(path)
    for _ in range(2):
        with pytest.raises(CheckpointMismatchError, match="'learning_rate' is int32"):
            _ = opt.learning_rate
    assert opt.get_config()["learning_rate"] == 0.5


BAD_GRAPHS = {
    "no list": {},
    "empty": [],
    "no objects": [1],
    "a key too many": [{"children": {}, "values": [], "slots": [], "more": []}],
    "beyond the last": [{"children": {"w": 1}, "values": [], "slots": []}],
    "before the first": [{"children": {"w": -1}, "values": [], "slots": []}],
    "true for a number": [{"children": {"w": True}, "values": [], "slots": []}],
    "short row": [{"children": {}, "values": [["VARIABLE_VALUE", "w"]], "slots": []}],
    "no name": [{"children": {}, "values": [["VARIABLE_VALUE", 5, "w"]], "slots": []}],
    "slot of nothing": [{"children": {}, "values": [], "slots": [[3, "m", 0]]}],
}


@pytest.mark.parametrize("graph", BAD_GRAPHS.values(), ids=BAD_GRAPHS)
def test_damaged_object_graph_raises(graph: Any, tmp_path: Path) -> None:
    container.write(tmp_path / "ckpt.safetensors", {}, {"object_graph": graph})
    with pytest.raises(DataLossError, match="ckpt: its object graph"):
        Checkpoint(w=Variable(0.0)).read(tmp_path / "ckpt")


def test_cyclic_object_graph_terminates(tmp_path: Path) -> None:
    graph = [
        {"children": {"a": 0, "b": 1}, "values": [], "slots": [[0, "m", 1], [1, "m", 1]]},
        {"children": {"a": 0}, "values": [["VARIABLE_VALUE", "w", "w"]], "slots": [[1, "n", 0]]},
    ]
    container.write(
        tmp_path / "ckpt.safetensors", {"w": of_tensor(torch.ones(()))}, {"object_graph": graph}
    )
    circle: list[Any] = [Variable(0.0)]
    circle.append(circle)
    opt = train.MomentumOptimizer(0.5, 0.5)
    checkpoint = Checkpoint(b=Variable(0.0), a=circle, opt=opt)
    checkpoint.read(tmp_path / "ckpt").assert_nontrivial_match()
    assert float(checkpoint.b) == 1.0
    checkpoint.read(checkpoint.write(tmp_path / "own"))


def test_files_without_object_checkpoint_raise(tmp_path: Path) -> None:
    checkpoint = Checkpoint(w=Variable(0.0))
    with pytest.raises(MissingFileError, match="there is no file of this name"):
        checkpoint.restore(tmp_path / "none")
    with pytest.raises(UnsupportedCheckpointError, match=r"train.Saver"):
        checkpoint.restore(GOLDENS / "ckpt_v1" / "adam" / "model.ckpt-5")
    graph = [{"children": {}, "values": [["VARIABLE_VALUE", "w", "w"]], "slots": []}]
    container.write(tmp_path / "ckpt.safetensors", {}, {"object_graph": graph})
    with pytest.raises(DataLossError, match="object graph names 'w', which has no value"):
        checkpoint.restore(tmp_path / "ckpt")
    status = checkpoint.restore(None)
    for name in ("assert_consumed", "assert_existing_objects_matched", "assert_nontrivial_match"):
        with pytest.raises(NotConsumedError, match="No checkpoint"):
            getattr(status, name)()
    assert status.expect_partial() is status
    assert status.waiting == []
    assert issubclass(NotConsumedError, AssertionError)


def test_checkpoint_without_common_objects_raises(tmp_path: Path) -> None:
    path = Checkpoint(a=Variable(1.0)).write(tmp_path / "ckpt")
    with pytest.raises(NotConsumedError, match=r"Nothing except the root .*'a' have no object"):
        Checkpoint(b=Variable(2.0)).read(path).assert_nontrivial_match()


INVALID_VALUES = {"int": 3, "float": 0.5, "string": "x", "function": len, "none": None, "set": {1}}


@pytest.mark.parametrize("value", INVALID_VALUES.values(), ids=INVALID_VALUES)
def test_unsupported_objects_raise(value: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match=r"'thing' is a .* which no checkpoint holds"):
        Checkpoint(thing=value)
    with pytest.raises(InvalidTypeError, match=r"'things/0' is a .* which no checkpoint holds"):
        Checkpoint(things=[value]).write(tmp_path / "ckpt")
    assert not list(tmp_path.iterdir())


def test_invalid_keys_and_roots_raise(tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match="strings as keys, not 3"):
        Checkpoint(table={3: Variable(0.0)}).write(tmp_path / "ckpt")
    with pytest.raises(InvalidTypeError, match="root is a variable"):
        Checkpoint(Variable(0.0))
    with pytest.raises(InvalidTypeError, match=r"'w' is .*sparse"):
        Checkpoint(w=torch.eye(2).to_sparse()).write(tmp_path / "ckpt")


# Counting, managing.


def test_save_numbers_its_files(tmp_path: Path) -> None:
    w = Variable(1.0)
    checkpoint = Checkpoint(w=w)
    prefix = tmp_path / "run" / "ckpt"
    assert [checkpoint.save(prefix) for _ in range(2)] == [f"{prefix}-1", f"{prefix}-2"]
    checkpoint.bad = torch.eye(2).to_sparse()
    with pytest.raises(InvalidTypeError):
        checkpoint.save(prefix)
    assert int(checkpoint.save_counter) == 2
    target = Checkpoint(w=w)
    target.restore(latest_checkpoint(tmp_path / "run")).assert_consumed()
    assert target.save(prefix) == f"{prefix}-3"


def test_a_failed_save_uses_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    checkpoint = Checkpoint(w=Variable(1.0))
    with pytest.raises(CheckpointWriteError):
        checkpoint.save(tmp_path / "file" / "ckpt")
    assert int(checkpoint.save_counter) == 0


def test_manager_keeps_the_newest(tmp_path: Path) -> None:
    w = Variable(0.0)
    manager = CheckpointManager(Checkpoint(w=w), tmp_path / "run", max_to_keep=2)
    assert manager.latest_checkpoint is None
    assert manager.restore_or_initialize() is None
    paths = []
    for value in range(4):
        w.assign(float(value))
        paths.append(manager.save())
    assert manager.checkpoints == paths[2:]
    assert manager.latest_checkpoint == paths[3]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "checkpoint", "ckpt-3.safetensors", "ckpt-4.safetensors"
    ]  # fmt: skip
    w.assign(9.0)
    new_manager = CheckpointManager(Checkpoint(w=w), tmp_path / "run", max_to_keep=2)
    assert new_manager.checkpoints == paths[2:]
    assert new_manager.directory == str(tmp_path / "run")
    assert new_manager.restore_or_initialize() == paths[3]
    assert float(w) == 3.0
    assert new_manager.save() == f"{tmp_path}/run/ckpt-5"
    assert new_manager.checkpoints == [
        paths[3],
        new_manager.latest_checkpoint,
    ]
    assert new_manager.save(checkpoint_number=40) == f"{tmp_path}/run/ckpt-40"


def test_manager_keeps_one_every_n_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    manager = CheckpointManager(
        Checkpoint(w=Variable(0.0)), tmp_path, 1, keep_checkpoint_every_n_hours=1
    )
    for _ in range(6):
        manager.save()
        clock[0] += 1800
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == ["ckpt-3.safetensors", "ckpt-5.safetensors", "ckpt-6.safetensors"]


def test_manager_counts_steps(tmp_path: Path) -> None:
    step, calls = Variable(0, trainable=False), []
    options: dict[str, Any] = {"step_counter": step, "checkpoint_interval": 3}
    manager = CheckpointManager(
        Checkpoint(step=step), tmp_path, None, init_fn=lambda: calls.append(1), **options
    )
    assert manager.restore_or_initialize() is None
    assert calls == [1]
    outcomes = []
    for value in range(8):
        step.assign(value)
        outcomes.append(manager.save() is not None)
    assert outcomes == [True, False, False, True, False, False, True, False]
    assert manager.save(check_interval=False) is not None
    step.assign(0)
    new_manager = CheckpointManager(Checkpoint(step=step), tmp_path, None, **options)
    new_manager.restore_or_initialize()
    assert int(step) == 7
    assert new_manager.save() is None
    for arguments in ({"max_to_keep": 0}, {"max_to_keep": 1, "checkpoint_interval": 3}):
        with pytest.raises(ValueError, match=r"max_to_keep|step_counter"):
            CheckpointManager(Checkpoint(), tmp_path, **arguments)


@pytest.mark.parametrize("writer", ["Checkpoint", "Saver"])
def test_a_manager_deletes_no_checkpoint_of_others(writer: str, tmp_path: Path) -> None:
    prefix = str(tmp_path / "unmanaged")
    if writer == "Checkpoint":
        Checkpoint(w=Variable(1.0)).save(prefix)
    else:
        with tf.Graph().as_default(), tf.Session() as session:
            w = tf.Variable(1.0, name="w")
            session.run(w.initializer)
            train.Saver([w]).save(session, prefix, global_step=1)
    newest = latest_checkpoint(tmp_path)
    manager = CheckpointManager(Checkpoint(w=Variable(1.0)), tmp_path, max_to_keep=1)
    assert (manager.latest_checkpoint, manager.checkpoints) == (newest, [])
    paths = [manager.save() for _ in range(3)]
    assert manager.checkpoints == paths[-1:]
    names = {path.name.partition(".")[0] for path in tmp_path.iterdir()}
    assert {"unmanaged-1", "ckpt-3"} <= names
    assert "ckpt-2" not in names
    assert CheckpointManager(Checkpoint(), tmp_path, max_to_keep=1).checkpoints == paths[-1:]
