"""Optimizers of TensorFlow's faces tell of their steps: beside NumPy, and without a trace."""

from __future__ import annotations

import copy
import itertools
import json
import math
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import thalweg
from case_batches import many
from sessions import initialized
from thalweg import IndexedSlices, Variable, _graph, diagnostics, keras, optim, v1
from thalweg._core.replay_apply import ReplayedApply
from thalweg._engines.diagnostic_sums import sums_of_products
from thalweg._engines.reduction_order import combine_leaves
from thalweg.diagnostics import COLUMNS, JsonLines, Table, attach, detach, to
from thalweg.diagnostics.jsonl_reader import JsonLinesReader
from thalweg.diagnostics.step_watch import StepWatch
from thalweg.errors import FailedPreconditionError, InvalidTypeError, NumericsWarning
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.v1.contrib.opt import MovingAverageOptimizer, VariableClippingOptimizer

SHAPES = ((70, 1030), (33, 7), (5,))  # the first has two leaves
STARTS = [np.random.default_rng(k).normal(size=s).astype("f") for k, s in enumerate(SHAPES)]


def gradients(step: int) -> list[np.ndarray]:
    grads = [np.random.default_rng([step, k]).normal(size=s) for k, s in enumerate(SHAPES)]
    for grad in grads:
        grad.reshape(-1)[0] = 0
    return [grad.astype("f") for grad in grads]


class Training(NamedTuple):
    """Steps of an optimizer, which `attach` is given as `handle`.

    Attributes:
        handle: The optimizer, or what takes its steps.
        step: Takes the step of a number.
        values: Gives the variables.
        momenta: Gives the slots of this name, of all variables.
    """

    handle: Any
    step: Callable[[int], object]
    values: Callable[[], list[np.ndarray]]
    momenta: Callable[[str], list[np.ndarray]]


def eager(optimizer: Any) -> Training:
    weights = [Variable(start, name=f"w{k}") for k, start in enumerate(STARTS)]

    def step(number: int) -> None:
        optimizer.apply_gradients(
            list(zip(map(torch.tensor, gradients(number)), weights, strict=True))
        )

    return Training(
        optimizer,
        step,
        lambda: [variable.numpy() for variable in weights],
        lambda name: [optimizer.get_slot(variable, name).numpy() for variable in weights],
    )


def in_session(make: Callable[..., Any], wraps: bool = False) -> Training:
    """With `wraps`, the optimizer is made by `optimize_loss`, which `make` is the rate of."""
    with _graph.Graph().as_default():
        placeholders = [_graph.placeholder(torch.float32, shape) for shape in SHAPES]
        weights = [
            _graph.Variable(torch.tensor(start), name=f"w{k}") for k, start in enumerate(STARTS)
        ]
        loss = sum((x * w).sum() for x, w in zip(placeholders, weights, strict=True))
        if wraps:
            op = optimize_loss(loss, "Momentum", {"momentum": 0.9}, make, summaries=[])
            optimizer, handle = op.op.optimizer, op
        elif isinstance(made_optimizer := make(), keras.optimizers.Optimizer):
            optimizer = handle = made_optimizer
            op = made_optimizer.get_updates(loss, weights)
        else:
            optimizer = handle = made_optimizer
            op = made_optimizer.minimize(loss)
        session = initialized()
    return Training(
        handle,
        lambda number: session.run(op, dict(zip(placeholders, gradients(number), strict=True))),
        lambda: session.run(weights),
        lambda name: session.run([optimizer.get_slot(variable, name) for variable in weights]),
    )


def by_config() -> Training:
    weights = [Variable(start, name=f"w{k}") for k, start in enumerate(STARTS)]
    current = [0]

    def loss() -> Any:
        return sum(
            (torch.tensor(g) * w).sum() for g, w in zip(gradients(current[0]), weights, strict=True)
        )

    run = optimize_loss(loss, "Momentum", {"momentum": 0.9}, lambda _: 0.01, weights)

    def step(number: int) -> None:
        current[0] = number
        run()

    return Training(
        run,
        step,
        lambda: [variable.numpy() for variable in weights],
        lambda name: [run.optimizer.get_slot(variable, name).numpy() for variable in weights],
    )


# How, the slot of the momentum and its sign.
CASES: dict[str, tuple[Callable[[], Training], str, int]] = {
    "keras": (lambda: eager(keras.optimizers.Adam(0.01)), "m", 1),
    "keras velocity": (lambda: eager(keras.optimizers.SGD(0.01, momentum=0.9)), "momentum", -1),
    "keras none": (lambda: eager(keras.optimizers.Ftrl(0.01)), "", 1),
    "v1": (lambda: eager(v1.train.AdamOptimizer(0.01)), "m", 1),
    "v1 momentum": (lambda: eager(v1.train.MomentumOptimizer(0.01, 0.9)), "momentum", 1),
    "v1 none": (lambda: eager(v1.train.GradientDescentOptimizer(0.01)), "", 1),
    "session": (lambda: in_session(lambda: v1.train.AdamOptimizer(0.01)), "m", 1),
    "keras session": (lambda: in_session(lambda: keras.optimizers.Adam(0.01)), "m", 1),
    "config": (by_config, "momentum", 1),
    "config session": (lambda: in_session(lambda _: 0.01, wraps=True), "momentum", 1),
}


def total(first: np.ndarray, second: np.ndarray) -> float:
    arrays = {"a": first.reshape(-1), "b": second.reshape(-1)}
    leaves = sums_of_products(arrays, {"both": ("a", "b")})["both"]
    return float(combine_leaves(leaves, np.array([len(leaves)]))[0])


def recomputed(old: Any, new: Any, grad: Any, momentum: Any) -> dict[str, float]:
    move = new - old
    norms = [math.sqrt(total(array, array)) for array in (grad, move, new)]
    row = {
        "gradient_norm": norms[0],
        "gradient_max": abs(grad).max(),
        "update_norm": norms[1],
        "update_max": abs(move).max(),
        "weight_norm": norms[2],
        "weight_max": abs(new).max(),
        "ratio": norms[1] / norms[2],
        "cosine": math.nan,
        "agreement": math.nan,
        "unchanged": ((new == old) & (grad != 0)).mean(),
        "zero": (grad == 0).mean(),
        "denormal": 0.0,
        "nonfinite": 0.0,
        "clip": 1.0,
    }
    if momentum is not None:
        length = math.sqrt(total(momentum, momentum))
        row["cosine"] = total(grad, momentum) / norms[0] / length
        row["agreement"] = (grad.astype("d") * momentum > 0).mean()
    return row


@many("case", CASES)
def test_recorded_values_equal_the_step(case: str) -> None:
    build, slot, sign = CASES[case]
    training = build()
    recorder = attach(training.handle, every=2)
    assert recorder.table is None
    for step in range(1, 5):
        old = training.values()
        momenta = training.momenta(slot) if slot and step > 1 else None
        training.step(step)
        if step % 2:
            continue
        assert isinstance(recorder.table, Table)
        assert (recorder.table.step, list(recorder.table)) == (step, ["w0:0", "w1:0", "w2:0"])
        for k, name in enumerate(recorder.table):
            row, grad = recorder.table[name], gradients(step)[k]
            momentum = None if momenta is None else sign * momenta[k]
            expected = recomputed(old[k], training.values()[k], grad, momentum)
            for column in COLUMNS:
                assert getattr(row, column) == pytest.approx(
                    expected[column], rel=1e-15, nan_ok=True
                ), (name, column)


@many(
    "name,options",
    [("Adam", {}), ("SGD", {"momentum": 0.9}), ("RMSprop", {"global_clipnorm": 9.0})],
)
def test_recorded_values_equal_optim_diagnostics(name: str, options: dict[str, Any]) -> None:
    training = eager(getattr(keras.optimizers, name)(0.01, **options))
    recorder = attach(training.handle)
    params = [(f"w{k}:0", torch.nn.Parameter(torch.tensor(x))) for k, x in enumerate(STARTS)]
    options = {"clip_grad_norm" if k == "global_clipnorm" else k: v for k, v in options.items()}
    twin = getattr(optim.tensorflow, name)(params, 0.01, diagnostics=1, **options)
    for step in range(1, 4):
        for (_, param), grad in zip(params, gradients(step), strict=True):
            param.grad = torch.tensor(grad)
        twin.step()
        training.step(step)
        own_table, two = recorder.table, twin.diagnostics
        assert (own_table.step, list(own_table)) == (two.step, list(two))
        for column in COLUMNS:
            np.testing.assert_array_equal(own_table.records[column], two.records[column], column)
        if "clip_grad_norm" in options:
            assert own_table["w0:0"].clip < 1


@many("case", CASES)
def test_unrecorded_steps_are_unchanged(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, original = [0], ReplayedApply.take

    def take(*args: Any) -> bool:
        is_repeated = original(*args)
        calls[0] += is_repeated
        return is_repeated

    monkeypatch.setattr(ReplayedApply, "take", take)
    quick: list[list[bool]] = []
    ends: list[list[np.ndarray]] = []
    for has_recorder in (False, True):
        training = CASES[case][0]()
        if has_recorder:
            attach(training.handle, every=5)
        quick.append([])
        for step in range(1, 13):
            count_before = calls[0]
            training.step(step)
            quick[-1].append(calls[0] > count_before)
        ends.append(training.values())
    for first, second in zip(*ends, strict=True):
        np.testing.assert_array_equal(first, second)
    monkeypatch.undo()
    assert quick[0][4:] == [case != "keras session"] * 8
    assert quick[1] == [
        is_replayed and step % 5 != 0 for step, is_replayed in enumerate(quick[0], 1)
    ]


def of(optimizer: Any, count: int = 1) -> tuple[Any, list[Variable]]:
    return optimizer, [Variable([1.0, 2.0], name=f"w{k}") for k in range(count)]


def test_detach_stops_recording() -> None:
    optimizer, (w,) = of(keras.optimizers.Adam())
    steps: list[int] = []
    recorder = attach(optimizer, sinks=[lambda table: steps.append(table.step)])
    assert to(optimizer) is recorder
    optimizer.apply_gradients([([1.0, 1.0], w)])
    detach(optimizer)
    assert recorder.table.step == 1
    assert "_recorder" not in vars(optimizer)
    for _ in range(4):
        optimizer.apply_gradients([([1.0, 1.0], w)])
    assert steps == [1]
    for call in (lambda: detach(optimizer), lambda: to(optimizer)):
        with pytest.raises(FailedPreconditionError, match="Adam is not measured"):
            call()
    with pytest.raises(FailedPreconditionError, match="of no optimizer yet"):
        recorder.log_loss(1.0)
    second_recorder = attach(optimizer, 2)
    optimizer.apply_gradients([([1.0, 1.0], w)])
    assert second_recorder.table.step == 6  # as `iterations` has it


@many("make", [keras.optimizers.Adam, v1.train.AdamOptimizer])
def test_attach_again_changes_the_interval(make: Callable[..., Any]) -> None:
    optimizer, (w,) = of(make())
    for interval in (100, 1, 100, 1):
        recorder, steps = attach(optimizer, interval), []
        to(optimizer, lambda table, steps=steps: steps.append(table.step))
        for _ in range(4):
            optimizer.apply_gradients([(torch.ones(2), w)])
        assert len(steps) == (4 if interval == 1 else 0)
        detach(optimizer)
        assert (recorder.table is None) == (interval == 100)


class Own(keras.optimizers.Optimizer):
    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
        var.sub_(grad)


class Changed(keras.optimizers.Adam):
    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        return super()._resource_apply_dense(grad, var, apply_state)


class OwnV1(v1.train.Optimizer):
    def __init__(self) -> None:
        super().__init__(False, "Own")


class ChangedV1(v1.train.AdamOptimizer):
    def _apply_dense(self, grad: Any, var: Any) -> Any:
        return super()._apply_dense(grad, var)


@many("make", [lambda: Own("own"), Changed, OwnV1, ChangedV1])
def test_overridden_steps_raise_on_attach(make: Callable[..., Any]) -> None:
    optimizer = make()
    with pytest.raises(NotImplementedError, match=f"of {type(optimizer).__name__} are not defined"):
        attach(optimizer)
    assert "_recorder" not in vars(optimizer)


def test_bad_arguments_raise() -> None:
    optimizer = keras.optimizers.Adam()
    for bad, error in ((0, ValueError), (True, TypeError), ("2", TypeError)):
        with pytest.raises(error, match="every must be"):
            attach(optimizer, bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="a sink is"):
        attach(optimizer, sinks=[3])  # type: ignore[list-item]
    assert "_recorder" not in vars(optimizer)
    attach(optimizer)
    with pytest.raises(FailedPreconditionError, match="Adam is measured already"):
        attach(optimizer)
    with pytest.raises(InvalidTypeError, match="must be one of thalweg"):
        attach(object())
    torch_like = optim.SGD([torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(InvalidTypeError, match="if you make it with diagnostics=10"):
        attach(torch_like)
    with pytest.raises(FailedPreconditionError, match="SGD is not measured: make it"):
        to(torch_like)


class Begun(v1.train.AdamOptimizer):
    def _prepare(self) -> None:
        super()._prepare()


class Decayed(keras.optimizers.SGD):
    def _decayed_lr(self, var_dtype: Any) -> Any:
        return super()._decayed_lr(var_dtype)


@many("make", [lambda: Begun(0.1), lambda: Decayed(0.1, momentum=0.5)])
@many("is_first", [False, True])
def test_attaching_to_recorded_hooks_raises(make: Callable[..., Any], is_first: bool) -> None:
    with _graph.Graph().as_default():
        w, optimizer = _graph.Variable(torch.ones(2), name="w"), make()
        if is_first:
            attach(optimizer)
        else:
            optimizer.apply_gradients([(torch.ones(2), w)])
        with pytest.raises(NotImplementedError, match="are not defined in a graph"):
            optimizer.apply_gradients([(torch.ones(2), w)]) if is_first else attach(optimizer)
    eager, (w,) = of(make())
    recorder = attach(eager)
    eager.apply_gradients([([1.0, 1.0], w)])
    assert recorder.table.step == 1


def test_complex_variables_have_no_table() -> None:
    w = Variable(torch.ones(2, dtype=torch.complex64), name="w")
    optimizer = keras.optimizers.Adam()
    recorder = attach(optimizer)
    with pytest.warns(NumericsWarning, match="no table of step 1: its variables were updated one"):
        optimizer.apply_gradients([(torch.ones(2, dtype=torch.complex64), w)])
    assert recorder.table is None
    assert int(optimizer.iterations) == 1


@many("make", [keras.optimizers.Adam, v1.train.AdamOptimizer])
def test_recorded_variables_may_change(make: Callable[..., Any]) -> None:
    optimizer, (a, b) = of(make(), 2)
    recorder = attach(optimizer)
    optimizer.apply_gradients([([1.0, 1.0], b)])
    optimizer.apply_gradients([([3.0, 4.0], a)])
    assert list(recorder.table) == ["w1:0", "w0:0"]
    assert recorder.table["w0:0"].gradient_norm == 5
    assert math.isnan(recorder.table["w1:0"].weight_norm)
    namesake = Variable([1.0, 2.0], name="w0")
    optimizer.apply_gradients([([3.0, 4.0], a), ([6.0, 8.0], namesake)])
    assert recorder.table["w0:0 (index 1)"].gradient_norm == 10
    torch.utils.swap_tensors(b, torch.nn.Parameter(torch.ones(2)))  # which minds weak references


@many("make", [keras.optimizers.Adam, v1.train.AdamOptimizer])
def test_repeated_rows_and_pairs_are_recorded(make: Callable[..., Any]) -> None:
    optimizer, (w,) = of(make())
    recorder = attach(optimizer)
    optimizer.apply_gradients([(IndexedSlices(torch.ones(1), torch.tensor([1])), w)])
    row = recorder.table["w0:0"]
    assert math.isnan(row.gradient_norm)
    assert 0 < row.update_norm < 0.01
    old = w.numpy()
    optimizer.apply_gradients([([3.0, 4.0], w), ([6.0, 8.0], w)])
    assert recorder.table["w0:0"].update_max == pytest.approx(abs(w.numpy() - old).max(), rel=1e-6)


def test_skipped_steps_are_not_recorded() -> None:
    optimizer, (w,) = of(keras.optimizers.Adam())
    recorder = attach(optimizer)
    with pytest.raises(ValueError, match="shape"):
        optimizer.apply_gradients([([1.0, 1.0, 1.0], w)])
    assert recorder.table is None
    inner, (w,) = of(v1.train.AdamOptimizer())
    mixed = v1.train.experimental.MixedPrecisionLossScaleOptimizer(inner, "dynamic")
    recorder = attach(mixed)
    for value in (math.inf, 1.0):
        mixed.apply_gradients([([value, 1.0], w)])
    assert (recorder.table.step, recorder.table["w0:0"].nonfinite) == (1, 0)


@many("cls", [lambda inner: MovingAverageOptimizer(inner, 0.5), lambda inner: inner])
def test_wrappers_and_gated_steps_are_recorded(cls: Callable[[Any], Any]) -> None:
    inner, (a, b) = of(v1.train.MomentumOptimizer(0.1, 0.9), 2)
    optimizer = cls(inner)
    recorder = attach(optimizer)
    for _ in range(2):
        optimizer.minimize(lambda: (a * b).sum(), var_list=[a, b], gate_gradients=0)
    assert recorder.table.step == 2
    assert list(recorder.table) == ["w0:0", "w1:0"]
    assert to(inner) is recorder
    detach(optimizer)
    assert inner._recorder is None


def test_masters_and_accumulated_gradients_are_recorded() -> None:
    h = Variable(torch.ones(2, dtype=torch.float16), name="h")
    step = optimize_loss(
        lambda: (h.float() * 3).sum(), "Momentum", {"momentum": 0.9}, lambda _: 2.0**-13, [h],
        dtype="mixed", loss_scaling=8.0, iter_size=2, skip_update_ph=lambda: next(skips),
        clip_gradients=1.0,
    )  # fmt: skip
    recorder, skips = attach(step), itertools.cycle((True, False))
    for run in range(4):
        step()
        assert (recorder.table is None) == (run == 0)
    row = recorder.table["h:0"]
    assert (recorder.table.step, row.unchanged) == (2, 0)
    assert row.gradient_norm == pytest.approx(3 * math.sqrt(2), rel=1e-6)
    assert row.clip == pytest.approx(1 / row.gradient_norm, rel=1e-6)
    assert row.update_max == pytest.approx(2.0**-13 * 1.9 / math.sqrt(2), rel=1e-3)


@many("make", [keras.optimizers.Adam, v1.train.AdamOptimizer])
def test_copies_have_no_recorder_and_states_are_unchanged(make: Callable[..., Any]) -> None:
    optimizer, (w,) = of(make())
    recorder = attach(optimizer)
    optimizer.apply_gradients([([1.0, 1.0], w)])
    for copied in (
        copy.copy(optimizer),
        copy.deepcopy(optimizer),
        pickle.loads(pickle.dumps(optimizer)),
    ):
        assert copied._recorder is None
        assert attach(copied) is not recorder
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    optimizer.apply_gradients([([1.0, 1.0], w)])
    assert recorder.table.step == 2


def test_sessions_share_a_table() -> None:
    with _graph.Graph().as_default():
        w = _graph.Variable(torch.ones(2), name="w")
        optimizer = v1.train.AdamOptimizer()
        op = optimizer.apply_gradients([(torch.ones(2), w)])
        sessions = [initialized(), initialized()]
    recorder = attach(optimizer)
    for session in sessions:
        session.run(op)
    assert (list(recorder.table), recorder.table.step) == (["w:0"], 2)


def test_sync_replicas_workers_share_a_table() -> None:
    with v1.Graph().as_default():
        w, grad = v1.Variable([1.0, 2.0], name="w"), v1.placeholder("float32", [2])
        sync = v1.train.SyncReplicasOptimizer(v1.train.GradientDescentOptimizer(0.5), 2)
        op = sync.apply_gradients([(grad, w)], v1.train.get_or_create_global_step())
        recorder = attach(sync)
        hook = sync.make_session_run_hook(is_chief=True, num_tokens=0)
        hook.begin()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            hook.after_create_session(session, None)
            with ThreadPoolExecutor(2) as pool:
                feeds = {grad: [1.0, 8.0]}, {grad: [5.0, 0.0]}
                list(pool.map(partial(session.run, op), feeds))
    row = recorder.table["w:0"]
    assert (row.step, row.gradient_norm, row.update_max) == (1, 5, 2)


def test_changes_after_the_update_are_not_recorded() -> None:
    inner, (w,) = of(v1.train.GradientDescentOptimizer(1.0))
    recorder = attach(VariableClippingOptimizer(inner, {w: [0]}, 1.0))
    VariableClippingOptimizer(inner, {w: [0]}, 1.0).apply_gradients([([-2.0, -2.0], w)])
    assert recorder.table["w0:0"].weight_norm == 5
    u = Variable([1.0, 2.0], name="u", constraint=torch.zeros_like)
    optimizer = keras.optimizers.SGD(1.0)
    recorder = attach(optimizer)
    optimizer.apply_gradients([([-2.0, -2.0], u)])
    assert (recorder.table["u:0"].weight_norm, u.tolist()) == (5, [0, 0])


@many("options", [{"clipnorm": 1.0}, {"global_clipnorm": 1.0}, {"clipvalue": 3.5}])
def test_clipping_is_recorded(options: dict[str, float]) -> None:
    optimizer, (w,) = of(keras.optimizers.SGD(1.0, **options))
    recorder = attach(optimizer)
    optimizer.apply_gradients([([3.0, 4.0], w)])
    row = recorder.table["w0:0"]
    assert row.gradient_max == options.get("clipvalue", 4)
    assert row.clip == pytest.approx(0.2 if "global_clipnorm" in options else 1, rel=1e-6)

    def twice(pairs: Any) -> Any:
        return [(2 * grad, var) for grad, var in pairs]

    clipped = keras.optimizers.SGD(gradient_transformers=[twice], gradient_aggregator=twice)
    recorder = attach(clipped)
    clipped.apply_gradients([([3.0, 4.0], w)])
    assert recorder.table["w0:0"].gradient_norm == 20


def test_losses_are_written_to_files(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    optimizer, (w,) = of(keras.optimizers.SGD(0.1))
    recorder = attach(optimizer, 2, [JsonLines(path)])
    for step in range(1, 5):
        if step == 2:
            recorder.log_loss(20.0)
        optimizer.minimize(lambda: (w * w).sum(), [w])
        if step != 2:
            recorder.log_loss(10.0 * step, after=True)
    recorder.close()
    lines = map(json.loads, path.read_text().splitlines())
    assert [line["names"] for line in lines if "names" in line] == [[], ["w0:0"]]
    with JsonLinesReader(path) as reader:
        steps = [(table.step, table.loss, bool(table.rows)) for table in reader.read_all()]
    assert steps == [(1, 10, False), (2, 20, True), (3, 30, False), (4, None, True), (4, 40, False)]


def test_step_survives_a_failing_measurement() -> None:
    optimizer, (w,) = of(v1.train.AdamOptimizer())
    recorder = attach(optimizer)

    def fail(_: Any) -> None:
        raise MemoryError("none left")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepWatch, "finish", fail)
        with pytest.warns(NumericsWarning, match="Step 1 was taken, and could not be measured"):
            optimizer.apply_gradients([([1.0, 1.0], w)])
    assert recorder.table is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.apply_gradients([([1.0, 1.0], w)])
    assert recorder.table.step == 2


def test_diagnostics_modules_export_the_same_names() -> None:
    assert thalweg.diagnostics is diagnostics
    names = set(optim.diagnostics.__all__)
    assert names == set(diagnostics.__all__) - {"attach", "detach"}
    for name in names:
        assert getattr(optim.diagnostics, name) is getattr(diagnostics, name)


def test_reading_the_table_synchronizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepWatch, "is_there", True)
    optimizer, (w,) = of(keras.optimizers.Adam())
    steps: list[int] = []
    recorder = attach(optimizer, sinks=[lambda table: steps.append(table.step)])
    for step in range(3):
        optimizer.apply_gradients([([1.0, 1.0], w)])
        assert steps == [*range(1, step + 1)]
    assert recorder.table.step == 3
    optimizer.apply_gradients([([1.0, 1.0], w)])
    detach(optimizer)
    assert steps == [1, 2, 3, 4]
