"""Deferred restoration of values into objects that are made later, and its hooks."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.v1 as tf
from thalweg import CheckpointMismatchError, Variable
from thalweg._core.trackable import Trackable, TrackableSlots
from thalweg.errors import InvalidArgumentError, InvalidTypeError, NotConsumedError
from thalweg.keras import optimizers as keras
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.v1 import train
from thalweg.v1.contrib.opt import MovingAverageOptimizer
from thalweg.v1.train import Checkpoint

FACES: dict[str, Callable[..., Any]] = {
    "v1": lambda cls=None: (cls or train.MomentumOptimizer)(0.5, 0.5),
    "keras": lambda cls=None: (cls or keras.SGD)(0.5, momentum=0.5),
}
BASES = {"v1": train.MomentumOptimizer, "keras": keras.SGD}
both_faces = pytest.mark.parametrize("face", FACES)
SLOT = "w/.OPTIMIZER_SLOT/opt/momentum"


def two(value: float = 1.0) -> torch.Tensor:
    return torch.full((2,), value)


def step(opt: Any, *variables: Any) -> None:
    opt.apply_gradients([(two(), var) for var in variables])


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., tuple[str, torch.Tensor, torch.Tensor]]:
    """A checkpoint after two steps; what the variable is then, and after a third."""

    def save(face: str, make: Callable[[], Any] | None = None) -> Any:
        w, opt = Variable(two(4.0), name="w"), (make or FACES[face])()
        for _ in range(2):
            step(opt, w)
        path = Checkpoint(w=w, opt=opt).write(tmp_path / face)
        old_value = w.detach().clone()
        step(opt, w)
        return path, old_value, w.detach().clone()

    return save


def recording(base: type, calls: list[tuple[str, dict[str, Any]]]) -> type:
    """A subclass that notes with which arguments its hooks are called."""

    def hook(name: str) -> Any:
        def called(self: Any, **arguments: Any) -> Any:
            calls.append((name, arguments))
            return getattr(base, name)(self, **arguments)

        return called

    names = (
        "_create_or_restore_slot_variable", "_restore_slot_variable",
        "_preload_simple_restoration", "_handle_deferred_dependencies",
    )  # fmt: skip
    return type("Recording", (base,), {name: hook(name) for name in names})


@both_faces
def test_hooks_are_called_with_the_documented_arguments(face: str, write: Any) -> None:
    path, _, end = write(face)
    calls: list[tuple[str, dict[str, Any]]] = []
    w, opt = Variable(two(0.0), name="w"), FACES[face](recording(BASES[face], calls))
    Checkpoint(w=w, opt=opt).read(path)
    ((name, arguments),) = calls
    position = arguments.pop("slot_variable_position")
    assert (name, arguments) == (
        "_create_or_restore_slot_variable", {"slot_name": "momentum", "variable": w}
    )  # fmt: skip
    assert position.is_simple_variable()
    assert position.value().shape == (2,)
    assert opt._deferred_slot_restorations == {"momentum": {opt._slots.key(w): [position]}}
    calls.clear()
    step(opt, w)
    passed = [arguments for name, arguments in calls if name == "_restore_slot_variable"]
    slot = opt.get_slot(w, "momentum")
    assert passed == [{"slot_name": "momentum", "variable": w, "slot_variable": slot}]
    assert torch.equal(w, end)
    assert opt._deferred_slot_restorations == {}
    if face == "keras":
        names = [arguments["name"] for name, arguments in calls if name.startswith("_preload")]
        assert names == ["iter", "decay", "learning_rate", "momentum"]
        passed = [arguments for name, arguments in calls if name.startswith("_handle")]
        assert passed[0] == {"name": "iter", "trackable": opt.iterations}
    count_before = len(calls)
    second_var = Variable(two(), name="other")
    step(opt, w, second_var)  # nothing waits for it
    assert [name for name, _ in calls[count_before:]] == ["_restore_slot_variable"]


def test_non_slot_variables_start_at_restored_values(write: Any) -> None:
    path, _, end = write("v1", lambda: train.AdamOptimizer(0.5))
    calls: list[tuple[str, dict[str, Any]]] = []
    make = recording(train.AdamOptimizer, calls)
    w, opt = Variable(two(0.0), name="w"), make(0.5)
    Checkpoint(w=w, opt=opt).read(path)
    calls.clear()
    step(opt, w)
    assert torch.equal(w, end)
    power = opt._get_non_slot_variable("beta1_power")
    assert calls[:2] == [
        ("_preload_simple_restoration", {"name": "beta1_power"}),
        ("_handle_deferred_dependencies", {"name": "beta1_power", "trackable": power}),
    ]


@both_faces
@pytest.mark.parametrize("style", ["returned", "restored", "both"])
def test_subclass_may_create_slots_on_restore(face: str, style: str, write: Any) -> None:
    path, old_value, end = write(face)

    class Eager(BASES[face]):  # type: ignore[misc]
        def _create_or_restore_slot_variable(
            self, slot_variable_position: Any, slot_name: str, variable: Any
        ) -> Any:
            value = slot_variable_position.value()
            if face == "v1":
                slot = self._get_or_make_slot(variable, torch.zeros_like(value), slot_name, "M")
            else:
                slot = self.add_slot(variable, slot_name)
            if style != "returned":
                slot_variable_position.restore(slot)
            return None if style == "restored" else slot

    w, opt = Variable(two(0.0), name="w"), FACES[face](Eager)
    status = Checkpoint(w=w, opt=opt).read(path)
    assert SLOT not in status.waiting
    assert opt._deferred_slot_restorations == {}
    assert torch.equal(w, old_value)
    step(opt, w)
    assert torch.equal(w, end)


@both_faces
def test_a_subclass_may_consume_deferred_slots(face: str, write: Any) -> None:
    path, _, end = write(face)

    class Own(BASES[face]):  # type: ignore[misc]
        def _create_or_restore_slot_variable(
            self, slot_variable_position: Any, slot_name: str, variable: Any
        ) -> None:
            waiting = self._deferred_slot_restorations.setdefault(slot_name, {})
            waiting.setdefault(self._slots.key(variable), []).append(slot_variable_position)

        def _restore_slot_variable(self, slot_name: str, variable: Any, slot_variable: Any) -> None:
            waiting = self._deferred_slot_restorations.get(slot_name, {})
            for position in waiting.pop(self._slots.key(variable), []):
                position.restore(slot_variable)

    w, opt = Variable(two(0.0), name="w"), FACES[face](Own)
    status = Checkpoint(w=w, opt=opt).read(path)
    step(opt, w)
    assert torch.equal(w, end)
    status.assert_consumed()
    v, plain_opt = Variable(two(0.0), name="w"), FACES[face]()
    Checkpoint(w=v, opt=plain_opt).read(path)
    step(plain_opt, v)
    for _ in range(3):  # what is left over is not restored again
        step(opt, w)
        step(plain_opt, v)
    assert torch.equal(w, v)


@both_faces
def test_a_subclass_may_preload_and_look_up(face: str, write: Any) -> None:
    path, _, _ = write(face)
    looked_up = Variable(two(0.0), name="mine")

    class Own(BASES[face]):  # type: ignore[misc]
        def _lookup_dependency(self, name: str) -> Any:
            return looked_up if name == "mine" else super()._lookup_dependency(name)

        def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
            assert save_type == "checkpoint"
            return {**super()._trackable_children(save_type, **kwargs), "mine": looked_up}

        def _preload_simple_restoration(self, name: str) -> Any:
            return torch.tensor(7) if name == "iter" else super()._preload_simple_restoration(name)

    opt = FACES[face](Own)
    looked_up.assign([3.0, 4.0])
    second_path = Checkpoint(opt=opt).write(f"{path}-own")
    looked_up.assign([0.0, 0.0])
    Checkpoint(opt=opt).read(second_path)
    assert looked_up.tolist() == [3.0, 4.0]
    if face == "keras":
        assert int(opt.iterations) == 7


def test_tracked_names_are_unique() -> None:
    w, v, opt = Variable(0.0), Variable(1.0), keras.SGD(0.5)
    assert opt._track_trackable(w, "w") is w
    assert opt._track_trackable(w, "w") is w
    with pytest.raises(InvalidArgumentError, match="SGD tracks another object as 'w'"):
        opt._track_trackable(v, "w")
    assert opt._lookup_dependency("w") is w
    opt._track_trackable(v, "w", overwrite=True)
    assert opt._trackable_children() == {"w": v}


def test_a_tracked_child_is_restored(tmp_path: Path) -> None:
    opt = train.GradientDescentOptimizer(0.5)
    opt._track_trackable(Variable([5.0]), "mine")
    path = Checkpoint(opt=opt).write(tmp_path / "ckpt")
    optimizer = train.GradientDescentOptimizer(0.5)
    status = Checkpoint(opt=optimizer).read(path)
    with pytest.raises(CheckpointMismatchError, match="'opt/mine' is float32"):
        optimizer._track_trackable(Variable([5]), "mine")
    assert optimizer._trackable_children() == {}
    assert status.waiting == ["opt/mine"]
    looked_up = optimizer._track_trackable(Variable([0.0]), "mine")
    assert looked_up.tolist() == [5.0]
    assert status.waiting == []


# Objects that come later.


@pytest.mark.parametrize("order", [["w", "opt"], ["opt", "w"], ["opt", "step", "w"]], ids=str)
@both_faces
def test_attributes_assigned_later_are_restored(face: str, order: list[str], write: Any) -> None:
    path, old_value, end = write(face)
    w, opt, later_checkpoint = Variable(two(0.0)), FACES[face](), Checkpoint()
    objects = {"w": w, "opt": opt}
    status = later_checkpoint.read(path)
    assert {"w", SLOT} <= set(status.waiting)
    for name in order:
        if name == "step":
            step(opt, w)  # slots are there before the variable is
        else:
            setattr(later_checkpoint, name, objects[name])
    assert torch.equal(w, old_value)
    step(opt, w)
    assert torch.equal(w, end)
    status.assert_consumed()


def test_a_module_assigned_later_is_restored(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    path = Checkpoint(net=first, more=[first]).write(tmp_path / "ckpt")
    checkpoint = Checkpoint()
    status = checkpoint.read(path)
    with pytest.raises(CheckpointMismatchError, match="'net/weight' is float32 of shape"):
        checkpoint.net = torch.nn.Linear(3, 2)
    assert not hasattr(checkpoint, "net")
    assert len(status.waiting) == 2
    checkpoint.net = second
    assert torch.equal(second.weight, first.weight)
    assert status.waiting == []
    del checkpoint.net
    checkpoint.more = Variable(0.0)
    assert checkpoint._trackable_children().keys() == {"more"}


@both_faces
def test_last_restore_wins(face: str, write: Any, tmp_path: Path) -> None:
    path, _, end = write(face)
    v, second_opt = Variable(two(9.0)), FACES[face]()
    step(second_opt, v)
    older = Checkpoint(w=v, opt=second_opt).write(tmp_path / "older")
    w, opt = Variable(two(0.0)), FACES[face]()
    checkpoint = Checkpoint(w=w, opt=opt)
    checkpoint.read(older)
    status = checkpoint.read(path)
    step(opt, w)
    assert torch.equal(w, end)
    status.assert_consumed()


@both_faces
def test_restore_reuses_existing_slots(face: str, write: Any) -> None:
    path, old_value, end = write(face)
    w, opt = Variable(two(0.0)), FACES[face]()
    for _ in range(3):
        step(opt, w)
    slot = opt.get_slot(w, "momentum")
    Checkpoint(w=w, opt=opt).read(path).assert_consumed()
    assert opt.get_slot(w, "momentum") is slot
    assert torch.equal(w, old_value)
    step(opt, w)
    assert torch.equal(w, end)


def test_unused_checkpoint_values_are_deferred(write: Any) -> None:
    path, _, _ = write("keras")
    w, opt = Variable(two(0.0)), FACES["keras"]()
    checkpoint = Checkpoint(w=w, opt=opt, gone=[])
    values = checkpoint.read(path)._values
    names = {values.name(node) for node in values.unused}
    assert names == {SLOT, "opt/iter", "opt/learning_rate", "opt/decay", "opt/momentum"}
    step(opt, w)
    assert values.unused == {}
    assert checkpoint.read(path)._values.unused == {}


# Several of a kind.


def test_two_optimizers_restore_over_the_same_variables(tmp_path: Path) -> None:
    def training() -> tuple[Any, Any, Any, Checkpoint]:
        w, keras_opt, v1_opt = Variable(two(), name="w"), keras.Adam(0.5), train.AdamOptimizer(0.25)
        return w, keras_opt, v1_opt, Checkpoint(w=w, one=keras_opt, other=v1_opt)

    w, first, second, checkpoint = training()
    step(first, w), step(second, w), step(second, w)
    path = checkpoint.write(tmp_path / "ckpt")
    step(first, w), step(second, w)
    v, third, fourth, second_checkpoint = training()
    status = second_checkpoint.read(path)
    step(third, v)
    assert status.waiting == [
        "other/beta1_power", "other/beta2_power", "w/.OPTIMIZER_SLOT/other/m",
        "w/.OPTIMIZER_SLOT/other/v",
    ]  # fmt: skip
    step(fourth, v)
    status.assert_consumed()
    assert torch.equal(v, w)


def graph_values(opt: Any, graph: Any, session: Any) -> dict[str, float]:
    with graph.as_default():
        return {name: float(session.run(var)) for name, var in opt._trackable_children().items()}


def test_each_graph_has_its_own_non_slot_variables(tmp_path: Path) -> None:
    opt = train.AdamOptimizer(0.5)
    graphs, sessions, steps, checkpoints = [], [], [], []
    for count in (1, 3):
        graph = tf.Graph()
        with graph.as_default():
            w = tf.Variable([1.0, 2.0], name="w")
            train_op = opt.minimize((w * w).sum())
            session = tf.Session(graph=graph)
            session.run(tf.global_variables_initializer())
            for _ in range(count):
                session.run(train_op)
        graphs.append(graph), sessions.append(session), steps.append(train_op)
        checkpoints.append(Checkpoint(w=w, opt=opt))
    actual = [graph_values(opt, *pair) for pair in zip(graphs, sessions, strict=True)]
    powers = [{"beta1_power": 0.9**n, "beta2_power": 0.999**n} for n in (2, 4)]
    for power, expected in zip(actual, powers, strict=True):
        assert power == pytest.approx(expected, rel=1e-5)
    path = checkpoints[0].write(tmp_path / "one", sessions[0])
    checkpoints[0].read(path).run_restore_ops(sessions[0])
    assert graph_values(opt, graphs[1], sessions[1]) == actual[1]
    with graphs[1].as_default():
        status = checkpoints[1].read(path)
    status.run_restore_ops(sessions[1])
    assert graph_values(opt, graphs[1], sessions[1]) == actual[0]


def test_deferred_values_belong_to_one_graph(tmp_path: Path) -> None:
    w, opt = Variable(two(), name="w"), train.AdamOptimizer(0.5)
    step(opt, w), step(opt, w)
    path = Checkpoint(w=w, opt=opt).write(tmp_path / "ckpt")
    step(opt, w)
    end = w.detach().clone()
    opt, graph, unused = train.AdamOptimizer(0.5), tf.Graph(), tf.Graph()
    with graph.as_default():
        v = tf.Variable(two().numpy(), name="v")
        status = Checkpoint(w=v, opt=opt).read(path)
    with unused.as_default(), tf.Session() as session:
        u = tf.Variable(two().numpy(), name="u")
        opt.apply_gradients([(tf.ones([2]), u)])
        session.run(tf.global_variables_initializer())
        assert session.run(opt._get_non_slot_variable("beta1_power", unused)) == np.float32(0.9)
    eager = Variable(two(), name="eager")
    step(opt, eager)
    assert "opt/beta1_power" in status.waiting
    with graph.as_default(), tf.Session() as session:
        train_op = opt.apply_gradients([(tf.ones([2]), v)])
        status.assert_consumed()
        session.run(tf.global_variables_initializer())  # slots and powers begin with the restored
        assert session.run(v).tolist() == [1.0, 1.0]
        session.run(v.assign(session.run(v)).op)
        status.run_restore_ops()
        session.run(train_op)
        assert session.run(v).tolist() == end.tolist()


def test_variables_created_later_start_at_restored_values(write: Any) -> None:
    path, old_value, end = write("v1")
    opt, graph = FACES["v1"](), tf.Graph()
    with graph.as_default():
        w = tf.Variable(old_value.numpy(), name="w")
        Checkpoint(w=w, opt=opt).read(path)  # nobody keeps the status
        train_op = opt.apply_gradients([(tf.ones([2]), w)])
        slot = opt.get_slot(w, "momentum")
    for _ in range(2):
        with tf.Session(graph=graph) as session:
            assert session.run(slot.initialized_value()).tolist() == [1.5, 1.5]
            session.run(tf.global_variables_initializer())
            session.run(train_op)
            assert session.run(w).tolist() == end.tolist()


def test_a_graph_slot_of_wrong_shape_raises(write: Any) -> None:
    path, _, _ = write("v1")

    class Scalars(train.MomentumOptimizer):
        def _create_slots(self, var_list: Any) -> None:
            for var in var_list:
                self._get_or_make_slot(var, torch.zeros(()), "momentum", self._name)

    expected = r"shape \(2,\), not float32 of shape \(\)"
    with tf.Graph().as_default():
        w, opt = tf.Variable([1.0, 1.0], name="w"), FACES["v1"](Scalars)
        status = Checkpoint(w=w, opt=opt).read(path)
        for _ in range(2):
            with pytest.raises(CheckpointMismatchError, match=expected):
                opt.apply_gradients([(tf.ones([2]), w)])
    assert opt.get_slot_names() == []
    assert status.waiting == [SLOT]


def test_objects_of_several_graphs_raise_in_eager_mode(tmp_path: Path) -> None:
    variables = []
    for _ in range(2):
        with tf.Graph().as_default():
            variables.append(tf.Variable(1.0))
    with pytest.raises(InvalidArgumentError, match="several graphs"):
        Checkpoint(w=variables).write(tmp_path / "ckpt")


# What is set after a restore, copies, and states from elsewhere.


@pytest.mark.parametrize(
    "rate", [0.125, 1, lambda: 0.125, Variable(0.125)], ids=["float", "int", "callable", "variable"]
)
def test_hyperparameter_set_after_restore_is_used(rate: Any, write: Any) -> None:
    path, old_value, _ = write("keras")
    w, opt = Variable(two(0.0)), FACES["keras"]()
    status = Checkpoint(w=w, opt=opt).read(path)
    opt.learning_rate = rate
    step(opt, w)
    number = float(rate() if callable(rate) else rate)
    assert float(opt.learning_rate) == number
    assert torch.equal(w, old_value - 0.5 * 0.75 - number)
    assert status.waiting == []


@both_faces
@pytest.mark.parametrize("mode", ["deepcopy", "with variables", "pickle"])
def test_copies_have_separate_deferred_values(face: str, mode: str, write: Any) -> None:
    path, _, end = write(face)
    w, opt = Variable(two(0.0), name="w"), FACES[face]()
    status = Checkpoint(w=w, opt=opt).read(path)
    if mode == "deepcopy":
        v, copied_opt = Variable(w.detach().clone(), name="w"), copy.deepcopy(opt)
        assert list(copied_opt._deferred_slot_restorations["momentum"]) == [opt._slots.key(w)]
        original = w.detach().clone()
        step(copied_opt, w)
        assert torch.equal(w, end)
        w.assign(original)
    else:
        pair = (opt, w)
        copied_opt, v = copy.deepcopy(pair) if "with" in mode else pickle.loads(pickle.dumps(pair))
        assert list(copied_opt._deferred_slot_restorations["momentum"]) == [opt._slots.key(v)]
        step(copied_opt, v)
        assert torch.equal(v, end)
    assert SLOT in status.waiting
    step(opt, w)
    assert torch.equal(w, end)
    status.assert_consumed()


@both_faces
def test_a_loaded_state_replaces_deferred_values(face: str, write: Any) -> None:
    path, _, _ = write(face)
    v, second_opt = Variable(two(9.0), name="w"), FACES[face]()
    step(second_opt, v)
    w, opt = Variable(two(9.0), name="w"), FACES[face]()
    Checkpoint(w=w, opt=opt).read(path)
    waiting = opt._deferred_slot_restorations
    state = second_opt.state_dict()
    bad = copy.deepcopy(state)
    slots = bad["slots"]["w:0"] if face == "keras" else bad
    slots["momentum" if face == "keras" else "w/momentum"] = torch.zeros(7)
    with pytest.raises(CheckpointMismatchError):
        opt.load_state_dict(bad, [w])
    assert opt._deferred_slot_restorations == waiting
    opt.load_state_dict(state, [w])
    w.assign(v)
    step(opt, w), step(second_opt, v)
    assert torch.equal(w, v)
    assert opt._deferred_slot_restorations == {}


def test_wrapped_optimizers_are_restored(write: Any, tmp_path: Path) -> None:
    path, _, end = write("v1")
    w, opt = Variable(two(0.0), name="w"), MovingAverageOptimizer(FACES["v1"](), 0.5)
    status = Checkpoint(w=w, opt=opt).read(path)
    assert opt.get_slot(w, "momentum").tolist() == [1.5, 1.5]
    status.assert_consumed()
    step(opt, w)
    assert torch.equal(w, end)
    with pytest.raises(AssertionError, match=r"no values for '.*/opt/averages/average'"):
        status.assert_existing_objects_matched()
    Checkpoint(w=w, opt=opt._opt).read(Checkpoint(w=w, opt=opt).write(tmp_path / "inside"))
    with pytest.raises(InvalidTypeError, match="float32 masters"):
        Checkpoint(opt=MixedPrecisionOptimizerWrapper(FACES["v1"]())).write(tmp_path / "mixed")


@pytest.mark.parametrize("has_getter", [False, True])
def test_averages_resume_with_an_optimizer(has_getter: bool, tmp_path: Path) -> None:
    def training() -> tuple[Variable, MovingAverageOptimizer]:
        return Variable(two(0.0), name="w"), MovingAverageOptimizer(FACES["v1"](), 0.5)

    w, opt = training()
    step(opt, w)
    path = Checkpoint(w=w, opt=opt).write(tmp_path / "run")
    step(opt, w)
    restored_var, restored_opt = training()
    status = Checkpoint(w=restored_var, opt=restored_opt).read(path)
    if has_getter:
        assert restored_opt.average(restored_var).tolist() == [-0.5, -0.5]
    step(restored_opt, restored_var)
    status.assert_consumed()
    assert torch.equal(restored_opt.average(restored_var), opt.average(w))
    wrong, late = Variable(two(0.0), name="w"), MovingAverageOptimizer(FACES["v1"](), 0.5)
    Checkpoint(w=wrong, opt=late).read(path)
    wrong.data = torch.zeros(3)
    with pytest.raises(CheckpointMismatchError):
        late.apply_gradients([(torch.ones(3), wrong)])
    assert not wrong.any()


def test_averages_resume_alone_and_in_a_graph(tmp_path: Path) -> None:
    w, averages = Variable(two(0.0), name="w"), train.ExponentialMovingAverage(0.5)
    averages.apply([w])
    averages.apply([w.assign(two(1.0))])
    path = Checkpoint(w=w, averages=averages).write(tmp_path / "alone")
    restored_var, twin = (Variable(two(7.0), name="w"), train.ExponentialMovingAverage(0.5))
    Checkpoint(w=restored_var, averages=twin).read(path).assert_existing_objects_matched()
    assert twin.average(restored_var).tolist() == [0.5, 0.5]

    def built() -> tuple[Any, Any, Any]:
        x = tf.Variable(two(0.0), name="w")
        opt = MovingAverageOptimizer(FACES["v1"](), 0.5)
        return x, opt, opt.apply_gradients([(two(), x)])

    with tf.Graph().as_default(), tf.Session() as session:
        x, opt, op = built()
        session.run(tf.global_variables_initializer())
        session.run(op)
        path = Checkpoint(x=x, opt=opt).write(tmp_path / "graph")
        session.run(op)
        expected = session.run(opt.average(x))
    with tf.Graph().as_default(), tf.Session() as session:
        x, opt, op = built()
        Checkpoint(x=x, opt=opt).read(path).initialize_or_restore(session)
        session.run(op)
        assert np.array_equal(session.run(opt.average(x)), expected)


def test_user_trackables_are_restored(tmp_path: Path) -> None:
    class Own(Trackable):
        def __init__(self) -> None:
            self._track_trackable(Variable(1.0), "first")

    first, second = Own(), Own()
    first._track_trackable(Variable(2.0), "second")
    first._lookup_dependency("first").assign(5.0)
    Checkpoint(own=second).read(Checkpoint(own=first).write(tmp_path / "own"))
    assert float(second._track_trackable(Variable(0.0), "second")) == 2.0
    assert float(second._lookup_dependency("first")) == 5.0


# Threads, and what a step costs.


def counting(face: str) -> tuple[Any, Any, Callable[[], None], Callable[[], int]]:
    """Variables that are all equal to the number of steps."""
    variables = [Variable(torch.zeros(5000), name=f"w{i}") for i in range(8)]
    if face == "v1":
        counter: Any = Variable(0, name="step", trainable=False)
        opt: Any = train.MomentumOptimizer(1.0, 0.0)
        grads = [(torch.full((5000,), -1.0), var) for var in variables]
        return (
            Checkpoint(w=variables, opt=opt, step=counter),
            opt,
            lambda: opt.apply_gradients(grads, counter),
            lambda: int(counter),
        )
    opt = keras.SGD(1.0, momentum=1e-30)
    grads = [(torch.full((5000,), -1.0), var) for var in variables]
    return (
        Checkpoint(w=variables, opt=opt),
        opt,
        lambda: opt.apply_gradients(grads),
        lambda: int(opt.iterations),
    )


@pytest.mark.usefixtures("threads_change_often")
@both_faces
def test_save_under_concurrent_steps_is_consistent(face: str, tmp_path: Path) -> None:
    checkpoint, _, take, _ = counting(face)
    take()
    stop, errors = threading.Event(), []

    def train_on() -> None:
        try:
            while not stop.is_set():
                take()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=train_on)
    thread.start()
    counts = set()
    try:
        for _ in range(30):
            _, values = checkpoint._snapshot()
            count = next(v for k, v in values.items() if k.startswith(("opt/iter", "step")))
            halves = [v for k, v in values.items() if k.startswith("w/") and "SLOT" not in k]
            assert {float(number) for value in halves for number in value.unique()} == {
                float(count)
            }
            counts.add(int(count))
    finally:
        stop.set()
        thread.join()
    assert not errors
    assert len(counts) > 1


@pytest.mark.usefixtures("threads_change_often")
def test_restore_under_concurrent_steps_is_atomic(tmp_path: Path) -> None:
    checkpoint, _, take, count = counting("keras")
    take()
    path = checkpoint.write(tmp_path / "ckpt")
    threads = [threading.Thread(target=lambda: [take() for _ in range(100)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        checkpoint.read(path)
    for thread in threads:
        thread.join()
    numbers = {float(number) for var in checkpoint.w for number in var.detach().unique()}
    assert numbers == {float(count())}


def test_a_save_in_another_thread_uses_its_session(tmp_path: Path, graph: Any) -> None:
    w = tf.Variable([0.0, 0.0], name="w")
    step_op = tf.group(w.assign_add([1.0, 1.0]).op)
    session = tf.Session(graph=graph)
    session.run(tf.global_variables_initializer())
    checkpoint, paths = Checkpoint(w=w), []

    def save() -> None:
        paths.append(checkpoint.save(tmp_path / "ckpt", session))

    thread = threading.Thread(target=save)
    thread.start()
    for _ in range(50):
        session.run(step_op)
    thread.join()
    checkpoint.read(paths[0]).run_restore_ops(session)
    first, second = session.run(w)
    assert first == second


@both_faces
def test_a_replayed_step_skips_deferred_values(
    face: str, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, _ = write(face)
    w, u, opt = Variable(two(0.0)), Variable(two(0.0)), FACES[face]()
    Checkpoint(w=w, opt=opt, u=u).read(path)
    step(opt, w, u), step(opt, w, u)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a steady step asked")

    for cls in (Trackable, TrackableSlots):
        for name in vars(cls).keys() - {"_locked"}:  # which every step is
            if name.startswith("_") and not name.startswith("__") and callable(vars(cls)[name]):
                monkeypatch.setattr(cls, name, refuse, raising=False)
    step(opt, w, u)
    with pytest.raises(AssertionError, match="asked"):
        step(opt, w, Variable(two()))


def test_an_incomplete_status_raises(write: Any) -> None:
    path, _, _ = write("keras")
    w, opt = Variable(two(0.0)), FACES["keras"]()
    status = Checkpoint(w=w, opt=opt, more=Variable(1.0)).read(path)
    with pytest.raises(NotConsumedError, match="has no values for 'more'"):
        status.assert_existing_objects_matched()
    with pytest.raises(NotConsumedError) as error_info:
        status.assert_consumed()
    assert "'opt/iter'" in str(error_info.value)
    assert repr(SLOT) in str(error_info.value)
    assert status.expect_partial() is status
    assert SLOT in repr(status)
