"""`thalweg.checkpoint`: trainings continue with the same bits, or nothing is loaded."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from forks import TIMEOUT, run_in_child
from rulebook import assert_same
from thalweg import (
    CheckpointMismatchError,
    CheckpointWarning,
    FailedPreconditionError,
    IndexedSlices,
    InvalidConfigError,
    NotFoundError,
    ThalwegError,
    Variable,
    _graph,
    checkpoint,
)
from thalweg._cli.registry import applied, by_class, by_rule
from thalweg.checkpoint import tensorflow
from thalweg.keras.optimizers import SGD, Adam, Nadam, RMSprop, RuleOptimizer, schedules
from thalweg.openseq2seq import from_config
from thalweg.openseq2seq.optimizers import lr_policies
from thalweg.openseq2seq.optimizers.optimizers import optimize_loss
from thalweg.rules import ADAM
from thalweg.v1 import train

NAMES = list(dict.fromkeys([*by_rule(), *by_class()]))


def network(seed: int = 0) -> torch.nn.Module:
    """Return a module with parameters that have no names, and a buffer."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


def made(name: str) -> Any:
    return (by_rule().get(name) or by_class()[name]).make(0.05)


def stepped(optimizer: Any, module: torch.nn.Module, steps: range) -> None:
    for step in steps:
        numbers = np.random.default_rng(step)
        pairs = [
            (torch.from_numpy(numbers.standard_normal(tuple(param.shape), np.float32)), param)
            for param in module.parameters()
        ]
        applied(optimizer)(pairs)


def tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return all parameters and buffers; integers as floats, which represent them exactly here."""
    values = module.state_dict().values()
    return [tensor if tensor.is_floating_point() else tensor.double() for tensor in values]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("in_place", [False, True], ids=["made", "given"])
def test_training_resumes_with_the_same_bits(name: str, in_place: bool, tmp_path: Path) -> None:
    module, optimizer = network(), made(name)
    counter = getattr(optimizer, "_global_step", None)  # of AdagradDA
    options = {} if counter is None else {"variables": {"global_step": counter}}
    stepped(optimizer, module, range(3))
    checkpoint.save(tmp_path / "run", optimizer=optimizer, module=module, **options)
    stepped(optimizer, module, range(3, 6))

    target, target_opt = network(1), made(name) if in_place else None
    if counter is not None:
        step_var = Variable(np.int64(0), "global_step", trainable=False)
        options = {"variables": {"global_step": target_opt._global_step if in_place else step_var}}
    loaded = checkpoint.restore(tmp_path / "run", optimizer=target_opt, module=target, **options)
    assert type(loaded.optimizer) is type(optimizer)
    assert (loaded.optimizer is target_opt) == in_place
    stepped(loaded.optimizer, target, range(3, 6))
    assert_same(tensors(target), tensors(module), name)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_before_the_first_step_restores(name: str, tmp_path: Path) -> None:
    module, optimizer = network(), made(name)
    counter = getattr(optimizer, "_global_step", None)
    options = {} if counter is None else {"variables": {"global_step": counter}}
    checkpoint.save(tmp_path / "run", optimizer=optimizer, module=module, **options)
    target = network(1)
    if counter is not None:
        options = {"variables": [Variable(np.int64(0), "global_step", trainable=False)]}
    loaded = checkpoint.restore(tmp_path / "run", module=target, **options)
    for opt, training in ((optimizer, module), (loaded.optimizer, target)):
        stepped(opt, training, range(2))
    assert_same(tensors(target), tensors(module), name)


# What is part of an optimizer

SCHEDULES: dict[str, Callable[[], Any]] = {
    "exponential": lambda: schedules.ExponentialDecay(0.1, 2, 0.5, staircase=True),
    "piecewise": lambda: schedules.PiecewiseConstantDecay([1, 3], [0.1, 0.05, 0.01]),
    "cosine": lambda: schedules.CosineDecay(0.1, 5),
    "polynomial": lambda: schedules.PolynomialDecay(0.1, 5, power=2.0, cycle=True),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_and_clipping_come_back(schedule: str, tmp_path: Path) -> None:
    optimizer = RMSprop(SCHEDULES[schedule](), momentum=0.9, centered=True, global_clipnorm=0.5)
    module, target = network(), network(1)
    stepped(optimizer, module, range(2))
    checkpoint.save(tmp_path / "run", optimizer=optimizer, module=module)
    loaded = checkpoint.restore(tmp_path / "run", module=target).optimizer
    assert (loaded.global_clipnorm, loaded.get_config()) == (0.5, optimizer.get_config())
    for opt, training in ((optimizer, module), (loaded, target)):
        stepped(opt, training, range(2, 6))
    assert_same(tensors(target), tensors(module))


def test_rates_of_tensorflow_1_follow_the_step_of_the_file(tmp_path: Path) -> None:
    def training() -> tuple[Any, Any, Any]:
        step = Variable(np.int64(0), "global_step", trainable=False)
        rate = train.exponential_decay(np.float32(0.1), step, 2, 0.5, staircase=True)
        return step, Variable([1.0, 2.0], name="w"), train.MomentumOptimizer(rate, 0.9)

    def run(step: Any, w: Any, optimizer: Any, times: int) -> None:
        for _ in range(times):
            optimizer.apply_gradients([([0.5, -1.0], w)], global_step=step)

    step, w, optimizer = training()
    run(step, w, optimizer, 3)
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=[step, w])
    run(step, w, optimizer, 3)
    first, second, _ = training()
    loaded = checkpoint.restore(tmp_path / "run", variables=[first, second])
    run(first, second, loaded.optimizer, 3)
    assert_same([second], [w])
    assert (int(first), int(step)) == (6, 6)


def test_rate_without_its_step_variable_raises_with_its_name(tmp_path: Path) -> None:
    step, w = Variable(np.int64(0), "clock", trainable=False), Variable([1.0], name="w")
    optimizer = train.GradientDescentOptimizer(train.inverse_time_decay(0.1, step, 2, 0.5))
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=[w])
    with pytest.raises(NotFoundError, match="follows the variable 'clock', which is not among"):
        checkpoint.restore(tmp_path / "run", variables=[w])


def own_rate() -> float:
    return 0.5


class Halving(schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 1.0 / (step + 2)

    def get_config(self) -> dict[str, Any]:
        return {}


class Mine(SGD):
    pass


YOURS: dict[str, tuple[Callable[[], Any], str]] = {
    "callable": (lambda: Adam(own_rate), "learning_rate of Adam was the function 'own_rate'"),
    "schedule": (lambda: Adam(Halving()), "learning_rate of Adam was your schedule 'Halving'"),
    "transformer": (
        lambda: SGD(0.5, gradient_transformers=[lambda pairs: pairs]),
        "gradient_transformers of SGD was the function '<lambda>'",
    ),
    "class": (lambda: Mine(0.5), "The optimizer is of your own class 'Mine'"),
    "arithmetic": (
        lambda: train.GradientDescentOptimizer(0.5 * train.cosine_decay(0.1, 3, 5)),
        "learning_rate of v1:GradientDescentOptimizer was the function 'CosineDecay'",
    ),
}


@pytest.mark.parametrize("case", YOURS)
def test_user_objects_must_be_passed(case: str, tmp_path: Path) -> None:
    make, message = YOURS[case]
    w = Variable([1.0, 2.0], name="w")
    optimizer = make()
    optimizer.apply_gradients([([1.0, 1.0], w)])
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=[w])
    initial = w.detach().clone()
    w.assign([5.0, 5.0])
    with pytest.raises(NotFoundError, match=message) as raised:
        checkpoint.restore(tmp_path / "run", variables=[w])
    assert "restore(path, optimizer=...)" in str(raised.value)
    assert w.tolist() == [5.0, 5.0]
    loaded = checkpoint.restore(tmp_path / "run", optimizer=make(), variables=[w])
    assert_same([w], [initial])
    assert loaded.optimizer is not optimizer


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: SGD(0.1), "the optimizer is SGD, in the file it is Adam"),
        (lambda: Adam(0.1, amsgrad=True), "amsgrad is True, in the file False"),
        (lambda: Adam(0.1, clipnorm=1.0), "clipnorm is 1.0, in the file None"),
        (lambda: Adam(0.1, epsilon=1e-3), "epsilon is 0.001, in the file 1e-07"),
        (lambda: Adam(SCHEDULES["cosine"]()), "learning_rate is .*CosineDecay.*, in the file 0.1"),
    ],
)
def test_optimizer_with_other_arguments_raises(
    factory: Callable[[], Any], message: str, tmp_path: Path
) -> None:
    w, optimizer = Variable([1.0], name="w"), Adam(0.1)
    optimizer.apply_gradients([([1.0], w)])
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=[w])
    w.assign([7.0])
    target = factory()
    with pytest.raises(CheckpointMismatchError, match=f"{message}.*Nothing was loaded"):
        checkpoint.restore(tmp_path / "run", optimizer=target, variables=[w])
    assert (w.item(), int(target.iterations)) == (7.0, 0)


def test_clipping_options_are_compared(tmp_path: Path) -> None:
    w, opt = Variable([1.0], name="w"), SGD(0.1, clipnorm=1.0)
    opt.apply_gradients([([1.0], w)])
    checkpoint.save(tmp_path / "run", optimizer=opt, variables=[w])
    message = r"clipnorm is 2\.0, in the file 1\.0\. Nothing was loaded\. .*check_arguments=False"
    with pytest.raises(CheckpointMismatchError, match=message):
        checkpoint.restore(tmp_path / "run", optimizer=SGD(0.1, clipnorm=2.0), variables=[w])


def test_user_classes_continue(tmp_path: Path) -> None:
    w, opt = Variable([1.0], name="w"), Mine(0.1, momentum=0.9)
    opt.apply_gradients([([1.0], w)])
    checkpoint.save(tmp_path / "run", optimizer=opt, variables=[w])
    target = Mine(0.1, momentum=0.9)
    checkpoint.restore(tmp_path / "run", optimizer=target, variables=[w])
    assert int(target.iterations) == 1


def test_keras_hypers_are_set_and_tensorflow_1_hypers_compared(tmp_path: Path) -> None:
    w = Variable([1.0], name="w")
    keras, classic = Adam(0.1, beta_1=0.8), train.AdamOptimizer(0.1, beta1=0.8)
    for optimizer in (keras, classic):
        optimizer.apply_gradients([([1.0], w)])
        checkpoint.save(tmp_path / type(optimizer).__name__, optimizer=optimizer, variables=[w])
    target = Adam(0.7)
    checkpoint.restore(tmp_path / "Adam", optimizer=target, variables=[w])
    assert (round(float(target.learning_rate), 6), round(float(target.beta_1), 6)) == (0.1, 0.8)
    v1_opt = train.AdamOptimizer(0.1)
    with pytest.raises(CheckpointMismatchError, match=r"beta1 is 0\.9, in the file 0\.8"):
        checkpoint.restore(tmp_path / "AdamOptimizer", optimizer=v1_opt, variables=[w])
    path = tmp_path / "AdamOptimizer"
    checkpoint.restore(path, optimizer=v1_opt, variables=[w], check_arguments=False)
    assert v1_opt.get_slot(w, "m") is not None


def plain(var: Any, grad: Any, *, learning_rate: Any) -> Any:
    return var - learning_rate * grad


def test_library_rules_are_restored_and_user_rules_requested(tmp_path: Path) -> None:
    w = Variable([1.0, -2.0], name="w")
    optimizer = RuleOptimizer(ADAM, learning_rate=0.1)
    optimizer.apply_gradients([([1.0, 1.0], w)])
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=[w])
    restored_opt = checkpoint.restore(tmp_path / "run", variables=[w]).optimizer
    assert restored_opt.rule is ADAM
    rule = thalweg.Rule(name="Mine", update=plain)
    checkpoint.save(tmp_path / "own", optimizer=RuleOptimizer(rule), variables=[w])
    with pytest.raises(NotFoundError, match="rule of RuleOptimizer was your rule 'Mine'"):
        checkpoint.restore(tmp_path / "own", variables=[w])


def test_nadam_restores_without_warnings(tmp_path: Path) -> None:
    w, optimizer = Variable([1.0], name="w"), Nadam(0.1, schedule_decay=0.01)
    optimizer.apply_gradients([([1.0], w)])
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=[w])
    assert checkpoint.restore(tmp_path / "run", variables=[w]).optimizer.decay == np.float32(0.01)


# OpenSeq2Seq

CONFIG = {
    "optimizer": "Momentum",
    "optimizer_params": {"momentum": 0.9},
    "lr_policy": lr_policies.poly_decay,
    "lr_policy_params": {"learning_rate": 0.1},
    "dtype": "mixed",
    "loss_scaling": "Backoff",
    "max_steps": 10,
    "max_grad_norm": 1.0,
}


def half() -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2).half()
    x = torch.ones(4, 3).half()
    return module, lambda: (module(x).float() - 1).square().mean()


@pytest.mark.parametrize("step_count", [0, 3])
def test_training_step_resumes(step_count: int, tmp_path: Path) -> None:
    def training(config: dict[str, Any] = CONFIG) -> tuple[torch.nn.Module, Any]:
        module, loss = half()
        return module, from_config(config).optimize(loss, module)

    module, step = training()
    for _ in range(step_count):
        step()
    checkpoint.save(tmp_path / "run", optimizer=step, module=module)
    losses = [step() for _ in range(3)]
    target, target_step = training()
    with torch.no_grad():
        for param in target.parameters():
            param.zero_()
    checkpoint.restore(tmp_path / "run", optimizer=target_step, module=target)
    assert_same([target_step() for _ in range(3)], losses)
    assert_same(tensors(target), tensors(module))
    with pytest.raises(NotFoundError, match="loss of openseq2seq:optimize_loss was the function"):
        checkpoint.restore(tmp_path / "run", module=target)
    for change, message in (
        ({"max_grad_norm": 2.0}, "clip_gradients is 2.0, in the file 1.0"),
        ({"loss_scaling": "LogMax"}, "loss_scaling.algorithm is 'logmax', in the file 'backoff'"),
        (
            {"lr_policy_params": {"learning_rate": 0.2}},
            r"learning_rate.arguments.learning_rate is 0\.2, in the file 0\.1",
        ),
        (
            {"optimizer_params": {"momentum": 0.8}},
            r"optimizer_params.momentum is 0\.8, in the file 0\.9",
        ),
    ):
        other_model, wrong = training({**CONFIG, **change})
        initial = [tensor.clone() for tensor in tensors(other_model)]
        with pytest.raises(CheckpointMismatchError, match=message):
            checkpoint.restore(tmp_path / "run", optimizer=wrong, module=other_model)
        assert_same(tensors(other_model), initial)


def test_user_policy_is_reported_by_name(tmp_path: Path) -> None:
    module, loss = half()
    step = optimize_loss(loss, "SGD", {}, lambda s: 0.5, module.parameters())
    checkpoint.save(tmp_path / "run", optimizer=step, module=module)
    checkpoint.restore(tmp_path / "run", optimizer=step, module=module)


# All or nothing


def test_restore_with_mismatched_tensor_changes_nothing(tmp_path: Path) -> None:
    module, optimizer = network(), Adam(0.1)
    stepped(optimizer, module, range(2))
    checkpoint.save(tmp_path / "run", optimizer=optimizer, module=module)
    target = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
    target[0].bias = torch.nn.Parameter(torch.zeros(5))
    fresh, initial = Adam(0.1), [tensor.clone() for tensor in tensors(target)]
    message = r"The variables: '0.bias' is float32 of shape \(4,\), not float32 of shape \(5,\)"
    with pytest.raises(CheckpointMismatchError, match=message):
        checkpoint.restore(tmp_path / "run", optimizer=fresh, module=target)
    assert_same(tensors(target), initial)
    assert (int(fresh.iterations), fresh.get_slot_names()) == (0, [])


def test_restore_with_mismatched_slots_changes_no_variable(tmp_path: Path) -> None:
    module, optimizer = network(), Adam(0.1)
    stepped(optimizer, module, range(2))
    checkpoint.save(tmp_path / "run", optimizer=optimizer, module=module)
    target, busy = network(1), Adam(0.1)
    stranger = Variable([1.0], name="stranger")
    busy.apply_gradients([([1.0], stranger)])
    initial = [tensor.clone() for tensor in tensors(target)]
    with pytest.raises(CheckpointMismatchError, match="'stranger/m' is missing"):
        checkpoint.restore(tmp_path / "run", optimizer=busy, module=target)
    assert_same(tensors(target), initial)
    assert int(busy.iterations) == 1


@pytest.mark.parametrize("by_name", [False, True])
def test_pending_slots_stay_without_variables(by_name: bool, tmp_path: Path) -> None:
    def training() -> tuple[list[Variable], Any]:
        return [Variable([value], name="w") for value in (1.0, 2.0)], Adam(0.1)

    def run(variables: list[Variable], optimizer: Any) -> None:
        optimizer.apply_gradients([([0.5 + i], var) for i, var in enumerate(variables)])

    variables, optimizer = training()
    run(variables, optimizer)
    kwargs = {"variables": dict(zip(("w", "w#1"), variables, strict=True))} if by_name else {}
    checkpoint.save(tmp_path / "run", optimizer=optimizer, **kwargs)
    targets, _ = training()
    for target, source in zip(targets, variables, strict=True):
        target.assign(source)
    restored_opt = checkpoint.restore(tmp_path / "run", variables=False).optimizer
    run(variables, optimizer)
    run(targets, restored_opt)
    assert_same(targets, variables)
    assert list(restored_opt.state_dict()["slots"]) == ["w:0", "w:0#1"]


def test_sparse_slots_and_mixed_dtypes_keep_their_bits(tmp_path: Path) -> None:
    table = Variable(torch.zeros(6, 3, dtype=torch.bfloat16), name="table")
    wide = Variable(torch.ones(2, dtype=torch.float64), name="wide")
    optimizer = Adam(0.1)
    rows = IndexedSlices(torch.ones(2, 3, dtype=torch.bfloat16), torch.tensor([1, 4]), (6, 3))
    pairs = [(rows, table), (torch.ones(2, dtype=torch.float64), wide)]
    optimizer.apply_gradients(pairs)
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=[table, wide])
    copies = [table.detach().clone(), wide.detach().clone()]
    slots = [optimizer.get_slot(var, name) for var in (table, wide) for name in ("m", "v")]
    copies += [slot.detach().clone() for slot in slots]
    optimizer.apply_gradients(pairs)
    checkpoint.restore(tmp_path / "run", optimizer=optimizer, variables=[table, wide])
    assert_same([table, wide, *slots], copies)


class Telling(torch.nn.Linear):
    """Module with a `get_extra_state`, but no `set_extra_state`."""

    def get_extra_state(self) -> Any:
        return 1


class Counting(torch.nn.Linear):
    """A module with a state that is neither parameter nor buffer."""

    def __init__(self, extra: Any) -> None:
        super().__init__(2, 1)
        self.extra = extra

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        if state == "bad":
            raise ValueError("no such state")
        self.extra = state


def counting(*extras: Any) -> torch.nn.Module:
    return torch.nn.Sequential(*map(Counting, extras))


def test_extra_states_of_modules_are_restored(tmp_path: Path) -> None:
    extra = {"calls": 3, "pair": (1, float("inf")), "total": torch.arange(3)}
    checkpoint.save(tmp_path / "run", module=counting(extra, 7))
    target = counting(None, None)
    checkpoint.restore(tmp_path / "run", module=target)
    state = target[0].extra
    assert (state["calls"], state["pair"], target[1].extra) == (3, (1, float("inf")), 7)
    assert torch.equal(state["total"], extra["total"])
    state["total"].add_(1)  # memory of its own
    with pytest.warns(CheckpointWarning, match=r"states of modules, such as '0\._extra_state'"):
        checkpoint.restore(tmp_path / "run", variables=dict(target.named_parameters()))
    loaded = checkpoint.restore(tmp_path / "run", variables=False)
    assert loaded.left[-2:] == ("0._extra_state", "1._extra_state")


def test_extra_states_are_set_with_all_else_or_not_at_all(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "run", module=counting(1, "bad"))
    target, half = counting({"x": 1}, 2), torch.nn.Sequential(Counting(1), torch.nn.Linear(2, 1))
    initial = [param.clone() for param in target.parameters()]
    with pytest.raises(ValueError, match="no such state"):
        checkpoint.restore(tmp_path / "run", module=target)
    with pytest.raises(CheckpointMismatchError, match=r"'1\._extra_state' belongs to nothing here"):
        checkpoint.restore(tmp_path / "run", module=half)
    checkpoint.save(tmp_path / "bare", variables=dict(target.named_parameters()))
    with pytest.raises(CheckpointMismatchError, match=r"'1\._extra_state' is missing"):
        checkpoint.restore(tmp_path / "bare", module=target)
    assert (target[0].extra, target[1].extra) == ({"x": 1}, 2)
    assert_same(list(target.parameters()), initial)


EXTRA = {
    "epoch": 3,
    "loss": float("inf"),
    "names": ["a", "b"],
    "pair": (1, 2.5),
    "none": None,
    "flag": True,
    "tensor": torch.arange(4, dtype=torch.int16),
    "array": np.float64(0.1),
    3: "number",
    "$odd": {"deep": [{"x": torch.tensor(True)}]},
}


def test_extra_values_round_trip(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "run", extra=EXTRA)
    extra = checkpoint.restore(tmp_path / "run").extra
    assert list(extra) == list(EXTRA)
    assert extra["tensor"].dtype == torch.int16
    assert extra["tensor"].tolist() == [0, 1, 2, 3]
    assert (type(extra["pair"]), type(extra["array"])) == (tuple, np.float64)
    assert extra["$odd"]["deep"][0]["x"].item() is True
    plain_keys = [key for key in EXTRA if key not in ("tensor", "$odd")]
    assert {key: extra[key] for key in plain_keys} == {key: EXTRA[key] for key in plain_keys}


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"extra": {"f": print}}, TypeError, "'extra/f' is a builtin_function_or_method, which no"),
        ({"optimizer": torch.optim.SGD}, TypeError, "optimizer must be one of thalweg.keras"),
        ({"module": [1]}, TypeError, "module must be a torch.nn.Module, not list"),
        ({"variables": {"w": 3.0}}, TypeError, "'w' is a float, not a tensor"),
        ({"variables": network()}, TypeError, "not a module: give it as module="),
        (
            {"module": torch.nn.LazyLinear(2)},
            ValueError,
            "'weight' has no shape yet: call its lazy",
        ),
        ({"module": Counting(print)}, TypeError, "'extra_states/_extra_state' is a builtin_func"),
        ({"module": Telling(1, 1)}, TypeError, "'_extra_state': Telling has no set_extra_state"),
        ({"variables": 3}, TypeError, "variables must hold variables, not 3"),
        ({"variables": network().named_parameters()}, TypeError, "variables, not '0.weight'"),
        (
            {"variables": network().parameters()},
            ValueError,
            "4 of .* no name, the first of shape .4, 3",
        ),
        ({"variables": [Variable(1.0)]}, ValueError, r"dict\(model.named_parameters\(\)\)"),
        (
            {"variables": [Variable(1.0, "w"), Variable(2.0, "w")]},
            ValueError,
            "2 of the variables are called 'w': give a dictionary",
        ),
        ({"extra": torch.empty(2, device="meta")}, TypeError, "on the meta device"),
        ({"extra": np.str_("x")}, TypeError, "'extra' is a str_, which no file holds"),
        ({"extra": np.longdouble(1)}, TypeError, "'extra' is a longdouble, which no file"),
        ({"extra": np.array(["x"])}, TypeError, "'extra' is a ndarray, which no file holds"),
    ],
)
def test_unsupported_values_raise(
    kwargs: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        checkpoint.save(tmp_path / "run", **kwargs)
    assert list(tmp_path.iterdir()) == []


def test_file_without_a_training_raises(tmp_path: Path) -> None:
    from thalweg._formats import container

    for kind, message in (
        ("other", "`thalweg inspect` shows what is in it"),
        (3, "`thalweg inspect` shows what is in it"),
        ("tf.train.Saver", "thalweg.v1.train.Saver reads it, in a session"),
        ("tf.train.Checkpoint", "thalweg.v1.train.Checkpoint reads it"),
    ):
        container.write(tmp_path / "run", {}, {"kind": kind})
        with pytest.raises(InvalidConfigError, match=f"not a checkpoint of a training: {message}"):
            checkpoint.restore(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        checkpoint.restore(tmp_path / "none")


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": {"class": "os.system", "arguments": {}}},
        {"optimizer": {"class": "Adam", "arguments": {"learning_rate": {"$schedule": "x"}}}},
        {"optimizer": {"class": "Adam", "arguments": {"command": "rm"}}},
        {"optimizer": {"class": 3, "arguments": {}}},
        {"optimizer": {"class": "Adam", "arguments": []}},
        {"optimizer": {"class": "Adam", "arguments": {"learning_rate": {"$rate": {"function":
            "os.system", "arguments": {}}}}}},
        {"state": {"class_name": {"$unknown": 1}}},
        {"state": [1]},
        {"state": {"$float": "inf"}},
        {"state": {"class_name": "Adam"}},
        {"extra": {"$scalar": ["uint8", -1]}},
        {"extra": {"$scalar": ["int8", 10**30]}},
        {"optimizer": {"class": "Adam", "arguments": {"learning_rate": {"$number": []}}}},
        {"variables": {"w": {"$tensor": "nowhere"}}},
        {"variables": {"w": {"$scalar": ["object", 1]}}},
    ],
)  # fmt: skip
def test_hostile_documents_raise(change: dict[str, Any], tmp_path: Path) -> None:
    from thalweg._formats import container

    w, optimizer = Variable([1.0], name="w"), Adam(0.1)
    optimizer.apply_gradients([([1.0], w)])
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=[w])
    contents = container.read(tmp_path / "run")
    container.write(tmp_path / "bad", contents.tensors, {**contents.document, **change})
    w.assign([3.0])
    with pytest.raises(thalweg.ThalwegError):
        checkpoint.restore(tmp_path / "bad", variables=[w])
    assert w.item() == 3.0


def test_errors_name_the_expected_type_of_a_part(tmp_path: Path) -> None:
    from thalweg._formats import container

    checkpoint.save(tmp_path / "run", variables=[w := Variable([1.0], name="w")])
    contents = container.read(tmp_path / "run")
    document = {**contents.document, "variables": {"$float": "inf"}}
    container.write(tmp_path / "bad", contents.tensors, document)
    with pytest.raises(InvalidConfigError, match="'variables' must be a dict of values by name, n"):
        checkpoint.restore(tmp_path / "bad", variables=[w])


def test_read_only_memory_raises(tmp_path: Path) -> None:
    np.zeros(1024, np.float32).tofile(tmp_path / "numbers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's own, about memory like this
        mapped = torch.from_numpy(np.memmap(tmp_path / "numbers", np.float32, mode="r"))
    w, opt = Variable(torch.ones(1024), name="w"), Adam(0.1)
    opt.apply_gradients([(torch.ones(1024), w)])
    checkpoint.save(tmp_path / "run", optimizer=opt, variables={"w": w})
    fresh = Adam(0.1)
    with pytest.raises(CheckpointMismatchError, match="'w' in place: its memory may only be read"):
        checkpoint.restore(
            tmp_path / "run", optimizer=fresh, variables={"w": mapped.detach().requires_grad_()}
        )
    assert int(fresh.iterations) == 0
    opt.get_slot(w, "m").data = mapped
    state = Adam(0.1).state_dict()
    with pytest.raises(CheckpointMismatchError, match="may only be read"):
        opt.load_state_dict({**opt.state_dict(), "iterations": torch.tensor(9)})
    assert (int(opt.iterations), int(state["iterations"])) == (1, 0)


def test_duplicate_variable_names_raise(tmp_path: Path) -> None:
    x, y = Variable([0.0], name="a"), Variable([0.0], name="b")
    for opt in (Adam(0.1), train.AdamOptimizer(0.1)):
        opt.apply_gradients([([1.0], x), ([100.0], y)])
        title = "b" if isinstance(opt, train.Optimizer) else "b:0"
        with pytest.raises(ValueError, match="Give all variables that the optimizer has slots of"):
            checkpoint.save(tmp_path / "run", optimizer=opt, variables={title: x})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make", [lambda: Adam(0.1), lambda: train.AdamOptimizer(0.1)], ids=["keras", "v1"]
)
def test_unloadable_optimizer_state_raises(make: Callable[..., Any], tmp_path: Path) -> None:
    opt, model, head = make(), network(), Variable([1.0, 2.0], name="head")
    weights = [*thalweg.named_variables(model), head]
    opt.apply_gradients([(torch.ones_like(weight), weight) for weight in weights])
    with pytest.raises(
        ValueError, match=r"slots of variables that are neither .*: \['head(:0)?'\]"
    ):
        checkpoint.save(tmp_path / "run", optimizer=opt, module=model)
    assert list(tmp_path.iterdir()) == []
    checkpoint.save(tmp_path / "run", optimizer=opt, module=model, variables=[head])
    targets = network(), Variable([0.0, 0.0], name="head")
    checkpoint.restore(tmp_path / "run", module=targets[0], variables=[targets[1]])
    checkpoint.save(tmp_path / "alone", optimizer=opt)


def test_copies_of_variables_have_no_optimizer(tmp_path: Path) -> None:
    model, opt = network(), Adam(0.1)
    stepped(opt, model, range(1))
    with pytest.raises(
        ValueError, match=r"'0\.weight' lies where a variable of the optimizer does"
    ):
        checkpoint.save(tmp_path / "run", optimizer=opt, variables=model.state_dict())
    assert list(tmp_path.iterdir()) == []
    checkpoint.save(tmp_path / "run", optimizer=opt, module=model)
    initial = [tensor.clone() for tensor in tensors(model)]
    for kwargs in ({}, {"optimizer": opt}):
        with pytest.raises(ValueError, match=r"slots of '0\.weight', which is no variable but"):
            checkpoint.restore(tmp_path / "run", variables=model.state_dict(), **kwargs)
    assert_same(tensors(model), initial)
    checkpoint.restore(tmp_path / "run", variables=model.state_dict(), optimizer=False)


def test_mismatched_names_error_explains_the_cause(tmp_path: Path) -> None:
    single, parallel = torch.nn.Linear(2, 1), torch.nn.DataParallel(torch.nn.Linear(2, 1))
    checkpoint.save(tmp_path / "one", module=single)
    checkpoint.save(tmp_path / "other", module=parallel)
    names = {name.replace(".", "/"): param for name, param in network().named_parameters()}
    checkpoint.save(tmp_path / "theirs", variables=names)
    with pytest.raises(
        CheckpointMismatchError, match=r"given wraps .* give that inside 'module\.'"
    ):
        checkpoint.restore(tmp_path / "one", module=parallel)
    with pytest.raises(CheckpointMismatchError, match=r"saved wraps one such as this, as 'module"):
        checkpoint.restore(tmp_path / "other", module=single)
    with pytest.raises(CheckpointMismatchError, match=r"TensorFlow's: convert .* with rules"):
        checkpoint.restore(tmp_path / "theirs", module=single)


def test_slots_without_variables_raise_with_advice(tmp_path: Path) -> None:
    w, opt = Variable([1.0], name="w"), train.AdamOptimizer(0.1)
    opt.apply_gradients([(torch.ones(1), w)])
    checkpoint.save(tmp_path / "run", optimizer=opt, variables=[w])
    with pytest.raises(thalweg.FailedPreconditionError, match=r"slots such as 'w/m' .* module="):
        checkpoint.restore(tmp_path / "run")
    assert checkpoint.restore(tmp_path / "run", optimizer=opt, variables=False).optimizer is opt


def test_module_state_dict_hooks_do_not_affect_restore(tmp_path: Path) -> None:
    module = network()

    def copies(_: Any, state: dict[str, Any], *__: Any) -> None:
        state.update({name: tensor.clone() for name, tensor in state.items()})

    module._register_state_dict_hook(copies)
    initial = [tensor.clone() for tensor in tensors(module)]
    checkpoint.save(tmp_path / "run", module=module)
    with torch.no_grad():
        for param in module.parameters():
            param.zero_()
    checkpoint.restore(tmp_path / "run", module=module)
    assert_same(tensors(module), initial)


def test_training_in_progress_callback_does_not_affect_save(tmp_path: Path) -> None:
    w, opt = Variable(torch.zeros(600_000), name="w"), SGD(1.0)

    def progress(*_: int) -> None:
        opt.apply_gradients([(torch.ones(600_000), w)])

    checkpoint.save(tmp_path / "run", optimizer=opt, variables=[w], progress=progress)
    checkpoint.restore(tmp_path / "run", optimizer=opt, variables=[w])
    assert (int(opt.iterations), bool(w.any())) == (0, False)


# Saving beside the training


def test_asynchronous_saves_write_values_of_the_call(tmp_path: Path) -> None:
    w, optimizer = Variable(torch.zeros(100_000), name="w"), SGD(1.0)
    saving = checkpoint.save_async(tmp_path / "run", optimizer=optimizer, variables=[w])
    for _ in range(20):
        optimizer.apply_gradients([(torch.ones(100_000), w)])
    saving.wait()
    assert saving.done()
    checkpoint.restore(tmp_path / "run", optimizer=optimizer, variables=[w])
    assert not w.any()
    assert int(optimizer.iterations) == 0


def test_a_save_that_fails_beside_the_training_is_raised_by_wait(tmp_path: Path) -> None:
    saving = checkpoint.save_async(tmp_path / "none" / "run", extra=1)
    with pytest.raises(OSError, match="none"):
        saving.wait()


def test_the_later_of_two_saves_to_one_path_stays(tmp_path: Path) -> None:
    for number in range(5):
        saving = checkpoint.save_async(
            tmp_path / "run", extra=number, variables={"w": torch.ones(200_000 // (number + 1))}
        )
    saving.wait()
    assert checkpoint.restore(tmp_path / "run", variables=False).extra == 4


def test_unawaited_save_failure_is_raised_by_the_next_save(tmp_path: Path) -> None:
    path = tmp_path / "none" / "run"
    checkpoint.save_async(path, extra=1)
    with pytest.raises(OSError, match="none"):
        checkpoint.save_async(path, extra=2)
    path.parent.mkdir()
    checkpoint.save_async(path, extra=3).wait()
    assert checkpoint.restore(path).extra == 3


def test_finished_saves_are_forgotten(tmp_path: Path) -> None:
    for number in range(3):
        saving = checkpoint.save_async(tmp_path / str(number), extra=number)
        saving.wait()
    former = weakref.ref(saving)
    saving = checkpoint.save_async(tmp_path / "last", extra=3)
    saving.wait()
    gc.collect()
    assert former() is None


def test_unreported_save_failures_warn_at_exit(tmp_path: Path) -> None:
    lines = """
        import sys
        from thalweg import checkpoint
        checkpoint.save_async(sys.argv[1] + "/none/run", extra=1)
        checkpoint.save_async(sys.argv[1] + "/neither/run", extra=1)
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(lines), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT,
    )
    assert all(f"{name}/run was not saved" in process.stderr for name in ("none", "neither"))


def test_asynchronous_save_copies_one_step_only(tmp_path: Path, threads_change_often: None) -> None:
    w, optimizer = Variable(torch.zeros(3), name="w"), SGD(1.0, momentum=0.5)
    stop = threading.Event()

    def training() -> None:
        while not stop.is_set():
            optimizer.apply_gradients([(torch.ones(3), w)])

    thread = threading.Thread(target=training)
    thread.start()
    try:
        for _ in range(10):
            checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=[w])
            copy, target_opt = Variable(torch.zeros(3), name="w"), SGD(1.0, momentum=0.5)
            checkpoint.restore(tmp_path / "run", optimizer=target_opt, variables=[copy])
            check, expected = SGD(1.0, momentum=0.5), Variable(torch.zeros(3), name="w")
            for _ in range(min(int(target_opt.iterations), 200)):
                check.apply_gradients([(torch.ones(3), expected)])
            if int(target_opt.iterations) <= 200:
                assert_same([copy], [expected])
    finally:
        stop.set()
        thread.join()


def test_names_of_one_tensor_are_given_one_value(tmp_path: Path) -> None:
    first, second = thalweg.Variable([1.0], "one"), thalweg.Variable([2.0], "other")
    checkpoint.save(tmp_path / "run", variables={"a": first, "b": second})
    target = thalweg.Variable([0.0], "tied")
    with pytest.raises(CheckpointMismatchError, match="'a' and 'b' share memory here"):
        checkpoint.restore(tmp_path / "run", variables={"a": target, "b": target})
    assert target.item() == 0
    second.assign([1.0])
    checkpoint.save(tmp_path / "run", variables={"a": first, "b": second})
    checkpoint.restore(tmp_path / "run", variables={"a": target, "b": target})
    assert target.item() == 1


def test_children_that_are_one_tensor_are_given_one_value(tmp_path: Path) -> None:
    first, second = thalweg.Variable([1.0]), thalweg.Variable([2.0])
    path = train.Checkpoint(a=first, b=second).save(str(tmp_path / "run"))
    target = thalweg.Variable([0.0])
    with pytest.raises(CheckpointMismatchError, match="share memory here"):
        train.Checkpoint(a=target, b=target).restore(path)
    assert target.item() == 0


def test_children_that_are_one_variable_of_a_graph_are_given_one_value(tmp_path: Path) -> None:
    first, second = thalweg.Variable([1.0]), thalweg.Variable([2.0])
    path = train.Checkpoint(a=first, b=second).save(str(tmp_path / "run"))
    with _graph.Graph().as_default():
        target = _graph.Variable([0.0])
        with pytest.raises(CheckpointMismatchError, match="are one variable here, and are given"):
            train.Checkpoint(a=target, b=target).restore(path)


def test_running_save_stays_in_the_parent_after_fork(tmp_path: Path) -> None:
    path, resume = tmp_path / "run", threading.Event()
    saving = checkpoint.save_async(path, extra=1, progress=lambda *_: resume.wait(TIMEOUT) or None)

    def child() -> list[str]:
        refusals: list[str] = []
        for ask in (saving.done, saving.wait):
            try:
                ask()
            except thalweg.errors.FailedPreconditionError as error:
                refusals.append(str(error))
        checkpoint.save_async(tmp_path / "other", extra=3).wait()
        checkpoint.save_async(path, extra=2).wait()  # its own
        return refusals

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads at a fork
        refusals = run_in_child(child)
    assert len(refusals) == 2
    assert "only that one knows whether it is there" in refusals[0]
    assert checkpoint.restore(path).extra == 2
    resume.set()
    saving.wait()
    assert checkpoint.restore(path).extra == 1


def test_finished_save_is_known_after_fork(tmp_path: Path) -> None:
    saving = checkpoint.save_async(tmp_path / "run", extra=1)
    saving.wait()
    assert run_in_child(saving.done)


@pytest.mark.parametrize(
    ("make", "has_vars"),
    [
        (lambda: Adam(0.1), True),
        (lambda: Adam(0.1), False),
        (lambda: train.AdamOptimizer(0.1), True),
    ],
    ids=["keras", "waiting", "v1"],
)
def test_restored_values_are_in_memory(
    make: Callable[..., Any], has_vars: bool, tmp_path: Path
) -> None:
    """Overwrite the file as soon as `restore` has returned."""
    w, opt, path = Variable([1.0, 2.0], "w"), make(), tmp_path / "run"
    target, fresh = Variable([0.0, 0.0], "w"), make()
    opt.apply_gradients([([1.0, 2.0], w)])
    extra = {"order": torch.arange(9)}
    checkpoint.save(path, optimizer=opt, variables=[w] if has_vars else None, extra=extra)
    loaded = checkpoint.restore(path, optimizer=fresh, variables=[target] if has_vars else None)
    with path.open("r+b") as file:
        file.write(b"x" * path.stat().st_size)
    assert loaded.extra["order"].tolist() == list(range(9))
    target.assign(w)
    opt.apply_gradients([([3.0, 4.0], w)])
    fresh.apply_gradients([([3.0, 4.0], target)])
    assert_same(w, target)


def test_model_without_optimizer_round_trips(tmp_path: Path) -> None:
    model, opt = network(), SGD(lambda: 0.1, momentum=0.9)
    weights = thalweg.named_variables(model)
    opt.apply_gradients([(torch.ones_like(weight), weight) for weight in weights])
    checkpoint.save(tmp_path / "run", optimizer=opt, module=model)
    target = network(1)
    with pytest.raises(NotFoundError, match="learning_rate of SGD was the function"):
        checkpoint.restore(tmp_path / "run", module=target)
    loaded = checkpoint.restore(tmp_path / "run", module=target, optimizer=False)
    assert (loaded.optimizer, loaded.left) == (None, ("optimizer",))
    for old, new in zip(model.state_dict().values(), target.state_dict().values(), strict=True):
        assert torch.equal(old, new)
    checkpoint.save(tmp_path / "model", module=model)
    assert checkpoint.restore(tmp_path / "model", module=target, optimizer=False).left == ()


def test_unrestored_variables_are_reported(tmp_path: Path) -> None:
    w, opt = Variable([1.0], "w"), Adam(0.1)
    opt.apply_gradients([([1.0], w)])
    checkpoint.save(tmp_path / "run", optimizer=opt, variables=[w])
    with pytest.warns(thalweg.errors.CheckpointWarning, match="variables, such as 'w', and none"):
        loaded = checkpoint.restore(tmp_path / "run")
    assert loaded.left == ("w",)
    assert checkpoint.restore(tmp_path / "run", variables=False).left == ("w",)
    assert checkpoint.restore(tmp_path / "run", variables=[w]).left == ()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"variables": {"v": torch.ones(2)}}, "'v' is missing"),
        ({"variables": {"w": torch.ones(3)}}, "'w'"),
        ({"variables": {"w": torch.ones(2)}, "optimizer": SGD(0.5)}, "the optimizer is SGD"),
        ({"variables": {"w": torch.ones(2)}, "optimizer": Adam(0.5, epsilon=1e-3)}, "epsilon"),
    ],
)
def test_mismatches_name_the_file(kwargs: dict[str, Any], message: str, tmp_path: Path) -> None:
    w, opt = Variable([1.0, 2.0], name="w"), Adam(0.5)
    opt.apply_gradients([([1.0, 1.0], w)])
    checkpoint.save(tmp_path / "run", optimizer=opt, variables=[w])
    with pytest.raises(CheckpointMismatchError) as error:
        checkpoint.restore(tmp_path / "run", **kwargs)
    assert str(error.value).startswith(f"{tmp_path / 'run'}: ")
    assert message in str(error.value)


def test_a_file_without_an_optimizer_is_named(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "run", variables={"w": torch.ones(2)})
    with pytest.raises(CheckpointMismatchError, match="run: there is no optimizer"):
        checkpoint.restore(tmp_path / "run", optimizer=SGD(0.5), variables=False)


@pytest.mark.parametrize("optimizer", [None, train.AdamOptimizer(0.1)])
def test_optimizers_of_tensorflow_1_need_their_variables(optimizer: Any, tmp_path: Path) -> None:
    w, opt = Variable([1.0, 2.0], name="w"), train.AdamOptimizer(0.1)
    opt.apply_gradients([([1.0, 1.0], w)])
    checkpoint.save(tmp_path / "run", optimizer=opt, variables=[w])
    with pytest.raises(FailedPreconditionError, match=r"run: .*give restore\(\.\.\., module="):
        checkpoint.restore(tmp_path / "run", optimizer=optimizer, variables=False)


def test_object_readers_name_the_training_reader(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "run", variables={"w": torch.ones(2)})
    with pytest.raises(ThalwegError, match=r"nothing of objects: thalweg\.checkpoint\.restore"):
        train.Checkpoint(w=Variable(0.0)).restore(tmp_path / "run")


def test_tensor_that_is_not_a_variable_raises_with_its_name(tmp_path: Path) -> None:
    saver = Path(__file__).parents[1] / "goldens/checkpoints/ckpt_v1/adam/model.ckpt-5"
    with pytest.raises(TypeError, match="'w' is a tensor and no variable"):
        tensorflow.restore(saver, {"w": torch.zeros(2)}, learning_rate=0.1)
