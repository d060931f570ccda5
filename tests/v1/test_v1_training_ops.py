"""The training kernels: each against the optimizer of its rule, and what is refused."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

from bit_comparison import assert_same
from thalweg import IndexedSlices, Variable, _graph, keras
from thalweg._base.scalars import power
from thalweg.errors import InvalidArgumentError
from thalweg.v1 import train, training_ops
from thalweg.v1.contrib import opt as contrib

NAMES = training_ops.__all__
BETAS = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-4}
# TensorFlow 1 multiplies them up in float32; Keras computes them anew.
POWERS = {
    "beta1_power": lambda t, dtype: dtype(np.prod(np.full(t, 0.8, np.float32))),
    "beta2_power": lambda t, dtype: dtype(np.prod(np.full(t, 0.95, np.float32))),
}
KERAS_POWERS = {
    "beta1_power": lambda t, dtype: power(dtype(np.float32(0.8)), dtype(t)),
    "beta2_power": lambda t, dtype: power(dtype(np.float32(0.95)), dtype(t)),
}
PULLS = {"l1": 0.01, "l2": 0.02}
PULLED = {"l1_regularization_strength": 0.01, "l2_regularization_strength": 0.02}


# The kernel without its prefixes; an optimizer; its arguments besides the learning rate; the
# kernel's slots under the names the optimizer has for them, in the kernel's order; the kernel's
# scalars, which may depend on the step and the dtype; its options.
ROWS: list[tuple[str, Any, dict[str, Any], list[str], dict[str, Any], dict[str, Any]]] = [
    ("apply_gradient_descent", train.GradientDescentOptimizer, {}, [], {}, {}),
    ("apply_momentum", train.MomentumOptimizer, {"momentum": 0.7}, ["momentum"],
     {"momentum": 0.7}, {}),
    ("apply_momentum", train.MomentumOptimizer, {"momentum": 0.7, "use_nesterov": True},
     ["momentum"], {"momentum": 0.7}, {"use_nesterov": True}),
    ("apply_keras_momentum", keras.optimizers.SGD, {"momentum": 0.7}, ["momentum"],
     {"momentum": 0.7}, {}),
    ("apply_keras_momentum", keras.optimizers.SGD, {"momentum": 0.7, "nesterov": True},
     ["momentum"], {"momentum": 0.7}, {"use_nesterov": True}),
    ("apply_adagrad", train.AdagradOptimizer, {}, ["accumulator"], {}, {}),
    ("apply_adagrad_v2", keras.optimizers.Adagrad, {"epsilon": 1e-4}, ["accumulator"],
     {"epsilon": 1e-4}, {}),
    ("apply_adagrad_da", train.AdagradDAOptimizer, PULLED,
     ["gradient_accumulator", "gradient_squared_accumulator"],
     {**PULLS, "global_step": lambda t, dtype: np.int64(t)}, {}),
    ("apply_adadelta", train.AdadeltaOptimizer, {"rho": 0.9, "epsilon": 1e-4},
     ["accum", "accum_update"], {"rho": 0.9, "epsilon": 1e-4}, {}),
    ("apply_adam", train.AdamOptimizer, BETAS, ["m", "v"], {**POWERS, **BETAS}, {}),
    ("apply_adam", contrib.NadamOptimizer, BETAS, ["m", "v"], {**POWERS, **BETAS},
     {"use_nesterov": True}),
    ("apply_adam_with_amsgrad", keras.optimizers.Adam,
     {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4, "amsgrad": True}, ["m", "v", "vhat"],
     {**KERAS_POWERS, **BETAS}, {}),
    ("apply_ada_max", contrib.AdaMaxOptimizer, BETAS, ["m", "v"],
     {"beta1_power": POWERS["beta1_power"], **BETAS}, {}),
    ("apply_ftrl", train.FtrlOptimizer, PULLED, ["accum", "linear"], {**PULLS, "lr_power": -0.5},
     {}),
    ("apply_ftrl", train.FtrlOptimizer, {**PULLED, "learning_rate_power": -0.75},
     ["accum", "linear"], {**PULLS, "lr_power": -0.75}, {}),
    ("apply_ftrl_v2", train.FtrlOptimizer,
     {**PULLED, "l2_shrinkage_regularization_strength": 0.1}, ["accum", "linear"],
     {**PULLS, "l2_shrinkage": 0.1, "lr_power": -0.5}, {}),
    ("apply_rms_prop", train.RMSPropOptimizer, {"decay": 0.8, "momentum": 0.5, "epsilon": 1e-4},
     ["rms", "momentum"], {"rho": 0.8, "momentum": 0.5, "epsilon": 1e-4}, {}),
    ("apply_centered_rms_prop", train.RMSPropOptimizer,
     {"decay": 0.8, "momentum": 0.5, "epsilon": 1e-4, "centered": True},
     ["mg", "rms", "momentum"], {"rho": 0.8, "momentum": 0.5, "epsilon": 1e-4}, {}),
    ("apply_proximal_adagrad", train.ProximalAdagradOptimizer, PULLED, ["accumulator"], PULLS, {}),
    ("apply_proximal_gradient_descent", train.ProximalGradientDescentOptimizer, PULLED, [], PULLS,
     {}),
]  # fmt: skip
row_names = "name, make, kwargs, slots, scalars, options"


def named(prefixes: tuple[str, str]) -> list[Any]:
    """The rows for those of the prefixes that there are kernels with."""
    pairs = [
        (prefix + row[0], number, row) for number, row in enumerate(ROWS) for prefix in prefixes
    ]
    return [
        pytest.param(name, *row[1:], id=f"{name}-{number}")
        for name, number, row in pairs
        if name in NAMES
    ]


each_dense = pytest.mark.parametrize(row_names, named(("", "resource_")))
each_sparse = pytest.mark.parametrize(row_names, named(("sparse_", "resource_sparse_")))
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
RATE = 0.125  # the same number in both dtypes


def numbers(scalars: dict[str, Any], dtype: Any, step: int) -> dict[str, Any]:
    """The scalars of a step, as optimizers round them: to float32, and then to the dtype."""
    by_name: dict[str, Any] = {"lr": RATE, "alpha": RATE}
    for name, value in scalars.items():
        by_name[name] = value(step, dtype) if callable(value) else dtype(np.float32(value))
    return by_name


def optimizer(make: Any, kwargs: dict[str, Any], step: Any) -> Any:
    if make is train.AdagradDAOptimizer:
        kwargs = {**kwargs, "global_step": step}
    if make in (train.ProximalAdagradOptimizer, train.ProximalGradientDescentOptimizer):
        return make(RATE, **kwargs)
    if make.__module__.startswith("thalweg.keras") and "epsilon" in kwargs:
        # Keras takes it as it was written.
        kwargs = {**kwargs, "epsilon": float(np.float32(kwargs["epsilon"]))}
    return make(learning_rate=RATE, **kwargs)


def call(name: str, values: dict[str, Any]) -> Any:
    """Call a kernel by position, with the arguments that it has no defaults for, and options."""
    function = getattr(training_ops, name)
    parameters = inspect.signature(function).parameters.values()
    required = [param.name for param in parameters if param.default is inspect.Parameter.empty]
    optional = {param.name for param in parameters} - set(required)
    options = {key: value for key, value in values.items() if key in optional}
    return function(*(values[parameter] for parameter in required), **options)


def arguments(name: str, var: Any, slots: list[Any]) -> dict[str, Any]:
    """A variable and its slots, under the names of the kernel."""
    names = list(inspect.signature(getattr(training_ops, name)).parameters)
    return {"var": var, **dict(zip(names[1 : 1 + len(slots)], slots, strict=True))}


@pytest.mark.one_in(3)
@each_dtype
@each_dense
def test_dense_kernels_equal_their_optimizers(
    name: str, make: Any, kwargs: Any, slots: Any, scalars: Any, options: Any, dtype: Any
) -> None:
    rng = np.random.default_rng(2)
    start = rng.standard_normal((3, 5)).astype(dtype)
    w, v, counter = Variable(start, name="w"), Variable(start, name="v"), Variable(np.int64(0))
    opt = optimizer(make, kwargs, counter)
    slot_vars = [Variable(x) for x in initial(opt, w, slots)]
    for step in range(1, 5):
        grad = torch.from_numpy(rng.standard_normal((3, 5)).astype(dtype))
        opt.apply_gradients([(grad, w)])
        counter.assign_add(1)
        inputs = arguments(name, v, slot_vars) | numbers(scalars, dtype, step)
        result = call(name, inputs | options | {"grad": grad, "delta": grad})
        assert (result is None) == name.startswith("resource_")
        assert_same([w], [v], f"{step}")
        for kind, slot in zip(slots, slot_vars, strict=True):
            assert_same([opt.get_slot(w, kind)], [slot], f"{(step, kind)}")


def initial(opt: Any, var: Variable, slots: list[str]) -> list[torch.Tensor]:
    """Return the initial values of an optimizer's slots."""
    opt._create_slots([var])
    return [opt.get_slot(var, name).detach().clone() for name in slots]


@pytest.mark.parametrize(
    "dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)], ids=["f32", "f64"]
)
@pytest.mark.parametrize("shape", [(6, 3), (6,)], ids=["rows", "single"])
@each_sparse
def test_sparse_kernels_equal_their_optimizers(
    name: str,
    make: Any,
    kwargs: Any,
    slots: Any,
    scalars: Any,
    options: Any,
    shape: Any,
    dtype: Any,
) -> None:
    rng = np.random.default_rng(3)
    start = rng.standard_normal(shape).astype(dtype)
    w, v, counter = Variable(start, name="w"), Variable(start, name="v"), Variable(np.int64(0))
    opt = optimizer(make, kwargs, counter)
    slot_vars = [Variable(x) for x in initial(opt, w, slots)]
    for step in range(1, 5):
        values = torch.from_numpy(rng.standard_normal((3, *shape[1:])).astype(dtype))
        indices = torch.from_numpy(rng.permutation(6)[:3])
        opt.apply_gradients([(IndexedSlices(values, indices), w)])
        counter.assign_add(1)
        inputs = arguments(name, v, slot_vars) | numbers(scalars, dtype, step)
        call(name, inputs | options | {"grad": values, "indices": indices})
        assert_same([w], [v], f"{step}")
        for kind, slot in zip(slots, slot_vars, strict=True):
            assert_same([opt.get_slot(w, kind)], [slot], f"{(step, kind)}")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name in NAMES if "sparse" in name])
def test_repeated_row_is_updated_twice(name: str) -> None:
    rng = np.random.default_rng(4)
    values = torch.from_numpy(rng.standard_normal((2, 3)).astype(np.float32))
    scalars = {"lr": 0.1, "alpha": 0.1, "momentum": 0.9, "rho": 0.9, "epsilon": 1e-3, "l1": 0.01,
               "l2": 0.01, "l2_shrinkage": 0.1, "lr_power": -0.5, "global_step": 2}  # fmt: skip
    results = []
    for parts in ([[0, 1]], [[0], [1]]):
        var = Variable(np.ones((4, 3), np.float32))
        slot_vars = [Variable(np.ones((4, 3), np.float32)) for _ in range(3)]
        kwargs = arguments(name, var, slot_vars) | scalars
        for part in parts:
            rows = {"grad": values[part], "indices": [2] * len(part)}
            call(name, kwargs | rows)
        results.append([var, *slot_vars])
    for once_updated, twice in zip(*results, strict=True):
        assert_same([once_updated], [twice])
        assert_same([once_updated[[0, 1, 3]]], [torch.ones(3, 3)])
    assert not torch.equal(results[0][0], torch.ones(4, 3))


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_has_a_signature_and_a_docstring(name: str) -> None:
    function = getattr(training_ops, name)
    parameters = list(inspect.signature(function).parameters)
    assert (function.__name__, parameters[0], parameters[-1]) == (name, "var", "name")
    assert "use_locking" in parameters
    assert ("indices" in parameters) == ("sparse" in name)
    assert "rule" in function.__doc__
    assert "Reference:" in function.__doc__


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("apply_gradient_descent", "var alpha delta use_locking name"),
        ("resource_apply_adam",
         "var m v beta1_power beta2_power lr beta1 beta2 epsilon grad use_locking use_nesterov"
         " name"),
        ("resource_sparse_apply_ftrl_v2",
         "var accum linear grad indices lr l1 l2 l2_shrinkage lr_power use_locking"
         " multiply_linear_by_lr name"),
        ("sparse_apply_momentum",
         "var accum lr grad indices momentum use_locking use_nesterov name"),
        ("sparse_apply_proximal_gradient_descent",
         "var alpha l1 l2 grad indices use_locking name"),
        ("resource_apply_centered_rms_prop",
         "var mg ms mom lr rho momentum epsilon grad use_locking name"),
        ("sparse_apply_adagrad_da",
         "var gradient_accumulator gradient_squared_accumulator grad indices lr l1 l2 global_step"
         " use_locking name"),
    ],
)  # fmt: skip
def test_arguments_are_in_tensorflow_order(name: str, expected: str) -> None:
    assert list(inspect.signature(getattr(training_ops, name)).parameters) == expected.split()


@pytest.mark.parametrize(("v2", "epsilon"), [(False, 0.0), (True, 0.25)], ids=["v1", "v2"])
@pytest.mark.parametrize("sparse", [False, True])
def test_adagrad_update_slots_off_keeps_the_accumulator(
    sparse: bool, v2: bool, epsilon: float
) -> None:
    w, accum = Variable([[1.0], [2.0]]), Variable([[4.0], [16.0]])
    name = ("sparse_" if sparse else "") + "apply_adagrad" + ("_v2" if v2 else "")
    kwargs = {"var": w, "accum": accum, "lr": 0.5, "epsilon": epsilon, "update_slots": False}
    grad = [[1.0]] if sparse else [[0.0], [1.0]]
    call(name, kwargs | {"grad": grad, "indices": [1]})
    assert accum.tolist() == [[4.0], [16.0]]
    assert w[0].item() == 1.0
    assert w[1].item() == pytest.approx(2.0 - 0.5 / (4.0 + epsilon), rel=1e-6)


def test_sign_kernels_equal_their_formulas() -> None:
    for name, steps in (
        ("apply_add_sign", [0.5 * (2.0 + 3.0), -0.5 * (2.0 - 3.0)]),
        ("apply_power_sign", [0.5 * np.exp(2.0 * 3.0), -0.5 * np.exp(-2.0 * 3.0)]),
    ):
        w, m = Variable(np.zeros(2)), Variable(np.full(2, 8.0))
        getattr(training_ops, name)(w, m, 0.5, 2.0, 3.0, 0.75, np.array([1.0, -1.0]))
        np.testing.assert_allclose(w.numpy(), [-step for step in steps], rtol=1e-15)
        assert m.tolist() == [6.25, 5.75]


class KernelAdam(train.Optimizer):
    """Adam as a script writes it that calls the kernels."""

    def __init__(self, rate: float, name: str = "KernelAdam") -> None:
        super().__init__(False, name)
        self._rate = rate

    def _create_slots(self, var_list: Any) -> None:
        self._create_non_slot_variable(0.9, "beta1_power", var_list[0])
        for var in var_list:
            self._zeros_slot(var, "m", self._name)
            self._zeros_slot(var, "v", self._name)

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        power = self._get_non_slot_variable("beta1_power")
        return training_ops.apply_adam(
            var, m, v, power, 0.999, self._rate, 0.9, 0.999, 1e-8, grad, use_locking=True
        ).op

    def _resource_apply_sparse(self, grad: Any, handle: Any, indices: Any) -> Any:
        m = self.get_slot(handle, "m")
        return training_ops.resource_sparse_apply_momentum(
            handle, m, self._rate, grad, indices, 0.9
        )


def test_kernels_can_be_used_in_optimizer_hooks() -> None:
    grads = [torch.tensor([1.0, -2.0]), IndexedSlices(torch.tensor([1.0, 3.0]), [1, 1])]
    eager = Variable([1.0, 2.0], name="w")
    opt = KernelAdam(0.1)
    for grad in grads:
        opt.apply_gradients([(grad, eager)])
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable([1.0, 2.0], name="w")
        opt = KernelAdam(0.1)
        operations = [opt.apply_gradients([(grad, w)]) for grad in grads]
        session.run(_graph.global_variables_initializer())
        for operation in operations:
            session.run(operation)
        np.testing.assert_array_equal(session.run(w), eager.numpy())
    assert eager[0].item() == pytest.approx(0.9, rel=1e-5)


def test_kernels_with_symbolic_arguments_are_operations() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w, accum = _graph.Variable([1.0, 2.0]), _graph.Variable([0.0, 0.0])
        rate = _graph.placeholder(torch.float32, ())
        reference_op = training_ops.apply_momentum(w, accum, rate, w * 2.0, 0.5)
        resource = training_ops.resource_apply_momentum(
            w, accum, rate, torch.ones(2), 0.5, name="r"
        )
        assert isinstance(reference_op, _graph.SymbolicTensor)
        assert reference_op.op.name == "ApplyMomentum"
        assert isinstance(resource, _graph.Operation)
        assert resource.name == "r"
        session.run(_graph.global_variables_initializer())
        assert session.run(reference_op, {rate: 0.25}).tolist() == [0.5, 1.0]
        assert session.run(resource, {rate: 0.25}) is None
        assert session.run(w).tolist() == [0.0, 0.25]
        assert session.run(accum).tolist() == [2.0, 3.0]


def test_kernels_inside_of_a_node_update_the_sessions_variable() -> None:
    with _graph.Graph().as_default() as graph, _graph.Session() as session:
        w = _graph.Variable([1.0, 2.0])

        def run() -> None:
            training_ops.resource_apply_gradient_descent(w, 0.5, torch.ones(2))

        node = _graph.operation(run, [], "node")
        session.run(_graph.global_variables_initializer())
        operation_count = len(graph.get_operations())
        session.run(node)
        assert session.run(w).tolist() == [0.5, 1.5]
        assert len(graph.get_operations()) == operation_count


@pytest.mark.parametrize("make", [train.MomentumOptimizer, keras.optimizers.SGD])
def test_steps_inside_of_a_node_take_no_variable_of_the_graph(make: Any) -> None:
    with _graph.Graph().as_default() as graph, _graph.Session() as session:
        w = _graph.Variable([1.0, 2.0])
        opt = make(0.1, 0.9)
        node = _graph.operation(lambda: opt.apply_gradients([(torch.ones(2), w)]), [], "node")
        session.run(_graph.global_variables_initializer())
        operation_count = len(graph.get_operations())
        with pytest.raises(TypeError, match="Expected a variable"):
            session.run(node)
        assert len(graph.get_operations()) == operation_count


def test_a_symbolic_tensor_cannot_be_updated() -> None:
    with _graph.Graph().as_default():
        w = _graph.Variable([1.0])
        with pytest.raises(TypeError, match="accum must be a variable of the graph"):
            training_ops.apply_momentum(w, w * 1.0, 0.1, torch.ones(1), 0.5)


ONES = torch.ones(2)


@pytest.mark.parametrize(
    ("name", "args", "error", "message"),
    [
        ("apply_momentum", (ONES, 0.1, 0.5), TypeError, r"apply_momentum\(\): missing"),
        ("apply_momentum", (ONES, 0.1, torch.ones(3), 0.5), InvalidArgumentError, "shape"),
        ("apply_momentum", (ONES, 0.1, ONES.double(), 0.5), TypeError, "float64"),
        ("apply_momentum", (ONES.double(), 0.1, ONES, 0.5), TypeError, "its slot float64"),
        ("apply_momentum", (torch.ones(3), 0.1, ONES, 0.5), InvalidArgumentError, "slot"),
        ("apply_momentum", (ONES, ONES, ONES, 0.5), InvalidArgumentError, "lr is not a scalar"),
        ("apply_momentum", (3.0, 0.1, ONES, 0.5), TypeError, "updates tensors in place"),
        ("apply_momentum", (ONES, 0.1, IndexedSlices(ONES, [0, 1]), 0.5), TypeError, "values of a"),
        ("sparse_apply_momentum", (ONES, 0.1, ONES, [0, 2], 0.5), InvalidArgumentError,
         "Index 2 at offset 1"),
        ("sparse_apply_momentum", (ONES, 0.1, ONES, [0], 0.5), InvalidArgumentError,
         "do not match"),
        ("apply_proximal_adagrad", (ONES, 0.0, 0.0, 0.0, ONES), InvalidArgumentError, "lr must"),
        ("sparse_apply_ftrl", (ONES, ONES.clone(), ONES, [0, 1], 0.0, 0.0, 0.0, -0.5),
         InvalidArgumentError, "lr must be positive"),
    ],
)  # fmt: skip
def test_invalid_kernel_arguments_change_nothing(
    name: str, args: Any, error: type[Exception], message: str
) -> None:
    w = Variable([1.0, 2.0], name="w")
    with pytest.raises(error, match=message):
        getattr(training_ops, name)(w, *args)
    assert w.tolist() == [1.0, 2.0]
    assert ONES.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("power", [-0.5, -0.75])
@pytest.mark.parametrize("name", ["apply_ftrl_v2", "sparse_apply_ftrl_v2"])
def test_linear_slot_may_include_the_learning_rate(name: str, power: float) -> None:
    rate, outcomes = 0.25, []
    for by_rate in (False, True):
        w, accum = Variable(np.array([[1.0], [-2.0], [3.0]])), Variable(np.full((3, 1), 0.1))
        linear = Variable(np.zeros((3, 1)))
        for step in (1.0, -0.5, 2.0):
            grad = np.array([[0.5], [1.0], [-2.0]]) * step
            rows = [np.arange(3)] if name.startswith("sparse") else []
            kernel = getattr(training_ops, name)
            pulls = (rate, 0.01, 0.02, 0.03, power)
            kernel(w, accum, linear, grad, *rows, *pulls, multiply_linear_by_lr=by_rate)
        outcomes.append([variable.numpy() for variable in (w, accum, linear)])
    (w, accum, linear), (own_w, own_accum, own_linear) = outcomes
    np.testing.assert_allclose(own_w, w, rtol=1e-12)
    np.testing.assert_array_equal(own_accum, accum)
    np.testing.assert_allclose(own_linear, linear * rate, rtol=1e-12)


def test_float64_scalars_keep_their_precision() -> None:
    w = Variable(np.zeros(1), name="w")
    training_ops.resource_apply_gradient_descent(w, 0.1, np.ones(1))
    assert w.item() == -0.1
