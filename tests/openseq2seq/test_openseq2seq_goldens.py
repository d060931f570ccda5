"""Recorded numbers of OpenSeq2Seq: its functions, whole trainings, and its errors."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from golden_files import Case
from openseq2seq_goldens import by_case, cases, float32
from openseq2seq_replay import (
    NOT_SHIPPED,
    Observed,
    Writer,
    assert_recorded,
    trained_eagerly,
    trained_in_a_session,
)
from thalweg import Variable, _graph
from thalweg.openseq2seq.optimizers import (
    automatic_loss_scaler,
    get_regularization_loss,
    lr_policies,
    optimize_loss,
    optimizers,
)

Train = Callable[[Case, bool], Iterator[Observed]]
each_mode = pytest.mark.parametrize("train", [trained_eagerly, trained_in_a_session])
LOSSES = _graph.GraphKeys.REGULARIZATION_LOSSES

# Where OpenSeq2Seq's numbers are those of a defect that is not computed by default.
DEFECTS = (
    "traj/larc/zero_lr_zero_norm_gives_nan",
    *(f"traj/mixed_dynamic/logmax_{name}" for name in ("sgd", "clip", "tracks", "tracks_clipped")),
    *(name for name in cases() if name.startswith("traj/novograd/as_shipped")),
)


def assert_close(got: Any, expected: Any, case: Case) -> None:
    tol = case["tol"]
    np.testing.assert_allclose(
        np.asarray(got, np.float64),
        float32(expected).astype(np.float64),
        rtol=tol["rtol"],
        atol=tol["atol"],
    )


@pytest.mark.one_in(7)
@each_mode
@by_case("traj/")
def test_training_equals_the_recording(case: Case, train: Train) -> None:
    as_shipped = case["config"]["optimizer"] != NOT_SHIPPED
    steps = zip(train(case, as_shipped), case["expected"], strict=True)
    for number, (observed, record) in enumerate(steps):
        assert_recorded(observed, record, case["tol"], f"step {number}")


@pytest.mark.one_in(3)
@by_case(*(name for name in cases() if name.startswith("traj/") and name not in DEFECTS))
def test_corrected_training_equals_the_recording(case: Case) -> None:
    for observed, record in zip(trained_eagerly(case, False), case["expected"], strict=True):
        assert_recorded(observed, record, case["tol"], case["id"])


@pytest.mark.one_in(3)
@by_case(*(name for name in cases() if name.startswith("traj/") and "/mlp/" not in name))
def test_variables_are_within_a_unit_in_the_last_place(case: Case) -> None:
    as_shipped = case["config"]["optimizer"] != NOT_SHIPPED
    for observed, record in zip(trained_eagerly(case, as_shipped), case["expected"], strict=True):
        for key in ("vars", "master"):
            for name, value in record.get(key, {}).items():
                expected = float32(value)
                unit = np.spacing(np.abs(expected[np.isfinite(expected)]).max(initial=1e-30))
                got = np.float32(observed[key][name])
                np.testing.assert_allclose(got, expected, rtol=0, atol=unit, err_msg=name)


@by_case("clip/")
def test_clipping_equals_the_recording(case: Case) -> None:
    grads = [None if grad is None else torch.from_numpy(float32(grad)) for grad in case["grads"]]
    clipped, norm = optimizers._clip_by_global_norm(grads, case["clip_norm"], as_shipped=True)
    assert_close(norm, case["expected"]["norm"], case)
    for got, expected in zip(clipped, case["expected"]["clipped"], strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            assert_close(got, expected, case)


@by_case("clip/")
def test_session_clipping_equals_the_recording(case: Case) -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        grads = [None if grad is None else _graph.constant(float32(grad)) for grad in case["grads"]]
        clipped, norm = optimizers._clip_by_global_norm(grads, case["clip_norm"], as_shipped=True)
        assert_close(session.run(norm), case["expected"]["norm"], case)
        for got, expected in zip(clipped, case["expected"]["clipped"], strict=True):
            assert (got is None) == (expected is None)
            if got is not None:
                assert_close(session.run(got), expected, case)


@pytest.mark.parametrize("as_shipped", [False, True])
@by_case("larc/")
def test_larc_equals_the_recording(case: Case, as_shipped: bool) -> None:
    pair = torch.from_numpy(float32(case["grad"])), Variable(float32(case["var"]), name="v")
    ((got, _),) = optimizers.post_process_gradients(
        [pair], [], case["lr"], None, case["larc_params"], as_shipped=as_shipped
    )
    assert_close(got, case["expected"]["scaled_grad"], case)


@by_case("larc/")
def test_session_larc_equals_the_recording(case: Case) -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        pair = _graph.constant(float32(case["grad"])), _graph.Variable(float32(case["var"]))
        ((got, _),) = optimizers.post_process_gradients(
            [pair], [], case["lr"], None, case["larc_params"], as_shipped=True
        )
        session.run(_graph.global_variables_initializer())
        assert_close(session.run(got), case["expected"]["scaled_grad"], case)


@pytest.mark.parametrize("is_deferred", [False, True])
@by_case("regularization_loss/")
def test_regularization_loss_equals_the_recording(case: Case, is_deferred: bool) -> None:
    if is_deferred:
        with _graph.Graph().as_default(), _graph.Session() as session:
            for value, dtype in case["losses"]:
                _graph.add_to_collection(LOSSES, _graph.constant(np.dtype(dtype).type(value)))
            got = session.run(get_regularization_loss())
    else:
        collection = _graph.get_collection_ref(LOSSES)
        collection += [torch.tensor(value, dtype=getattr(torch, d)) for value, d in case["losses"]]
        got = get_regularization_loss().numpy()
        collection.clear()
    assert got.dtype == np.float32
    assert_close(got, case["expected"], case)


def table_steps(case: Case, is_deferred: bool) -> Iterator[tuple[Any, float]]:
    """The table after each step, and the global norm of its gradient."""
    config, writer = case["config"], Writer()
    options = {key: config[key] for key in ("clip_gradients", "larc_params") if key in config}
    options |= {"summaries": ["global_gradient_norm"], "summary_writer": writer, "as_shipped": True}
    rate = {"learning_rate_decay_fn": lambda step: config["lr"], "optimizer_params": {}}
    tag = "Loss_Optimization/global_gradient_norm"
    if is_deferred:
        with _graph.Graph().as_default(), _graph.Session() as session:
            table = _graph.Variable(float32(case["init"]), name="table")
            values = _graph.placeholder(torch.float32, (None, 2))
            indices = _graph.placeholder(torch.int64, (None,))
            loss = (_graph.embedding_lookup(table, indices) * values).sum()
            step = optimize_loss(loss, config["optimizer"], **rate, **options)
            session.run(_graph.global_variables_initializer())
            for entry in case["steps"]:
                session.run(step, {values: float32(entry["values"]), indices: entry["indices"]})
                yield session.run(table), writer.scalars[tag]
        return
    table_var: Any = Variable(float32(case["init"]), name="table")
    rows: list[Any] = [None]

    def loss_of_rows() -> Any:
        indices = torch.tensor(rows[0]["indices"])
        used_rows = torch.nn.functional.embedding(indices, table_var, sparse=True)
        return (used_rows * torch.from_numpy(float32(rows[0]["values"]))).sum()

    step = optimize_loss(loss_of_rows, config["optimizer"], var_list=[table_var], **rate, **options)
    for entry in case["steps"]:
        rows[0] = entry
        step()
        yield table_var.numpy(), writer.scalars[tag]


@pytest.mark.parametrize("is_deferred", [False, True])
@by_case("sparse/")
def test_sparse_gradients_give_the_recorded_table(case: Case, is_deferred: bool) -> None:
    steps = zip(table_steps(case, is_deferred), case["expected"], strict=True)
    for (table, norm), record in steps:
        assert_close(table, record["table"], case)
        assert_close(norm, record["global_gradient_norm"], case)


def call_recorded(case: Case) -> None:
    kwargs = dict(case["kwargs"])
    if case["call"] == "AutomaticLossScaler":
        automatic_loss_scaler.AutomaticLossScaler(**kwargs, as_shipped=True)
    elif case["call"] == "lr":
        params = {
            key: tuple(value[1:]) if isinstance(value, list) and value[0] == "TUPLE" else value
            for key, value in kwargs["params"].items()
        }
        getattr(lr_policies, kwargs["policy"])(0, **params)
    elif case["call"] == "clip":
        optimizers._clip_by_global_norm(kwargs["grads"], 1.0, 1.0, as_shipped=True)
    elif case["call"] == "reduce_gradients":
        optimizers.reduce_gradients([], **kwargs)
    else:
        w = Variable([1.0], name="w")
        arguments: dict[str, Any] = {
            "optimizer": "SGD",
            "optimizer_params": {},
            "learning_rate_decay_fn": lambda step: 0.1,
            **kwargs,
        }
        optimize_loss(lambda: (w * w).sum(), **arguments, as_shipped=True)


@by_case("error/")
def test_errors_equal_the_recording(case: Case) -> None:
    error_cls = getattr(builtins, case["expected"]["raises"])
    with pytest.raises(error_cls) as excinfo:
        call_recorded(case)
    for part in case["expected"]["mentions"]:
        assert part in str(excinfo.value)


def test_every_kind_of_recording_is_replayed() -> None:
    replayed = {"clip", "larc", "regularization_loss", "trajectory", "sparse", "error"}
    elsewhere = {"lr", "lr_fill", "scaler", "check_grads"}
    assert {case["kind"] for case in cases().values()} == replayed | elsewhere
