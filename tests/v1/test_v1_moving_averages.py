"""tf.train.ExponentialMovingAverage, eagerly and in graphs."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from thalweg import Variable, _graph
from thalweg.v1 import train

AVERAGED = "ExponentialMovingAverage"
DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


def moved(average: Any, value: Any, decay: Any) -> Any:
    share = average.dtype.type(np.float32(1) - np.float32(decay))
    return average - (average - value) * share


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_average_starts_at_its_variable(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    start = rng.standard_normal((5, 3)).astype(dtype)
    w, averages = Variable(start, name="w"), train.ExponentialMovingAverage(0.9)
    expected = start
    for _ in range(4):
        value = rng.standard_normal((5, 3)).astype(dtype)
        averages.apply([w])
        expected = moved(expected, w.numpy(), 0.9)
        np.testing.assert_array_equal(averages.average(w).numpy(), expected)
        w.assign(value)
    assert not averages.average(w).trainable


@pytest.mark.parametrize(
    ("count", "decay"), [(None, 0.9), (3, 4 / 13), (np.int64(3), 4 / 13), (10**6, 0.9)]
)
def test_num_updates_limits_the_decay(count: Any, decay: float) -> None:
    w, averages = Variable(1.0, name="w"), train.ExponentialMovingAverage(0.9, num_updates=count)
    averages.apply([w])
    w.assign(2.0)
    averages.apply([w])
    assert averages.average(w).item() == pytest.approx(1.0 + (1.0 - decay), rel=1e-7)


def test_num_updates_may_be_a_variable() -> None:
    w, step = Variable(1.0, name="w"), Variable(np.int64(0), name="step", trainable=False)
    averages = train.ExponentialMovingAverage(0.999, num_updates=step)
    averages.apply([w])
    w.assign(2.0)
    step.assign(3)
    averages.apply([w])
    assert averages.average(w).item() == pytest.approx(1 + 9 / 13, rel=1e-7)


def test_averages_have_tensorflow_names() -> None:
    w, v = Variable(1.0, name="w"), Variable(1.0, name="v")
    averages = train.ExponentialMovingAverage(0.9, name="Mean")
    assert (averages.name, averages.average_name(w), averages.average(w)) == (
        "Mean",
        "w/Mean",
        None,
    )
    averages.apply([w])
    assert averages.average(w).name == "w/Mean:0"
    assert averages.average_name(w) == "w/Mean"
    assert averages.variables_to_restore([w, v, w]) == {"w/Mean": w, "v/Mean": v}
    assert averages.variables_to_restore() == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_averages_of_half_precision_variables_are_exact(dtype: torch.dtype) -> None:
    w = Variable(torch.tensor([1.0, 2.0], dtype=dtype), name="w")
    averages = train.ExponentialMovingAverage(0.75)
    averages.apply([w])
    w.assign(torch.tensor([3.0, 4.0], dtype=dtype))
    averages.apply([w])
    assert averages.average(w).tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda: torch.ones(2), "does not support non-Variable tensors"),
        (lambda: 3.0, "does not support non-Variable tensors"),
        (lambda: Variable([1, 2], name="n"), "must be half, float, or double: n"),
    ],
)
def test_invalid_variables_raise_and_change_no_average(bad: Any, message: str) -> None:
    w, averages = Variable(1.0, name="w"), train.ExponentialMovingAverage(0.5)
    averages.apply([w])
    w.assign(2.0)
    with pytest.raises(TypeError, match=message):
        averages.apply([w, bad()])
    assert averages.average(w).item() == 1.0


def test_eager_apply_needs_var_list() -> None:
    with pytest.raises(ValueError, match="Name the variables"):
        train.ExponentialMovingAverage(0.5).apply()


def test_copied_averages_are_separate() -> None:
    w, averages = Variable(1.0, name="w"), train.ExponentialMovingAverage(0.5)
    averages.apply([w])
    averages_copy, v = copy.deepcopy((averages, w))
    v.assign(2.0)
    averages_copy.apply([v])
    assert (averages.average(w).item(), averages_copy.average(v).item()) == (1.0, 1.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_averages_are_updated_in_a_graph(dtype: torch.dtype) -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable(torch.tensor([1.0, -1.0], dtype=dtype), name="w")
        averages = train.ExponentialMovingAverage(0.9)
        update = w.assign_add(torch.ones(2, dtype=dtype))
        with _graph.control_dependencies([update]):
            op = averages.apply([w])
        assert op.name == AVERAGED
        keys = _graph.GraphKeys
        assert _graph.get_collection(keys.MOVING_AVERAGE_VARIABLES) == [w]
        assert averages.average(w).name == f"w/{AVERAGED}:0"
        assert averages.average(w) in _graph.get_collection(keys.GLOBAL_VARIABLES)
        assert averages.average(w) not in _graph.get_collection(keys.TRAINABLE_VARIABLES)
        session.run(_graph.global_variables_initializer())
        expected = DTYPES[dtype]([1.0, -1.0])
        value = expected.copy()
        for _ in range(3):
            session.run(op)
            value = value + 1
            expected = moved(expected, value, 0.9)
            np.testing.assert_array_equal(session.run(averages.average(w)), expected)


def test_trainable_variables_are_averaged_by_default() -> None:
    with _graph.Graph().as_default():
        w, v = _graph.Variable(1.0, name="w"), _graph.Variable(1.0, name="v", trainable=False)
        averages = train.ExponentialMovingAverage(0.9)
        averages.apply()
        assert averages.average(w) is not None
        assert averages.average(v) is None


def test_variables_to_restore_maps_average_names() -> None:
    with _graph.Graph().as_default():
        w, v = _graph.Variable(1.0, name="w"), _graph.Variable(1.0, name="v")
        step = _graph.Variable(0, name="step", trainable=False)
        averages = train.ExponentialMovingAverage(0.9)
        averages.apply([w])
        mapping = averages.variables_to_restore()
        assert mapping == {f"w/{AVERAGED}": w, f"v/{AVERAGED}": v, "step": step}
        partial_mapping = averages.variables_to_restore([w])
        assert partial_mapping == {f"w/{AVERAGED}": w, "v": v, "step": step}


@pytest.mark.parametrize("debias", [True, False])
def test_graph_tensors_are_averaged_from_0(debias: bool) -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        placeholder = _graph.placeholder(torch.float32, (2,))
        value = placeholder * 2.0
        averages = train.ExponentialMovingAverage(0.75, zero_debias=debias)
        op = averages.apply([value])
        session.run(_graph.global_variables_initializer())
        biased = np.zeros(2, np.float32)
        for step, fed_value in enumerate(([1.0, 2.0], [3.0, -1.0], [0.5, 0.5]), 1):
            session.run(op, {placeholder: fed_value})
            biased = moved(biased, np.float32(2) * np.array(fed_value, np.float32), 0.75)
            weight = np.float32(1 - 0.75**step) if debias else np.float32(1)
            got = session.run(averages.average(value))
            np.testing.assert_array_equal(got, biased / weight)


def test_tensor_without_a_shape_raises() -> None:
    with _graph.Graph().as_default():
        placeholder = _graph.placeholder(torch.float32, (None, 2))
        with pytest.raises(TypeError, match="The shape of"):
            train.ExponentialMovingAverage(0.9).apply([placeholder])


def test_decay_may_be_a_tensor_of_a_graph() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w, decay = _graph.Variable(1.0, name="w"), _graph.placeholder(torch.float32, ())
        averages = train.ExponentialMovingAverage(decay)
        with _graph.control_dependencies([w.assign_add(1.0)]):
            op = averages.apply([w])
        session.run(_graph.global_variables_initializer())
        session.run(op, {decay: 0.5})
        assert session.run(averages.average(w)) == 1.5
        session.run(op, {decay: 0.0})
        assert session.run(averages.average(w)) == 3.0


def test_averages_check_their_decay_and_can_be_copied() -> None:
    with pytest.raises(TypeError, match="decay must be a number"):
        train.ExponentialMovingAverage(lambda: 0.9)  # type: ignore[arg-type]
    w, averages = Variable([1.0]), train.ExponentialMovingAverage(0.5)
    for value in (1.0, 2.0, 3.0):
        averages.apply([w.assign([value])])
    assert averages.average(w).item() == 2.25
    averages_copy, w_copy = copy.deepcopy((averages, w))
    averages_copy.apply([w_copy.assign([5.0])])
    assert (averages_copy.average(w_copy).item(), averages.average(w).item()) == (3.625, 2.25)
