"""`optimize_loss`: its steps, options, summaries, errors and state, eagerly and in graphs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from openseq2seq_replay import Writer
from thalweg import Variable, _graph
from thalweg.errors import CheckpointMismatchError, FailedPreconditionError
from thalweg.openseq2seq.optimizers import lr_policies, optimize_loss
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.openseq2seq.optimizers.optimizers import OPTIMIZER_CLS_NAMES, OPTIMIZER_SUMMARIES
from thalweg.v1 import train
from thalweg.v1.contrib.opt import LazyAdamOptimizer, MovingAverageOptimizer

INF, NAN = math.inf, math.nan
SCOPE = "Loss_Optimization/"
PARAMS = {"Momentum": {"momentum": 0.9}, "AdamW": {"weight_decay": 0.1}}


def fixed(rate: float) -> Callable[[Any], Any]:
    return lambda step: lr_policies.fixed_lr(step, rate)


def poly(rate: float) -> Callable[[Any], Any]:
    return lambda step: lr_policies.poly_decay(step, rate, decay_steps=10)


def variables(dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    w = Variable(torch.tensor([1.0, -2.0], dtype=dtype), name="w")
    return w, Variable([3.0], name="b")


def loss_of(w: Any, b: Any, factor: Any = 1.0) -> Any:
    return (w.float() ** 2).sum() * factor + (b * b * b).sum()


# Steps


def test_a_step_returns_the_loss_before_the_update() -> None:
    w, b = variables()
    step = optimize_loss(lambda: loss_of(w, b), "SGD", {}, fixed(0.1))
    first = step()
    assert first.item() == 32.0
    assert not first.requires_grad
    step()
    assert (step.global_step.item(), step.was_applied) == (2, True)
    np.testing.assert_allclose(w.numpy(), [0.64, -1.28], rtol=1e-6)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", list(OPTIMIZER_CLS_NAMES))
@pytest.mark.parametrize("dtype", ["mixed", torch.float32])
def test_a_session_takes_the_steps_of_eager_mode(name: str, dtype: Any) -> None:
    kind = torch.float16 if dtype == "mixed" else torch.float32
    arguments: dict[str, Any] = {
        "optimizer": name,
        "optimizer_params": PARAMS.get(name, {}),
        "learning_rate_decay_fn": poly(0.05),
        "dtype": dtype,
        "clip_gradients": 2.0,
        "loss_scaling": "Backoff",
        "loss_scaling_params": {"scale_max": 1024.0, "step_window": 2},
    }
    factors = [1.0, 1e9, 0.5, 2.0, 3.0] if dtype == "mixed" else [1.0, 0.5, 2.0]
    w, b = variables(kind)
    factor = torch.tensor(1.0)
    step = optimize_loss(lambda: loss_of(w, b, factor), **arguments)
    records = []
    starts = [tensor.detach().clone() for tensor in (w, b)]
    for value in factors:
        factor.fill_(value)
        loss = step().numpy()
        records.append((loss, w.numpy(), b.numpy(), step.global_step.item()))
    with _graph.Graph().as_default(), _graph.Session() as session:
        w_, b_ = map(_graph.Variable, starts)
        placeholder = _graph.placeholder(torch.float32, ())
        op = optimize_loss(loss_of(w_, b_, placeholder), **arguments)
        session.run(_graph.global_variables_initializer())
        for value, expected in zip(factors, records, strict=True):
            loss = session.run(op, {placeholder: value})
            got = loss, *session.run([w_, b_, train.get_global_step()])
            assert all(map(np.array_equal, got, expected))
    assert records[-1][-1] == len(factors) - (dtype == "mixed")


def test_eager_step_within_a_graph_raises() -> None:
    w, b = variables()
    step = optimize_loss(lambda: loss_of(w, b), "SGD", {}, fixed(0.1))
    with _graph.Graph().as_default(), pytest.raises(FailedPreconditionError, match="eager mode"):
        step()
    assert step.global_step.item() == 0


@pytest.mark.parametrize("cls", [NovoGrad, LazyAdamOptimizer, train.AdagradOptimizer])
def test_an_optimizer_may_be_a_class(cls: Any) -> None:
    w, b = variables()
    step = optimize_loss(lambda: loss_of(w, b), cls, {}, fixed(0.1))
    step()
    assert isinstance(step.optimizer, cls)
    assert w.tolist() != [1.0, -2.0]


def test_parameters_may_be_none() -> None:
    w, b = variables()
    optimize_loss(lambda: loss_of(w, b), "Adam", None, fixed(0.1))()
    np.testing.assert_allclose(w.numpy(), [0.9, -1.9], rtol=1e-5)


@pytest.mark.parametrize(
    "policy",
    [
        lambda step: 1.0 / (1 + int(step)),
        lambda step: 1.0 / (1 + step.double()),
        lambda step: lambda: torch.tensor(1.0) / (1 + step),
        lambda step: 1 if step < 1 else 0.5,
    ],
)
def test_policies_are_called_for_every_step(policy: Any) -> None:
    w = Variable([10.0], name="w")
    step = optimize_loss(lambda: w.sum(), "SGD", {}, policy)
    for _ in range(2):
        step()
    assert w.tolist() == [8.5]
    assert step.learning_rate.item() == 0.5


def test_var_list_is_optional() -> None:
    w, b = variables()
    step = optimize_loss(lambda: loss_of(w, b), "SGD", {}, fixed(0.1), var_list=[b])
    step()
    assert w.tolist() == [1.0, -2.0]
    assert b.tolist() != [3.0]


def test_torch_modules_train_in_half_precision() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    model = model.to(torch.bfloat16)
    x, y = torch.randn(16, 3), torch.randn(16, 1)
    step = optimize_loss(
        lambda: (model(x.bfloat16()).float() - y).square().mean(),
        "Adam",
        {},
        fixed(0.02),
        dtype="mixed",
        loss_scaling="LogMax",
    )
    losses = [step().item() for _ in range(30)]
    assert losses[-1] < 0.8 * losses[0]
    assert all(step.optimizer.get_master(param) is not None for param in model.parameters())


def test_each_step_has_a_separate_global_step_by_default() -> None:
    w, b = variables()
    shared = Variable(np.int64(5), name="global_step", trainable=False)
    first = optimize_loss(lambda: loss_of(w, b), "SGD", {}, fixed(0.1))
    second = optimize_loss(lambda: loss_of(w, b), "SGD", {}, fixed(0.1), global_step=shared)
    first()
    second()
    assert (first.global_step.item(), second.global_step.item(), shared.item()) == (1, 6, 6)


def test_a_graph_has_one_global_step_and_names_masters_below_the_scope() -> None:
    with _graph.Graph().as_default():
        w = _graph.Variable(torch.ones(2).half(), name="w")
        for _ in range(2):
            optimize_loss(w.float().sum(), "Momentum", {"momentum": 0.9}, fixed(0.1), dtype="mixed")
        names = [var.op.name for var in _graph.global_variables()]
    assert names.count("global_step") == 1
    assert f"{SCOPE}FP32-master-copy/w" in names
    assert len(graph_train_ops := [name for name in names if "Momentum" in name]) == 2
    assert all(SCOPE in name for name in graph_train_ops)


@pytest.mark.parametrize("factor", [1.0, INF])
def test_update_ops_run_with_every_step(factor: float) -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable(torch.ones(2).half(), name="w")
        runs = _graph.Variable(0.0, trainable=False)
        _graph.add_to_collection(_graph.GraphKeys.UPDATE_OPS, runs.assign_add(1.0))
        op = optimize_loss(
            w.float().sum() * factor, "SGD", {}, fixed(0.1), dtype="mixed", loss_scaling="Backoff"
        )
        session.run(_graph.global_variables_initializer())
        session.run(op)
        assert session.run(runs) == 1.0
        assert session.run(train.get_global_step()) == (factor == 1.0)
        assert _graph.get_collection(_graph.GraphKeys.TRAIN_OP) == [op.op]


# What is not as shipped


def test_caller_parameters_are_not_changed() -> None:
    w, b = variables()
    params = {"weight_decay": 0.1}
    for _ in range(2):
        step = optimize_loss(lambda: loss_of(w, b), "AdamW", params, fixed(0.5))
    assert params == {"weight_decay": 0.1}
    step()
    np.testing.assert_allclose(w.numpy(), [1 - 0.05 - 0.5, -2 + 0.1 + 0.5], rtol=1e-5)


def test_caller_parameters_are_changed_as_shipped() -> None:
    w, b = variables()
    params: dict[str, Any] = {"weight_decay": 0.1}
    for _ in range(2):
        optimize_loss(lambda: loss_of(w, b), "AdamW", params, fixed(0.5), as_shipped=True)
    assert float(params["weight_decay"]) == pytest.approx(0.025)


@pytest.mark.parametrize(
    "rate",
    [0.3, np.float32(0.3), np.float64(0.3), 1, lambda: 0.3],
    ids=lambda rate: type(rate).__name__,
)
@pytest.mark.parametrize("decay", [0.1, np.float64(0.1)], ids=["float", "float64"])
def test_adamw_decay_is_equal_in_eager_mode_and_graphs(rate: Any, decay: Any) -> None:
    params, first = {"weight_decay": decay}, np.linspace(-3, 3, 257)
    eager = Variable(first, name="w", dtype=torch.float32)
    step = optimize_loss(lambda: (eager * eager).sum(), "AdamW", params, fixed(rate))
    step(), step()
    with _graph.Graph().as_default():
        w = _graph.Variable(first, name="w", dtype=torch.float32)
        train_op = optimize_loss((w * w).sum(), "AdamW", params, fixed(rate))
        with _graph.Session() as session:
            session.run(_graph.global_variables_initializer())
            session.run(train_op), session.run(train_op)
            assert session.run(w).tobytes() == eager.numpy().tobytes()


@pytest.mark.parametrize("scale", [512, 512.0])
def test_a_static_scale_may_be_an_int(scale: Any) -> None:
    w, b = variables(torch.float16)
    step = optimize_loss(
        lambda: loss_of(w, b), "SGD", {}, fixed(0.25), dtype="mixed", loss_scaling=scale
    )
    assert step().item() == 32.0
    assert w.tolist() == [0.5, -1.0]
    assert step.loss_scaler is None


@pytest.mark.parametrize(("as_shipped", "value"), [(False, 1 - 0.06), (True, 1.0)])
def test_a_huge_norm_is_clipped(as_shipped: bool, value: float) -> None:
    w = Variable([1.0, 1.0], name="w")
    step = optimize_loss(
        lambda: (w * torch.tensor([3e30, 4e30])).sum(),
        "SGD",
        {},
        fixed(0.1),
        clip_gradients=1.0,
        as_shipped=as_shipped,
    )
    step()
    assert w[0].item() == pytest.approx(value)


@pytest.mark.parametrize(("as_shipped", "differs"), [(False, True), (True, False)])
def test_novograd_keeps_its_average_unless_as_shipped(as_shipped: bool, differs: bool) -> None:
    weights = []
    for beta2 in (0.1, 0.9):
        w, b = variables()
        step = optimize_loss(
            lambda w=w, b=b: loss_of(w, b),
            NovoGrad,
            {"beta2": beta2},
            fixed(0.1),
            as_shipped=as_shipped,
        )
        for _ in range(3):
            step()
        weights.append(w.tolist())
    assert (weights[0] != weights[1]) == differs


# Accumulation


def accumulating(w: Any, skips: Any, **options: Any) -> Any:
    return optimize_loss(
        lambda: w.sum(), "SGD", {}, fixed(1.0), iter_size=2, skip_update_ph=skips, **options
    )


@pytest.mark.parametrize("on_horovod", [False, True])
def test_iter_size_sums_gradients(on_horovod: bool) -> None:
    w = Variable([1.0], name="w")
    flags = iter([True, False, False])
    step = accumulating(w, lambda: next(flags), on_horovod=on_horovod)
    outcomes = []
    for _ in range(3):
        step()
        outcomes.append((w.item(), step.global_step.item(), step.was_applied))
    assert outcomes == [(1.0, 0, False), (0.0, 1, True), (-0.5, 2, True)]


def test_as_shipped_without_horovod_every_run_updates() -> None:
    w = Variable([1.0], name="w")
    accumulating(w, True, as_shipped=True)()
    assert w.item() == 0.0


@pytest.mark.parametrize("skip", [True, torch.tensor(True), lambda: np.bool_(True)])
def test_skip_update_skips_a_run(skip: Any) -> None:
    w = Variable([1.0], name="w")
    accumulating(w, skip)()
    assert w.item() == 1.0


def test_iter_size_sums_sparse_rows() -> None:
    table = Variable([[0.0], [0.0], [0.0]], name="table")
    rows, flags = iter([[0, 2, 2], [2]]), iter([True, False])

    def loss() -> Any:
        rows_of_table = torch.nn.functional.embedding(torch.tensor(next(rows)), table, sparse=True)
        return rows_of_table.sum()

    step = optimize_loss(
        loss, "SGD", {}, fixed(1.0), iter_size=2, skip_update_ph=lambda: next(flags)
    )
    step()
    step()
    assert table.flatten().tolist() == [-0.5, 0.0, -1.5]


def test_session_sums_and_resets_gradients() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable([1.0], name="w")
        skip = _graph.placeholder(torch.bool, ())
        op = optimize_loss(w.sum(), "SGD", {}, fixed(1.0), iter_size=2, skip_update_ph=skip)
        session.run(_graph.global_variables_initializer())
        outcomes = []
        for flag in (True, False, False):
            session.run(op, {skip: flag})
            outcomes.append(session.run(w).item())
        assert outcomes == [1.0, 0.0, -0.5]


@pytest.mark.parametrize(
    ("iter_size", "text"),
    [
        ({"iter_size": 2}, "iter_size above 1 needs skip_update_ph"),
        ({"iter_size": 0}, "iter_size must be a positive integer, not 0"),
        ({"iter_size": 1.5}, "iter_size must be a positive integer, not 1.5"),
    ],
)
def test_invalid_iter_size_raises(iter_size: Any, text: str) -> None:
    w, b = variables()
    with pytest.raises(ValueError, match=text):
        optimize_loss(lambda: loss_of(w, b), "SGD", {}, fixed(0.1), **iter_size)


def test_skip_update_must_be_a_bool() -> None:
    w = Variable([1.0], name="w")
    with pytest.raises(TypeError, match="skip_update_ph must be or return a bool, not 1"):
        accumulating(w, 1)()


# All or nothing


def failing(grad: Any) -> Any:
    raise OSError("the network is down")


def test_an_error_changes_nothing() -> None:
    w, b = variables(torch.float16)
    fails, flags = [False], iter([False, True, False])

    def mean(grad: Any) -> Any:
        return failing(grad) if fails[0] else grad

    step = optimize_loss(
        lambda: loss_of(w, b),
        "Adam",
        {},
        poly(0.1),
        dtype="mixed",
        loss_scaling="Backoff",
        on_horovod=True,
        iter_size=2,
        skip_update_ph=lambda: next(flags),
        all_reduce=mean,
    )
    step()
    step()
    state_before = {**step.state_dict(), "w": w.detach().clone(), "b": b.detach().clone()}
    fails[0] = True
    with pytest.raises(OSError, match="network"):
        step()
    state_after = {**step.state_dict(), "w": w, "b": b}
    assert state_before.keys() == state_after.keys()
    assert all(torch.equal(state_before[name], state_after[name]) for name in state_before)


def test_an_error_in_a_session_changes_nothing() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable(torch.ones(2).half(), name="w")
        op = optimize_loss(
            w.float().sum(),
            "Adam",
            {},
            fixed(0.1),
            dtype="mixed",
            loss_scaling="Backoff",
            on_horovod=True,
            all_reduce=lambda grad: torch.ones(3),
        )
        session.run(_graph.global_variables_initializer())
        values_before = session.run(_graph.global_variables())
        with pytest.raises(ValueError, match="has shape"):
            session.run(op)
        values_after = session.run(_graph.global_variables())
        assert all(map(np.array_equal, values_before, values_after))


def test_a_writer_that_fails_says_that_the_step_was_taken() -> None:
    w, b = variables()
    writer = Writer()
    writer.add_scalar = failing  # pyright: ignore[reportAttributeAccessIssue]
    step = optimize_loss(lambda: loss_of(w, b), "SGD", {}, fixed(0.1), summary_writer=writer)
    with pytest.raises(TypeError) as excinfo:
        step()
    assert "The step was taken, but its summaries were not written." in excinfo.value.__notes__
    assert step.global_step.item() == 1


# Summaries


@pytest.mark.parametrize("is_deferred", [False, True])
def test_summaries_have_documented_tags_and_values(is_deferred: bool) -> None:
    writer, options = Writer(), {"larc_params": {"larc_eta": 0.01}}
    told_of(writer, is_deferred, summaries=OPTIMIZER_SUMMARIES, **options)
    w, b = f"{SCOPE}FP32-master-copy/w_0", "b_0"
    norms = {w: math.sqrt(20), b: 27.0}
    ratios = {w: 0.01 * math.sqrt(5) / (0.5 * norms[w]), b: 0.01 * 3 / (0.5 * 27)}
    expected = {
        "learning_rate": 0.5,
        f"{SCOPE}loss_scale": 16.0,
        f"{SCOPE}global_gradient_norm": math.hypot(*norms.values()),
    }
    for name in (w, b):
        expected[f"{SCOPE}gradient_norm/{name}"] = norms[name]
        expected[f"{SCOPE}variable_norm/{name}"] = math.sqrt(5) if name == w else 3.0
        expected[f"{SCOPE}larc_clip_on/{name}"] = 1
        expected[f"{SCOPE}larc_grad_update/{name}"] = ratios[name]
        expected[f"{SCOPE}larc_final_lr/{name}"] = 0.5 * ratios[name]
    assert writer.scalars == pytest.approx(expected, rel=1e-5)
    assert writer.histograms[f"{SCOPE}gradients/{w}"].tolist() == [2.0, -4.0]
    assert writer.histograms[f"{SCOPE}variables/{w}"].tolist() == [1.0, -2.0]
    assert len(writer.histograms) == 4
    assert set(writer.steps) == {0}


def told_of(writer: Writer, is_deferred: bool, **options: Any) -> None:
    arguments: dict[str, Any] = {
        "optimizer": "SGD",
        "optimizer_params": {},
        "learning_rate_decay_fn": fixed(0.5),
        "dtype": "mixed",
        "loss_scaling": "Backoff",
        "loss_scaling_params": {"scale_max": 16.0},
        "summary_writer": writer,
        **options,
    }
    w, b = variables(torch.float16)
    if not is_deferred:
        optimize_loss(lambda: loss_of(w, b), **arguments)()
        return
    with _graph.Graph().as_default(), _graph.Session() as session:
        w_, b_ = _graph.Variable(w.detach(), name="w"), _graph.Variable(b.detach(), name="b")
        op = optimize_loss(loss_of(w_, b_), **arguments)
        session.run(_graph.global_variables_initializer())
        session.run(op)


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        (
            {},
            {
                "learning_rate",
                f"{SCOPE}loss",
                f"{SCOPE}global_gradient_norm",
                f"{SCOPE}loss_scale",
            },
        ),
        ({"summaries": []}, set()),
        ({"summaries": ["learning_rate"]}, {"learning_rate"}),
        (
            {"loss_scaling": 8.0},
            {"learning_rate", f"{SCOPE}loss", f"{SCOPE}global_gradient_norm"},
        ),
        (
            {"clip_gradients": 1.0, "summaries": ["global_gradient_norm"]},
            {f"{SCOPE}global_gradient_norm", f"{SCOPE}global_clipped_gradient_norm"},
        ),
        ({"summaries": ["larc_summaries"]}, set()),
        ({"dtype": "float32", "summaries": ["loss_scale"]}, {f"{SCOPE}loss_scale"}),
    ],
)
def test_only_requested_summaries_are_written(options: Any, tags: set[str]) -> None:
    writer = Writer()
    told_of(writer, False, **options)
    assert set(writer.scalars) == tags


def test_histograms_mask_nonfinite_values_but_norms_do_not() -> None:
    w, writer = Variable([1.0, 2.0, 3.0, 4.0], name="w"), Writer()
    coefficients = torch.tensor([NAN, INF, -INF, 2.0])
    optimize_loss(
        lambda: (w * coefficients).sum(),
        "SGD",
        {},
        fixed(0.1),
        summaries=["gradients", "gradient_norm"],
        summary_writer=writer,
    )()
    assert writer.histograms[f"{SCOPE}gradients/w_0"].tolist() == [0.0, 0.0, 0.0, 2.0]
    assert math.isnan(writer.scalars[f"{SCOPE}gradient_norm/w_0"])


def test_variables_of_equal_name_have_separate_tags() -> None:
    model, writer = torch.nn.Linear(2, 1), Writer()
    optimize_loss(
        lambda: model(torch.ones(2)).sum(),
        "SGD",
        {},
        fixed(0.1),
        summaries=["variable_norm"],
        summary_writer=writer,
    )()
    assert set(writer.scalars) == {
        f"{SCOPE}variable_norm/Variable_0_0", f"{SCOPE}variable_norm/Variable_0_1",
    }  # fmt: skip


@pytest.mark.parametrize("skip", [True, False])
def test_skipped_runs_write_no_norms(skip: bool) -> None:
    writer = Writer()
    accumulating(Variable([1.0], name="w"), skip, summary_writer=writer)()
    tags = {"learning_rate", f"{SCOPE}loss"}
    tags |= set() if skip else {f"{SCOPE}global_gradient_norm"}
    assert set(writer.scalars) == tags


# Gradients that are not there


def test_default_summaries_need_all_gradients() -> None:
    w, b = variables()
    step = optimize_loss(lambda: (w * w).sum(), "SGD", {}, fixed(0.1), [w, b])
    with pytest.raises(ValueError, match="'b:0' has no gradient, but the summary global_grad"):
        step()


@pytest.mark.parametrize("is_deferred", [False, True])
def test_gradients_may_be_missing_without_norms(is_deferred: bool) -> None:
    w, b = variables()
    if is_deferred:
        with _graph.Graph().as_default(), _graph.Session() as session:
            w_, b_ = _graph.Variable([1.0, -2.0]), _graph.Variable([3.0])
            op = optimize_loss((w_ * w_).sum(), "SGD", {}, fixed(0.1), [w_, b_], summaries=[])
            session.run(_graph.global_variables_initializer())
            session.run(op)
            got = [array.tolist() for array in session.run([w_, b_])]
    else:
        optimize_loss(lambda: (w * w).sum(), "SGD", {}, fixed(0.1), [w, b], summaries=[])()
        got = [w.tolist(), b.tolist()]
    assert got[1] == [3.0]
    np.testing.assert_allclose(got[0], [0.8, -1.6], rtol=1e-6)


def test_missing_gradients_raise_when_the_graph_is_built() -> None:
    with _graph.Graph().as_default():
        w, b = _graph.Variable([1.0], name="w"), _graph.Variable([3.0], name="b")
        with pytest.raises(ValueError, match="'b:0' has no gradient"):
            optimize_loss(w.sum(), "SGD", {}, fixed(0.1), [w, b])
        with pytest.raises(ValueError, match=r"No gradients provided for any variable: \['b:0'\]"):
            optimize_loss(w.sum(), "SGD", {}, fixed(0.1), [b], summaries=[])


# Errors


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"optimizer": "sgd"}, ValueError, "one of [Adagrad, Adam, Ftrl, Momentum, RMSProp, SGD,"),
        ({"optimizer": 3}, TypeError, "optimizer must be a name or a class, not 3"),
        ({"optimizer": dict}, TypeError, "optimizer must make an optimizer of thalweg.v1"),
        ({"optimizer": "Momentum"}, TypeError, "momentum"),
        ({"optimizer_params": {"foo": 1}}, TypeError, "foo"),
        ({"optimizer": "AdamW"}, KeyError, "AdamW needs weight_decay in optimizer_params."),
        ({"learning_rate_decay_fn": None}, TypeError, "learning_rate_decay_fn must be callable"),
        ({"clip_gradients": "1"}, TypeError, "clip_gradients must be a number, not '1'"),
        ({"clip_gradients": 10**400}, ValueError, "clip_gradients is too large: an integer"),
        ({"clip_gradients": -1}, ValueError, "clip_gradients is the largest norm, 0 or more, not"),
        ({"clip_gradients": NAN}, ValueError, "clip_gradients is the largest norm, 0 or more, not"),
        ({"dtype": "Mixed"}, ValueError, "not 'Mixed'. Did you mean 'mixed'?"),
        ({"dtype": "float99"}, ValueError, "dtype must be one of mixed, float32, float16,"),
        ({"dtype": torch.int32}, ValueError, "dtype must be one of mixed, float32, float16,"),
        ({"dtype": 16}, TypeError, "dtype must be one of mixed, float32, float16,"),
        ({"summaries": ["foo"]}, ValueError, "you provided foo"),
        ({"clip_gradients": 0.0, "larc_params": {"larc_eta": 0.1}}, AttributeError, "LARC"),
        ({"larc_params": {"larc_eta": 1}}, ValueError, "larc_eta has to be of type float"),
        ({"loss_scaling": "foo"}, ValueError, "Unknown scaling algorithm: foo"),
        ({"loss_scaling": "LogMax", "loss_scaling_params": {"a": 1}}, ValueError, "Unknown param"),
        ({"dtype": "mixed", "loss_scaling": None, "loss": 1.0}, TypeError, "loss must be a call"),
        ({"loss": torch.ones(())}, TypeError, "loss must be a callable that returns the loss in"),
        ({"global_step": torch.zeros(())}, TypeError, "does not have integer type"),
        ({"summary_writer": 3}, TypeError, "summary_writer must have the methods"),
    ],
)
def test_invalid_optimize_loss_arguments_raise(
    options: Any, error: type[Exception], text: str
) -> None:
    w, b = variables()
    arguments = {
        "loss": lambda: loss_of(w, b),
        "optimizer": "SGD",
        "optimizer_params": {},
        "learning_rate_decay_fn": fixed(0.1),
        **options,
    }
    with pytest.raises(error, match=re.escape(text)):
        optimize_loss(**arguments)


@pytest.mark.parametrize("dtype", ["mixed", torch.float32])
@pytest.mark.parametrize("shape", [(2,), (1,), (0,)])
def test_a_loss_is_a_scalar(dtype: Any, shape: tuple[int, ...]) -> None:
    kind = torch.float16 if dtype == "mixed" else torch.float32
    w, text = Variable(torch.ones(2, dtype=kind), name="w"), re.escape(f"not of shape {shape}")
    step = optimize_loss(
        lambda: w.float().sum() * torch.ones(shape), "SGD", {}, fixed(0.1), [w], dtype
    )
    with pytest.raises(ValueError, match=text):
        step()
    assert (w.tolist(), step.global_step.item()) == ([1.0, 1.0], 0)
    with _graph.Graph().as_default(), _graph.Session() as session:
        v = _graph.Variable(torch.ones(2, dtype=kind), name="v")
        open_ = _graph.placeholder(torch.float32)
        with pytest.raises(ValueError, match=text):
            optimize_loss(v.float().sum() * torch.ones(shape), "SGD", {}, fixed(0.1), dtype=dtype)
        op = optimize_loss(v.float().sum() * open_, "SGD", {}, fixed(0.1), dtype=dtype)
        session.run(_graph.global_variables_initializer())
        with pytest.raises(ValueError, match=text):
            session.run(op, {open_: torch.ones(shape)})
        assert session.run(v).tolist() == [1.0, 1.0]


def test_scaling_options_are_ignored_without_mixed_precision() -> None:
    w, b = variables()
    step = optimize_loss(
        lambda: loss_of(w, b), "SGD", {}, fixed(0.1), loss_scaling="Backoff", dtype=torch.float16
    )
    step()
    assert not isinstance(step.optimizer, MixedPrecisionOptimizerWrapper)
    assert step.loss_scaler.variables["iteration"] == 0


def test_unsupported_graph_arguments_raise() -> None:
    with _graph.Graph().as_default():
        w = _graph.Variable([1.0], name="w")
        with pytest.raises(TypeError, match="loss must be a tensor of the graph, not 3"):
            optimize_loss(3, "SGD", {}, fixed(0.1))

        def averaged(learning_rate: Any) -> Any:
            return MovingAverageOptimizer(train.GradientDescentOptimizer(learning_rate))

        with pytest.raises(TypeError, match="MovingAverageOptimizer wraps another"):
            optimize_loss(w.sum(), averaged, {}, fixed(0.1))


def test_a_symbolic_loss_decides_for_its_graph() -> None:
    graph = _graph.Graph()
    with graph.as_default():
        w = _graph.Variable([1.0], name="w")
        loss = w.sum()
    op = optimize_loss(loss, "SGD", {}, fixed(0.5))
    with _graph.Session(graph=graph) as session:
        with graph.as_default():
            session.run(_graph.global_variables_initializer())
        assert session.run(op) == 1.0
        assert session.run(w) == 0.5


# State


CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"optimizer": "Adam"},
    "mixed": {"optimizer": "Adam", "dtype": "mixed", "loss_scaling": "Backoff"},
    "logmax": {"optimizer": "SGD", "dtype": "mixed", "loss_scaling": "LogMax"},
    "novograd": {"optimizer": NovoGrad, "dtype": "mixed", "larc_params": {"larc_eta": 0.1}},
    "sums": {"optimizer": "Adagrad", "dtype": "mixed", "iter_size": 3},
}


class Training:
    """A model and its step, in which every third run makes an update if gradients are added up."""

    def __init__(self, config: str, variables_used: Any = None) -> None:
        options = {"optimizer_params": {}, "learning_rate_decay_fn": poly(0.3), **CONFIGS[config]}
        kind = torch.float16 if options.get("dtype") == "mixed" else torch.float32
        self.w, self.b = variables(kind) if variables_used is None else variables_used
        self.runs = 0
        self.step = optimize_loss(
            lambda: loss_of(self.w, self.b, 3e3 if self.runs in (0, 3) else 1.0),
            var_list=[self.w, self.b],
            skip_update_ph=lambda: self.runs % 3 != 0,
            **options,
        )

    def run(self, count: int) -> Training:
        for _ in range(count):
            self.step()
            self.runs += 1
        return self

    def everything(self) -> dict[str, Any]:
        return {**self.step.state_dict(), "w": self.w.detach(), "b": self.b.detach()}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("config", list(CONFIGS))
@pytest.mark.parametrize(("runs", "first_runs"), [(1, 0), (2, 1), (5, 0), (5, 2)])
def test_loaded_state_resumes_bit_exact(config: str, runs: int, first_runs: int) -> None:
    first = Training(config).run(runs)
    saved_state = {name: value.clone() for name, value in first.everything().items()}
    second = Training(config).run(first_runs)
    second.w.assign(saved_state.pop("w"))
    second.b.assign(saved_state.pop("b"))
    second.step.load_state_dict(saved_state)
    second.runs = first.runs
    expected, got = first.run(5).everything(), second.run(5).everything()
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_a_state_from_before_the_first_step_can_be_loaded() -> None:
    saved_state = Training("mixed").step.state_dict()
    assert set(saved_state) == {
        "global_step",
        "loss_scale/scale", "loss_scale/iteration", "loss_scale/last_overflow_iteration",
    }  # fmt: skip
    fresh = Training("mixed")
    fresh.step.load_state_dict(saved_state)
    assert fresh.run(1).step.global_step.item() == int(fresh.step.was_applied)


def test_state_of_another_optimizer_raises() -> None:
    saved_state = Training("mixed").run(1).step.state_dict()
    other_training = Training("logmax").run(1)
    state_before = other_training.everything()
    with pytest.raises(CheckpointMismatchError, match=r"belongs to nothing here.*Nothing was load"):
        other_training.step.load_state_dict(saved_state)
    state_after = other_training.everything()
    assert all(torch.equal(state_before[name], state_after[name]) for name in state_before)


def test_loading_without_variables_raises() -> None:
    w, b = variables()
    step = optimize_loss(lambda: loss_of(w, b), "Adam", {}, fixed(0.1))
    with pytest.raises(FailedPreconditionError, match="Give var_list to optimize_loss"):
        step.load_state_dict({})


def test_loading_sets_variables_to_their_masters() -> None:
    trained, fresh = Training("mixed").run(4), Training("mixed")
    fresh.step.load_state_dict(trained.step.state_dict())
    assert torch.equal(fresh.w, trained.w)
