"""The base class of TensorFlow 1's optimizers in eager mode: arguments, order, hooks, errors."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from bit_comparison import assert_same
from thalweg import IndexedSlices, Variable, embedding_lookup
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1 import contrib, train

OPTIMIZERS: dict[str, Any] = {
    "GradientDescent": lambda **k: train.GradientDescentOptimizer(0.1, **k),
    "Momentum": lambda **k: train.MomentumOptimizer(0.1, 0.9, **k),
    "Adagrad": lambda **k: train.AdagradOptimizer(0.1, **k),
    "AdagradDA": lambda **k: train.AdagradDAOptimizer(0.1, Variable(np.int64(0)), **k),
    "Adadelta": lambda **k: train.AdadeltaOptimizer(**k),
    "Adam": lambda **k: train.AdamOptimizer(**k),
    "Ftrl": lambda **k: train.FtrlOptimizer(0.1, **k),
    "RMSProp": lambda **k: train.RMSPropOptimizer(0.1, **k),
    "ProximalAdagrad": lambda **k: train.ProximalAdagradOptimizer(0.1, **k),
    "ProximalGradientDescent": lambda **k: train.ProximalGradientDescentOptimizer(0.1, **k),
}
SLOTS = {
    "GradientDescent": [],
    "Momentum": ["momentum"],
    "Adagrad": ["accumulator"],
    "AdagradDA": ["gradient_accumulator", "gradient_squared_accumulator"],
    "Adadelta": ["accum", "accum_update"],
    "Adam": ["m", "v"],
    "Ftrl": ["accum", "linear"],
    "RMSProp": ["momentum", "rms"],
    "ProximalAdagrad": ["accumulator"],
    "ProximalGradientDescent": [],
}
STEP_CALLS: dict[str, Any] = {
    "GradientDescent": train.GradientDescentOptimizer,
    "Momentum": lambda first: train.MomentumOptimizer(first, 0.9),
    "Adagrad": train.AdagradOptimizer,
    "AdagradDA": lambda first: train.AdagradDAOptimizer(first, Variable(np.int64(0))),
    "Adadelta": train.AdadeltaOptimizer,
    "Adam": train.AdamOptimizer,
    "Ftrl": train.FtrlOptimizer,
    "RMSProp": train.RMSPropOptimizer,
    "ProximalAdagrad": train.ProximalAdagradOptimizer,
    "ProximalGradientDescent": train.ProximalGradientDescentOptimizer,
    "AdaMax": contrib.opt.AdaMaxOptimizer,
    "AdamW": contrib.opt.AdamWOptimizer,
    "MomentumW": lambda first: contrib.opt.MomentumWOptimizer(first, 0.1, 0.9),
    "LARS": contrib.opt.LARSOptimizer,
    "LazyAdam": contrib.opt.LazyAdamOptimizer,
    "Nadam": contrib.opt.NadamOptimizer,
    "NovoGrad": NovoGrad,
    "MovingAverage": contrib.opt.MovingAverageOptimizer,
    "VariableClipping": lambda first: contrib.opt.VariableClippingOptimizer(first, {}, 1.0),
    "SyncReplicas": lambda first: train.SyncReplicasOptimizer(first, 1),
    "MixedPrecision": MixedPrecisionOptimizerWrapper,
}
each_optimizer = pytest.mark.parametrize("kind", list(OPTIMIZERS))


def pair(values: Any = (1.0, 2.0), grad: Any = (0.5, -1.0)) -> tuple[torch.Tensor, Variable]:
    return torch.tensor(grad), Variable(list(values), name="w")


@each_optimizer
def test_optimizer_has_name_and_slot_names(kind: str) -> None:
    opt = OPTIMIZERS[kind]()
    assert opt.get_name() == kind
    assert opt.get_slot_names() == []
    grad, w = pair()
    opt.apply_gradients([(grad, w)])
    assert opt.get_slot_names() == SLOTS[kind]
    for name in SLOTS[kind]:
        assert opt.get_slot(w, name).shape == w.shape
    assert opt.get_slot(w, "none") is None


@each_optimizer
def test_empty_name_raises(kind: str) -> None:
    with pytest.raises(ValueError, match="Must specify the optimizer name"):
        OPTIMIZERS[kind](name="")


@each_optimizer
def test_copied_optimizer_has_separate_slots(kind: str) -> None:
    grad, w = pair()
    opt = OPTIMIZERS[kind]()
    opt.apply_gradients([(grad, w)])
    copied_opt, copied_w = copy.deepcopy((opt, w))
    for _ in range(2):
        opt.apply_gradients([(grad, w)])
        copied_opt.apply_gradients([(grad, copied_w)])
    assert_same([w], [copied_w])
    assert w is not copied_w


def test_gate_constants_are_integers() -> None:
    assert (train.Optimizer.GATE_NONE, train.Optimizer.GATE_OP, train.Optimizer.GATE_GRAPH) == (
        0,
        1,
        2,
    )


def test_slot_names_are_unique() -> None:
    grad, w = pair()
    opt = train.AdamOptimizer()
    opt.apply_gradients([(grad, w)])
    assert opt.get_slot(w, "m").name == "w/Adam:0"
    assert opt.get_slot(w, "v").name == "w/Adam_1:0"
    assert [var.name for var in opt.variables()] == [
        "beta1_power:0",
        "beta2_power:0",
        "w/Adam:0",
        "w/Adam_1:0",
    ]


def test_variables_of_equal_name_have_separate_slots() -> None:
    a, b = Variable([1.0], name="w"), Variable([1.0], name="w")
    opt = train.MomentumOptimizer(0.1, 0.9)
    opt.apply_gradients([(torch.ones(1), a), (torch.full((1,), 2.0), b)])
    assert opt.get_slot(a, "momentum").item() == 1.0
    assert opt.get_slot(b, "momentum").item() == 2.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_beta_powers_are_float32_for_python_floats(dtype: str) -> None:
    w = Variable(np.ones(2, dtype))
    opt = train.AdamOptimizer()
    opt.apply_gradients([(torch.ones(2, dtype=w.dtype), w)])
    first, second = opt._get_beta_accumulators()
    assert first.dtype == second.dtype == torch.float32
    assert first.item() == np.float32(0.9) * np.float32(0.9)


def test_beta_powers_take_the_type_of_numpy_floats() -> None:
    w = Variable(np.ones(2))
    opt = train.AdamOptimizer(beta1=np.float64(0.9))
    opt.apply_gradients([(torch.ones(2, dtype=torch.float64), w)])
    assert opt._get_beta_accumulators()[0].item() == 0.9 * 0.9


class Recording(train.Optimizer):
    """Gradient descent that writes down the order of its hooks."""

    def __init__(self) -> None:
        super().__init__(False, "Recording")
        self.calls: list[Any] = []

    def _create_slots(self, var_list: Any) -> None:
        self.calls.append(("slots", [var.name for var in var_list]))

    def _prepare(self) -> None:
        self.calls.append("prepare")

    def _apply_dense(self, grad: Any, var: Any) -> None:
        self.calls.append(("dense", var.name))
        var.assign_sub(grad)

    def _apply_sparse(self, grad: Any, var: Any) -> None:
        self.calls.append(("sparse", var.name, grad.indices.tolist()))
        var.index_add_(0, grad.indices, grad.values, alpha=-1)

    def _finish(self, update_ops: Any, name_scope: str) -> None:
        self.calls.append(("finish", name_scope))


def test_hooks_are_called_in_order() -> None:
    w, emb = Variable([1.0], name="w"), Variable([[1.0], [2.0]], name="emb")
    step = Variable(np.int64(4), name="step", trainable=False)
    unused = Variable([0.0], name="unused")
    opt = Recording()
    rows = IndexedSlices([[1.0], [1.0]], torch.tensor([1, 1]))
    result = opt.apply_gradients([(torch.ones(1), w), (None, unused), (rows, emb)], step)
    assert result is None
    assert opt.calls == [
        ("slots", ["w:0", "emb:0"]),
        "prepare",
        ("dense", "w:0"),
        ("sparse", "emb:0", [1]),
        ("finish", "update"),
    ]
    assert step.item() == 5
    assert emb.tolist() == [[1.0], [0.0]]


def test_the_most_derived_kind_of_hook_is_called() -> None:
    class Resource(Recording):
        def _resource_apply_dense(self, grad: Any, handle: Any) -> None:
            self.calls.append("resource")

        def _resource_apply_sparse_duplicate_indices(
            self, grad: Any, handle: Any, indices: Any
        ) -> None:
            self.calls.append(indices.tolist())

    opt = Resource()
    w, emb = Variable([1.0]), Variable([[1.0], [2.0]])
    rows = IndexedSlices([[1.0], [1.0]], torch.tensor([1, 1]))
    opt.apply_gradients([(torch.ones(1), w), (rows, emb)])
    assert opt.calls[2:4] == ["resource", [1, 1]]


@pytest.mark.parametrize("hook", ["_apply_dense", "_resource_apply_dense"])
def test_a_subclass_of_a_fused_optimizer_sees_each_gradient(hook: str) -> None:
    grads = []

    def apply(self: Any, grad: Any, var: Any) -> Any:
        grads.append(grad.tolist())
        return getattr(train.AdamOptimizer, hook)(self, grad * 2, var)

    custom = type("Custom", (train.AdamOptimizer,), {hook: apply})
    grad, w = pair()
    _, expected = pair()
    custom(0.1).apply_gradients([(grad, w)])
    train.AdamOptimizer(0.1).apply_gradients([(grad * 2, expected)])
    assert grads == [grad.tolist()]
    assert_same([w], [expected])


@pytest.mark.parametrize("hook", ["_apply_sparse", "_resource_apply_sparse"])
@pytest.mark.parametrize("cls", [train.GradientDescentOptimizer, train.AdagradOptimizer])
def test_a_sparse_hook_of_gradient_descent_is_never_called(hook: str, cls: Any) -> None:
    calls: list[str] = []

    def apply(self: Any, grad: Any, var: Any, *indices: Any) -> Any:
        calls.append(hook)
        return getattr(cls, hook)(self, grad, var, *indices)

    tables = [Variable([[1.0], [2.0]]) for _ in range(2)]
    slices = IndexedSlices([[1.0], [1.0]], [1, 1])
    for cls_used, table in zip((type("Custom", (cls,), {hook: apply}), cls), tables, strict=True):
        cls_used(0.5).apply_gradients([(slices, table)])
    assert torch.equal(*tables)
    # TensorFlow's gradient descent scatters where rows may repeat.
    assert calls == ([] if cls is train.GradientDescentOptimizer else [hook])


def test_subclasses_have_hyperparameter_tensors() -> None:
    class Plain(train.AdamOptimizer):
        def _apply_dense(self, grad: Any, var: Any) -> None:
            var.sub_(self._lr_t * grad)

    grad, w = pair()
    Plain(0.5).apply_gradients([(grad, w)])
    assert w.tolist() == [0.75, 2.5]


def test_a_hook_that_fails_changes_nothing() -> None:
    class Failing(train.MomentumOptimizer):
        def _apply_dense(self, grad: Any, var: Any) -> None:
            self.get_slot(var, "momentum").add_(1)
            var.add_(1)
            if var.name == "b:0":
                raise RuntimeError("no")

    a, b = Variable([1.0], name="a"), Variable([1.0], name="b")
    step = Variable(np.int64(0), trainable=False)
    opt = Failing(0.1, 0.9)
    with pytest.raises(RuntimeError, match="no") as info:
        opt.apply_gradients([(torch.ones(1), a), (torch.ones(1), b)], global_step=step)
    assert "The step was not taken" in info.value.__notes__[0]
    assert (a.item(), b.item(), step.item()) == (1.0, 1.0, 0)
    assert opt.get_slot(a, "momentum").item() == 0.0


@each_optimizer
@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        ([], ValueError, "No variables provided."),
        ([(None, "w")], ValueError, r"No gradients provided for any variable: \['w:0'\]"),
        ([("x", "w")], TypeError, "Gradient must be convertible to a Tensor"),
        ([(torch.ones(2), torch.ones(2))], NotImplementedError, "Trying to update a Tensor"),
        ([(torch.ones(3), "w")], ValueError, r"Gradient of 'w:0' has shape \(3,\)"),
        ([(torch.ones(2).double(), "w")], TypeError, "Gradient of 'w:0' is float64"),
        ([1], TypeError, "pairs"),
        (5, TypeError, "iterable"),
    ],
)
def test_malformed_steps_raise(kind: str, pairs: Any, error: Any, message: str) -> None:
    w = Variable([1.0, 2.0], name="w")
    if isinstance(pairs, list):
        pairs = [
            (grad, w if isinstance(var, str) else var) if isinstance(pair, tuple) else pair
            for pair in pairs
            for grad, var in [pair if isinstance(pair, tuple) else (None, None)]
        ]
    with pytest.raises(error, match=message):
        OPTIMIZERS[kind]().apply_gradients(pairs)
    assert w.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("step", [1, torch.zeros(2), "step"])
def test_invalid_global_step_raises(step: Any) -> None:
    grad, w = pair()
    with pytest.raises(TypeError, match="global_step must be a scalar variable"):
        train.AdamOptimizer().apply_gradients([(grad, w)], global_step=step)
    assert w.tolist() == [1.0, 2.0]


def test_a_float_global_step_counts() -> None:
    grad, w = pair()
    step = Variable(0.5)
    opt = train.GradientDescentOptimizer(0.1)
    for _ in range(3):
        opt.apply_gradients([(grad, w)], global_step=step)
    assert step.item() == 3.5


def test_gradients_may_be_lists_arrays_and_variables() -> None:
    w = Variable([1.0, 2.0])
    opt = train.GradientDescentOptimizer(1.0)
    for grad in ([1.0, 1.0], np.float32([1, 1]), Variable([1.0, 1.0])):
        opt.apply_gradients([(grad, w)])
    assert w.tolist() == [-2.0, -1.0]


def test_a_variable_given_twice_is_updated_twice() -> None:
    grad, w = pair((1.0,), (1.0,))
    step = Variable(np.int64(0))
    opt = train.MomentumOptimizer(1.0, 0.5)
    opt.apply_gradients([(grad, w), (grad, w)], global_step=step)
    assert w.item() == 1.0 - 1.0 - 1.5
    assert step.item() == 1


def test_constraints_follow_updates_and_reject_sparse_rows() -> None:
    w = Variable([1.0, -1.0], constraint=torch.relu)
    opt = train.GradientDescentOptimizer(1.0)
    opt.apply_gradients([(torch.tensor([0.5, 0.5]), w)])
    assert w.tolist() == [0.5, 0.0]
    rows = IndexedSlices([1.0], torch.tensor([0]))
    with pytest.raises(RuntimeError, match="Cannot use a constraint function on a sparse variable"):
        opt.apply_gradients([(rows, w)])


def test_minimize_takes_the_trainable_variables_of_the_loss() -> None:
    b, a = Variable([1.0], name="b"), Variable([2.0], name="a")
    fixed = Variable([3.0], trainable=False)
    step = Variable(np.int64(0), trainable=False)
    opt = train.GradientDescentOptimizer(1.0)
    pairs = opt.compute_gradients(lambda: (a * b * fixed).sum())
    assert [var.name for _, var in pairs] == ["b:0", "a:0"]  # in order of creation, not of use
    opt.minimize(lambda: (a * b * fixed).sum(), step)
    assert (a.item(), b.item(), fixed.item(), step.item()) == (-1.0, -5.0, 3.0, 1)


def test_compute_gradients_gives_a_pair_for_each_variable() -> None:
    a, b = Variable([1.0]), Variable([2.0])
    opt = train.GradientDescentOptimizer(1.0)
    pairs = opt.compute_gradients(lambda: 3 * a, [[a], (b,)])
    assert pairs[0][0].tolist() == [3.0]
    assert pairs[1] == (None, b)
    assert opt.compute_gradients(lambda: torch.ones(1)) == []


def test_grad_loss_weighs_the_elements() -> None:
    a = Variable([1.0, 1.0])
    opt = train.GradientDescentOptimizer(1.0)
    opt.minimize(lambda: 2 * a, var_list=[a], grad_loss=torch.tensor([1.0, 10.0]))
    assert a.tolist() == [-1.0, -19.0]


def test_a_loss_of_rows_gives_slices() -> None:
    table = Variable(np.zeros((4, 2), np.float32))
    opt = train.GradientDescentOptimizer(1.0)
    rows = torch.tensor([1, 3, 1])
    ((grad, _),) = opt.compute_gradients(lambda: embedding_lookup(table, rows).sum())
    assert isinstance(grad, IndexedSlices)
    assert grad.indices.tolist() == [1, 3, 1]


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (torch.ones(()), RuntimeError, "should be a function when eager execution is enabled"),
        (torch.ones(()), RuntimeError, r"Give one that computes it: minimize\(lambda: "),
        (lambda: torch.ones(()), ValueError, "No gradients provided for any variable, check"),
        (lambda: torch.ones(()), ValueError, r"the loss depends on none\. .*give them as var_"),
    ],
)
@pytest.mark.parametrize("gate", [train.Optimizer.GATE_NONE, train.Optimizer.GATE_OP])
def test_invalid_losses_raise(loss: Any, error: Any, message: str, gate: int) -> None:
    with pytest.raises(error, match=message):
        train.GradientDescentOptimizer(1.0).minimize(loss, gate_gradients=gate)


def test_module_as_var_list_raises() -> None:
    module = torch.nn.Linear(1, 1)
    with pytest.raises(TypeError, match=r"not a module; give list\(module\.parameters\(\)\)\.$"):
        train.GradientDescentOptimizer(1.0).minimize(lambda: module.bias.sum(), var_list=module)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: train.AdagradOptimizer(0.1, 0.0), "initial_accumulator_value must be positive: 0"),
        (lambda: train.ProximalAdagradOptimizer(0.1, -1.0), "initial_accumulator_value must be"),
        (
            lambda: train.AdagradDAOptimizer(0.1, Variable(np.int64(0)), 0.0),
            "initial_gradient_squared_accumulator_value must be positive",
        ),
        (
            lambda: train.FtrlOptimizer(0.1, 0.5),
            "learning_rate_power 0.500000 needs to be negative or zero",
        ),
        (lambda: train.FtrlOptimizer(0.1, initial_accumulator_value=-1.0), "needs to be positive"),
        (lambda: train.FtrlOptimizer(0.1, l1_regularization_strength=-1.0), "l1_regularization"),
        (lambda: train.FtrlOptimizer(0.1, l2_regularization_strength=-1.0), "l2_regularization"),
        (
            lambda: train.FtrlOptimizer(0.1, l2_shrinkage_regularization_strength=-1.0),
            "l2_shrinkage_regularization_strength",
        ),
        (lambda: train.AdagradDAOptimizer(0.1, Variable(0)), "int64"),
        (lambda: train.AdagradDAOptimizer(0.1, 0), "global_step"),
    ],
)
def test_invalid_constructor_arguments_raise(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "kind", ["GradientDescent", "Momentum", "Adagrad", "RMSProp", "Adadelta", "Adam"]
)
def test_callables_are_called_once_a_step(kind: str) -> None:
    calls = []

    def rate() -> float:
        calls.append(1)
        return 0.1

    opt = OPTIMIZERS[kind]()
    attribute = type(opt).HYPERS["learning_rate"]
    setattr(opt, attribute, rate)
    grad, w = pair()
    plain_opt = OPTIMIZERS[kind]()
    setattr(plain_opt, attribute, 0.1)
    _, expected = pair()
    for _ in range(3):
        opt.apply_gradients([(grad, w)])
        plain_opt.apply_gradients([(grad, expected)])
    assert len(calls) == 3
    assert_same([w], [expected])


@pytest.mark.parametrize(
    "kind", ["AdagradDA", "Ftrl", "ProximalAdagrad", "ProximalGradientDescent"]
)
def test_callable_rate_raises_for_some_optimizers(kind: str) -> None:
    opt = OPTIMIZERS[kind]()
    opt._learning_rate = lambda: 0.1
    grad, w = pair()
    with pytest.raises(ValueError, match="takes numbers and tensors as learning_rate"):
        opt.apply_gradients([(grad, w)])


@pytest.mark.parametrize("kind", list(STEP_CALLS))
@pytest.mark.parametrize("collect", [iter, list, tuple], ids=["generator", "list", "tuple"])
def test_constructors_reject_variables(kind: str, collect: Any) -> None:
    variables = collect(torch.nn.Linear(2, 1).parameters())
    hint = r"not .*Variables go to minimize\(\) or apply_gradients\(\), not to the constructor"
    with pytest.raises(
        TypeError, match=f"^(learning_rate|weight_decay|opt|optimizer) must be a.* {hint}"
    ):
        STEP_CALLS[kind](variables)


@pytest.mark.parametrize("rate", ["fast", None, torch.ones(2), [0.1]])
def test_non_scalar_learning_rates_raise(rate: Any) -> None:
    grad, w = pair()
    with pytest.raises(ValueError, match="learning_rate must be a"):
        train.GradientDescentOptimizer(rate).apply_gradients([(grad, w)])
    assert w.tolist() == [1.0, 2.0]


def test_a_variable_as_learning_rate_is_read_at_each_step() -> None:
    rate = Variable(1.0, trainable=False)
    grad, w = pair((0.0,), (1.0,))
    opt = train.GradientDescentOptimizer(rate)
    opt.apply_gradients([(grad, w)])
    rate.assign(0.5)
    opt.apply_gradients([(grad, w)])
    assert w.item() == -1.5


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_ftrl_rejects_rows_without_a_positive_rate(rate: float) -> None:
    table = Variable(np.ones((3, 2), np.float32))
    rows = IndexedSlices([[1.0, 1.0]], torch.tensor([1]))
    with pytest.raises(ValueError, match="learning_rate must be positive"):
        train.FtrlOptimizer(rate).apply_gradients([(rows, table)])
    assert table.sum().item() == 6.0


@pytest.mark.parametrize("index", [-1, 4, 10**9])
@each_optimizer
def test_indices_out_of_range_change_nothing(kind: str, index: int) -> None:
    table = Variable(np.ones((4, 2), np.float32))
    rows = IndexedSlices(np.ones((2, 2), np.float32), torch.tensor([0, index]))
    with pytest.raises(IndexError, match=r"out of range|is not in \[0, 4\)"):
        OPTIMIZERS[kind]().apply_gradients([(rows, table)])
    assert table.sum().item() == 8.0


def test_subclass_can_create_slots() -> None:
    class Slots(train.Optimizer):
        def __init__(self) -> None:
            super().__init__(False, "Slots")

        def _create_slots(self, var_list: Any) -> None:
            for var in var_list:
                self._zeros_slot(var, "zeros", self._name)
                self._get_or_make_slot(var, var * 2, "double", self._name)
                self._get_or_make_slot_with_initializer(
                    var, lambda shape, dtype: torch.full(shape, 7.0), (3,), var.dtype, "init", "I"
                )
            self._create_non_slot_variable(0.5, "rate", colocate_with=var_list[0])

        def _apply_dense(self, grad: Any, var: Any) -> None:
            self.get_slot(var, "zeros").add_(1)

    grad, w = pair()
    opt = Slots()
    for _ in range(2):
        opt.apply_gradients([(grad, w)])
    assert opt.get_slot(w, "zeros").tolist() == [2.0, 2.0]
    assert opt.get_slot(w, "double").tolist() == [2.0, 4.0]
    assert opt.get_slot(w, "init").tolist() == [7.0, 7.0, 7.0]
    assert opt._get_non_slot_variable("rate").item() == 0.5
    assert [var.name for var in opt.variables()] == [
        "rate:0",
        "w/I:0",
        "w/Slots:0",
        "w/Slots_1:0",
    ]
    assert list(opt._slot_dict("double")) == [opt._var_key(w)]


def test_dtypes_are_checked_on_request() -> None:
    opt = Recording()
    assert opt._valid_dtypes() == {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
    with pytest.raises(ValueError, match=r"Invalid type torch.int64 for w:0, expected: \[float32"):
        opt._assert_valid_dtypes([Variable(np.int64(1), name="w")])


@pytest.mark.parametrize(
    "rate",
    [
        float("nan"),
        torch.tensor(1j),
        np.array("fast"),
        torch.empty((), device="meta"),
        10**400,
        lambda: 10**400,
        lambda: 10**5000,
    ],
    ids=["nan", "complex", "text", "meta", "huge", "huge callable", "unprintable"],
)
def test_learning_rates_of_v1_are_real_numbers(rate: Any) -> None:
    w = Variable([1.0])
    with pytest.raises(ValueError, match="learning_rate"):
        train.GradientDescentOptimizer(rate).apply_gradients([(torch.ones(1), w)])
    with pytest.raises(ValueError, match="weight_decay"):
        contrib.opt.MomentumWOptimizer(rate, 0.1, 0.9).apply_gradients([(torch.ones(1), w)])
    assert w.item() == 1.0
