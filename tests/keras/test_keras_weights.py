"""`iterations`, slots, `weights` and their values, `add_weight`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from keras_table import Row, all_rows, assert_same_bits, pair, snapshot, train
from thalweg import NumericsWarning, VariableAggregation, VariableSynchronization, tf
from thalweg.keras.optimizers import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Ftrl,
    Nadam,
    Optimizer,
    RMSprop,
)


def test_iterations_start_at_zero_and_come_first() -> None:
    opt = Adam()
    assert opt.weights == []
    steps = opt.iterations
    assert (steps.dtype, steps.item(), steps.name) == (torch.int64, 0, "Adam/iter:0")
    assert opt.weights == [steps]


def test_preset_iterations_are_used_and_counted() -> None:
    opt, w = SGD(1.0, decay=1.0), thalweg.Variable(0.0)
    counter = thalweg.Variable(np.int64(3), "mine", trainable=False)
    opt.iterations = counter
    assert opt.apply_gradients([(1.0, w)]) is counter
    assert (counter.item(), w.item()) == (4, -0.25)
    assert [weight.name for weight in opt.weights] == ["mine:0"]


def test_iterations_cannot_be_replaced() -> None:
    opt = SGD()
    _ = opt.iterations
    with pytest.raises(RuntimeError, match="Cannot set `iterations` to a new Variable after"):
        opt.iterations = thalweg.Variable(np.int64(3))


@pytest.mark.parametrize(
    "value",
    [3, *map(thalweg.Variable, [0.5, np.zeros(1, "i8"), np.bool_(True), np.int8(1), np.uint64(1)])],
    ids=str,
)
def test_iterations_must_be_an_integer_scalar(value: Any) -> None:
    with pytest.raises(TypeError, match="iterations must be an integer scalar"):
        SGD().iterations = value


def test_iterations_cannot_begin_below_zero() -> None:
    with pytest.raises(ValueError, match="iterations must be 0 or more, not -3"):
        SGD().iterations = thalweg.Variable(np.int64(-3))


def test_assigned_iterations_count() -> None:
    opt, w = SGD(1.0, decay=1.0), thalweg.Variable(0.0)
    opt.iterations.assign(np.int64(1))
    opt.apply_gradients([(1.0, w)])
    opt.iterations.assign(np.int64(3))
    opt.apply_gradients([(1.0, w)])
    assert (w.item(), opt.iterations.item()) == (-0.75, 4)


@pytest.mark.parametrize(
    ("opt", "expected"),
    [
        (SGD(), ""),
        (SGD(momentum=0.5), "a/momentum b/momentum"),
        (Adam(), "a/m b/m a/v b/v"),
        (Adam(amsgrad=True), "a/m b/m a/v b/v a/vhat b/vhat"),
        (Nadam(), "momentum_cache a/m b/m a/v b/v"),
        (Adagrad(), "a/accumulator b/accumulator"),
        (Ftrl(), "a/accumulator a/linear b/accumulator b/linear"),
        (RMSprop(), "a/rms b/rms"),
        (
            RMSprop(momentum=0.5, centered=True),
            "a/rms b/rms a/momentum b/momentum a/mg b/mg",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_weights_are_iterations_then_slots(opt: Any, expected: str) -> None:
    train(opt, pair(), 1)
    scope = f"{opt.get_config()['name']}/"
    names = [weight.name.removeprefix(scope).removesuffix(":0") for weight in opt.weights]
    assert names == ["iter", *expected.split()]
    assert opt.variables() == opt.weights


@all_rows
def test_slots_have_shape_and_dtype_of_their_variable(row: Row) -> None:
    opt, variables = row.make(), [*pair(), *pair((2, 2), "float64")]
    train(opt, variables, 1)
    for var in variables:
        slots = [opt.get_slot(var, name) for name in row.slots]
        assert {(slot.shape, slot.dtype) for slot in slots} == {(var.shape, var.dtype)}


@all_rows
def test_slot_names_in_order_of_creation(row: Row) -> None:
    opt = row.make()
    assert opt.get_slot_names() == []
    train(opt, pair(), 1)
    assert opt.get_slot_names() == list(row.slots)


def test_unknown_slot_raises_with_known_slots() -> None:
    opt, variables = Adam(), pair()
    with pytest.raises(KeyError, match=r"'a:0' has no slot 'm'\. It has none before"):
        opt.get_slot(variables[0], "m")
    train(opt, variables, 1)
    with pytest.raises(KeyError, match=r"'a:0' has no slot 'momentum'\. It has m, v\."):
        opt.get_slot(variables[0], "momentum")


@pytest.mark.parametrize(
    ("initializer", "expected"),
    [
        ("zeros", 0.0),
        ("ones", 1.0),
        (np.full(3, 0.25), 0.25),
        (torch.full((3,), 0.25), 0.25),
        (lambda shape, dtype: torch.full(shape, 2.0, dtype=dtype), 2.0),
    ],
    ids=["zeros", "ones", "array", "tensor", "callable"],
)
def test_add_slot_creates_and_returns_a_slot(initializer: Any, expected: float) -> None:
    opt, (w, _) = SGD(), pair(dtype="float64")
    slot = opt.add_slot(w, "extra", initializer)
    assert (slot.name, slot.dtype) == ("SGD/a/extra:0", torch.float64)
    assert slot.numpy().tolist() == [expected] * 3
    assert opt.add_slot(w, "extra", "ones") is slot
    assert opt.get_slot(w, "extra") is slot
    assert [weight.name for weight in opt.weights] == ["SGD/a/extra:0"]


def test_add_slot_accepts_another_shape() -> None:
    opt, (w, _) = SGD(), pair()
    assert opt.add_slot(w, "extra", "ones", shape=(2, 2)).numpy().tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("value", [0.5, np.ones(5), torch.tensor(2.0), thalweg.Variable([1.0])])
def test_add_slot_takes_the_shape_of_its_value(value: Any) -> None:
    opt, (w, _) = SGD(), pair()
    slot = opt.add_slot(w, "extra", value)
    assert slot.numpy().tolist() == np.asarray(value).tolist()


@pytest.mark.parametrize(
    ("initializer", "shape"), [("glorot", None), (np.ones(5), (3,))], ids=["name", "shape"]
)
def test_add_slot_with_invalid_arguments_raises(initializer: Any, shape: Any) -> None:
    opt, (w, _) = SGD(), pair()
    with pytest.raises(ValueError, match=r"Unknown initializer 'glorot'|has shape \(5,\)"):
        opt.add_slot(w, "extra", initializer, shape)
    assert opt.get_slot_names() == []


def test_add_weight_creates_a_trainable_weight() -> None:
    opt = SGD()
    weight = opt.add_weight("scale", (2,), initializer="ones")
    assert (weight.dtype, weight.trainable, weight.name) == (torch.float32, True, "scale:0")
    assert weight.numpy().tolist() == [1.0, 1.0]
    assert opt.weights == []


def test_add_weight_takes_dtype_and_enums() -> None:
    weight = SGD().add_weight(
        "count",
        (),
        dtype="int64",
        trainable=False,
        synchronization=VariableSynchronization.ON_READ,
        aggregation=VariableAggregation.SUM,
    )
    assert (weight.dtype, weight.trainable) == (torch.int64, False)


def test_trainable_weight_cannot_be_on_read() -> None:
    with pytest.raises(ValueError, match="ON_READ only for non-trainable variables"):
        SGD().add_weight(
            "count", (), trainable=True, synchronization=VariableSynchronization.ON_READ
        )


def test_modes_of_a_weight_are_checked() -> None:
    add: Any = SGD().add_weight
    assert add("w", (), aggregation=1)._aggregation is VariableAggregation.SUM
    with pytest.raises(ValueError, match="Invalid variable aggregation mode: 'mean'"):
        add("w", (), aggregation="mean")
    with pytest.raises(ValueError, match="Invalid variable synchronization mode: 9"):
        add("w", (), synchronization=9)


@all_rows
def test_set_weights_restores_get_weights(row: Row) -> None:
    opt, variables = row.make(), pair()
    train(opt, variables, 2)
    values = opt.get_weights()
    state_before = snapshot(opt, [])
    train(opt, variables, 2, first=3)
    opt.set_weights(values)
    assert_same_bits(snapshot(opt, []), state_before)


def test_get_weights_are_copies() -> None:
    opt, variables = Adam(), pair()
    assert opt.get_weights() == []
    train(opt, variables, 1)
    values = opt.get_weights()
    assert all(isinstance(value, np.ndarray | np.generic) for value in values)
    first = values[1].copy()
    train(opt, variables, 1, first=2)
    assert np.array_equal(values[1], first)


def test_bfloat16_weights_pass_through_float32() -> None:
    opt, variables = Adam(), pair(dtype="bfloat16")
    train(opt, variables, 2)
    state_before = snapshot(opt, [])
    assert opt.get_weights()[1].dtype == np.float32
    opt.set_weights(opt.get_weights())
    assert_same_bits(snapshot(opt, []), state_before)


def test_documentation_example_of_weights_runs() -> None:
    kernel, bias = thalweg.Variable(np.zeros((20, 10), "f4")), thalweg.Variable(np.zeros(10, "f4"))
    opt = RMSprop()
    train(opt, [kernel, bias], 1)
    assert len(opt.get_weights()) == 3
    opt.set_weights([np.array(10), np.ones([20, 10]), np.zeros([10])])
    assert repr(opt.iterations) == "<tf.Variable 'RMSprop/iter:0' shape=() dtype=int64, numpy=10>"
    assert opt.get_slot(kernel, "rms").numpy().sum() == 200


def test_set_weights_takes_arrays_of_ml_dtypes() -> None:
    w = tf.Variable(np.ones(2), dtype=tf.bfloat16)
    opt = tf.keras.optimizers.SGD(0.5, momentum=0.5)
    opt.apply_gradients([(tf.ones_like(w), w)])
    opt.set_weights([3, np.array([1.5, 2.0], tf.bfloat16.as_numpy_dtype)])
    assert [weight.tolist() for weight in opt.get_weights()] == [3, [1.5, 2.0]]


@all_rows
@pytest.mark.parametrize("length", [1, 9])
def test_set_weights_before_creation_raises(row: Row, length: int) -> None:
    opt = row.make()
    if length == 1 and row.name == "Adam":
        with pytest.warns(NumericsWarning, match="sets none of the one it was given, as in Tensor"):
            opt.set_weights([np.array(1)])
        assert (opt.weights, opt.iterations.item()) == ([], 0)
        return
    with pytest.raises(ValueError, match=rf"on optimizer {row.name} with a  weight list of length"):
        opt.set_weights([np.array(1)] * length)
    opt.set_weights([])


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("amsgrad", [False, True], ids=["plain", "amsgrad"])
def test_adam_set_weights_accepts_documented_lengths(count: int, amsgrad: bool) -> None:
    opt, variables = Adam(amsgrad=amsgrad), [*pair(), *pair()][:count]
    train(opt, variables, 1)
    kinds = 3 if amsgrad else 2
    accepted = {1 + kinds * count, 1 + 3 * count}
    for length in range(14):
        weights = [np.array(7), *(np.full(3, float(place)) for place in range(1, length))]
        if length in accepted:
            opt.set_weights(weights)
            assert opt.iterations.item() == 7
            last_slot = opt.get_slot(variables[-1], "vhat" if amsgrad else "v")
            assert last_slot.tolist() == [float(kinds * count)] * 3
            continue
        state_before = snapshot(opt, variables)
        with pytest.raises(ValueError, match=f"weight list of length {length}"):
            opt.set_weights(weights[:length])
        assert_same_bits(snapshot(opt, variables), state_before)


@pytest.mark.parametrize("cls", [Adagrad, RMSprop, Adadelta])
def test_set_weights_one_short_resets_iterations(cls: Any) -> None:
    opt, variables = cls(), pair()
    train(opt, variables, 2)
    weight_count = len(opt.get_weights())
    for length in range(weight_count + 3):
        opt.iterations.assign(np.int64(5))
        weights = [np.full(3, 0.5) for _ in range(length)]
        if length == weight_count:
            weights[0] = np.array(9)
        if length in (weight_count, weight_count - 1):
            opt.set_weights(weights)
            assert opt.iterations.item() == (9 if length == weight_count else 0)
            assert opt.weights[-1].tolist() == [0.5] * 3
        else:
            with pytest.raises(
                ValueError, match=f"weight list of length {length}, but .* {weight_count}"
            ):
                opt.set_weights(weights)
            assert opt.iterations.item() == 5


@pytest.mark.parametrize("cls", [Adagrad, RMSprop, Adadelta])
def test_empty_set_weights_resets_iterations(cls: Any) -> None:
    opt = cls()
    opt.iterations.assign(np.int64(5))
    opt.set_weights([])
    assert opt.iterations.item() == 0


def test_set_weights_of_another_shape_changes_nothing() -> None:
    opt, variables = Adam(), pair()
    train(opt, variables, 1)
    state_before = snapshot(opt, variables)
    values = [value + 1 for value in opt.get_weights()]
    values[-1] = np.zeros(4)
    with pytest.raises(ValueError, match=r"weight shape \(3,\) not compatible .* shape \(4,\)"):
        opt.set_weights(values)
    assert_same_bits(snapshot(opt, variables), state_before)


def test_adam_drops_the_vhat_of_amsgrad() -> None:
    opt, other_opt, variables, twins = Adam(), Adam(amsgrad=True), pair(), pair()
    train(opt, variables, 1), train(other_opt, twins, 3)
    opt.set_weights(other_opt.get_weights())
    assert opt.iterations.item() == 3
    assert torch.equal(opt.get_slot(variables[1], "v"), other_opt.get_slot(twins[1], "v"))


@pytest.mark.parametrize("cls", [Adagrad, RMSprop])
def test_a_list_of_slots_alone_starts_at_iteration_zero(cls: Any) -> None:
    opt, variables = cls(), pair()
    train(opt, variables, 2)
    opt.set_weights([np.ones(3), np.ones(3)])
    assert opt.iterations.item() == 0
    assert opt.weights[1].numpy().tolist() == [1, 1, 1]


def test_adadelta_accepts_slots_alone() -> None:
    opt, variables = Adadelta(), pair()
    train(opt, variables, 2)
    opt.set_weights([np.ones(3)] * 4)
    assert opt.iterations.item() == 0


@all_rows
def test_variables_of_equal_name_have_separate_slots(row: Row) -> None:
    opt, variables = row.make(), [thalweg.Variable([1.0], "w"), thalweg.Variable([1.0], "w")]
    opt.apply_gradients(zip([[1.0], [2.0]], variables, strict=True))
    first, second = (opt.get_slot(var, row.slots[-1]) for var in variables)
    assert first is not second
    assert first.item() != second.item()


def test_slots_are_created_by_the_base_class_too() -> None:
    class Counting(Optimizer):
        def _create_slots(self, var_list: Any) -> None:
            for var in var_list:
                self.add_slot(var, "count")

        def _resource_apply_dense(self, grad: Any, var: Any) -> None:
            self.get_slot(var, "count").add_(1)

    opt, variables = Counting("Counting"), pair()
    train(opt, variables, 3)
    assert opt.get_slot(variables[1], "count").numpy().tolist() == [3, 3, 3]
    assert len(opt.get_weights()) == 3


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (1.5, ValueError, "'Adam/iter:0' is int64 and cannot hold 1.5"),
        (float("nan"), ValueError, "'Adam/iter:0' is int64 and cannot hold nan"),
        (torch.tensor(0.25), ValueError, "'Adam/iter:0' is int64 and cannot hold 0.25"),
        (-1, ValueError, "iterations must be 0 or more, not -1"),
        (1j, TypeError, "The value for 'Adam/iter:0' is complex128, not real"),
        ("one", TypeError, "The value for 'Adam/iter:0' is no array of numbers"),
        (None, TypeError, "The value for 'Adam/iter:0' is no array of numbers"),
    ],
    ids=str,
)
def test_set_weights_rejects_mismatched_values(value: Any, error: Any, message: str) -> None:
    opt, variables = Adam(), pair()
    train(opt, variables, 1)
    state_before = snapshot(opt, variables)
    with pytest.raises(error, match=message):
        opt.set_weights([value, *(weight + 1 for weight in opt.get_weights()[1:])])
    assert_same_bits(snapshot(opt, variables), state_before)


@pytest.mark.parametrize("value", [7, 7.0, np.float32(7), np.int8(7), torch.tensor(7.0), True])
def test_set_weights_converts_whole_numbers(value: Any) -> None:
    opt = SGD()
    _ = opt.iterations
    opt.set_weights([value])
    assert (opt.iterations.item(), opt.iterations.dtype) == (int(value), torch.int64)


def test_set_weights_rounds_to_the_dtype_of_a_slot() -> None:
    opt, variables = RMSprop(), pair()
    train(opt, variables, 1)
    opt.set_weights([1, np.full(3, 0.1), torch.full((3,), 1, dtype=torch.int32)])
    assert opt.weights[1].numpy().tolist() == [np.float32(0.1)] * 3
    assert opt.weights[2].numpy().tolist() == [1, 1, 1]


def test_set_weights_takes_another_optimizers_variables() -> None:
    opt, other_opt, variables = Adam(), Adam(), pair(dtype="bfloat16")
    train(opt, variables, 2), train(other_opt, variables, 1)
    other_opt.set_weights(opt.weights)
    assert_same_bits(snapshot(other_opt, []), snapshot(opt, []))


def test_set_weights_before_the_first_step_raises_with_advice() -> None:
    opt, other_opt, variables = Adam(), Adam(), pair()
    train(opt, variables, 1)
    with pytest.raises(ValueError, match=r"appear at the first apply_gradients; .* load_state_d"):
        other_opt.set_weights(opt.get_weights())
    with pytest.raises(ValueError, match=r"Provided weights: \[\]\.\.\.$"):
        opt.set_weights([])
