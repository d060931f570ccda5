"""TensorFlow's attributes and methods on dtypes, shapes, tensors and variables of torch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import fresh_process
import thalweg
import thalweg.tf as tf
from thalweg._base.static_shape import Shape
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.keras.optimizers import SGD, Adagrad, Adam, Adamax, Ftrl, Nadam, RMSprop


@pytest.mark.parametrize(
    ("dtype", "name", "of_numpy", "kind", "size", "limits"),
    [
        (tf.float32, "float32", np.float32, "floating", 4, None),
        (tf.float64, "float64", np.float64, "floating", 8, None),
        (tf.half, "float16", np.float16, "floating", 2, (-65504.0, 65504.0)),
        (tf.int64, "int64", np.int64, "integer", 8, (-(2**63), 2**63 - 1)),
        (tf.uint8, "uint8", np.uint8, "integer", 1, (0, 255)),
        (tf.bool, "bool", np.bool_, "bool", 1, (False, True)),
    ],
)
def test_dtypes_have_tensorflow_attributes(
    dtype: Any, name: str, of_numpy: Any, kind: str, size: int, limits: Any
) -> None:
    assert dtype.base_dtype is dtype
    assert (dtype.name, dtype.as_numpy_dtype, dtype.size) == (name, of_numpy, size)
    kinds = {kind for kind in ("floating", "integer", "bool") if getattr(dtype, f"is_{kind}")}
    assert kinds == {kind}
    assert dtype.is_compatible_with(name)
    assert not dtype.is_compatible_with(torch.complex64)
    finfo = np.finfo(of_numpy) if limits is None else None
    assert dtype.limits == (limits or (finfo.min, finfo.max))  # pyright: ignore
    assert dtype.is_unsigned == (dtype == torch.uint8)


def test_dtypes_are_torch_dtypes() -> None:
    assert torch.zeros(2, dtype=variable("variable").dtype.base_dtype).dtype is torch.float32
    assert pickle.loads(pickle.dumps(torch.float64)) is torch.float64
    assert copy.deepcopy(torch.half) is torch.float16
    assert isinstance(torch.int8, tf.DType)


def test_compiled_functions_can_read_lent_names() -> None:
    def ask(x: Any) -> Any:
        return x.to(x.dtype.base_dtype) * x.shape.ndims + x.get_shape().as_list()[0]

    compiled = torch.compile(ask, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2, 3)).tolist() == [[4.0] * 3] * 2


def test_shapes_have_tensor_shape_methods() -> None:
    shape = torch.zeros(2, 3).shape
    assert (shape.as_list(), shape.ndims, shape.num_elements()) == ([2, 3], 2, 6)  # pyright: ignore
    sizes = torch.zeros(2, 3).get_shape()  # pyright: ignore
    assert (sizes, sizes[0].value, sizes[1:], sizes.dims[1].value) == ((2, 3), 2, (3,), 3)
    assert sizes == [2, 3]
    assert sizes.is_compatible_with([None, 3])
    assert sizes.merge_with(None) == Shape([None, 3]).merge_with((2, None)) == (2, 3)
    assert sizes.concatenate([4]) == (2, 3, 4)
    with pytest.raises(ValueError, match="must have rank 1"):
        sizes.with_rank(1)
    assert sizes.with_rank_at_least(1) == sizes.with_rank_at_most(2) == sizes
    with pytest.raises(ValueError, match="rank at least 3"):
        sizes.with_rank_at_least(3)
    with pytest.raises(ValueError, match="rank at most 1"):
        sizes.with_rank_at_most(1)
    with pytest.raises(ValueError, match="incompatible"):
        sizes.assert_is_compatible_with([2, 4])
    torch.zeros(2).set_shape([None])  # pyright: ignore
    with pytest.raises(InvalidArgumentError, match=r"cannot have shape \(3,\)"):
        torch.zeros(2).set_shape([3])  # pyright: ignore


def test_unknown_shapes_have_tensor_shape_methods() -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32)
        assert x.get_shape().ndims is x.get_shape().num_elements() is None
        assert not x.get_shape().is_fully_defined()
        with pytest.raises(ValueError, match="not defined on an unknown"):
            x.get_shape().as_list()
        x.set_shape([None, 2])
        assert x.get_shape().as_list() == [None, 2]
        assert x.get_shape()[1].value == 2


def variable(kind: str) -> Any:
    if kind == "variable":
        return thalweg.Variable([1.0, 2.0], name="w")
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    thalweg.named_variables([("w", parameter)])
    return parameter


@pytest.mark.parametrize("kind", ["variable", "parameter"])
def test_variables_have_tensorflow_attributes(kind: str) -> None:
    var = variable(kind)
    assert (var.name, var.op.name, var._shared_name, var.handle is var) == ("w:0", "w", "w", True)
    assert var.ref() == var.ref()
    assert var.ref() != variable(kind).ref()
    assert {var.ref(): 1}[var.ref()] == 1
    assert var.ref().deref() is var
    assert var.assign([3.0, 4.0], use_locking=True, name="a", read_value=False) is var
    var.assign_add([1.0, 1.0], False)
    var.assign_sub(torch.tensor([2.0, 0.0]), True)
    assert var.read_value().tolist() == [2.0, 5.0]
    with pytest.raises(InvalidTypeError, match="Cannot assign to 'w:0'"):
        var.assign(torch.zeros(2, dtype=torch.float64))
    assert np.asarray(var.sparse_read([1]).detach()).tolist() == [5.0]


UPDATES = {
    "add": [1.0 + 2.0 + 4.0, 1.0, 1.0],
    "sub": [1.0 - 2.0 - 4.0, 1.0, 1.0],
    "mul": [8.0, 1.0, 1.0],
    "div": [0.125, 1.0, 1.0],
    "min": [1.0, 1.0, 1.0],
    "max": [4.0, 1.0, 1.0],
    "update": [4.0, 1.0, 1.0],
}


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("mode", ["variable", "raw", "graph"])
def test_scatter_methods_update_rows(update: str, mode: str) -> None:
    values, rows = [2.0, 4.0], [0, 0]
    if mode == "graph":
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            var = tf.Variable([1.0, 1.0, 1.0])
            slices = tf.IndexedSlices(tf.constant(values), tf.constant(rows))
            op = getattr(var, f"scatter_{update}")(slices, use_locking=True)
            session.run(tf.compat.v1.global_variables_initializer())
            assert session.run(op).tolist() == session.run(var).tolist() == UPDATES[update]
        return
    var = thalweg.Variable([1.0, 1.0, 1.0])
    if mode == "variable":
        getattr(var, f"scatter_{update}")(tf.IndexedSlices(values, rows))
    else:
        raw = getattr(tf.raw_ops, f"ResourceScatter{update.capitalize()}")
        raw(resource=var.handle, indices=rows, updates=values)  # pyright: ignore
    assert var.tolist() == UPDATES[update]


def test_invalid_scatters_raise() -> None:
    var = thalweg.Variable([[1.0], [2.0]])
    with pytest.raises(InvalidArgumentError, match=r"indices\[1\] = 2 is not in \[0, 2\)"):
        tf.raw_ops.ResourceScatterAdd(resource=var, indices=[0, 2], updates=[[1.0], [1.0]])
    with pytest.raises(InvalidArgumentError, match=r"Updates of shape \(3,\) do not fit"):
        tf.raw_ops.ResourceScatterAdd(resource=var, indices=[0, 1], updates=[1.0, 1.0, 1.0])
    assert var.flatten().tolist() == [1.0, 2.0]
    assert torch.zeros(2).scatter_add(0, torch.tensor([1]), torch.ones(1)).tolist() == [0, 1]
    assert var.scatter_add(0, torch.tensor([[1]]), torch.ones(1, 1)).tolist() == [[1], [3]]


def test_raw_ops_take_only_keywords() -> None:
    var = thalweg.Variable([1.0])
    tf.raw_ops.ResourceApplyGradientDescent(var=var.handle, alpha=0.5, delta=[1.0])  # pyright: ignore
    assert var.tolist() == [0.5]
    with pytest.raises(TypeError):
        tf.raw_ops.ResourceApplyGradientDescent(var, 0.5, [1.0])
    with pytest.raises(AttributeError, match=r"thalweg\.tf has no 'raw_ops\.Add'"):
        _ = tf.raw_ops.Add


# Class -> what its hooks find in `apply_state`, and one of the values at the first step.
COEFFICIENTS: dict[Any, tuple[str, str, float]] = {
    SGD: ("lr_t momentum", "momentum", 0.0),
    Adagrad: ("lr_t neg_lr_t epsilon zero", "neg_lr_t", -0.5),
    RMSprop: ("lr_t neg_lr_t epsilon rho momentum one_minus_rho", "one_minus_rho", 0.1),
    Adam: ("lr_t lr epsilon beta_1_t beta_2_power one_minus_beta_2_t", "beta_1_power", 0.9),
    Adamax: ("lr_t neg_scaled_lr epsilon beta_1_t zero", "neg_scaled_lr", -5.0),
    Nadam: ("lr_t m_t m_t_1 one_minus_m_schedule_new v_t_prime_denominator", "neg_lr_t", -0.5),
    Ftrl: ("lr_t learning_rate_power beta l1_regularization_strength", "beta", 0.0),
}


@pytest.mark.parametrize("cls", COEFFICIENTS)
def test_step_coefficients_are_available_to_hooks(cls: Any) -> None:
    names, name, value = COEFFICIENTS[cls]
    coefficients: list[Any] = []

    class Look(cls):
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            by_device = apply_state[(var.device, var.dtype.base_dtype)]
            assert apply_state.get((str(var.device), var.dtype)) is by_device
            coefficients.append(by_device)
            return super()._resource_apply_dense(grad, var, apply_state=apply_state)

    opt, plain_opt, w, plain_w = Look(0.5), cls(0.5), *(thalweg.Variable([1.0]) for _ in range(2))
    for optimizer, var in ((opt, w), (plain_opt, plain_w)):
        optimizer.apply_gradients([([1.0], var)])
    assert w.tolist() == plain_w.tolist()
    assert set(names.split()) <= coefficients[0].keys()
    assert coefficients[0][name].item() == pytest.approx(value)
    assert "apply_state" in opt._dense_apply_args


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, "float16"])
def test_hyperparameters_may_have_any_dtype(dtype: Any) -> None:
    opt = SGD()
    opt._set_hyper("period", 6)
    period = opt._get_hyper("period", dtype)
    assert (period.item(), period.dtype) == (6, tf.as_dtype(dtype))


def test_failing_step_restores_wrapper_and_inner_optimizer() -> None:
    class Failing(SGD):
        def __init__(self, inner: Any) -> None:
            super().__init__(0.5)
            self._inner = inner
            self._track_trackable(inner, "inner")

        def _create_slots(self, var_list: Any) -> None:
            self._inner._create_slots(var_list)

        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            self._inner.get_slot(var, "momentum").assign_add(grad)
            raise OSError("on purpose")

    inner, var = SGD(0.5, momentum=0.5), thalweg.Variable([1.0])
    with pytest.raises(OSError, match="on purpose"):
        Failing(inner).apply_gradients([([1.0], var)])
    assert inner.get_slot(var, "momentum").tolist() == [0.0]


def test_roots_are_rounded_to_the_nearest() -> None:
    values = np.random.default_rng(0).random(10000)
    for kind in (np.float32, np.float64):
        array = values.astype(kind)
        assert np.array_equal(tf.sqrt(torch.from_numpy(array)).numpy(), np.sqrt(array))
    x = torch.tensor(4.0, requires_grad=True)
    tf.sqrt(x).backward()
    assert x.grad == 0.25


def test_tensors_convert_to_numpy() -> None:
    value = thalweg.Variable([1.0, 2.0]).read_value()
    assert np.asarray(value).tolist() == value.numpy().tolist() == [1.0, 2.0]
    assert type(value * 2) is torch.Tensor
    assert value.requires_grad


def test_torch_style_optimizers_lend_no_names() -> None:
    code = "import torch, thalweg.optim; raise SystemExit(hasattr(torch.float32, 'base_dtype'))"
    process = fresh_process.run(code)
    assert process.returncode == 0, process.stderr


def test_restored_slot_has_its_saved_shape(tmp_path: Any) -> None:
    w = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    saved_opt, new_opt = SGD(), SGD()
    saved_opt.add_slot(w, "rows", "ones", shape=[2, 1])
    path = tf.train.Checkpoint(var=w, optimizer=saved_opt).save(str(tmp_path / "it"))
    tf.train.Checkpoint(var=w, optimizer=new_opt).restore(path)
    assert new_opt.get_slot(w, "rows").tolist() == [[1.0], [1.0]]
