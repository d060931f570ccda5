"""States of optimizers: damage, interruptions, earlier formats, copies in threads."""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import thalweg
from attack import mutations
from attack.states import MAKE, everything, keras_trained, same, v1_trained, wrapped
from interruptions import interrupted_at
from keras_table import pair, train
from thalweg import CheckpointMismatchError, Variable
from thalweg._core import atomic_section, state
from thalweg.keras.optimizers import SGD, Adam, Nadam
from thalweg.openseq2seq.optimizers.optimizers import optimize_loss
from thalweg.v1.contrib.opt import MovingAverageOptimizer
from thalweg.v1.train import AdamOptimizer, ExponentialMovingAverage, MomentumOptimizer

# Those whose states are given to `load_state_dict` with their variables.
OF_VARIABLES = ("keras", "v1", "openseq2seq")
every_face = pytest.mark.parametrize(
    "make", [MAKE[face] for face in OF_VARIABLES], ids=OF_VARIABLES
)


HYPERS = [10**400, 2**63, True, "1", None, [1.0], torch.tensor(1.0), 1j, float("nan"), 1e39, {}]


@pytest.mark.parametrize("value", HYPERS, ids=lambda value: f"{value!r:.20}")
@pytest.mark.parametrize("is_created", [True, False])
def test_invalid_number_in_state_changes_nothing(value: Any, is_created: bool) -> None:
    opt, variables = SGD(1), pair()
    if is_created:
        train(opt, variables, 1)
    state = {**opt.state_dict(), "iterations": torch.tensor(99)}
    state["hyperparameters"] = {"learning_rate": value}
    all_before = everything(opt, variables)
    if value == 1e39 and not is_created:
        value = 10**400
        state["hyperparameters"] = {"learning_rate": value}
    with pytest.raises(CheckpointMismatchError, match=r"'learning_rate' is .*, no number that fit"):
        opt.load_state_dict(state)
    assert same(everything(opt, variables), all_before)


def test_deferred_slots_are_copies() -> None:
    opt, _ = keras_trained()
    state, loaded = opt.state_dict(), Nadam()
    loaded.load_state_dict(state)
    for slots in state["slots"].values():
        for slot in slots.values():
            slot.fill_(7.0)
    assert same(loaded.state_dict()["slots"], opt.state_dict()["slots"])


@pytest.mark.parametrize(
    "name", ["freed", "cut", "meta", "sparse", "list", "number", "wrapper", "nested"]
)
def test_unreadable_deferred_slots_raise_with_their_name(name: str) -> None:
    state, loaded = keras_trained()[0].state_dict(), Nadam()
    state["slots"]["b:0"]["v"] = mutations.CHANGES[name](state["slots"]["b:0"]["v"])
    with pytest.raises(CheckpointMismatchError, match="'b/v'"):
        loaded.load_state_dict(state)
    assert loaded.weights == []


@every_face
@pytest.mark.parametrize("name", ["freed", "cut", "meta", "wrapper"])
def test_tensor_without_memory_raises_with_its_name(make: Any, name: str) -> None:
    opt, variables = make()
    state = opt.state_dict()
    home = state.get("slots", {}).get("b:0", state)
    key = next(key for key in home if key in ("v", "b/v", "b/momentum"))
    home[key] = mutations.CHANGES[name](home[key])
    all_before = everything(opt, variables)
    with pytest.raises(CheckpointMismatchError, match=r"'b/.*'.*Nothing was loaded"):
        opt.load_state_dict(state, variables)
    assert same(everything(opt, variables), all_before)


@every_face
def test_a_class_of_tensors_that_fails_in_copy_is_read_as_plain(make: Any) -> None:
    opt, variables = make()
    state = copy.deepcopy(opt.state_dict())
    for home, key in list(mutations.places(state)):
        if isinstance(home[key], Tensor):
            home[key] = home[key].as_subclass(mutations.Unwritten)
    all_before = everything(opt, variables)
    opt.load_state_dict(state, variables)
    assert same(everything(opt, variables), all_before)


def test_state_aliasing_its_own_slots_is_copied_before_writing() -> None:
    opt, (a, b) = v1_trained()
    b.assign(b + 1)
    state = {**opt.state_dict(), "a/m": opt.get_slot(a, "v"), "a/v": opt.get_slot(a, "m")}
    expected = {name: value.detach().clone() for name, value in state.items()}
    opt.load_state_dict(state)
    assert same(opt.state_dict(), expected)


# An exception at any line of those that set state, as a signal would raise it.


FRESH: dict[str, Callable[[], Any]] = {
    "keras": lambda: Nadam(0.5),
    "v1": lambda: AdamOptimizer(0.5),
    "openseq2seq": lambda: wrapped(),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stride", [13, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_fresh", [False, True], ids=["trained", "fresh"])
@pytest.mark.parametrize("face", OF_VARIABLES)
def test_interrupted_load_is_atomic(face: str, is_fresh: bool, stride: int) -> None:
    opt, variables = MAKE[face]()
    old_values = [var.detach().clone() for var in variables]
    start = opt.state_dict()
    new = copy.deepcopy(start)
    for home, key in list(mutations.places(new)):
        if isinstance(home[key], Tensor):
            home[key] += 1
    interrupted, number = True, 0
    while interrupted:
        target = FRESH[face]() if is_fresh else opt
        old = everything(target, variables)
        interrupted = interrupted_at(number, lambda: target.load_state_dict(new, variables))  # noqa: B023
        current = everything(target, variables)
        assert same(current["state"], new) or (interrupted and same(current, old)), f"line {number}"
        if not is_fresh and same(current["state"], new):
            opt.load_state_dict(start, variables)
        for var, value in zip(variables, old_values, strict=True):
            var.assign(value)
        number += stride
    assert number > 100


def test_commit_section_runs_no_python() -> None:
    opt, variables = keras_trained()
    frames: list[str] = []

    def trace(frame: Any, event: str, argument: Any) -> None:
        caller = frame.f_back
        if event == "call" and caller is not None and caller.f_code is atomic_section.run.__code__:
            frames.append(frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else "?")

    state = opt.state_dict()
    sys.settrace(trace)
    try:
        with torch.device("cpu"):  # has functions of torch call Python
            opt.load_state_dict(state, variables)
    finally:
        sys.settrace(None)
    # It comes before the first write.
    assert frames == ["check_targets"]


class _Outside(Tensor):
    """A tensor that keeps its elements elsewhere, and whose `copy_` fails."""

    inside: Tensor

    @staticmethod
    def __new__(cls, wrapped: Tensor) -> Any:
        wrapper: Any = Tensor._make_wrapper_subclass(cls, wrapped.shape, dtype=wrapped.dtype)  # pyright: ignore
        wrapper.inside = wrapped
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "copy_" in str(func):
            raise RuntimeError("not copied")
        output = func(*[getattr(arg, "inside", arg) for arg in args], **(kwargs or {}))
        return _Outside(output) if isinstance(output, Tensor) else output


class _FailsLater(TorchDispatchMode):
    """A mode in which all but the first calls of `copy_` fail."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.left = first

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= "copy_" in str(func)
        if self.left < 0:
            raise RuntimeError("not copied")
        return func(*args, **(kwargs or {}))


def test_a_failing_copy_raises_before_changes() -> None:
    plain_tensor, wrapped = torch.zeros(2), _Outside(torch.zeros(2))
    entries = [state.Entry("a", plain_tensor), state.Entry("b", wrapped)]
    with pytest.raises(CheckpointMismatchError, match="'b' has no memory of its own here"):
        state.restore(state.fitting(entries, {"a": torch.ones(2), "b": torch.ones(2)}, ""))
    assert (plain_tensor.tolist(), wrapped.inside.tolist()) == ([0, 0], [0, 0])


@pytest.mark.parametrize("first", range(6))
def test_load_under_failing_copies_is_atomic(first: int) -> None:
    tensors = [torch.zeros(2), torch.zeros(2)]
    entries = [state.Entry(str(index), tensor) for index, tensor in enumerate(tensors)]
    with contextlib.suppress(CheckpointMismatchError), _FailsLater(first):
        state.restore(state.fitting(entries, {"0": torch.ones(2), "1": torch.ones(2)}, ""))
    assert tensors[0].tolist() == tensors[1].tolist()


NAN = float("nan")


@pytest.mark.parametrize(
    ("cut", "numbers", "conflict"),
    [
        (lambda m: (m, m), ([1, 2, NAN, 4], [1, 2, NAN, 4]), ""),
        (lambda m: (m, m), ([1, 2, 3, 4], [1, 2, 3, 5]), "'a' and 'b'"),
        (lambda m: (m, m.view(2, 2)), ([1, 2, 3, 4], [[1, 2], [3, 4]]), ""),
        (lambda m: (m, m.view(2, 2)), ([1, 2, 3, 4], [[1, 3], [2, 4]]), "'a' and 'b'"),
        (lambda m: (m, m.view(2, 2).T), ([1, 2, 3, 4], [[1, 3], [2, 4]]), ""),
        (lambda m: (m[:3], m[2:]), ([1, 2, 3], [3, 4]), ""),
        (lambda m: (m[:3], m[2:]), ([1, 2, 3], [4, 4]), "'a' and 'b'"),
        (lambda m: (m[2:], m[:2], m), ([3, 4], [1, 2], [1, 2, 3, 4]), ""),
        (lambda m: (m[2:], m[:2], m), ([3, 4], [1, 2], [1, 2, 0, 4]), "'a' and 'c'"),
        (lambda m: (m[2:], m[:2], m), ([3, 4], [1, 2], [0, 2, 3, 4]), "'b' and 'c'"),
        (lambda m: (m[::2], m[1::2]), ([1, 3], [2, 4]), ""),  # side by side
        (lambda m: (m[:2], m[2:]), ([1, 2], [3, 4]), ""),
        (lambda m: (m[0:0], m), ([], [1, 2, 3, 4]), ""),
    ],
)
def test_entries_that_share_memory_need_equal_values(
    cut: Callable[[Tensor], tuple[Tensor, ...]], numbers: tuple[Any, ...], conflict: str
) -> None:
    memory = torch.zeros(4)
    views = dict(zip("abc", cut(memory), strict=False))
    expected = {
        name: torch.tensor(number).float() for name, number in zip(views, numbers, strict=True)
    }
    fitted = state.fitting([state.Entry(*view) for view in views.items()], expected, "It")
    if not conflict:
        state.restore(fitted)
        actual = {name: view.clone() for name, view in views.items()}
        assert same(actual, expected)
        return
    with pytest.raises(CheckpointMismatchError, match=f"It: {conflict} share memory here, and are"):
        state.restore(fitted)
    assert memory.tolist() == [0, 0, 0, 0]


def test_entries_share_memory_in_other_dtypes() -> None:
    bits = torch.zeros(2, dtype=torch.int32)
    entries = [state.Entry("numbers", bits.view(torch.float32)), state.Entry("bits", bits[1:])]
    one_bits = torch.tensor([1.0]).view(torch.int32)
    state.restore(state.fitting(entries, {"numbers": torch.ones(2), "bits": one_bits}, ""))
    assert bits.view(torch.float32).tolist() == [1, 1]
    with pytest.raises(CheckpointMismatchError, match="'numbers' and 'bits' share memory"):
        state.restore(state.fitting(entries, {"numbers": torch.ones(2), "bits": one_bits + 1}, ""))
    assert bits.view(torch.float32).tolist() == [1, 1]


# States as they were written before names were one dialect.

V1 = {
    "b/momentum": torch.tensor([1.0, 2.0]),
    "w#1/momentum": torch.tensor([3.0, 4.0]),
    "w#2/momentum": torch.tensor([5.0, 6.0]),
}
WRAPPED = {
    "w#0/master": torch.tensor([0.75]),
    "w#0/momentum": torch.tensor([1.0]),
    "w#1/master": torch.tensor([1.5]),
    "w#1/momentum": torch.tensor([2.0]),
    "loss_scale/scale": torch.tensor(16384.0),
    "loss_scale/iteration": torch.tensor(1),
    "loss_scale/last_overflow_iteration": torch.tensor(-1),
}
STEP = {
    "global_step": torch.tensor(1),
    **{f"{key}/{name}": torch.tensor([float(number)]) for number, (key, name) in enumerate(
        [("w#0", "momentum"), ("w#0", "gradient_sum"), ("w#1", "momentum"), ("w#1", "gradient_sum")]
    )},
}  # fmt: skip
KERAS = {
    "class_name": "Nadam",
    "format": 1,
    "iterations": torch.tensor(1),
    "hyperparameters": {
        "decay": 0.004000000189989805,
        "learning_rate": 0.5,
        "beta_1": 0.8999999761581421,
        "beta_2": 0.9990000128746033,
    },
    "weights": {"momentum_cache": torch.tensor(0.4500734806)},
    "slots": {
        "b:0": {"m": torch.tensor([0.1, 0.2]), "v": torch.tensor([0.01, 0.04])},
        "w:0": {"m": torch.tensor([0.2, 0.4]), "v": torch.tensor([0.04, 0.16])},
        "w:0#1": {"m": torch.tensor([0.4, 0.8]), "v": torch.tensor([0.16, 0.64])},
    },
}


def named(*names: str, dtype: Any = torch.float32, size: int = 2) -> list[Any]:
    return [Variable(torch.ones(size, dtype=dtype), name) for name in names]


def test_v1_state_by_position_is_loaded() -> None:
    opt, (b, first, second) = MomentumOptimizer(0.5, 0.5), named("b", "w", "w")
    opt.load_state_dict(V1, [b, first, second])
    assert opt.get_slot(first, "momentum").tolist() == [3.0, 4.0]
    assert opt.get_slot(second, "momentum").tolist() == [5.0, 6.0]
    state = opt.state_dict([b, first, second])
    assert list(state) == ["b/momentum", "w/momentum", "w#1/momentum"]
    optimizer = MomentumOptimizer(0.5, 0.5)
    optimizer.load_state_dict(state, [b, first, second])
    assert same(optimizer.state_dict([b, first, second]), state)


def test_masters_state_by_position_is_loaded() -> None:
    opt, variables = wrapped(), named("w", "w", dtype=torch.float16, size=1)
    opt.load_state_dict(WRAPPED, variables)
    assert [opt.get_master(var).item() for var in variables] == [0.75, 1.5]
    assert [var.item() for var in variables] == [0.75, 1.5]
    assert opt.get_slot(variables[1], "momentum").item() == 2.0
    assert opt.loss_scale.item() == 16384.0


def test_training_step_state_by_position_is_loaded() -> None:
    first, second = named("w", "w", size=1)
    step = optimize_loss(
        lambda: (first + second).sum(), "Momentum", {"momentum": 0.5}, lambda step: 0.5,
        iter_size=2, skip_update_ph=False, var_list=[first, second],
    )  # fmt: skip
    step.load_state_dict(STEP)
    state = step.state_dict()
    assert state["w#1/momentum"].item() == 2.0
    assert state["w#1/gradient_sum"].item() == 3.0
    assert state["w/gradient_sum"].item() == 1.0


def test_damaged_state_by_position_raises_with_current_names() -> None:
    state = {**V1, "w#2/momentum": torch.ones(3)}
    with pytest.raises(CheckpointMismatchError, match=r"'w#1/momentum' is float32 of shape \(3,\)"):
        MomentumOptimizer(0.5, 0.5).load_state_dict(state, named("b", "w", "w"))


@pytest.mark.parametrize("has_variables", [True, False])
def test_keras_state_is_loaded(has_variables: bool) -> None:
    opt, variables = Nadam(), named("b", "w", "w")
    opt.load_state_dict(KERAS, variables if has_variables else None)
    assert same(opt.state_dict()["slots"], KERAS["slots"])
    assert opt.state_dict()["hyperparameters"]["learning_rate"] == 0.5
    opt.apply_gradients([(torch.zeros(2), var) for var in variables])
    assert (
        opt.get_slot(variables[2], "v").tolist()
        == (KERAS["slots"]["w:0#1"]["v"] * torch.tensor(0.999)).tolist()
    )


def test_state_names_are_unique_and_stable() -> None:
    names = ["w", "w#1", "w", "b", "w", "w#1"]
    assert state.distinct(names) == ["w", "w#1", "w#2", "b", "w#3", "w#1#1"]
    for count in range(len(names)):
        assert state.distinct(names[:count]) == state.distinct(names)[:count]


def test_an_entry_has_its_tensorflow_name() -> None:
    opt, _ = keras_trained()
    owners = opt._owners()
    slots = opt._slot_entries([*zip(state.keys_of(owners), "ab", owners, strict=True)], {})[0]
    assert {entry.name: entry.original for entry in slots}["a/m"] == "Nadam/a/m"
    opt, variables = v1_trained()
    entries = {entry.name: entry for entry in opt._entries(variables, state.keys_of(variables))}
    assert entries["a/m"].original == "a/Adam"
    assert entries["beta1_power"].original == "beta1_power"


# Copies while another thread steps: a step adds 1 to everything there is to see.


def by_pickle(opt: Any) -> Any:
    return pickle.loads(pickle.dumps(opt))


def seen_while_stepping(step: Callable[[], Any], look: Callable[[], Any], count: int) -> list[Any]:
    is_done, failed, looks = threading.Event(), [], []

    def work() -> None:
        try:
            while not is_done.is_set():
                step()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        looks += [look() for _ in range(count)]
    finally:
        is_done.set()
        thread.join()
    assert not failed
    return looks


class Counting(thalweg.keras.optimizers.Optimizer):
    """A user's optimizer whose two slots always hold the number of steps."""

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self.add_slot(var, "one")
            self.add_slot(var, "two")

    def _resource_apply_dense(self, grad: Any, var: Any) -> None:
        self.get_slot(var, "one").add_(1)
        self.get_slot(var, "two").add_(1)


class CountingV1(thalweg.v1.train.Optimizer):
    def __init__(self) -> None:
        super().__init__(False, "Counting")

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self._zeros_slot(var, "one", "One")
            self._zeros_slot(var, "two", "Two")

    def _apply_dense(self, grad: Any, var: Any) -> None:
        self.get_slot(var, "one").add_(1)
        self.get_slot(var, "two").add_(1)
        var.sub_(1)


either_copy = pytest.mark.parametrize("make_copy", [copy.deepcopy, by_pickle])


@either_copy
@pytest.mark.parametrize("make", [lambda: Counting("Counting"), CountingV1])
@pytest.mark.usefixtures("threads_change_often")
def test_copy_under_concurrent_steps_is_consistent(make: Any, make_copy: Any) -> None:
    opt, (w,) = make(), named("w", size=1)
    opt.apply_gradients([(torch.ones(1), w)])

    def slots(optimizer: Any) -> tuple[float, ...]:
        values = optimizer.state_dict()
        slot_values = values["slots"]["w:0"] if "slots" in values else values
        counts = [values["iterations"].item()] if "iterations" in values else []
        return tuple(value.item() for value in slot_values.values()) + tuple(counts)

    copies = seen_while_stepping(
        lambda: opt.apply_gradients([(torch.ones(1), w)]), lambda: make_copy(opt), 200
    )
    assert {len(set(slots(copy))) for copy in copies} == {1}


@either_copy
@pytest.mark.usefixtures("threads_change_often")
def test_wrapper_copy_under_concurrent_steps_is_consistent(make_copy: Any) -> None:
    (w,) = named("w", dtype=torch.float16, size=1)
    opt = wrapped(CountingV1())
    step = lambda: opt.minimize(lambda: w.float().sum(), var_list=[w])  # noqa: E731
    step()
    looks = seen_while_stepping(step, lambda: (opt.state_dict(), make_copy(opt).state_dict()), 100)
    for snapshot in (snapshot for look in looks for snapshot in look):
        count = snapshot["w/one"].item()
        assert snapshot["w/two"].item() == count == snapshot["loss_scale/iteration"].item()
        assert snapshot["w/master"].item() == 1 - count


@either_copy
@pytest.mark.usefixtures("threads_change_often")
def test_averages_copy_under_concurrent_steps_is_consistent(make_copy: Any) -> None:
    (w,) = named("w", size=1)
    opt = MovingAverageOptimizer(CountingV1(), average_decay=0.0)
    opt.apply_gradients([(torch.ones(1), w)])
    copies = seen_while_stepping(
        lambda: opt.apply_gradients([(torch.ones(1), w)]), lambda: make_copy((opt, w))[0], 100
    )
    for copied in copies:
        ((_, _, average),) = copied._ema._slots.triples()
        ((_, slot, count), _) = copied._opt._slots.triples()
        assert slot == "one"
        assert average.item() == 1 - count.item()


@either_copy
def test_a_copy_shares_user_objects(make_copy: Any) -> None:
    rate, counter = torch.tensor(0.5), Variable(3, "it", trainable=False)
    opt = Adam(rate)
    opt.iterations = counter
    copied, copied_rate, count = make_copy((opt, rate, counter))
    assert copied._hyper.raw("learning_rate") is copied_rate
    assert copied.iterations is count
    average = ExponentialMovingAverage(0.5, num_updates=counter)
    average_copy, count = make_copy((average, counter))
    assert average_copy._num_updates is count


def test_a_shallow_copy_shares_the_slots() -> None:
    opt, (a, _) = v1_trained()
    shallow = copy.copy(opt)
    assert shallow.get_slot(a, "m") is opt.get_slot(a, "m")
    assert shallow._lock is not opt._lock
