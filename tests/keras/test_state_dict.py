"""`state_dict` and `load_state_dict`: to the bit through a file, by name, all or nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from files import through_a_file
from keras_table import (
    Row,
    all_rows,
    assert_same_bits,
    both_engines,
    gradients,
    mixed_variables,
    pair,
    snapshot,
    train,
)
from thalweg import Variable
from thalweg.errors import CheckpointMismatchError
from thalweg.keras import optimizers
from thalweg.keras.optimizers import SGD, Adagrad, Adam, Ftrl, Nadam, Optimizer, schedules

PLAIN_TYPES = (str, int, float, bool, type(None), torch.Tensor)


def copies(variables: list[Any]) -> list[Any]:
    return [thalweg.Variable(var.detach(), var.name) for var in variables]


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item_pair in value.items() for part in item_pair for leaf in leaves(part)]
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


@all_rows
def test_state_dict_holds_only_plain_types(row: Row) -> None:
    opt, variables = row.make(), mixed_variables()
    train(opt, variables, 2)
    assert {type(leaf) for leaf in leaves(opt.state_dict())} <= set(PLAIN_TYPES)


@pytest.mark.one_in(3)
@both_engines
@all_rows
@pytest.mark.parametrize("with_variables", [True, False], ids=["var_list", "deferred"])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_fresh_optimizer_resumes_from_state_dict(
    row: Row, engine: str, with_variables: bool, steps: int
) -> None:
    opt, variables = row.make(), mixed_variables()
    opt.engine = engine
    train(opt, variables, steps)
    state, twins = through_a_file(opt.state_dict()), copies(variables)
    new_opt = row.make()
    new_opt.engine = engine
    new_opt.load_state_dict(state, twins if with_variables and steps else None)
    train(opt, variables, 2, first=5), train(new_opt, twins, 2, first=5)
    assert_same_bits(snapshot(new_opt, twins), snapshot(opt, variables))


@all_rows
def test_loading_in_place_restores_the_earlier_state(row: Row) -> None:
    opt, variables = row.make(), mixed_variables()
    train(opt, variables, 2)
    state_before, state = snapshot(opt, []), through_a_file(opt.state_dict())
    train(opt, variables, 2, first=3)
    opt.load_state_dict(state)
    assert_same_bits(snapshot(opt, []), state_before)


@all_rows
def test_state_is_a_copy(row: Row) -> None:
    opt, variables = row.make(), pair()
    train(opt, variables, 1)
    state = opt.state_dict()
    state_before = through_a_file(state)
    train(opt, variables, 1, first=2)
    old, new = leaves(state_before), leaves(state)
    assert all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(old, new, strict=True)
    )


def test_state_dict_has_the_documented_entries() -> None:
    opt, variables = Nadam(0.5), pair()
    train(opt, variables, 1)
    state = opt.state_dict()
    assert state["class_name"] == "Nadam"
    assert state["iterations"].dtype == torch.int64
    assert state["hyperparameters"]["learning_rate"] == 0.5
    assert set(state["weights"]) == {"momentum_cache"}
    assert {name: sorted(variable_slots) for name, variable_slots in state["slots"].items()} == {
        "a:0": ["m", "v"],
        "b:0": ["m", "v"],
    }


def test_hyperparameters_are_restored() -> None:
    opt, new_opt, variables = Adam(0.5, beta_1=0.75), Adam(), pair()
    train(opt, variables, 1)
    opt.learning_rate = 0.25
    new_opt.load_state_dict(opt.state_dict())
    assert (new_opt.learning_rate.item(), new_opt.beta_1.item()) == (0.25, 0.75)


def test_schedules_and_callables_stay_in_force() -> None:
    schedule = schedules.ExponentialDecay(1.0, 1, 0.5)
    opt, new_opt = Adam(0.5), Adam(schedule, beta_1=lambda: 0.5)
    train(opt, pair(), 1)
    new_opt.load_state_dict(opt.state_dict())
    assert new_opt.learning_rate is schedule
    assert "learning_rate" not in new_opt.state_dict()["hyperparameters"]


def test_slots_are_matched_by_name_in_any_order() -> None:
    opt, new_opt, (a, b) = Adam(), Adam(), pair()
    train(opt, [a, b], 2)
    twins = copies([b, a])
    new_opt.load_state_dict(opt.state_dict(), twins)
    assert torch.equal(new_opt.get_slot(twins[0], "m"), opt.get_slot(b, "m"))
    assert torch.equal(new_opt.get_slot(twins[1], "m"), opt.get_slot(a, "m"))


def test_variables_of_one_name_are_numbered() -> None:
    opt, variables = Adam(), [thalweg.Variable([1.0], "w"), thalweg.Variable([2.0], "w")]
    train(opt, variables, 2)
    state, twins, new_opt = opt.state_dict(), copies(variables), Adam()
    assert list(state["slots"]) == ["w:0", "w:0#1"]
    new_opt.load_state_dict(state, twins)
    assert_same_bits(snapshot(new_opt, []), snapshot(opt, []))


@pytest.mark.parametrize("opt", [SGD(0.1), Optimizer("plain")], ids=["SGD", "base"])
def test_state_of_optimizer_without_slots_round_trips(opt: Any) -> None:
    new_opt, variables = type(opt).from_config(opt.get_config()), pair()
    opt.iterations.assign(np.int64(7))
    new_opt.load_state_dict(opt.state_dict(), variables)
    assert new_opt.iterations.item() == 7


def test_slots_of_another_shape_than_the_variable_load() -> None:
    class Rows(Optimizer):
        def _create_slots(self, var_list: Any) -> None:
            for var in var_list:
                self.add_slot(var, "rows", shape=var.shape[:1])

        def _resource_apply_dense(self, grad: Any, var: Any) -> None:
            self.get_slot(var, "rows").add_(grad.sum(1))

    opt, new_opt, variables = Rows("Rows"), Rows("Rows"), pair((3, 2))
    train(opt, variables, 2)
    new_opt.load_state_dict(through_a_file(opt.state_dict()), variables)
    assert_same_bits(snapshot(new_opt, []), snapshot(opt, []))


def test_pending_slots_wait_for_their_variable() -> None:
    opt, new_opt, (a, b) = Adam(), Adam(), pair()
    train(opt, [a, b], 1)
    new_opt.load_state_dict(opt.state_dict())
    (grad_a, _), (grad_b, _) = gradients([a, b], 2)
    new_opt.apply_gradients([(grad_a, a)])
    new_opt.apply_gradients([(grad_b, b)])
    expected = opt.get_slot(b, "m") * np.float32(0.9) + grad_b * (1 - np.float32(0.9))
    torch.testing.assert_close(new_opt.get_slot(b, "m"), expected, check_dtype=False)


def test_iterations_after_loading_is_the_same_variable() -> None:
    opt = Adam()
    steps = opt.iterations
    opt.load_state_dict({**Adam().state_dict(), "iterations": torch.tensor(9)})
    assert opt.iterations is steps
    assert steps.item() == 9


def test_iterations_beyond_a_preset_counter_raise() -> None:
    opt = Adam()
    opt.iterations = thalweg.Variable(3, "it", trainable=False)
    with pytest.raises(CheckpointMismatchError, match="'iterations' is 1099511627776, not betw"):
        opt.load_state_dict({**Adam().state_dict(), "iterations": torch.tensor(2**40)})
    assert opt.iterations.item() == 3


def test_preset_iterations_of_another_integer_dtype_load() -> None:
    opt, new_opt, (a, _) = Adam(), Adam(), pair()
    opt.iterations = thalweg.Variable(3, "it", trainable=False)
    train(opt, [a], 2)
    new_opt.load_state_dict(through_a_file(opt.state_dict()), [a])
    assert new_opt.iterations.item() == 5


def test_float64_hyperparameter_keeps_its_precision() -> None:
    opt, new_opt = SGD(np.float64(0.1)), SGD(np.float64(0.5))
    new_opt.load_state_dict(opt.state_dict())
    w = thalweg.Variable(1.0, dtype="float64")
    new_opt.apply_gradients([(1.0, w)])
    assert w.item() == 1 - 0.1


def test_integer_hyperparameter_rejects_a_fraction() -> None:
    opt, new_opt, variables = SGD(0.5), SGD(1), pair()
    train(new_opt, variables, 1)
    state_before = snapshot(new_opt, variables)
    with pytest.raises(
        CheckpointMismatchError, match=r"'learning_rate' is 0\.5, no number that fits"
    ):
        new_opt.load_state_dict(opt.state_dict())
    assert_same_bits(snapshot(new_opt, variables), state_before)


Change = Callable[[dict[str, Any]], Any]


def _slots(change: Callable[..., Any]) -> Change:
    return lambda state: change(state["slots"])


def _swap_names(slots: dict[str, Any]) -> None:
    slots["a:0"], slots["b:0"] = slots["b:0"], slots["a:0"]


# name -> (change of a good state, error message); variables "a" (3,) and "b" (2, 3).
MUTATIONS: dict[str, tuple[Change, str]] = {
    "permuted": (
        _slots(_swap_names),
        r"'a/m' is float32 of shape \(2, 3\), not float32 of shape \(3,\)",
    ),
    "renamed variable": (
        _slots(lambda slots: slots.update({"c:0": slots.pop("a:0")})),
        r"'a/m' is missing; 'a/v' is missing",
    ),
    "renamed slot": (
        _slots(lambda slots: slots["a:0"].update(mm=slots["a:0"].pop("m"))),
        r"'a/m' is missing; 'a/mm' belongs to nothing here",
    ),
    "missing variable": (
        _slots(lambda slots: slots.pop("b:0")),
        r"'b/m' is missing; 'b/v' is missing",
    ),
    "missing slot": (
        _slots(lambda slots: slots["b:0"].pop("v")),
        r"'b/v' is missing",
    ),
    "extra slot": (
        _slots(lambda slots: slots["a:0"].update(extra=torch.zeros(3))),
        r"'a/extra' belongs to nothing here",
    ),
    "reshaped": (
        _slots(lambda slots: slots["a:0"].update(m=torch.zeros(4))),
        r"'a/m' is float32 of shape \(4,\), not float32 of shape \(3,\)",
    ),
    "same numel, other shape": (
        _slots(lambda slots: slots["b:0"].update(v=torch.zeros(3, 2))),
        r"'b/v' is float32 of shape \(3, 2\), not float32 of shape \(2, 3\)",
    ),
    "broadcast shape": (
        _slots(lambda slots: slots["b:0"].update(v=torch.zeros(3))),
        r"'b/v' is float32 of shape \(3,\), not float32 of shape \(2, 3\)",
    ),
    "other dtype": (
        _slots(lambda slots: slots["a:0"].update(m=slots["a:0"]["m"].double())),
        r"'a/m' is float64 of shape \(3,\), not float32 of shape \(3,\)",
    ),
    "not a tensor": (
        _slots(lambda slots: slots["a:0"].update(m=3.0)),
        r"'a/m' is no tensor but 3\.0",
    ),
    "other class": (lambda state: state.update(class_name="Adam"), r"The state is of Adam"),
    "other hyperparameter": (
        lambda state: state["hyperparameters"].update(beta_9=0.1),
        r"'beta_9' belongs to nothing here",
    ),
    "hyperparameter of another type": (
        lambda state: state["hyperparameters"].update(learning_rate="fast"),
        r"'learning_rate' is 'fast', no number that fits",
    ),
    "other weight": (
        lambda state: state["weights"].update(cache=torch.zeros(())),
        r"'cache' belongs to nothing here",
    ),
    "missing weight": (
        lambda state: state["weights"].clear(),
        r"'momentum_cache' is missing",
    ),
    "reshaped weight": (
        lambda state: state["weights"].update(momentum_cache=torch.zeros(1)),
        r"'momentum_cache' is float32 of shape \(1,\), not float32 of shape \(\)",
    ),
    "reshaped iterations": (
        lambda state: state.update(iterations=torch.tensor([3])),
        r"'iterations' is int64 of shape \(1,\), not int64 of shape \(\)",
    ),
    "iterations of another type": (
        lambda state: state.update(iterations=torch.tensor(3.5)),
        r"'iterations' is float32 of shape \(\), not int64 of shape \(\)",
    ),
    "negative iterations": (
        lambda state: state.update(iterations=torch.tensor(-3)),
        r"'iterations' is -3, not between 0 and 9223372036854775807. Nothing was loaded",
    ),
    "iterations without a value": (
        lambda state: state.update(iterations=torch.tensor(3, device="meta")),
        r"'iterations' is int64 of shape \(\) on the meta device",
    ),
    "slot without values": (
        _slots(lambda slots: slots["b:0"].update(v=torch.zeros(2, 3, device="meta"))),
        r"'b/v' is float32 of shape \(2, 3\) on the meta device",
    ),
    "sparse slot": (
        _slots(lambda slots: slots["b:0"].update(v=torch.zeros(2, 3).to_sparse())),
        r"'b/v' is float32 of shape \(2, 3\), torch.sparse_coo",
    ),
    "hyperparameter that is nan": (
        lambda state: state["hyperparameters"].update(learning_rate=float("nan")),
        r"'learning_rate' is nan, no number that fits",
    ),
    "other format": (lambda state: state.update(format=99), r"format 99"),
    "without slots": (lambda state: state.pop("slots"), r"has no 'slots'"),
    "without hyperparameters": (
        lambda state: state.pop("hyperparameters"),
        r"has no 'hyperparameters'",
    ),
}
mutations = pytest.mark.parametrize(("change", "message"), MUTATIONS.values(), ids=MUTATIONS)


def trained() -> tuple[Any, list[Any], dict[str, Any]]:
    opt = Nadam(0.1)
    variables = [
        thalweg.Variable(np.ones(3, "f4"), "a"),
        thalweg.Variable(np.ones((2, 3), "f4"), "b"),
    ]
    train(opt, variables, 2)
    state = through_a_file(opt.state_dict())
    train(opt, variables, 1, first=3)
    return opt, variables, state


@pytest.mark.one_in(3)
@mutations
def test_bad_state_changes_nothing(change: Change, message: str) -> None:
    opt, variables, state = trained()
    change(state)
    state_before = snapshot(opt, variables), opt.get_config()
    with pytest.raises(ValueError, match=message) as raised:
        opt.load_state_dict(state)
    assert str(raised.value).endswith("Nothing was loaded.")
    assert_same_bits(snapshot(opt, variables), state_before[0])
    assert opt.get_config() == state_before[1]


@pytest.mark.one_in(3)
@mutations
def test_bad_state_leaves_a_fresh_optimizer_fresh(change: Change, message: str) -> None:
    _, variables, state = trained()
    change(state)
    opt = Nadam(0.5)
    config = opt.get_config()
    with pytest.raises(ValueError, match="Nothing was loaded"):
        opt.load_state_dict(state, variables)
    assert (opt.weights, opt.get_slot_names()) == ([], [])
    assert opt.get_config() == config
    plain_opt, twins = Nadam(0.5), copies(variables)
    train(opt, variables, 1), train(plain_opt, twins, 1)
    assert_same_bits(snapshot(opt, variables), snapshot(plain_opt, twins))


@pytest.mark.parametrize("name", ["reshaped", "other dtype", "missing slot"])
def test_invalid_deferred_state_fails_the_step(name: str) -> None:
    _, variables, state = trained()
    change, message = MUTATIONS[name]
    change(state)
    opt, initial_values = Nadam(), [var.numpy() for var in variables]
    opt.load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match=message):
        opt.apply_gradients(gradients(variables))
    assert all(
        np.array_equal(var.numpy(), initial) for var, initial in zip(variables, initial_values)
    )
    assert opt.iterations.item() == 2


def test_state_of_more_variables_than_passed_raises() -> None:
    _, variables, state = trained()
    with pytest.raises(CheckpointMismatchError, match="'b/m' belongs to nothing here"):
        Nadam().load_state_dict(state, variables[:1])


def test_at_most_ten_differences_are_listed() -> None:
    opt = Adagrad()
    variables = [thalweg.Variable([1.0], f"w{k}") for k in range(30)]
    train(opt, variables, 1)
    state = opt.state_dict()
    state["slots"] = {}
    with pytest.raises(
        CheckpointMismatchError, match=r"'w9/accumulator' is missing; and 20 more\. Noth"
    ):
        opt.load_state_dict(state)


@pytest.mark.parametrize("wrong", [None, 3, {}, [1]])
def test_non_state_argument_raises(wrong: Any) -> None:
    with pytest.raises(ValueError, match="must be what state_dict"):
        Ftrl().load_state_dict(wrong)


def test_loaded_slots_survive_a_save_before_their_variable_comes() -> None:
    w, u, opt = Variable([1.0], name="w"), Variable([1.0], name="u"), Adam()
    opt.apply_gradients([([1.0], w), ([1.0], u)])
    new_opt = Adam()
    new_opt.load_state_dict(opt.state_dict())
    new_opt.apply_gradients([([1.0], w)])
    assert set(new_opt.state_dict()["slots"]) == {"w:0", "u:0"}


def test_loading_one_slot_creates_only_that_slot() -> None:
    small, large, opt = Variable([1.0], name="s"), Variable(torch.zeros(100_000), name="l"), Adam()
    opt.apply_gradients([([1.0], small), (torch.zeros(100_000), large)])
    file = io.BytesIO()
    torch.save(opt.get_slot(small, "m"), file)
    assert file.tell() < 10_000


def test_rejected_state_keeps_callables() -> None:
    w = Variable([0.0, 0.0, 0.0, 0.0], name="w")
    moves: list[bool] = []

    def rate() -> float:
        if moves:
            w.data = torch.zeros(4)
        return 0.5

    opt = optimizers.SGD(rate)
    for _ in range(2):
        opt.apply_gradients([(torch.ones(4), w)])
    with pytest.raises(ValueError, match="'none' belongs to nothing here"):
        opt.load_state_dict({**opt.state_dict(), "hyperparameters": {"none": 1.0}})
    old = w.data
    initial = old.clone()
    moves.append(True)
    opt.apply_gradients([(torch.ones(4), w)])
    assert w.tolist() == [-0.5] * 4
    assert torch.equal(old, initial)
