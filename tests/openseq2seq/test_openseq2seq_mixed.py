"""Mixed precision: masters, loss scales, overflows, copies back, penalties, state."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thalweg
from bit_comparison import assert_same
from thalweg import IndexedSlices, Variable, _graph, v1
from thalweg.errors import (
    CheckpointMismatchError,
    FailedPreconditionError,
    PerformanceWarning,
)
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.mp_wrapper import (
    MixedPrecisionOptimizerWrapper,
    mp_regularizer_wrapper,
)
from thalweg.v1 import train
from thalweg.v1.contrib.opt import MovingAverageOptimizer

INF, NAN = math.inf, math.nan
each_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def half(values: Any, name: str = "w", dtype: torch.dtype = torch.float16) -> Any:
    return Variable(torch.tensor(values, dtype=dtype), name=name)


def counter() -> Any:
    return Variable(np.int64(0), name="global_step", trainable=False)


def backoff(**params: Any) -> AutomaticLossScaler:
    return AutomaticLossScaler("Backoff", params)


def wrapped(scale: Any = None, inner: Any = None, **options: Any) -> MixedPrecisionOptimizerWrapper:
    return MixedPrecisionOptimizerWrapper(inner or train.AdamOptimizer(0.5), scale, **options)


# Gradients


@each_dtype
def test_gradients_are_unscaled_and_for_float32_masters(dtype: torch.dtype) -> None:
    w, b = half([1.0, 2.0], dtype=dtype), Variable([3.0], name="b")
    opt = wrapped(256.0)
    (grad, master), (var_grad, var) = opt.compute_gradients(
        lambda: (w.float() ** 2).sum() + 5 * b.sum(), [w, b]
    )
    assert (grad.dtype, master.dtype, master.name) == (
        torch.float32, torch.float32, "FP32-master-copy/w:0",
    )  # fmt: skip
    assert grad.tolist() == [2.0, 4.0]
    assert var_grad.tolist() == [5.0]
    assert var is b
    assert opt.get_master(w) is master
    assert opt.get_master(b) is None


@pytest.mark.parametrize("scale", [1.0, 2.0**15, 7.0])
def test_gradients_pass_through_the_variables_dtype(scale: float) -> None:
    w = half([1.0])
    ((grad, _),) = wrapped(scale).compute_gradients(lambda: (w.float() * 1e-8).sum(), [w])
    expected_grad = np.float32(np.float16(np.float32(scale) * np.float32(1e-8)))
    assert grad.item() == expected_grad * np.float32(1 / scale)


def test_gradient_slices_stay_slices() -> None:
    w = half([[1.0], [2.0], [3.0]])
    rows = torch.tensor([2, 0, 2])

    def loss() -> Any:
        return torch.nn.functional.embedding(rows, w, sparse=True).float().sum() * 3

    opt = wrapped(8.0, train.GradientDescentOptimizer(1.0))
    ((grad, _),) = opt.compute_gradients(loss, [w])
    assert isinstance(grad, IndexedSlices)
    assert grad.values.tolist() == [[3.0]] * 3
    opt.minimize(loss, var_list=[w])
    assert w.flatten().tolist() == [-2.0, 2.0, -3.0]


def test_scale_none_means_1() -> None:
    assert wrapped().loss_scale == 1.0
    assert wrapped().get_name() == "Adam-MP"


@pytest.mark.parametrize("scale", [512, 512.0, np.float32(512), np.float64(512), np.int64(512)])
def test_a_static_scale_is_any_number(scale: Any) -> None:
    assert wrapped(scale).loss_scale == 512.0


@pytest.mark.parametrize("scale", [512, np.float32(512)])
def test_as_shipped_a_scale_must_be_a_float(scale: Any) -> None:
    w = half([1.0])
    opt = wrapped(scale, as_shipped=True)
    with pytest.raises(AttributeError, match="loss scale"):
        opt.compute_gradients(lambda: w.float().sum(), [w])


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((None,), TypeError, "optimizer must be an optimizer of thalweg.v1, not None"),
        ((train.AdamOptimizer(), "Backoff"), TypeError, "AutomaticLossScaler or None, not 'Back"),
        ((train.AdamOptimizer(), True), TypeError, "loss_scale must be a number"),
        (
            (train.AdamOptimizer(), 0),
            ValueError,
            "finite and above 0 in float32, and 1 / loss_scale, too, not 0",
        ),
        (
            (train.AdamOptimizer(), -2.0),
            ValueError,
            "finite and above 0 in float32, and 1 / loss_scale, too, not -2.0",
        ),
        (
            (train.AdamOptimizer(), NAN),
            ValueError,
            "finite and above 0 in float32, and 1 / loss_scale, too, not nan",
        ),
    ],
)
def test_invalid_wrapper_arguments_raise(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        MixedPrecisionOptimizerWrapper(*arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_adaptive_scale_needs_a_float32_loss(dtype: torch.dtype) -> None:
    w = half([1.0])
    with pytest.raises(TypeError, match=f"The loss is {str(dtype)[6:]}, but a loss scale that"):
        wrapped(backoff()).minimize(lambda: w.sum().to(dtype), var_list=[w])


def test_a_static_scale_takes_a_float16_loss() -> None:
    w = half([1.0])
    ((grad, _),) = wrapped(2.0).compute_gradients(lambda: (w * 3).sum(), [w])
    assert grad.tolist() == [3.0]


def test_a_variable_with_a_master_needs_a_gradient() -> None:
    w, v = half([1.0]), half([1.0], "v")
    with pytest.raises(ValueError, match="'v:0' has no gradient, but its master needs one"):
        wrapped().compute_gradients(lambda: w.float().sum(), [w, v])


# Updates


def test_masters_accumulate_updates_below_half_precision() -> None:
    w = half([1.0])
    opt = wrapped(None, train.GradientDescentOptimizer(1e-4))
    for _ in range(20):
        opt.minimize(lambda: w.float().sum(), var_list=[w])
    assert opt.get_master(w).item() == pytest.approx(0.998, rel=1e-5)
    assert w.item() == np.float16(opt.get_master(w).item())


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (torch.float16, 1e6, 65504.0),
        (torch.float16, -INF, -65504.0),
        (torch.float16, NAN, NAN),
        (torch.float16, 65519.0, 65504.0),
        (torch.bfloat16, INF, torch.finfo(torch.bfloat16).max),
        (torch.bfloat16, NAN, NAN),
    ],
)
def test_copies_are_never_infinite(dtype: torch.dtype, value: float, expected: float) -> None:
    w = half([0.0], dtype=dtype)
    opt = wrapped(None, train.GradientDescentOptimizer(1.0))
    opt.minimize(lambda: w.float().sum() * 0, var_list=[w])
    opt.apply_gradients([(torch.tensor([-value]), opt.get_master(w))])
    np.testing.assert_equal(w.detach().float().numpy(), np.array([expected], np.float32))
    np.testing.assert_equal(opt.get_master(w).numpy(), np.array([value], np.float32))


def state(opt: MixedPrecisionOptimizerWrapper, *variables: Any) -> list[bytes]:
    return [var.detach().numpy().tobytes() for var in (*variables, *opt.variables())]


@pytest.mark.parametrize("bad", [INF, NAN])
def test_an_overflow_changes_the_scaler_alone(bad: float) -> None:
    w, b, step = half([1.0, 2.0]), Variable([3.0], name="b"), counter()
    scaler = backoff(scale_max=16.0)
    opt = wrapped(scaler)
    factor = [1.0]

    def loss() -> Any:
        return (w.float() ** 2).sum() * factor[0] + b.sum()

    opt.minimize(loss, global_step=step, var_list=[w, b])
    state_before = state(opt, w, b, step)
    factor[0] = bad
    opt.minimize(loss, global_step=step, var_list=[w, b])
    assert state(opt, w, b, step) == state_before
    assert (scaler.loss_scale.item(), step.item()) == (8.0, 1)
    factor[0] = 1.0
    opt.minimize(loss, global_step=step, var_list=[w, b])
    assert state(opt, w, b, step) != state_before


def test_static_scale_applies_infinite_gradients() -> None:
    w = half([1.0])
    opt = wrapped(2.0**15, train.GradientDescentOptimizer(1.0))
    opt.minimize(lambda: w.float().sum() * 8, var_list=[w])
    assert (opt.get_master(w).item(), w.item()) == (-INF, -65504.0)


def test_rejected_step_does_not_change_the_scaler() -> None:
    w = half([1.0, 2.0])
    opt = wrapped(backoff(scale_max=16.0, step_window=1))
    opt.minimize(lambda: w.float().sum(), var_list=[w])
    state_before, scales = state(opt, w), opt.state_dict()
    with pytest.raises(ValueError, match="has shape"):
        opt.apply_gradients([(torch.ones(3), opt.get_master(w))])
    assert state(opt, w) == state_before
    state_after = opt.state_dict()
    assert all(torch.equal(state_after[name], value) for name, value in scales.items())


def test_an_error_after_the_update_leaves_copies_and_scaler_in_step() -> None:
    class Failing(train.GradientDescentOptimizer):
        def _finish(self, update_ops: Any, name_scope: str) -> None:
            raise OSError("no")

    w = half([1.0])
    scaler = backoff(scale_max=16.0)
    opt = wrapped(scaler, Failing(0.5))
    with pytest.raises(OSError, match="no"):
        opt.minimize(lambda: w.float().sum(), var_list=[w])
    assert (w.item(), opt.get_master(w).item()) == (0.5, 0.5)
    assert scaler.variables["iteration"] == 1


@each_dtype
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_masters_take_precedence_over_written_variables(
    dtype: torch.dtype, sparse: bool, engine: Any
) -> None:
    w = half([[1.0], [2.0], [3.0]], dtype=dtype)
    rows = torch.tensor([2, 0, 2])

    def loss() -> Any:
        return torch.nn.functional.embedding(rows, w, sparse=sparse).float().sum()

    opt = wrapped(1.0, train.GradientDescentOptimizer(0.5))
    with thalweg.engine(engine):
        for value in (7.0, -0.0, math.inf):
            opt.minimize(loss, var_list=[w])
            expected = opt.get_master(w).clone()
            w.data.fill_(value)
            opt.minimize(loss, var_list=[w])
            expected -= torch.tensor([[0.5], [0.0], [1.0]])
            assert_same([opt.get_master(w)], [expected])
            row_indices = [0, 2] if sparse else [0, 1, 2]
            assert_same([w[row_indices].float()], [expected[row_indices]])


def test_slots_are_found_by_the_variable_and_by_its_master() -> None:
    w = half([1.0])
    opt = wrapped()
    opt.minimize(lambda: w.float().sum(), var_list=[w])
    master = opt.get_master(w)
    assert opt.get_slot(w, "m") is opt.get_slot(master, "m")
    assert opt.get_slot(w, "m").dtype == torch.float32
    names = [var.name for var in opt.variables()]
    assert names[0] == "FP32-master-copy/w:0"
    assert {"FP32-master-copy/w/Adam:0", "beta1_power:0"} < set(names)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_take_the_same_steps(clone: Any) -> None:
    w = half([1.0, 2.0])
    opt = wrapped(backoff(scale_max=16.0))
    opt.minimize(lambda: (w.float() ** 2).sum(), var_list=[w])
    opt_copy, v = clone((opt, w))
    for optimizer, var in ((opt, w), (opt_copy, v)):
        optimizer.minimize(lambda var=var: (var.float() ** 2).sum(), var_list=[var])
    assert_same([w], [v])
    assert state(opt, w) == state(opt_copy, v)


# Penalties


def l2(weights: Any) -> Any:
    return 0.5 * (weights * weights).sum() / 2


@each_dtype
def test_penalties_of_reduced_variables_are_taken_at_the_master(dtype: torch.dtype) -> None:
    w = half([0.0078125], dtype=dtype)
    assert mp_regularizer_wrapper(l2)(w) is None
    opt = wrapped(64.0, train.GradientDescentOptimizer(1.0))
    opt.minimize(lambda: w.float().sum() * 0, var_list=[w])
    assert opt.get_master(w).item() == 0.00390625


def test_penalties_of_other_variables_are_returned() -> None:
    w = Variable([2.0], name="w")
    assert mp_regularizer_wrapper(l2)(w).item() == 1.0
    ((grad, _),) = wrapped().compute_gradients(lambda: w.sum(), [w])
    assert grad.tolist() == [1.0]


def test_get_variable_passes_penalties_to_the_wrapper() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        start = _graph.constant_initializer(0.25)
        penalty = mp_regularizer_wrapper(l2)
        w = _graph.get_variable("w", (2,), torch.float16, start, penalty)
        v = _graph.get_variable("v", (2,), torch.float32, start, penalty)
        assert len(_graph.get_collection(_graph.GraphKeys.REGULARIZATION_LOSSES)) == 1
        ((grad, master), (_, var)) = wrapped(128.0).compute_gradients(
            w.float().sum() + v.sum(), [w, v]
        )
        session.run(_graph.global_variables_initializer())
        assert session.run(grad).tolist() == [1.125, 1.125]
        assert _graph.get_collection("FP32_MASTER_COPIES") == [master]
        assert var is v
        assert _graph.trainable_variables() == [w, v]


def test_parameters_of_modules_have_penalties_in_graphs() -> None:
    module = torch.nn.Linear(1, 1, bias=False).half()
    torch.nn.init.constant_(module.weight, 0.25)
    with _graph.Graph().as_default(), _graph.Session() as session:
        assert mp_regularizer_wrapper(l2)(module.weight) is None
        x = _graph.placeholder(torch.float16, (1, 1))
        ((grad, _),) = wrapped(128.0).compute_gradients(module(x).float().sum())
        session.run(_graph.global_variables_initializer())
        assert session.run(grad, {x: [[1.0]]}).item() == 1.125


# Graphs


@pytest.mark.parametrize(("dtype", "update_count"), [(torch.float16, 4), (torch.bfloat16, 5)])
@pytest.mark.parametrize("scale", [256.0, "Backoff"])
def test_a_session_takes_the_steps_of_eager_mode(
    dtype: torch.dtype, update_count: int, scale: Any
) -> None:
    factors = [1.0, 2.0, 1e8, INF, 3.0, 1.0]

    def scaled_by(name: Any) -> Any:
        return backoff(scale_max=1024.0, step_window=2) if name == "Backoff" else name

    w, b = half([1.0, -2.0], dtype=dtype), Variable([3.0], name="b")
    opt = wrapped(scaled_by(scale))
    states = []
    for factor in factors:
        opt.minimize(lambda f=factor: (w.float() ** 2).sum() * f + b.sum(), var_list=[w, b])
        states.append([w.float().tolist(), b.tolist(), opt.get_master(w).tolist()])
    with _graph.Graph().as_default(), _graph.Session() as session:
        w_, b_ = _graph.Variable(half([1.0, -2.0], dtype=dtype)), _graph.Variable([3.0])
        f = _graph.placeholder(torch.float32, ())
        opt_ = wrapped(scaled_by(scale))
        step = _graph.Variable(np.int64(0), trainable=False)
        op = opt_.minimize((w_.float() ** 2).sum() * f + b_.sum(), step, [w_, b_])
        session.run(_graph.global_variables_initializer())
        for factor, expected in zip(factors, states, strict=True):
            session.run(op, {f: factor})
            got = session.run([w_.float(), b_, opt_.get_master(w_)])
            np.testing.assert_equal([tensor.tolist() for tensor in got], expected)
        assert session.run(step) == (update_count if scale == "Backoff" else 6)
        assert opt_.get_slot(w_, "m").graph is w_.graph
        with pytest.raises(FailedPreconditionError, match="session"):
            opt_.state_dict()


def test_graph_rejects_wrapping_optimizers() -> None:
    with _graph.Graph().as_default():
        w = _graph.Variable(half([1.0]))
        opt = wrapped(None, MovingAverageOptimizer(train.GradientDescentOptimizer(0.1)))
        with pytest.raises(TypeError, match="MovingAverageOptimizer wraps another optimizer"):
            opt.minimize(w.float().sum())


# State


def trained(steps: int, scale: Any = None) -> tuple[MixedPrecisionOptimizerWrapper, Any, Any]:
    w, b = half([1.0, 2.0]), Variable([3.0], name="b")
    opt = wrapped(scale or backoff(scale_max=64.0, step_window=2))
    run(opt, w, b, steps)
    return opt, w, b


def run(opt: Any, w: Any, b: Any, steps: int) -> None:
    for _ in range(steps):
        opt.minimize(lambda: (w.float() ** 3).sum() * b.sum(), var_list=[w, b])


@pytest.mark.parametrize("steps", [0, 2])
def test_loaded_state_resumes_bit_exact(steps: int) -> None:
    opt, w, b = trained(3)
    saved_state, b_value = opt.state_dict(), b.detach().clone()
    assert {"w/master", "w/m", "b/v", "beta1_power", "loss_scale/scale"} < set(saved_state)
    run(opt, w, b, 3)
    new_opt, v, c = trained(steps)
    c.assign(b_value)
    new_opt.load_state_dict(saved_state, [v, c])
    run(new_opt, v, c, 3)
    assert state(opt, w, b) == state(new_opt, v, c)
    assert opt.state_dict().keys() == saved_state.keys()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"w/m": None}, "'w/m' is missing"),
        ({"w/m": torch.ones(3)}, "'w/m' is float32 of shape (3,), not float32 of shape (2,)"),
        ({"w/master": torch.ones(2).half()}, "'w/master' is float16 of shape (2,), not float32"),
        ({"x/m": torch.ones(2)}, "'x/m' belongs to nothing here"),
        ({"loss_scale/scale": None}, "'loss_scale/scale' is missing"),
    ],
)
@pytest.mark.parametrize("steps", [0, 2])
def test_mismatched_state_raises(steps: int, changes: Any, text: str) -> None:
    new_state = {**trained(3)[0].state_dict(), **changes}
    new_state = {name: value for name, value in new_state.items() if value is not None}
    opt, w, b = trained(steps)
    state_before = state(opt, w, b)
    with pytest.raises(CheckpointMismatchError, match=re.escape(text)) as excinfo:
        opt.load_state_dict(new_state, [w, b])
    assert str(excinfo.value).endswith("Nothing was loaded.")
    assert state(opt, w, b) == state_before


def test_a_state_needs_the_variables_before_the_first_step() -> None:
    opt = wrapped(backoff())
    with pytest.raises(FailedPreconditionError, match="Give the variables: load_state_dict"):
        opt.load_state_dict(trained(3)[0].state_dict())
    assert opt.variables() == []


def test_variables_of_one_name_are_numbered() -> None:
    first, second = half([1.0]), half([2.0])
    opt = wrapped(None, train.MomentumOptimizer(0.1, 0.9))
    opt.minimize(lambda: (first.float() + 2 * second.float()).sum(), var_list=[first, second])
    assert set(opt.state_dict()) == {
        "w/master", "w/momentum", "w#1/master", "w#1/momentum",
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_float32_weights_under_autocast_use_loss_scale_without_masters(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    x = torch.randn(64, 8)

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", dtype):
            predicted = model(x)
        assert predicted.dtype == dtype
        return (predicted.float() - 1).square().mean()

    step = optimize_loss(
        loss, "Adam", {}, lambda s: 0.02, list(model.parameters()), "mixed", loss_scaling="Backoff"
    )
    losses = [step().item() for _ in range(40)]
    assert losses[-1] < 0.2 * losses[0]
    assert step.optimizer.get_master(model[0].weight) is None
    assert model[0].weight.dtype == torch.float32


def autocast_loss(w: Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (torch.ones(1, 2) @ w).float().sum()


NOTHING_MIXED = "no variable is float16 or bfloat16"


@pytest.mark.parametrize(
    ("dtype", "loss_of", "warns"),
    [
        (torch.float32, lambda w: w.sum(), True),
        (torch.float16, lambda w: w.float().sum(), False),
        (torch.bfloat16, lambda w: w.float().sum(), False),
        (torch.float32, autocast_loss, False),
        (torch.float32, lambda w: w.half().float().sum(), False),
    ],
    ids=["float32", "float16", "bfloat16", "autocast", "cast"],
)
@pytest.mark.parametrize("in_graph", [False, True])
def test_mixed_training_of_float32_variables_warns_once(
    dtype: torch.dtype, loss_of: Callable[[Any], Any], warns: bool, in_graph: bool
) -> None:
    w = torch.nn.Parameter(torch.ones(2, 1, dtype=dtype))
    options: Any = {"dtype": "mixed", "loss_scaling": "Backoff"}
    with warnings.catch_warnings(record=True) as caught_warnings, contextlib.ExitStack() as stack:
        warnings.simplefilter("always")
        loss: Any = lambda: loss_of(w)  # noqa: E731
        variables: list[Any] = [w]
        if in_graph:
            stack.enter_context(v1.Graph().as_default())
            session = stack.enter_context(v1.Session())
            variables = [v1.graph_variable_of(w)]
            loss, probe = loss_of(variables[0]), variables[0].to(torch.float32)
        step = optimize_loss(loss, "SGD", {}, lambda s: 0.25, variables, **options)
        if in_graph:
            session.run(v1.global_variables_initializer())
        for _ in range(2):
            session.run(step) if in_graph else step()
        final = session.run(probe) if in_graph else w.detach().float().numpy()
    matches = [entry for entry in caught_warnings if NOTHING_MIXED in str(entry.message)]
    if in_graph and loss_of is autocast_loss:
        warns = True  # autocast is no part of a graph
    assert [entry.category for entry in matches] == [PerformanceWarning] * warns
    assert all(entry.filename == __file__ for entry in matches)
    # The loss scale is put in and taken out again whatever the dtypes are.
    np.testing.assert_array_equal(np.float32(final), np.full((2, 1), 0.5, np.float32))


def test_mixed_training_of_float32_variables_equals_float32() -> None:
    ends = []
    each_options: list[dict[str, Any]] = [{}, {"dtype": "mixed", "loss_scaling": "Backoff"}]
    for options in each_options:
        w = Variable([3.0, -4.0])
        square = lambda w=w: (w * w).sum()  # noqa: E731
        step = optimize_loss(square, "Adam", {}, lambda s: 0.1, [w], **options)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", f".*{NOTHING_MIXED}")
            for _ in range(5):
                step()
        ends.append(w.tolist())
    assert ends[0] == ends[1]


@pytest.mark.parametrize("scale", [1e-50, 1e300, 1e-45, 1e-39])
def test_loss_scale_beyond_float32_raises(scale: float) -> None:
    with pytest.raises(ValueError, match="above 0 in float32"):
        MixedPrecisionOptimizerWrapper(train.GradientDescentOptimizer(1.0), scale)


def stepped() -> tuple[MixedPrecisionOptimizerWrapper, Variable]:
    var = Variable(torch.tensor([1.0], dtype=torch.float16), name="w")
    opt = MixedPrecisionOptimizerWrapper(v1.train.MomentumOptimizer(2.0**-13, 0.9), 128.0)
    for _ in range(3):
        opt.minimize(lambda: var.float().sum(), var_list=[var])
    return opt, var


def test_copied_wrapper_continues_with_the_same_variables() -> None:
    opt, var = stepped()
    opt_copy = copy.deepcopy(opt)
    assert opt_copy.get_master(var) is not None
    state_before = opt_copy.state_dict()
    assert all(torch.equal(state_before[name], value) for name, value in opt.state_dict().items())
    opt_copy.minimize(lambda: var.float().sum(), var_list=[var])
    assert opt_copy.state_dict().keys() == opt.state_dict().keys()


def test_pickled_wrapper_continues_with_its_variables() -> None:
    opt, var = pickle.loads(pickle.dumps(stepped()))
    state = opt.state_dict()
    opt.minimize(lambda: var.float().sum(), var_list=[var])
    assert opt.state_dict().keys() == state.keys()


def test_state_with_grown_variable_is_not_partially_loaded() -> None:
    opt, var = stepped()
    state_before = opt.state_dict()
    var.data = torch.zeros(2, dtype=torch.float16)
    state = {name: torch.full((2,), 5.0) for name in state_before}
    with pytest.raises(CheckpointMismatchError, match="Nothing was loaded"):
        opt.load_state_dict(state, [var])
    assert var.tolist() == [0.0, 0.0]
    assert all(torch.equal(state_before[name], value) for name, value in opt.state_dict().items())
