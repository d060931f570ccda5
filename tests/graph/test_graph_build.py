"""Graph mode: what is recorded, under which names, with which shapes and dtypes."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg._graph as tf
from thalweg import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from thalweg._base.execution_context import eagerly
from thalweg._base.static_shape import UNKNOWN
from thalweg.errors import NotFoundError
from thalweg.v1 import train

F = torch.nn.functional


pytestmark = pytest.mark.usefixtures("graph")


def run(fetches: Any, feeds: Any = None) -> Any:
    return tf.Session().run(fetches, feeds)


X = np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)
Y = np.array([0.5, 2.0], np.float32)

EXPRESSIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "radd number": lambda x, y: 2 + x,
    "sub": lambda x, y: x - y,
    "rsub number": lambda x, y: 1.0 - x,
    "mul": lambda x, y: x * y,
    "truediv": lambda x, y: x / y,
    "rtruediv": lambda x, y: 1 / x,
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "pow": lambda x, y: x**2,
    "rpow": lambda x, y: 2**y,
    "matmul": lambda x, y: x @ y,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: abs(x),
    "compare": lambda x, y: (x > y) & (x <= 4) | ~(x < 0) ^ (x >= 0),
    "row": lambda x, y: x[1],
    "index": lambda x, y: x[..., 0:1],
    "mask": lambda x, y: x[x > 0],
    "tensor on the left": lambda x, y: torch.tensor([1.0, 2.0]) * y,
    "tensor on the right": lambda x, y: y / torch.tensor([1.0, 2.0]),
    "method": lambda x, y: x.sum(),
    "method with keywords": lambda x, y: x.mean(dim=0, keepdim=True),
    "property": lambda x, y: x.T,
    "function": lambda x, y: torch.exp(y),
    "function of lists": lambda x, y: torch.cat([x, y[None]]),
    "symbols in keywords": lambda x, y: torch.add(input=x, other=y),
    "functional": lambda x, y: F.mse_loss(x, y.expand(2, 2)),
    "where": lambda x, y: torch.where(x > 0, x, 0.0),
    "several outputs": lambda x, y: x.max(dim=1).values,
    "unpacked outputs": lambda x, y: torch.unbind(x)[1],
    "reshape": lambda x, y: x.reshape(-1, 4).to(torch.float64),
    "relu said to be in place": lambda x, y: F.relu(x, inplace=True),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
@pytest.mark.parametrize("shape", [None, (None, None), "known"])
def test_expression_has_the_value_torch_gives(
    expression: Callable[[Any, Any], Any], shape: Any
) -> None:
    x = tf.placeholder(torch.float32, X.shape if shape == "known" else shape)
    y = tf.placeholder(torch.float32, Y.shape if shape else None)
    if shape is None and expression is EXPRESSIONS["unpacked outputs"]:
        pytest.skip("nothing tells how many there are")
    result = expression(x, y)
    expected = expression(torch.tensor(X), torch.tensor(Y)).numpy()
    got = run(result, {x: X, y: Y})
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == expected.dtype
    if isinstance(shape, str):
        assert result.shape.accepts(expected.shape)
        assert str(result.dtype) == f"torch.{expected.dtype}"


ARRAYS = {
    "array on the left": lambda y: np.array([1.0, 2.0]) * y,
    "array on the right": lambda y: y * np.array([1.0, 2.0]),
    "list on the right": lambda y: y * [1.0, 2.0],
    "scalar on the left": lambda y: np.float64(2.0) * y,
}


@pytest.mark.parametrize("expression", ARRAYS.values(), ids=ARRAYS.keys())
def test_arrays_take_the_dtype_of_the_tensor(expression: Callable[[Any], Any]) -> None:
    y = tf.placeholder(torch.float32, [2])
    result = run(expression(y), {y: Y})
    np.testing.assert_array_equal(result, expression(Y))
    assert result.dtype == np.float32


SHAPES = {
    "elementwise": (lambda x: x * 2, (None, 3), (None, 3)),
    "broadcast": (lambda x: x + torch.ones(4, 1, 1), (None, 3), (4, None, 3)),
    "matmul": (lambda x: x @ torch.ones(3, 5), (None, 3), (None, 5)),
    "reduced to a scalar": (lambda x: x.mean(), (None, 3), ()),
    "reduced over the unknown": (lambda x: x.sum(0), (None, 3), (3,)),
    "flattened": (lambda x: x.flatten(1), (None, 3, 4), (None, 12)),
    "reshaped": (lambda x: x.reshape(-1, 6), (None, 3), (None, 6)),
    "convolved": (lambda x: F.conv2d(x, torch.ones(2, 1, 3, 3)), (None, 1, 8, 8), (None, 2, 6, 6)),
    "size depends on data": (lambda x: x[x > 0], (2, 3), UNKNOWN),
    "unknown rank": (lambda x: x * 2, None, UNKNOWN),
    "scalar of unknown rank": (lambda x: (x * 2).mean(), None, ()),
}


@pytest.mark.parametrize(("function", "shape", "expected"), SHAPES.values(), ids=SHAPES.keys())
def test_symbolic_functions_infer_static_shapes(
    function: Callable[..., Any], shape: Any, expected: Any
) -> None:
    result = function(tf.placeholder("float32", shape))
    assert result.shape == expected
    assert result.dtype == torch.float32


def test_an_unknown_shape_has_the_methods_of_a_tensor_shape() -> None:
    shape = tf.placeholder("float32").shape
    assert not shape
    assert (shape.ndims, shape.rank, shape.dims, shape.num_elements()) == (None,) * 4
    assert not shape.is_fully_defined()
    assert shape.is_compatible_with([2, 3])
    assert shape[0] is None
    assert all(new is shape for new in (shape[1:], shape.concatenate([2]), UNKNOWN))
    assert all(new is shape for new in (copy.deepcopy(shape), pickle.loads(pickle.dumps(shape))))
    for function, text in ((len, "length"), (list, "iterate"), (lambda x: x.as_list(), "as_list")):
        with pytest.raises(ValueError, match=text):
            function(shape)


def test_a_learning_rate_of_unknown_rank_is_a_scalar_in_the_run() -> None:
    rate = tf.placeholder("float32")
    var = tf.Variable([1.0, 2.0])
    step = train.GradientDescentOptimizer(rate).apply_gradients([(tf.constant([1.0, 1.0]), var)])
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    session.run(step, {rate: 0.5})
    assert session.run(var).tolist() == [0.5, 1.5]


def test_shape_has_the_methods_of_a_tensor_shape() -> None:
    x = tf.placeholder("float32", [None, 3])
    assert x.get_shape().as_list() == [None, 3]
    assert x.shape.ndims == 2
    assert not x.shape.is_fully_defined()
    x.set_shape([5, None])
    assert x.shape == (5, 3)
    with pytest.raises(InvalidArgumentError, match=r"has shape \(5, 3\), which does not agree"):
        x.set_shape([4, 3])


def test_static_shape_queries_need_no_run() -> None:
    x = tf.placeholder("float32", [None, 3])
    assert (x.dim(), x.ndim, x.size(1), x.is_floating_point()) == (2, 2, 3, True)
    with pytest.raises(InvalidTypeError, match="only a run knows"):
        x.size(0)


def test_mismatched_shapes_raise_when_the_graph_is_built() -> None:
    x = tf.placeholder("float32", [2, 3])
    with pytest.raises(ValueError, match=r"matmul: .* shapes \(2, 3\), \(2, 3\)"):
        x @ x
    assert [op.type for op in tf.get_default_graph().get_operations()] == ["Placeholder"]


def test_invalid_arguments_raise_when_the_graph_is_built() -> None:
    x = tf.placeholder("float32", [2, 3])
    with pytest.raises(TypeError, match="invalid combination of arguments"):
        torch.sum(x, nonsense=1)


INVALID: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "bool": (bool, TypeError, "has no value until a session runs it"),
    "if": (lambda x: 1 if x > 0 else 2, TypeError, "has no value"),
    "float": (float, TypeError, "has no value"),
    "int": (int, TypeError, "has no value"),
    "len": (len, TypeError, "has no value"),
    "numpy": (lambda x: x.numpy(), TypeError, "Session.run"),
    "asarray": (np.asarray, TypeError, "has no value"),
    "sum": (np.sum, TypeError, "Session.run"),
    "max": (lambda x: np.max(x, 0), TypeError, "Session.run"),
    "item": (lambda x: x.item(), TypeError, "has no value"),
    "contains": (lambda x: 1 in x, TypeError, "has no value"),
    "iteration": (list, TypeError, "iterate over it"),
    "typo": (lambda x: x.summ(), AttributeError, "has no attribute 'summ'"),
    "in place": (lambda x: x.add_(1), AttributeError, "No node writes in place"),
    "torch in place": (lambda x: torch.ones(2).add_(x), TypeError, "writes in place"),
    "memory": (lambda x: x.stride(), AttributeError, "Only a run knows it"),
    "autograd": (lambda x: x.requires_grad, AttributeError, "Only a run knows it"),
    "feed": (float, TypeError, r"feed it: feed_dict=\{placeholder: value\}"),
    "choice": (bool, TypeError, "no `if` can ask for it .* tf.cond and tf.where choose"),
    "format": (lambda x: f"{x:.3f}", TypeError, "Session.run"),
    "round": (round, TypeError, "Session.run"),
    "backward": (lambda x: x.backward(), TypeError, "Session.run"),
    "pickle": (lambda x: x.__reduce_ex__(2), TypeError, "cannot be pickled"),
}


@pytest.mark.parametrize(("use", "error", "message"), INVALID.values(), ids=INVALID.keys())
def test_operations_needing_a_value_raise(
    use: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    x = tf.placeholder("float32", [None])
    with pytest.raises(error, match=message):
        use(x)


def test_augmented_assignment_makes_a_new_tensor() -> None:
    x = y = tf.constant(1.0)
    x += 2
    assert x is not y
    assert run([x, y]) == [3.0, 1.0]


def test_known_first_dimension_can_be_iterated_over() -> None:
    first, second = tf.constant([[1, 2], [3, 4]])
    np.testing.assert_array_equal(run(second - first), [2, 2])


def test_tensors_are_keys_and_compare_by_identity() -> None:
    x, y = tf.constant(1), tf.constant(1)
    assert x == x
    assert x != y
    assert {x: 1, y: 2}[y] == 2
    assert copy.deepcopy([x])[0] is x


def test_names_are_made_unique(graph: tf.Graph) -> None:
    x = tf.placeholder("float32", name="x")
    names = [t.name for t in (x, x + 1, x + 2, 3 + x, tf.placeholder("float32", name="X"))]
    assert names == ["x:0", "add:0", "add_1:0", "add_2:0", "X_1:0"]
    assert graph.unique_name("add", mark_as_used=False) == "add_3"
    assert graph.unique_name("add") == "add_3"
    assert (x + 1).name == "add_4:0"


def test_name_scopes_prefix_names() -> None:
    with tf.name_scope("a") as first:
        x = tf.constant(1.0, name="x")
        with tf.name_scope("b"):
            y = tf.constant(1.0, name="x")
        with tf.name_scope(None):
            z = x + y
    with tf.name_scope("a") as second, tf.name_scope(None, "default"):
        u = tf.constant(1.0, name="x")
    with tf.name_scope(first):
        v = tf.constant(1.0, name="x")
    assert (first, second) == ("a/", "a_1/")
    assert [t.op.name for t in (x, y, z, u, v)] == ["a/x", "a/b/x", "add", "a_1/default/x", "a/x_1"]


@pytest.mark.parametrize("name", ["bad name", "-x", "", "x:0"])
def test_invalid_name_raises(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name"):
        tf.no_op(name=name)


def test_elements_are_found_by_name(graph: tf.Graph) -> None:
    x = tf.placeholder("float32", name="x")
    assert graph.get_tensor_by_name("x:0") is x
    assert graph.get_operation_by_name("x") is x.op
    assert graph.as_graph_element("x:0") is x
    with pytest.raises(KeyError, match="'y:0' refers to a Tensor which does not exist"):
        graph.get_tensor_by_name("y:0")
    with pytest.raises(NotFoundError, match="refers to an Operation not in the graph"):
        graph.get_operation_by_name("y")
    with pytest.raises(ValueError, match="no name of a tensor"):
        graph.get_tensor_by_name("x")


def test_operation_knows_its_surroundings(graph: tf.Graph) -> None:
    x = tf.placeholder("float32", [2], name="x")
    wait = tf.no_op()
    with tf.control_dependencies([wait]):
        y = torch.sum(x)
    op = y.op
    assert (op.name, op.type, op.inputs, op.outputs) == ("sum", "sum", (x,), (y,))
    assert (op.control_inputs, op.graph) == ([wait], graph)
    assert repr(y) == "<tf.Tensor 'sum:0' shape=() dtype=float32>"
    assert repr(op) == "<tf.Operation 'sum' type=sum>"


def test_control_dependencies_nest_and_clear() -> None:
    a, b = tf.no_op("a"), tf.constant(1.0, name="b")
    with tf.control_dependencies([a]):
        with tf.control_dependencies([b]):
            both_op = tf.no_op()
        with tf.control_dependencies(None):
            cleared_op = tf.no_op()
        one_op = tf.no_op()
    inputs = [[op.name for op in x.control_inputs] for x in (both_op, cleared_op, one_op)]
    assert inputs == [["a", "b"], [], ["a"]]
    with pytest.raises(TypeError, match="Can not convert a int"), tf.control_dependencies([3]):
        pass


def test_unknown_graph_argument_raises_with_its_name() -> None:
    with pytest.raises(TypeError, match=r"^Graph\.__init__\(\) got an unexpected keyword"):
        tf.Graph(strange=1)  # pyright: ignore


def test_finalized_graph_raises_on_modification(graph: tf.Graph) -> None:
    x = tf.constant(1.0)
    graph.finalize()
    assert graph.finalized
    with pytest.raises(RuntimeError, match=r"Graph is finalized and cannot be modified\."):
        x + 1
    assert run(x) == 1.0


def test_tensors_of_two_graphs_do_not_mix() -> None:
    x = tf.constant(1.0, name="mine")
    with tf.Graph().as_default():
        y = tf.constant(1.0, name="yours")
    with pytest.raises(ValueError, match="'yours:0' is from another graph"):
        x + y
    with pytest.raises(ValueError, match="'yours:0' is from another graph"):
        tf.Variable(y)
    with pytest.raises(ValueError, match="'yours:0' must be from the same graph as 'mine:0'"):
        tf.gradients(x, y)


def test_an_operation_goes_to_the_graph_of_its_inputs(graph: tf.Graph) -> None:
    x = tf.constant(1.0)
    with tf.Graph().as_default():
        assert (x + 1).graph is graph


def test_collections_store_and_filter_by_scope(graph: tf.Graph) -> None:
    x = tf.constant(1.0, name="scope/x")
    tf.add_to_collection(tf.GraphKeys.LOSSES, x)
    tf.add_to_collection(tf.GraphKeys.LOSSES, "no name")
    assert tf.get_collection("losses") == [x, "no name"]
    assert tf.get_collection("losses", scope="scope") == [x]
    assert tf.get_collection("nothing") == []
    tf.get_collection("losses").clear()
    tf.get_collection_ref("losses").remove("no name")
    assert tf.get_collection("losses") == [x]
    assert graph.get_all_collection_keys() == ["losses"]


def test_a_graph_is_built_inside_of_an_eager_block(graph: tf.Graph) -> None:
    with eagerly():
        with tf.Graph().as_default() as inner, tf.Session() as session:
            total = tf.constant(1.0) + 1.0
            assert (total.graph, session.run(total)) == (inner, 2.0)
        assert tf.executing_eagerly()
    assert not tf.executing_eagerly()


def test_default_graphs_are_a_stack_of_each_thread(graph: tf.Graph) -> None:
    def ask() -> None:
        assert tf.get_default_graph() is not graph
        assert tf.executing_eagerly()

    in_thread(ask)
    assert tf.get_default_graph() is graph
    assert not tf.executing_eagerly()
    with tf.Graph().as_default() as inner:
        assert tf.get_default_graph() is inner
    assert tf.get_default_graph() is graph
    with pytest.raises(FailedPreconditionError, match="inside as_default"):
        tf.reset_default_graph()


CONSTANTS = [
    ((1.5,), (), torch.float32),
    (([1, 2],), (2,), torch.int32),
    ((np.ones(2),), (2,), torch.float64),
    ((1, torch.float64), (), torch.float64),
    ((7.0, None, (2, 3)), (2, 3), torch.float32),
    (([1, 2, 3, 4], None, (2, 2)), (2, 2), torch.int32),
]


@pytest.mark.parametrize(("arguments", "shape", "dtype"), CONSTANTS)
def test_constant_has_shape_and_dtype(arguments: Any, shape: Any, dtype: Any) -> None:
    x = tf.constant(*arguments)
    assert (x.shape, x.dtype) == (shape, dtype)
    assert np.shape(run(x)) == shape


def test_constant_of_wrong_shape_raises() -> None:
    with pytest.raises(ValueError, match=r"3 values do not fit shape \(2,\)"):
        tf.constant([1, 2, 3], shape=(2,))


def test_constant_is_a_copy() -> None:
    source = torch.ones(2)
    x = tf.constant(source)
    source.zero_()
    np.testing.assert_array_equal(run(x), [1, 1])


def test_convert_to_tensor_accepts_values_and_tensors() -> None:
    x = tf.constant(2.0)
    assert tf.convert_to_tensor(x) is x
    np.testing.assert_array_equal(run(tf.convert_to_tensor([x, 3.0, x + 2])), [2, 3, 4])
    with pytest.raises(TypeError, match=r"'Const:0' is float32, not int64. Cast it."):
        tf.convert_to_tensor(x, torch.int64)
    assert run(tf.cast(x, "int64")).dtype == np.int64


def in_thread(function: Callable[..., Any]) -> None:
    """Run where no graph is the default one."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    assert not errors


def test_disabled_eager_execution_builds_the_global_graph() -> None:
    def build() -> None:
        tf.disable_eager_execution()
        try:
            tf.disable_eager_execution()
            tf.reset_default_graph()
            x = torch.nn.Linear(2, 1)(tf.placeholder("float32", [None, 2]))
            assert not tf.executing_eagerly()
            assert x.graph is tf.get_default_graph()
            assert x.op.name == "Linear"
            tf.reset_default_graph()
            assert tf.get_default_graph() is not x.graph
        finally:
            tf.enable_eager_execution()
        assert tf.executing_eagerly()

    in_thread(build)


def test_eager_mode_computes_at_once() -> None:
    with_graph = tf.get_default_graph()

    def compute() -> None:
        values.append([tf.constant(1.0), tf.zeros([2]), tf.identity(3.0), tf.cast(1.5, "int32")])
        with pytest.raises(RuntimeError, match="not compatible with eager"):
            tf.placeholder("float32")
        with pytest.raises(RuntimeError, match="Use GradientTape"):
            tf.gradients(1, 2)

    values: list[Any] = []
    in_thread(compute)
    assert all(isinstance(x, torch.Tensor) for x in values[0])
    assert with_graph.get_operations() == []


def test_number_divided_by_a_tensor_is_recorded() -> None:
    x = np.arange(1, 200, dtype="f4")
    assert (7 / tf.constant([2.0])).dtype == torch.float32
    quotient = 0.1 / tf.placeholder(torch.float32, [None])
    assert quotient.op.name.startswith("truediv")
    value = tf.Session().run(quotient, {quotient.op.inputs[0]: x})
    np.testing.assert_array_equal(value, np.float32(0.1) / x)
    assert (7 / tf.constant([2])).dtype == torch.float32


def test_node_def_describes_an_operation() -> None:
    first, two = tf.constant(1.0, name="one"), tf.constant([2.0, 3.0], name="two")
    halves: Any = torch.split(two, 1)
    with tf.control_dependencies([two]):
        total = tf.identity(first + halves[1], name="total")
    description = total.op.node_def
    assert (description.name, description.op, description.device) == ("total", "total", "cpu")
    assert description.input == ["add", "^two"]
    assert total.op.inputs[0].op.node_def.input == ["one", f"{halves[1].op.name}:1", "^two"]
    assert not description.attr
    assert tf.Variable(1.0, name="w").op.node_def.attr == {"shared_name": "w"}
    description.input[:] = []
    assert total.op.node_def.input


class Knowing:
    """An object of another library that knows its symbol."""

    call_count = 0

    def _as_graph_element(self) -> Any:
        self.call_count += 1
        return tf.constant(3.0) * 1.0


def test_object_with_a_symbol_is_used_as_tensor() -> None:
    item = Knowing()
    x = tf.Variable(2.0)
    product = x * item
    assert tf.Session().graph.as_graph_element(item) is tf.get_default_graph().symbol_of(item)
    tensors = [product, item, tf.gradients(product, item)[0], tf.convert_to_tensor(item)]
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    assert session.run(tensors, {item: 5.0}) == [10.0, 5.0, 2.0, 5.0]
    assert session.run(item) == 3.0
    assert item.call_count == 1
