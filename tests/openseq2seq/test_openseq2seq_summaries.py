"""Summaries that TensorBoard reads back from what a step has written."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from openseq2seq_steps import each_way, process_before, way
from thalweg import Variable, _graph
from thalweg.errors import FailedPreconditionError
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.openseq2seq.optimizers.optimizers import (
    OPTIMIZER_SUMMARIES,
    post_process_gradients,
)
from thalweg.openseq2seq.optimizers.summaries import tags_of
from thalweg.v1 import summary

pytest.importorskip("tensorboard", reason="tensorboard is not installed")
SummaryWriter: Any = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
events: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
protos: Any = pytest.importorskip("tensorboard.compat.proto.summary_pb2")

__all__ = ["way"]

INF, NAN = math.inf, math.nan
HISTO = ("num", "min", "max", "sum", "sum_squares")
HALF = 1e-3  # gradients of float16 variables are rounded
SCOPE = "Loss_Optimization/"
MASTER, UNMIXED = f"{SCOPE}FP32-master-copy/w_0", "b_0"
START = {"w": np.linspace(-1, 1, 17), "b": np.array([0.5, -0.25, 2.0])}
RUNS: list[dict[str, np.ndarray[Any, Any]]] = [
    {"w": np.linspace(0.1, 3.0, 17), "b": np.array([1.0, 2.0, -3.0])},
    {"w": np.linspace(-2.0, 0.7, 17), "b": np.array([1.0, NAN, -INF])},  # this one is skipped
    {"w": np.linspace(-1e-3, 40.0, 17), "b": np.array([0.3, 0.0, 1e-5])},
]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip": {"clip_gradients": 2.0},
    "larc": {"larc_params": {"larc_eta": 0.5}},
    "lars": {"larc_params": {"larc_eta": 0.5, "larc_mode": "scale"}},
}


class Told(NamedTuple):
    """Return step and numbers of each event of a directory, by tag."""

    scalars: dict[str, list[tuple[int, float]]]
    histograms: dict[str, list[tuple[int, list[float]]]]


def read(folder: Path) -> Told:
    reader = events.EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    reader.Reload()
    scalars = {
        tag: [(event.step, event.value) for event in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }
    histograms = {}
    for tag in reader.Tags()["histograms"]:
        series = [(event.step, event.histogram_value) for event in reader.Histograms(tag)]
        histograms[tag] = [
            (step, [value.num, value.min, value.max, value.sum, value.sum_squares])
            for step, value in series
        ]
    return Told(scalars, histograms)


def arguments(writer: Any, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "optimizer": "Momentum",
        "optimizer_params": {"momentum": 0.9},
        "learning_rate_decay_fn": lambda step: 0.125,
        "dtype": "mixed",
        "loss_scaling": "Backoff",
        "loss_scaling_params": {"scale_max": 64.0},
        "summaries": OPTIMIZER_SUMMARIES,
        "summary_writer": writer,
        **options,
    }


def eagerly(folder: Path, options: dict[str, Any]) -> Told:
    w = Variable(torch.tensor(START["w"], dtype=torch.float16), name="w")
    b = Variable(torch.tensor(START["b"], dtype=torch.float32), name="b")
    grads: dict[str, torch.Tensor] = {}
    with SummaryWriter(folder) as writer:
        step = optimize_loss(
            lambda: (w.float() * grads["w"]).sum() + (b * grads["b"]).sum(),
            **arguments(writer, options),
            var_list=[w, b],
        )
        for run in RUNS:
            grads.update({name: torch.from_numpy(x).float() for name, x in run.items()})
            step()
    return read(folder)


def in_a_session(folder: Path, options: dict[str, Any]) -> Told:
    with _graph.Graph().as_default(), _graph.Session() as session, SummaryWriter(folder) as writer:
        w = _graph.Variable(torch.tensor(START["w"], dtype=torch.float16), name="w")
        b = _graph.Variable(torch.tensor(START["b"], dtype=torch.float32), name="b")
        feeds = {name: _graph.placeholder(torch.float32, x.shape) for name, x in START.items()}
        op = optimize_loss(
            (w.float() * feeds["w"]).sum() + (b * feeds["b"]).sum(),
            **arguments(writer, options),
            var_list=[w, b],
        )
        session.run(_graph.global_variables_initializer())
        for run in RUNS:
            session.run(op, {feeds[name]: x.astype(np.float32) for name, x in run.items()})
    return read(folder)


def assert_same(got: Told, expected: Told) -> None:
    for part, twin in zip(got, expected, strict=True):
        assert part.keys() == twin.keys()
        for tag, points in twin.items():
            assert [step for step, _ in part[tag]] == [step for step, _ in points]
            for (_, value), (_, target) in zip(part[tag], points, strict=True):
                np.testing.assert_allclose(value, target, rtol=1e-6, atol=1e-12, err_msg=tag)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_all_execution_modes_write_equal_summaries(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = eagerly(tmp_path / "swept", options)
    assert_same(in_a_session(tmp_path / "session", options), swept)
    process_before(monkeypatch)
    assert_same(eagerly(tmp_path / "steps", options), swept)
    assert_same(in_a_session(tmp_path / "session by steps", options), swept)


PER_VARIABLE = ("gradient_norm", "variable_norm")
LARC = ("larc_grad_update", "larc_final_lr")


@pytest.mark.one_in(3)
@each_way
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_summary_has_its_tag(options: dict[str, Any], way: str, tmp_path: Path) -> None:
    logged = eagerly(tmp_path, options)
    kinds = [*PER_VARIABLE]
    if "larc_params" in options:
        kinds += LARC
        if "larc_mode" not in options["larc_params"]:
            kinds.append("larc_clip_on")
    tags = {f"{SCOPE}{kind}/{name}" for kind in kinds for name in (MASTER, UNMIXED)}
    tags |= {"learning_rate", f"{SCOPE}global_gradient_norm", f"{SCOPE}loss_scale"}
    if "clip_gradients" in options:
        tags.add(f"{SCOPE}global_clipped_gradient_norm")
    assert logged.scalars.keys() == tags
    assert logged.histograms.keys() == {
        f"{SCOPE}{kind}/{name}" for kind in ("gradients", "variables") for name in (MASTER, UNMIXED)
    }


def norm_of(run: int, *names: str) -> float:
    return float(np.linalg.norm(np.concatenate([RUNS[run][name] for name in names])))


@each_way
def test_scalar_summaries_round_trip(way: str, tmp_path: Path) -> None:
    logged = eagerly(tmp_path, OPTIONS["clip"]).scalars
    # The run that is skipped tells of the same step as the one after it.
    assert [step for step, _ in logged["learning_rate"]] == [0, 1, 1]
    assert logged["learning_rate"] == [(0, 0.125), (1, 0.125), (1, 0.125)]
    assert logged[f"{SCOPE}loss_scale"] == [(0, 64.0), (1, 64.0), (1, 32.0)]
    norms = [value for _, value in logged[f"{SCOPE}global_gradient_norm"]]
    own_norms = [norm_of(0, "w", "b"), NAN, norm_of(2, "w", "b")]
    np.testing.assert_allclose(norms, own_norms, rtol=HALF)
    clipped = [value for _, value in logged[f"{SCOPE}global_clipped_gradient_norm"]]
    np.testing.assert_allclose(clipped, [2.0, NAN, 2.0], rtol=HALF)
    norms_read = [value for _, value in logged[f"{SCOPE}gradient_norm/{MASTER}"]]
    shares = [2.0 * norm_of(run, "w") / norm_of(run, "w", "b") for run in (0, 2)]
    np.testing.assert_allclose(norms_read, [shares[0], NAN, shares[1]], rtol=HALF)
    (_, size), *_ = logged[f"{SCOPE}variable_norm/{UNMIXED}"]
    np.testing.assert_allclose(size, np.linalg.norm(START["b"]), rtol=1e-6)


@each_way
def test_histogram_summaries_round_trip_with_masked_gradients(way: str, tmp_path: Path) -> None:
    logged = eagerly(tmp_path, OPTIONS["plain"]).histograms
    first, masked, last_point = logged[f"{SCOPE}gradients/{UNMIXED}"]
    assert first == (0, [3.0, -3.0, 2.0, 0.0, 14.0])
    assert masked == (1, [3.0, 0.0, 1.0, 1.0, 1.0])  # NaN and infinity count as 0
    assert last_point[0] == 1
    numbers = START["w"].astype(np.float16).astype(np.float32)
    expected = [17.0, -1.0, 1.0, float(numbers.sum()), float(np.square(numbers).sum())]
    step, values = logged[f"{SCOPE}variables/{MASTER}"][0]
    assert step == 0
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-6)


@each_way
def test_larc_summaries_round_trip(way: str, tmp_path: Path) -> None:
    logged = eagerly(tmp_path, OPTIONS["larc"]).scalars
    ratio = 0.5 * float(np.linalg.norm(START["b"])) / (0.125 * norm_of(0, "b"))
    assert logged[f"{SCOPE}larc_clip_on/{UNMIXED}"][0] == (0, float(ratio < 1))
    (_, factor), (_, rate) = (logged[f"{SCOPE}{kind}/{UNMIXED}"][0] for kind in LARC)
    np.testing.assert_allclose([factor, rate], [min(ratio, 1), 0.125 * min(ratio, 1)], rtol=1e-5)


@each_way
def test_variables_without_elements_have_no_histogram(way: str, tmp_path: Path) -> None:
    w, empty = Variable([1.0, 2.0], name="w"), Variable(torch.zeros(0), name="empty")
    with SummaryWriter(tmp_path) as writer:
        optimize_loss(
            lambda: w.sum() + empty.sum(),
            "SGD",
            {},
            lambda step: 0.5,
            summaries=OPTIMIZER_SUMMARIES,
            summary_writer=writer,
        )()
    logged = read(tmp_path)
    assert logged.histograms.keys() == {f"{SCOPE}gradients/w_0", f"{SCOPE}variables/w_0"}
    assert logged.scalars[f"{SCOPE}gradient_norm/empty_0"] == [(0, 0.0)]


@each_way
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy's
def test_variables_that_are_not_finite_do_not_stop_the_writer(way: str, tmp_path: Path) -> None:
    w = Variable(torch.ones(4, dtype=torch.float16), name="w")
    factors = torch.tensor([1e9, -1e9, NAN, 1.0])
    with SummaryWriter(tmp_path) as writer:
        step = optimize_loss(
            lambda: (w.float() * factors).sum(),
            **{**arguments(writer, {}), "loss_scaling": 8.0, "loss_scaling_params": None},
        )
        step()
        step()
    logged = read(tmp_path).histograms[f"{SCOPE}variables/{MASTER}"]
    assert [step for step, _ in logged] == [0, 1]
    assert step.optimizer.get_master(w).tolist()[:2] == [-INF, INF]


def test_tags_are_distinct() -> None:
    variables = [Variable([1.0], name=name) for name in ("w", "w", "w_0_1", "w_0_0")]
    assert len(set(tags_of(variables))) == 4


# The graph's collection


def collected(serialized: bytes) -> Told:
    """Return the contents of a `Summary` in the form of `read`, for step 0."""
    summary = protos.Summary.FromString(serialized)
    scalars = {
        value.tag: [(0, value.simple_value)]
        for value in summary.value
        if not value.HasField("histo")
    }
    histograms = {
        value.tag: [(0, [getattr(value.histo, name) for name in HISTO])]
        for value in summary.value
        if value.HasField("histo")
    }
    assert len(scalars) + len(histograms) == len(summary.value)
    return Told(scalars, histograms)


def merged(folder: Path, options: dict[str, Any], **overrides: Any) -> tuple[list[bytes], Told]:
    """Return the outputs of `merge_all` in each run, and the events that the writer got."""
    separate, merged_runs = [], []
    with _graph.Graph().as_default(), _graph.Session() as session, SummaryWriter(folder) as writer:
        w = _graph.Variable(torch.tensor(START["w"], dtype=torch.float16), name="w")
        b = _graph.Variable(torch.tensor(START["b"], dtype=torch.float32), name="b")
        feeds = {name: _graph.placeholder(torch.float32, x.shape) for name, x in START.items()}
        loss = (w.float() * feeds["w"]).sum() + (b * feeds["b"]).sum()
        all_arguments = {**arguments(writer, options), "var_list": [w, b], **overrides}
        op = optimize_loss(loss, **all_arguments)
        summaries = summary.merge_all()
        session.run(_graph.global_variables_initializer())
        for run in RUNS:
            feed = {feeds[name]: x.astype(np.float32) for name, x in run.items()}
            if "all_reduce" not in overrides:
                separate.append(session.run(summaries, feed))
            merged_runs.append(session.run([op, summaries], feed)[1])
        assert separate in ([], merged_runs)
    return merged_runs, read(folder)


WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "averaged": {"on_horovod": True, "all_reduce": lambda grad: grad * 2},
    "added up": {"on_horovod": True, "iter_size": 2, "skip_update_ph": False},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("overrides", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_merge_all_equals_the_writer_summaries(
    options: dict[str, Any], overrides: dict[str, Any], tmp_path: Path
) -> None:
    summaries, logs = merged(tmp_path, options, **overrides)
    for index, proto in enumerate(summaries):
        assert_same(
            collected(proto),
            Told(*({tag: [(0, rows[index][1])] for tag, rows in kind.items()} for kind in logs)),
        )


def test_graph_summaries_are_written_by_default() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable([3.0, 4.0], name="w")
        optimize_loss((w * w).sum(), "SGD", {}, lambda step: 0.5, summaries=[])
        assert summary.merge_all() is None
        op = optimize_loss((w * w).sum(), "SGD", {}, lambda step: 0.5)
        session.run(_graph.global_variables_initializer())
        _, proto = session.run([op, summary.merge_all()])
    scope = "Loss_Optimization_1/"  # the second one
    numbers = {"learning_rate": 0.5, f"{scope}loss": 25.0, f"{scope}global_gradient_norm": 10.0}
    assert collected(proto) == Told({tag: [(0, number)] for tag, number in numbers.items()}, {})


def test_summaries_of_averaged_gradients_are_run_with_the_step() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable([3.0, 4.0], name="w")
        optimize_loss(
            (w * w).sum(), "SGD", {}, lambda step: 0.5, on_horovod=True, all_reduce=lambda g: g
        )
        session.run(_graph.global_variables_initializer())
        with pytest.raises(FailedPreconditionError, match="together with what optimize_loss"):
            session.run(summary.merge_all())
        assert session.run(w).tolist() == [3.0, 4.0]


def test_post_processed_gradients_are_in_the_collection() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable([0.0, 0.0], name="w")
        pairs = post_process_gradients(
            [(_graph.convert_to_tensor([3.0, 4.0]), w)], None, 0.1, 1.0, None
        )
        session.run(_graph.global_variables_initializer())
        proto = session.run(summary.merge_all())
        np.testing.assert_allclose(session.run(pairs[0][0]), [0.6, 0.8], rtol=1e-6)
    norms = {"global_gradient_norm": 5.0, "global_clipped_gradient_norm": 1.0}
    assert collected(proto) == Told({tag: [(0, norm)] for tag, norm in norms.items()}, {})


@pytest.mark.parametrize("summaries", [None, ["learning_rate"], []])
def test_summaries_are_collected_without_tensorboard(
    summaries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    fixed = {"optimizer": "SGD", "optimizer_params": {}, "learning_rate_decay_fn": lambda step: 0.5}
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable([3.0, 4.0], name="w")
        train = optimize_loss((w * w).sum(), **fixed, summaries=summaries)
        session.run(_graph.global_variables_initializer())
        merged = summary.merge_all()
        assert (merged is None) == (summaries == [])
        fetched_values = session.run([train] if merged is None else [train, merged])
        assert fetched_values[1:] == [b""] * len(fetched_values[1:])
