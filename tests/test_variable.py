"""`Variable` behaves as TensorFlow's, and is a torch parameter in good standing."""

import copy
import io
import operator
import pickle
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from thalweg import tf
from thalweg._formats.stored_tensor import of_tensor
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import (
    Moves,
    Variable,
    as_dtype,
    is_variable,
    name_of,
    named_variables,
    over,
    variable_constraint,
)


def clip(x):
    return x.clamp(0, 1)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.0, torch.float32),
        (1, torch.int32),
        (True, torch.bool),
        ([1.0, 2], torch.float32),
        ([[1], [2]], torch.int32),
        ([], torch.float32),
        (1j, torch.complex128),
        (np.float64(1), torch.float64),
        (np.int64(1), torch.int64),
        (np.ones(2), torch.float64),
        (np.ones(2, "f2"), torch.float16),
        (np.ones(2, ">f4"), torch.float32),
        (np.ones((2, 3))[::-1, ::2], torch.float64),
        (torch.ones(2, dtype=torch.bfloat16), torch.bfloat16),
        (np.ones((2, 3), ml_dtypes.bfloat16)[:, ::2], torch.bfloat16),
        (ml_dtypes.bfloat16(1), torch.bfloat16),
        (np.ones(2, ml_dtypes.float8_e5m2), torch.float8_e5m2),
        (lambda: np.ones(2, "f4"), torch.float32),
        (Variable([1.0]), torch.float32),
    ],
)
def test_initial_value_decides_dtype(value, dtype):
    variable = Variable(value)
    assert variable.dtype == dtype
    assert variable.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float64, "float64", np.float64, np.dtype("float64")])
def test_dtype_converts_without_passing_through_float32(dtype):
    assert Variable(0.1, dtype=dtype).item() == 0.1


@pytest.mark.parametrize("value", ["w", [[1], [1, 2]], None, object(), [None]])
def test_non_numeric_values_raise(value):
    with pytest.raises(InvalidTypeError, match="Cannot convert"):
        Variable(value)


@pytest.mark.parametrize("value", [2**31, [0, -(2**31) - 1]])
def test_out_of_range_python_int_raises(value):
    with pytest.raises(InvalidArgumentError, match="does not fit int32"):
        Variable(value)


def test_fraction_is_not_dropped_silently():
    with pytest.raises(InvalidTypeError, match="Cannot convert float64 values to int32"):
        Variable([1.5], dtype=torch.int32)


def test_sparse_tensor_raises():
    with pytest.raises(InvalidTypeError, match="sparse"):
        Variable(torch.eye(2).to_sparse())


@pytest.mark.parametrize("dtype", ["half precision", "nn", 3, None.__class__])
def test_unknown_dtype_raises(dtype):
    with pytest.raises(InvalidTypeError, match="is not a dtype"):
        as_dtype(dtype)


@pytest.mark.parametrize("source", [np.ones(2, "f4"), torch.ones(2), Variable([1.0, 1.0])])
def test_variable_does_not_alias_its_initial_value(source):
    variable = Variable(source)
    variable.assign([5.0, 5.0])
    assert source.tolist() == [1, 1]


@pytest.mark.parametrize(("given_name", "name"), [("w", "w:0"), (None, "Variable:0")])
def test_variable_name_argument_sets_the_name(given_name, name):
    assert Variable(1.0, name=given_name).name == name


def test_name_must_be_a_string():
    with pytest.raises(InvalidTypeError, match="name must be a string, not False"):
        Variable(1.0, False)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("value", "trainable", "requires_grad"),
    [(1.0, True, True), (1.0, False, False), (1j, True, True), (1, True, False)],
)
def test_requires_grad_is_trainable_and_differentiable(value, trainable, requires_grad):
    variable = Variable(value, trainable=trainable)
    assert (variable.trainable, variable.requires_grad) == (trainable, requires_grad)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        (
            Variable([1.0, 2.0], name="w"),
            "<tf.Variable 'w:0' shape=(2,) dtype=float32, numpy=array([1., 2.], dtype=float32)>",
        ),
        (
            Variable(np.int64(10), name="RMSprop/iter"),
            "<tf.Variable 'RMSprop/iter:0' shape=() dtype=int64, numpy=10>",
        ),
        (
            Variable([[1.0], [2.0]]),
            "<tf.Variable 'Variable:0' shape=(2, 1) dtype=float32, numpy=\n"
            "array([[1.],\n       [2.]], dtype=float32)>",
        ),
        (
            Variable([1.0], dtype=torch.bfloat16),
            "<tf.Variable 'Variable:0' shape=(1,) dtype=bfloat16, "
            "numpy=array([1.], dtype=bfloat16)>",
        ),
        (
            Variable(torch.ones(2, device="meta")),
            "<tf.Variable 'Variable:0' shape=(2,) dtype=float32, numpy=<unavailable>>",
        ),
    ],
)
def test_repr_is_that_of_tensorflow(variable, text):
    assert repr(variable) == text


@pytest.mark.parametrize(
    "function",
    [
        lambda v: v * 2,
        lambda v: 2 - v,
        lambda v: v[0],
        lambda v: v == 1,
        lambda v: v.detach(),
        lambda v: v.data,
        lambda v: v.value() * 1,
        torch.empty_like,
        torch.exp,
    ],
)
def test_results_of_variables_are_tensors(function):
    assert type(function(Variable([1.0, 2.0]))) is torch.Tensor


def test_variable_is_a_parameter_of_a_module():
    module = torch.nn.Module()
    module.kernel = Variable([1.0], name="w")
    assert [name for name, _ in module.named_parameters()] == ["kernel"]
    module.double()
    assert isinstance(module.kernel, Variable)
    assert (module.kernel.name, module.kernel.dtype) == ("w:0", torch.float64)


def test_state_dict_is_made_of_plain_tensors():
    module = torch.nn.Module()
    module.kernel = Variable([1.0])
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["kernel"].tolist() == [1]


@pytest.mark.parametrize(
    ("method", "expected"),
    [("assign", [3, 4]), ("assign_add", [4, 6]), ("assign_sub", [-2, -2])],
)
@pytest.mark.parametrize(
    "value",
    [[3, 4], [3.0, 4.0], np.array([3, 4]), np.array([3.0, 4.0]), torch.tensor([3.0, 4.0])],
    ids=["ints", "floats", "int_array", "float64_array", "tensor"],
)
def test_assignments_work_in_place_and_return_the_variable(method, expected, value):
    variable = Variable([1.0, 2.0])
    address = variable.data_ptr()
    assert getattr(variable, method)(value) is variable
    assert variable.tolist() == expected
    assert variable.data_ptr() == address


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize("value", [1.0, [1.0], [[1.0, 2.0]]])
def test_assignments_do_not_broadcast(method, value):
    variable = Variable([1.0, 2.0], name="w")
    with pytest.raises(InvalidArgumentError, match=r"'w:0': it has shape \(2,\) but the value has"):
        getattr(variable, method)(value)
    assert variable.tolist() == [1, 2]


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_assignments_do_not_cast_tensors(method):
    variable = Variable([1.0], name="w")
    with pytest.raises(InvalidTypeError, match="'w:0': it is float32 but the value is float64"):
        getattr(variable, method)(torch.ones(1, dtype=torch.float64))


def test_arrays_of_ml_dtypes_keep_their_bits():
    array = np.array([1.5, -3e38, np.inf], ml_dtypes.bfloat16)
    assert tf.constant(array).tolist() == array.astype(np.float64).tolist()
    assert tf.constant(array, tf.float64).tolist() == array.astype(np.float64).tolist()
    pair = np.array([7, 8], tf.bfloat16.as_numpy_dtype)
    assert Variable(np.zeros(2, pair.dtype)).assign(pair).tolist() == [7, 8]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        feed = tf.compat.v1.placeholder(tf.bfloat16, [2])
        assert session.run(tf.cast(feed, tf.float32), {feed: pair}).tolist() == [7, 8]
    with pytest.raises(InvalidTypeError, match="Cannot convert array"):
        Variable(np.ones(2, ml_dtypes.int4))


def test_floats_are_not_assigned_to_integers():
    with pytest.raises(InvalidTypeError, match="float64 values to int32"):
        Variable(1).assign(1.5)


def test_autograd_notices_an_assignment():
    variable = Variable([1.0])
    loss = (variable * variable).sum()
    variable.assign([2.0])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_assignment_is_not_differentiated():
    source, variable = Variable([1.0]), Variable([2.0])
    variable.assign(source * 3)
    assert variable.is_leaf
    assert variable.grad_fn is None


@pytest.mark.parametrize("read", [Variable.value, Variable.read_value, Variable.numpy])
def test_reading_takes_a_snapshot(read):
    variable = Variable([1.0])
    snapshot = read(variable)
    variable.assign([2.0])
    assert snapshot.tolist() == [1]


def test_read_value_is_differentiable():
    variable = Variable([1.0])
    variable.read_value().sum().backward()
    assert variable.grad is not None
    assert variable.grad.tolist() == [1]


def test_numpy_of_a_scalar_is_a_numpy_scalar():
    assert type(Variable(1.0).numpy()) is np.float32
    assert np.asarray(Variable(1.0)).shape == ()


def test_memory_read_by_numpy_stays_resizable():
    from thalweg._graph.feeds_and_fetches import exported

    var = Variable(torch.ones(2))
    for read in (Variable.numpy, np.asarray, exported, tf.sqrt):
        assert list(read(var)) == [1, 1]
    assert "array([1., 1.]" in repr(var)
    assert bytes(of_tensor(var).data) == np.ones(2, np.float32).tobytes()
    assert var.untyped_storage().resizable()


def test_numpy_of_bfloat16_without_ml_dtypes_raises_with_advice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(InvalidTypeError, match=r"no bfloat16, the dtype of 'w:0'. Call .float()"):
        Variable([1.0], name="w", dtype=torch.bfloat16).numpy()


@pytest.mark.parametrize("convert", [float, int, bool])
def test_a_scalar_converts_to_python(convert):
    assert convert(Variable(3.0)) == convert(3.0)


def through_pickle(variable):
    return pickle.loads(pickle.dumps(variable))


def through_torch_save(variable):
    file = io.BytesIO()
    torch.save(variable, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, through_pickle, through_torch_save])
@pytest.mark.parametrize("trainable", [True, False])
def test_copies_keep_everything_but_the_memory(duplicate, trainable):
    original = Variable([1.0, 2.0], "w", trainable, clip)
    twin = duplicate(original)
    assert type(twin) is Variable
    assert (twin.name, twin.trainable, twin.constraint) == ("w:0", trainable, clip)
    assert twin.requires_grad == trainable
    assert twin.is_leaf
    twin.assign([5.0, 5.0])
    assert original.tolist() == [1, 2]


def test_deepcopy_keeps_shared_variables_shared():
    variable = Variable(1.0)
    first, second = copy.deepcopy([variable, variable])
    assert first is second


def test_variable_over_a_tensor_shares_its_memory():
    tensor = torch.ones(2, requires_grad=True)
    variable = over(tensor, "w")
    variable.assign([3.0, 4.0])
    assert tensor.tolist() == [3, 4]
    assert (variable.name, variable.requires_grad) == ("w:0", False)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (Variable(1), True),
        (torch.nn.Parameter(torch.ones(1), requires_grad=False), True),
        (torch.ones(1, requires_grad=True), True),
        (torch.ones(1), False),
        (Variable(1.0) * 2, False),
        (1.0, False),
    ],
)
def test_is_variable_recognizes_variables(x, expected):
    assert is_variable(x) is expected


def test_parameters_answer_to_the_names_of_their_module():
    module = torch.nn.Linear(2, 1)
    assert [name_of(p) for p in named_variables(module.named_parameters())] == [
        "weight:0",
        "bias:0",
    ]


def test_a_variable_keeps_its_own_name():
    (variable,) = named_variables([("kernel", Variable(1.0, name="w"))])
    assert name_of(variable) == "w:0"


def test_a_nameless_tensor_has_the_default_name():
    assert name_of(torch.ones(1), default="param_3") == "param_3:0"


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [(Variable(1.0, constraint=clip), clip), (Variable(1.0), None), (torch.ones(1), None)],
)
def test_variable_constraint_returns_the_constraint(tensor, expected):
    assert variable_constraint(tensor) is expected


def test_variables_sharing_a_move_counter_count_together():
    moves = Moves()
    first, second = (over(torch.zeros(2), name, moves) for name in ("m", "v"))
    second.assign([1.0, 2.0])
    assert moves.count == 0
    second.data = torch.ones(2)
    first.data = torch.ones(2)
    assert moves.count == 2


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copied_variable_has_a_separate_move_counter(duplicate):
    moves = Moves()
    twin = duplicate(over(torch.zeros(2), "m", moves))
    twin.data = torch.ones(2)
    assert (twin.moves.count, moves.count) == (1, 0)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    hnp.arrays(
        st.sampled_from(["f2", "f4", "f8", "i4", "i8", "u1", "?", "c8"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
    )
)
def test_arrays_come_back_with_the_same_bytes(array):
    result = Variable(array).numpy()
    assert result.dtype == array.dtype
    assert result.tobytes() == array.tobytes()


ARRAY_OPERATORS = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv")},
    **{name: getattr(operator, name) for name in ("mod", "pow", "matmul", "lt", "le", "gt", "ge")},
}


@pytest.mark.parametrize("name", ARRAY_OPERATORS)
@pytest.mark.parametrize("array_first", [False, True], ids=["right", "left"])
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.int64, list], ids=lambda d: d.__name__
)
def test_arrays_are_operands_in_the_dtype_of_the_variable(name, array_first, dtype):
    apply, values = ARRAY_OPERATORS[name], [2.0, 3.0]
    w = Variable([1.5, 4.0])
    array = values if dtype is list else np.array(values, dtype)
    pair = (array, w) if array_first else (w, array)
    got = apply(*pair)
    param = w.detach().requires_grad_()
    expected = apply(*(torch.tensor(values) if operand is array else param for operand in pair))
    assert (type(got), got.dtype) == (torch.Tensor, expected.dtype)
    assert torch.equal(got, expected)
    if expected.requires_grad and name != "floordiv":
        got.sum().backward()
        expected.sum().backward()
        assert torch.equal(w.grad, param.grad)


def test_an_array_of_fractions_beside_an_integer_variable_loses_them():
    """Truncate fractions, as TensorFlow 2.21."""
    variable, array = Variable([3, 2]), np.array([0.5, 2.5])
    for product in (variable * array, array * variable):
        assert (product.dtype, product.tolist()) == (torch.int32, [0, 4])


def test_tensors_and_numbers_are_divided_by_a_variable_itself() -> None:
    x, y = torch.arange(1.0, 200.0), torch.arange(3.0, 202.0)
    assert torch.equal(x / Variable(y), x / y)
    assert torch.equal(x // Variable(y), x // y)
    assert torch.equal(0.1 / Variable(y), torch.full_like(y, 0.1) / y)
    assert torch.equal(0.5 / Variable([2]), torch.tensor([0.25]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2"])
def test_dtypes_that_numpy_lacks_are_those_of_ml_dtypes(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = Variable(torch.tensor([1.5, -2.0]).to(getattr(torch, dtype)), name="w")
    for array in (variable.numpy(), np.asarray(variable), variable.read_value().numpy()):
        assert (array.dtype.name, array.astype("float32").tolist()) == (dtype, [1.5, -2.0])
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(InvalidTypeError, match=f"NumPy has no {dtype}, .*or install ml_dtypes"):
        variable.numpy()
