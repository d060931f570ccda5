"""`minimize`, `get_gradients` and `get_updates`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from keras_table import Row, all_rows, both_engines
from thalweg.keras.optimizers import SGD, Adam


def two() -> tuple[thalweg.Variable, thalweg.Variable]:
    return thalweg.Variable(2.0, "x"), thalweg.Variable(3.0, "y")


@both_engines
@all_rows
def test_minimize_decreases_a_callable_loss(row: Row, engine: str) -> None:
    x, y = two()
    opt = row.make()
    opt.engine = engine

    def loss() -> torch.Tensor:
        return x * x + y * y

    initial_loss = loss().item()
    for step in (1, 2, 3):
        assert opt.minimize(loss, [x, y]).item() == step
    assert loss().item() < initial_loss


def test_minimize_takes_one_step() -> None:
    x, y = two()
    SGD(0.5).minimize(lambda: 3 * x + x * y, [x, y])
    assert (x.item(), y.item()) == (-1.0, 2.0)


def test_tensor_loss_with_its_tape() -> None:
    x, y = two()
    with thalweg.GradientTape() as tape:
        loss = x * y
    SGD(0.5).minimize(loss, [x, y], tape=tape)
    assert (x.item(), y.item()) == (0.5, 2.0)


def test_tensor_loss_without_tape() -> None:
    x, y = two()
    with pytest.raises(ValueError, match=r"`tape` is required when a `Tensor` loss is"):
        SGD().minimize(x * y, [x, y])


def test_var_list_callable_is_called_after_the_loss() -> None:
    variables: list[thalweg.Variable] = []

    def loss() -> torch.Tensor:
        if not variables:
            variables.append(thalweg.Variable(2.0))
        return variables[0] ** 2

    SGD(0.25).minimize(loss, lambda: variables)
    assert variables[0].item() == 1.0


@pytest.mark.parametrize("nest", [lambda x, y: [[x], (y,)], lambda x, y: {"x": x, "y": [y]}])
def test_minimize_accepts_a_nested_var_list(nest: Any) -> None:
    x, y = two()
    SGD(0.5).minimize(lambda: x * y, nest(x, y))
    assert (x.item(), y.item()) == (0.5, 2.0)


def test_minimize_accepts_a_single_variable() -> None:
    x, y = two()
    SGD(0.5).minimize(lambda: x * y, x)
    assert (x.item(), y.item()) == (0.5, 3.0)


@pytest.mark.parametrize("empty", [[], (), [[]], lambda: []])
def test_empty_var_list_takes_no_step(empty: Any) -> None:
    x, y = two()
    opt = SGD()
    assert opt.minimize(lambda: x * y, empty) is None
    assert opt.iterations.item() == 0


@pytest.mark.parametrize("wrong", [None, 3, "x", ["x"], [None]])
def test_var_list_without_variables(wrong: Any) -> None:
    x, y = two()
    with pytest.raises(ValueError, match="var_list must hold variables"):
        SGD().minimize(lambda: x * y, wrong)


def test_var_list_is_required() -> None:
    with pytest.raises(TypeError, match=r"not None: give those to train, as list\(model\.param"):
        SGD().minimize(lambda: torch.ones(()))


def test_grad_loss_weights_the_elements() -> None:
    x = thalweg.Variable([1.0, 1.0])
    SGD(1.0).minimize(lambda: x * 2, [x], grad_loss=torch.tensor([1.0, 3.0]))
    assert x.numpy().tolist() == [-1.0, -5.0]


def test_unconnected_variable_is_skipped_with_a_warning() -> None:
    x, y = two()
    with pytest.warns(UserWarning, match=r"Gradients do not exist for variables \['y:0'\]"):
        SGD(0.25).minimize(lambda: x * x, [x, y])
    assert (x.item(), y.item()) == (1.0, 3.0)


def test_minimize_without_connected_variable_raises() -> None:
    x, y = two()
    opt = SGD()
    with pytest.raises(ValueError, match=r"No gradients provided for any variable: \['y:0'\]"):
        opt.minimize(lambda: x * x, [y])
    assert opt.iterations.item() == 0


def test_minimize_updates_a_plain_torch_leaf() -> None:
    x = torch.tensor([2.0], requires_grad=True)
    SGD(0.25).minimize(lambda: (x * x).sum(), [x])
    assert x.item() == 1.0
    assert x.grad is None


def test_minimize_does_not_change_grad_attributes() -> None:
    model = torch.nn.Linear(2, 1)
    Adam().minimize(lambda: model(torch.ones(1, 2)).sum(), list(model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_embedding_lookup_gives_a_sparse_gradient() -> None:
    table = thalweg.Variable(np.ones((4, 2), "f4"), "table")
    opt = thalweg.keras.optimizers.Adagrad(0.5)
    opt.minimize(lambda: thalweg.embedding_lookup(table, torch.tensor([1, 1])).sum(), [table])
    touched = (table.numpy() != 1).any(1)
    assert touched.tolist() == [False, True, False, False]
    np.testing.assert_allclose(opt.get_slot(table, "accumulator").numpy()[1], 4.1)


def test_minimize_calls_its_hooks() -> None:
    class Scaled(SGD):
        def _transform_loss(self, loss: torch.Tensor) -> torch.Tensor:
            return loss * 10

        def _get_gradients(self, tape: Any, loss: Any, var_list: Any, grad_loss: Any) -> Any:
            pairs = super()._get_gradients(tape, loss, var_list, grad_loss)
            return [(grad / 5, var) for grad, var in pairs]

    x, y = two()
    Scaled(0.5).minimize(lambda: x * y, [x, y])
    assert (x.item(), y.item()) == (-1.0, 1.0)


def test_minimize_records_under_no_grad() -> None:
    x, y = two()
    with torch.no_grad():
        SGD(0.5).minimize(lambda: x * y, [x, y])
    assert (x.item(), y.item()) == (0.5, 2.0)


def test_get_gradients_does_not_clip() -> None:
    x, y = two()
    grads = SGD(clipvalue=2.5).get_gradients(x * y, [x, y])
    assert [grad.item() for grad in grads] == [3.0, 2.0]
    assert (x.item(), y.item()) == (2.0, 3.0)


def test_get_gradients_without_connection_raises() -> None:
    x, y = two()
    with pytest.raises(ValueError, match="Variable y:0 has `None` for gradient"):
        SGD().get_gradients(x * x, [x, y])


@pytest.mark.parametrize("options", [{}, {"clipvalue": 2.5}])
def test_get_updates_takes_a_step(options: dict[str, float]) -> None:
    x, y = two()
    opt = SGD(0.5, **options)
    assert opt.get_updates(x * y, [x, y]) == [opt.iterations]
    assert x.item() == 2.0 - 0.5 * options.get("clipvalue", 3.0)
    assert opt.clipvalue == options.get("clipvalue")


def test_tensorflow_1_example_runs() -> None:
    v0, v1 = thalweg.Variable([1.0, 2.0]), thalweg.Variable([3.0, 4.0])
    SGD(3.0).minimize(lambda: 5 * v0 + 3 * v1, [v0, v1])
    assert v0.numpy().tolist() == [-14.0, -13.0]
    assert v1.numpy().tolist() == [-6.0, -5.0]
