"""`apply_gradients`: what it accepts, the order in which hooks are called, None gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from bit_comparison import assert_same
from keras_table import Row, all_rows, assert_same_bits, both_engines, gradients, pair, snapshot
from thalweg import IndexedSlices, Variable, optim, v1
from thalweg.keras.optimizers import SGD, Adam, Optimizer


class Recorder(Optimizer):
    """Writes down which hook is called when."""

    def __init__(self, **kwargs: Any) -> None:
        self.calls: list[str] = []
        super().__init__(
            "Recorder",
            gradient_aggregator=self._note("aggregate"),
            gradient_transformers=[self._note("first"), self._note("second")],
            **kwargs,
        )

    def _note(self, call: str) -> Any:
        return lambda pairs: self.calls.append(call) or list(pairs)

    def _create_slots(self, var_list: Any) -> None:
        self.calls.append(f"slots {len(var_list)}")

    def _prepare(self, var_list: Any) -> Any:
        self.calls.append("prepare")
        return super()._prepare(var_list)

    def _transform_unaggregated_gradients(self, grads_and_vars: Any) -> Any:
        self.calls.append("unaggregated")
        return super()._transform_unaggregated_gradients(grads_and_vars)

    def _transform_gradients(self, grads_and_vars: Any) -> Any:
        self.calls.append("transform")
        return super()._transform_gradients(grads_and_vars)

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
        self.calls.append(f"dense {var.name} {self.iterations.item()}")

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> None:
        self.calls.append(f"sparse {var.name} {indices.tolist()}")


def slices(rows: list[int], width: int = 1) -> thalweg.IndexedSlices:
    return thalweg.IndexedSlices(torch.ones(len(rows), width), torch.tensor(rows))


def test_hooks_are_called_in_order() -> None:
    opt, w, emb = Recorder(), thalweg.Variable([1.0], "w"), thalweg.Variable([[1.0]] * 4, "emb")
    opt.apply_gradients([([1.0], w), (slices([2, 0, 2]), emb)])
    assert opt.calls == [
        "slots 2",
        "prepare",
        "unaggregated",
        "aggregate",
        "transform",
        "first",
        "second",
        "dense w:0 0",
        "sparse emb:0 [2, 0]",
    ]


def test_hooks_without_aggregation_are_called_in_order() -> None:
    opt, w = Recorder(), thalweg.Variable([1.0], "w")
    opt.apply_gradients([([1.0], w)], experimental_aggregate_gradients=False)
    assert opt.calls == ["slots 1", "prepare", "transform", "first", "second", "dense w:0 0"]


@both_engines
def test_aggregator_comes_before_clipping(engine: str) -> None:
    w = thalweg.Variable([0.0])
    opt = SGD(1.0, gradient_aggregator=lambda pairs: [(g * 10, v) for g, v in pairs], clipvalue=2.0)
    opt.engine = engine
    opt.apply_gradients([([1.0], w)])
    opt.apply_gradients([([1.0], w)], experimental_aggregate_gradients=False)
    assert w.item() == -3.0


@both_engines
def test_transformers_apply_in_order(engine: str) -> None:
    w = thalweg.Variable([0.0])
    double, increase = (
        lambda pairs: [(g * 2, v) for g, v in pairs],
        lambda pairs: [(g + 1, v) for g, v in pairs],
    )
    opt = SGD(1.0, gradient_transformers=[double, increase])
    opt.engine = engine
    opt.apply_gradients([([1.0], w)])
    assert w.item() == -3.0


def test_transformer_may_drop_a_variable() -> None:
    a, b = pair()
    initial = b.numpy()
    opt = SGD(0.5, gradient_transformers=[lambda pairs: pairs[:1]])
    opt.apply_gradients(gradients([a, b]))
    assert np.array_equal(b.numpy(), initial)


def test_transformer_that_breaks_a_gradient_changes_nothing() -> None:
    variables = pair()
    opt = SGD(0.5, gradient_transformers=[lambda pairs: [(g[:1], v) for g, v in pairs]])
    tensors_before = snapshot(opt, variables)[:2]
    with pytest.raises(ValueError, match="has shape"):
        opt.apply_gradients(gradients(variables))
    tensors_after = snapshot(opt, variables)
    assert all(
        torch.equal(a, b) for (_, a), (_, b) in zip(tensors_after, tensors_before, strict=False)
    )
    assert opt.iterations.item() == 0


@all_rows
def test_apply_gradients_returns_iterations(row: Row) -> None:
    opt, variables = row.make(), pair()
    for step in (1, 2, 3):
        result = opt.apply_gradients(gradients(variables, step))
        assert result is opt.iterations
        assert result.item() == step


@all_rows
def test_empty_list_takes_no_step(row: Row) -> None:
    opt = row.make()
    assert opt.apply_gradients([]) is None
    assert opt.iterations.item() == 0
    assert opt.weights == [opt.iterations]


@pytest.mark.parametrize(
    "gradient",
    [[1.0, 2.0], (1.0, 2.0), np.array([1, 2], "f4"), torch.tensor([1.0, 2.0])],
    ids=["list", "tuple", "array", "tensor"],
)
@pytest.mark.parametrize("wrap", [list, tuple, iter, lambda pairs: zip(*zip(*pairs))])
def test_gradients_may_be_arrays_lists_and_tensors(gradient: Any, wrap: Any) -> None:
    w = thalweg.Variable([0.0, 0.0])
    SGD(1.0).apply_gradients(wrap([(gradient, w)]))
    assert w.numpy().tolist() == [-1.0, -2.0]


def test_variable_can_be_a_gradient() -> None:
    w = thalweg.Variable([1.0, 2.0])
    SGD(0.5).apply_gradients([(w, w)])
    assert w.numpy().tolist() == [0.5, 1.0]


@both_engines
@all_rows
def test_gradients_are_not_written(row: Row, engine: str) -> None:
    opt, variables = row.make(clipvalue=0.1), pair()
    opt.engine = engine
    pairs = gradients(variables)
    gradients_before = [(grad.clone(), grad._version) for grad, _ in pairs]
    opt.apply_gradients(pairs)
    assert all(
        torch.equal(grad, copy) and grad._version == version
        for (grad, _), (copy, version) in zip(pairs, gradients_before, strict=True)
    )


def test_missing_gradient_is_skipped_with_a_warning() -> None:
    a, b = pair()
    initial, opt = a.numpy(), Adam()
    with pytest.warns(UserWarning, match=r"Gradients do not exist for variables \['a:0'\] when"):
        opt.apply_gradients([(None, a), gradients([b])[0]])
    assert np.array_equal(a.numpy(), initial)
    with pytest.raises(KeyError):
        opt.get_slot(a, "m")


def test_slots_are_created_at_the_first_gradient() -> None:
    (a, b), opt = pair(), Adam()
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        opt.apply_gradients([(None, a), gradients([b])[0]])
    opt.apply_gradients(gradients([a, b]))
    names = [weight.name for weight in opt.weights]
    assert names == ["Adam/iter:0", *(f"Adam/{s}:0" for s in ("b/m", "b/v", "a/m", "a/v"))]


def test_step_without_any_gradient_raises() -> None:
    (a, b), opt = pair(), Adam()
    with pytest.raises(ValueError, match=r"No gradients provided for any variable: \['a:0', 'b:0"):
        opt.apply_gradients([(None, a), (None, b)])
    assert opt.iterations.item() == 0


@both_engines
@all_rows
def test_same_variable_twice_is_two_updates_and_one_iteration(row: Row, engine: str) -> None:
    (w, _), (twin, _) = pair(), pair()
    first, second = gradients([w], 1)[0][0], gradients([w], 2)[0][0]
    opt, single = row.make(), row.make()
    opt.engine = single.engine = engine
    opt.apply_gradients([(first, w), (second, w)])
    assert opt.iterations.item() == 1
    single.apply_gradients([(first, twin)])
    single.iterations.assign(np.int64(0))
    if row.name == "Nadam":
        single.weights[1].assign(np.float32(1))
    single.apply_gradients([(second, twin)])
    assert_same([w], [twin])


@both_engines
def test_constraint_is_applied_after_a_dense_update(engine: str) -> None:
    w = thalweg.Variable([0.5, 0.5], constraint=lambda x: x.clamp(0, 1))
    opt = SGD(1.0)
    opt.engine = engine
    for _ in range(3):
        opt.apply_gradients([([2.0, -2.0], w)])
    assert w.numpy().tolist() == [0.0, 1.0]


def test_constraint_attribute_of_a_parameter_is_applied() -> None:
    w = torch.nn.Parameter(torch.zeros(2))
    w.constraint = lambda x: x.clamp(min=0)
    SGD(1.0).apply_gradients([(torch.tensor([1.0, -1.0]), w)])
    assert w.tolist() == [0.0, 1.0]


def test_sparse_gradient_of_a_constrained_variable_changes_nothing() -> None:
    a = thalweg.Variable([1.0], "a")
    emb = thalweg.Variable([[1.0]] * 4, "emb", constraint=lambda x: x)
    opt = Adam()
    with pytest.raises(RuntimeError, match="constraint function on a sparse variable: 'emb:0'"):
        opt.apply_gradients([([1.0], a), (slices([1]), emb)])
    assert a.item() == 1.0
    assert opt.iterations.item() == 0
    assert opt.get_slot_names() == []


@both_engines
def test_torch_sparse_gradient_is_accepted(engine: str) -> None:
    table = torch.nn.Embedding(5, 2, sparse=True)
    initial = table.weight.detach().clone()
    table(torch.tensor([1, 3, 1])).sum().backward()
    opt = SGD(0.5)
    opt.engine = engine
    opt.apply_gradients([(table.weight.grad, table.weight)])
    decrease = (initial - table.weight.detach()).sum(1)
    assert decrease.tolist() == pytest.approx([0, 2, 0, 1, 0], abs=1e-6)


def test_named_parameters_of_a_module() -> None:
    model = torch.nn.Linear(2, 1)
    variables = thalweg.named_variables(model)
    opt = Adam()
    opt.minimize(lambda: model(torch.ones(1, 2)).square().sum(), variables)
    names = [weight.name for weight in opt.weights[1:]]
    assert names == [f"Adam/{part}:0" for part in ("weight/m", "bias/m", "weight/v", "bias/v")]


@both_engines
def test_steps_in_inference_mode_are_taken(engine: str) -> None:
    w, opt = thalweg.Variable([1.0]), Adam(0.5)
    opt.engine = engine
    with torch.inference_mode():
        opt.apply_gradients([(torch.ones(1), w)])
        opt.apply_gradients([(torch.ones(1), w)])
        grad = torch.ones(1)
    opt.apply_gradients([(grad, w)])
    assert opt.iterations.item() == 3
    assert w.item() == pytest.approx(-0.5, abs=1e-5)


@pytest.mark.one_in(3)
@both_engines
@all_rows
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (1, 1), (17,), (2, 0, 4)], ids=str)
def test_variables_of_any_shape_are_updated(row: Row, engine: str, shape: tuple[int, ...]) -> None:
    opt, variables = row.make(clipnorm=1.0), pair(shape)
    opt.engine = engine
    for step in (1, 2, 3):
        opt.apply_gradients(gradients(variables, step))
    assert all(var.shape == shape for var in variables)
    assert all(np.isfinite(var.numpy()).all() for var in variables)


@pytest.mark.one_in(3)
@all_rows
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_engines_agree_on_all_optimizers(row: Row, dtype: str) -> None:
    opt, plain_opt = row.make(), row.make()
    opt.engine, plain_opt.engine = "cpu", "reference"
    variables, twins = pair((37,), dtype), pair((37,), dtype)
    for step in (1, 2, 3):
        opt.apply_gradients(gradients(variables, step))
        plain_opt.apply_gradients(gradients(twins, step))
    assert_same_bits(snapshot(opt, variables), snapshot(plain_opt, twins))


def test_name_argument_is_accepted() -> None:
    w = thalweg.Variable([1.0])
    assert SGD(0.5).apply_gradients([([1.0], w)], name="train_it").item() == 1


@both_engines
def test_constraint_comes_between_two_updates_of_a_variable(engine: str) -> None:
    w = thalweg.Variable([0.5], constraint=lambda x: x.clamp(0, 1))
    opt = SGD(1.0)
    opt.engine = engine
    opt.apply_gradients([([2.0], w), ([-0.25], w)])
    assert w.item() == 0.25


# Clipping, dtype, gradients -> what SGD(1.0) makes of ones: recorded from TensorFlow 2.21.
OVERFLOWS: list[tuple[str, str, list[float], list[float]]] = [
    ("clipnorm", "float32", [1e20, 1e19], [1.0, 1.0]),
    ("global_clipnorm", "float32", [1e20, 1e19], [math.nan, math.nan]),
    ("clipnorm", "bfloat16", [1e20, 1e19], [1.0, 1.0]),
    ("global_clipnorm", "bfloat16", [1e20, 1e19], [math.nan, math.nan]),
    ("clipnorm", "float64", [1e20, 1e19], [0.5024814049, 0.9502481405]),
    ("global_clipnorm", "float64", [1e20, 1e19], [0.5024814049, 0.9502481405]),
    ("clipnorm", "float64", [1e160, 1e160], [1.0, 1.0]),
    ("global_clipnorm", "float64", [1e160, 1e160], [math.nan, math.nan]),
    # Float16 overflows in TensorFlow's [1, 1] and [NaN, NaN], not here: docs/numbers.md.
    ("clipnorm", "float16", [300.0, 400.0], [0.7, 0.6]),
    ("global_clipnorm", "float16", [300.0, 400.0], [0.7, 0.6]),
]


@pytest.mark.one_in(3)
@both_engines
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("option", "dtype", "gradient", "expected"), OVERFLOWS)
def test_a_sum_of_squares_that_its_dtype_cannot_hold_is_infinite(
    option: str, dtype: str, gradient: list[float], expected: list[float], sparse: bool, engine: str
) -> None:
    var, opt = (
        thalweg.Variable(torch.ones(2, dtype=getattr(torch, dtype))),
        SGD(1.0, **{option: 0.5}),
    )
    opt.engine = engine
    grad: Any = torch.tensor(gradient, dtype=var.dtype)
    opt.apply_gradients([(IndexedSlices(grad, torch.tensor([0, 1])) if sparse else grad, var)])
    tolerance = 1e-9 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(var.detach().double(), expected, rtol=0, atol=tolerance)


@both_engines
@pytest.mark.parametrize("is_reversed", [False, True])
def test_norms_of_two_dtypes_overflow_each_in_its_own(is_reversed: bool, engine: str) -> None:
    def taken(**option: float) -> list[list[float]]:
        single, double = (torch.nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in dtypes)
        pairs = [(torch.full_like(var.detach(), 1e20), var) for var in (single, double)]
        opt = SGD(1.0, **option)
        opt.engine = engine
        opt.apply_gradients(pairs[::-1] if is_reversed else pairs)
        return [single.tolist(), double.tolist()]

    dtypes = torch.float32, torch.float64
    np.testing.assert_allclose(taken(clipnorm=1.0), [[1, 1], [1 - 0.5**0.5] * 2], rtol=1e-9)
    # TensorFlow refuses a common norm of two dtypes; here it is that of the wider one.
    np.testing.assert_allclose(taken(global_clipnorm=1.0), [[0.5, 0.5]] * 2, rtol=1e-6)


def test_a_constraint_set_between_steps_is_applied() -> None:
    w, opt = Variable([1.0], name="w"), SGD(0.5)
    for _ in range(2):
        opt.apply_gradients([([1.0], w)])
    w.constraint = lambda x: x * 0
    opt.apply_gradients([([1.0], w)])
    assert w.numpy().tolist() == [0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("setter", ["an attribute", "a key", "another __dict__"])
@pytest.mark.parametrize("face", ["keras", "v1", "optim"])
@pytest.mark.parametrize("kind", [Variable, torch.nn.Parameter])
def test_constraint_is_applied_for_any_setter(
    kind: Any, face: str, setter: str, count: int
) -> None:
    """Also in a step that is replayed, which compares the attributes of variables."""
    w = kind(torch.ones(3))
    opt = optim.SGD([w], lr=0.5) if face == "optim" else None
    opt = opt or (SGD(0.5) if face == "keras" else v1.train.GradientDescentOptimizer(0.5))

    def step() -> None:
        if face == "optim":
            w.grad = torch.ones(3)
            opt.step()
        else:
            opt.apply_gradients([(torch.ones(3), w)])

    for _ in range(count):
        step()
    name, constraint = "_constraint" if kind is Variable else "constraint", torch.zeros_like
    if setter == "an attribute":
        w.constraint = constraint
    elif setter == "a key":
        w.__dict__[name] = constraint
    else:
        w.__dict__ = {**w.__dict__, name: constraint}
    step()
    assert w.detach().tolist() == [0, 0, 0]


def test_aggregator_that_returns_no_gradients_raises() -> None:
    w = Variable([1.0], name="w")
    opt = SGD(gradient_aggregator=lambda pairs: [], clipnorm=1.0)
    with pytest.raises(ValueError, match="returned no gradients"):
        opt.apply_gradients([([1.0], w)])


def test_aggregator_may_return_another_variable() -> None:
    w, u = Variable([1.0], name="w"), Variable([1.0], name="u")
    opt = SGD(1.0, momentum=0.5, gradient_aggregator=lambda pairs: [*pairs, (torch.ones(1), u)])
    opt.apply_gradients([([1.0], w)])
    assert u.numpy().tolist() == [0]
