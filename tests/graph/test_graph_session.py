"""Graph mode: what a session runs, in which order, what goes in and comes out."""

from __future__ import annotations

import collections
import sys
import threading
import types
import weakref
from collections import defaultdict, namedtuple
from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import thalweg._graph as tf
from parallel_workers import run_together
from sessions import initialized
from thalweg import (
    FailedPreconditionError,
    IndexedSlices,
    InvalidArgumentError,
    InvalidTypeError,
)
from thalweg.v1 import train

Pair = namedtuple("Pair", "first second")


pytestmark = pytest.mark.usefixtures("graph")


def counted(values: list[Any], value: float = 1.0, **kwargs: Any) -> Any:
    """An operation that notes that it ran."""
    output = tf.Output(torch.float32, ())
    name = f"count{value:.0f}"

    def function(*_: Any) -> torch.Tensor:
        values.append(value)
        return torch.tensor(value)

    return tf.operation(function, kwargs.pop("inputs", []), name, outputs=output, **kwargs)


def test_tensorflow_documentation_example_runs(graph: tf.Graph) -> None:
    var0 = tf.Variable([1.0, 2.0])
    var1 = tf.Variable([3.0, 4.0])
    cost = 5 * var0 + 3 * var1
    global_step = tf.Variable(tf.zeros([], torch.int64), name="global_step")
    init_op = tf.initialize_all_variables()
    grads = tf.gradients(cost, [var0, var1])
    updates = [v.assign_sub(3.0 * g) for v, g in zip([var0, var1], grads, strict=True)]
    with tf.control_dependencies(updates):
        opt_op = global_step.assign_add(1).op
    session = tf.Session(graph=graph)
    session.run(init_op)
    opt_op.run(session=session)
    np.testing.assert_array_equal(session.run(var0), [-14.0, -13.0])
    np.testing.assert_array_equal(session.run(var1), [-6.0, -5.0])
    assert session.run(global_step) == 1


def test_fetches_are_returned_in_their_structure() -> None:
    x, y = tf.constant(1.0, name="x"), tf.constant([2, 3], name="y")
    op = tf.no_op(name="nothing")
    fetches = {"a": [x, (y, op)], "b": Pair(x, "y:0"), "c": "nothing", "d": []}
    result = tf.Session().run(fetches)
    assert list(result) == ["a", "b", "c", "d"]
    assert result["a"][0] == 1.0
    assert result["a"][1][1] is None
    assert isinstance(result["a"][1], tuple)
    assert isinstance(result["b"], Pair)
    np.testing.assert_array_equal(result["b"].second, [2, 3])
    assert (result["c"], result["d"]) == (None, [])
    mapping = tf.Session().run(defaultdict(list, x=x))
    assert (type(mapping), mapping["x"], mapping["new"]) == (defaultdict, 1.0, [])


VALUES: dict[str, tuple[Any, Any]] = {
    "scalar": (lambda: tf.constant(1.0), np.float32(1)),
    "array": (lambda: tf.constant([1, 2]), np.array([1, 2], np.int32)),
    "bool": (lambda: tf.constant(True), np.bool_(True)),
    "float16": (lambda: tf.constant(1, torch.float16), np.float16(1)),
    "complex": (lambda: tf.constant(1j), np.complex128(1j)),
    "no elements": (lambda: tf.zeros([0, 3]), np.zeros((0, 3), np.float32)),
}


@pytest.mark.parametrize(("make", "expected"), VALUES.values(), ids=VALUES.keys())
def test_fetched_values_are_numpy_arrays(make: Callable[..., Any], expected: Any) -> None:
    got = tf.Session().run(make())
    assert type(got) is type(expected)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn])
@pytest.mark.parametrize("is_installed", [True, False])
@pytest.mark.parametrize("values", [1.5, [[1.5, -2.0], [0.5, 0.0]]])
def test_dtypes_that_numpy_lacks_are_fetched_as_arrays(
    dtype: torch.dtype, is_installed: bool, values: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_installed:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    output = tf.Session().run(tf.constant(values).to(dtype))
    expected = str(dtype).removeprefix("torch.") if is_installed else "float32"
    assert output.dtype.name == expected
    assert isinstance(output, np.generic if values == 1.5 else np.ndarray)
    np.testing.assert_array_equal(np.asarray(output, np.float32), values)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("is_installed", [True, False])
def test_complex_numbers_of_32_bits_are_fetched(
    is_installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_installed:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    for value in (torch.tensor([1 + 2j]), torch.tensor([1 - 2j]).conj()):
        output = tf.Session().run(tf.constant(value.to(torch.complex32)))
        assert np.asarray(output, np.complex64).tolist() == [1 + 2j]


def test_bfloat16_slices_are_fetched_as_arrays() -> None:
    rows = tf.constant([[1.5], [2.0]], torch.bfloat16)
    output = tf.Session().run(tf.SymbolicSlices(rows, tf.constant([0, 2])))
    assert (output.values.dtype.name, output.values.tolist()) == ("bfloat16", [[1.5], [2.0]])


class Ordered(collections.UserDict[str, Any]):
    """A mapping that is not a dict."""


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda a, b: {"a": a, "b": {"c": (a, [b])}}, dict),
        (lambda a, b: collections.OrderedDict(a=a, b={"c": (a, [b])}), collections.OrderedDict),
        (
            lambda a, b: collections.defaultdict(list, a=a, b={"c": (a, [b])}),
            collections.defaultdict,
        ),
        (lambda a, b: Ordered(a=a, b=Ordered(c=(a, [b]))), Ordered),
        (lambda a, b: types.MappingProxyType({"a": a, "b": {"c": (a, [b])}}), dict),
        (lambda a, b: collections.ChainMap({"a": a, "b": {"c": (a, [b])}}), collections.ChainMap),
    ],
)
def test_mappings_of_any_kind_are_fetched(make: Callable[..., Any], kind: type[Any]) -> None:
    output = tf.Session().run(make(tf.constant(1.0), tf.constant(2.0)))
    assert type(output) is kind
    assert list(output) == ["a", "b"]
    assert (output["a"], dict(output["b"])) == (1.0, {"c": (1.0, [2.0])})


def test_slots_of_an_optimizer_are_fetched() -> None:
    w = tf.Variable([1.0, 2.0], name="w")
    optimizer = train.AdamOptimizer(0.1)
    step = optimizer.minimize(tf.convert_to_tensor((w * w).sum()))
    session = initialized()
    session.run(step)
    slots = {name: optimizer.get_slot(w, name) for name in ("m", "v")}
    output = session.run(optimizer._slots)
    assert {type(output), *map(type, output.values())} == {dict}
    assert all(optimizer.get_slot(w, name) is slot for name, slot in slots.items())
    key = (w.graph, "w")
    assert {name: list(slots) for name, slots in output.items()} == {"m": [key], "v": [key]}
    np.testing.assert_allclose(output["m"][key], [0.2, 0.4], rtol=1e-6)
    slot = optimizer.get_slot(w, "m")
    assert isinstance(slot, tf.GraphVariable)
    assert optimizer._slot_dict("m")[key] is slot
    session.run(step)
    for nest in (optimizer._slots["m"], optimizer._slot_dict("m"), optimizer._slots["m"]):
        assert session.run(nest)[key].tolist() == session.run(slot).tolist() != [0.2, 0.4]


class Rows(MutableMapping[str, Any]):
    """A mapping without a method `copy`."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.items_by_name = items

    def __getitem__(self, key: str) -> Any:
        return self.items_by_name[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_by_name[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_by_name[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_by_name)

    def __len__(self) -> int:
        return len(self.items_by_name)


def test_a_fetched_mapping_is_not_written_to() -> None:
    tensor = tf.constant(1.0)
    for mapping in (
        Rows({"a": tensor}),
        collections.UserDict(a=tensor),
        collections.ChainMap({"a": tensor}),
    ):
        assert dict(tf.Session().run(mapping)) == {"a": 1.0}
        assert mapping["a"] is tensor


def test_fetched_values_are_copies() -> None:
    w = tf.Variable([1.0, 2.0])
    session = initialized()
    first, view = session.run([w, w[0:1]])
    first[:] = 7
    view[:] = 7
    np.testing.assert_array_equal(session.run(w), [1, 2])


def test_needed_operations_run_once() -> None:
    calls: list[float] = []
    a = counted(calls, 1)
    counted(calls, 2)
    c = a + a
    assert tf.Session().run([c, c * a, a]) == [2.0, 2.0, 1.0]
    assert calls == [1]


BAD_FETCHES: dict[str, tuple[Any, str]] = {
    "int": (3, r"Fetch argument 3 has invalid type <class 'int'>, must be a string or Tensor."),
    "None": (None, "Fetch argument None has invalid type <class 'NoneType'>"),
    "array": (np.ones(2), "has invalid type <class 'numpy.ndarray'>"),
    "eager tensor": (torch.ones(1), "has invalid type <class 'torch.Tensor'>"),
    "unknown tensor": ("y:0", "Fetch argument 'y:0' cannot be found"),
    "unknown operation": ("y", "Fetch argument 'y' cannot be found"),
}


@pytest.mark.parametrize(("fetch", "message"), BAD_FETCHES.values(), ids=BAD_FETCHES.keys())
def test_fetch_that_is_not_a_graph_element_raises(fetch: Any, message: str) -> None:
    x = tf.constant(1.0)
    with pytest.raises(ValueError, match=message):
        tf.Session().run([x, fetch])


def test_invalid_fetch_type_is_also_a_type_error() -> None:
    with pytest.raises(TypeError):
        tf.Session().run(3)


def test_fetch_from_another_graph_raises() -> None:
    with tf.Graph().as_default():
        tensor = tf.constant(1.0)
    with pytest.raises(
        ValueError, match=r"cannot be interpreted as a Tensor\. .*not an element of"
    ):
        tf.Session().run(tensor)


FEEDS: dict[str, tuple[Any, Any]] = {
    "array": (np.array([[1, 2]], np.float32), [[1, 2]]),
    "double array": (np.array([[1, 2]]) / 1.0, [[1, 2]]),
    "list": ([[1, 2], [3.5, 4]], [[1, 2], [3.5, 4]]),
    "tensor": (torch.ones(3, 2, dtype=torch.int64), np.ones((3, 2))),
    "read-only array": (np.broadcast_to(np.float32(1), (1, 2)), [[1, 1]]),
    "reversed array": (np.array([[1, 2]], np.float32)[:, ::-1], [[2, 1]]),
}


@pytest.mark.parametrize(("value", "expected"), FEEDS.values(), ids=FEEDS.keys())
def test_feed_is_converted(value: Any, expected: Any) -> None:
    x = tf.placeholder("float32", [None, 2], name="x")
    got = tf.Session().run(x * 1, {x: value})
    np.testing.assert_array_equal(got, np.array(expected, np.float32))
    assert got.dtype == np.float32


def test_intermediate_tensors_can_be_fed() -> None:
    w = tf.Variable([1.0, 2.0], name="w")
    y = w * 2
    z = y + 1
    session = initialized()
    np.testing.assert_array_equal(session.run(z, {y: [5, 6]}), [6, 7])
    np.testing.assert_array_equal(session.run(z, {w: [5, 6]}), [11, 13])
    np.testing.assert_array_equal(session.run(z, {"w:0": [5, 6]}), [11, 13])
    np.testing.assert_array_equal(session.run([w, y], {w: [0, 0]}), [[0, 0], [0, 0]])
    np.testing.assert_array_equal(session.run(z), [3, 5])


def test_placeholder_with_default_can_be_fed() -> None:
    x = tf.placeholder_with_default([1.0, 2.0], [None])
    session = tf.Session()
    np.testing.assert_array_equal(session.run(x), [1, 2])
    np.testing.assert_array_equal(session.run(x, {x: [3]}), [3])


BAD_FEEDS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "shape": (
        "x:0",
        np.ones(3),
        ValueError,
        r"Cannot feed value of shape \(3,\) for Tensor 'x:0', which has shape \(None, 2\)",
    ),
    "dtype": ("i:0", [1.5], TypeError, "Cannot feed Tensor 'i:0', which has dtype int32"),
    "infinity": ("i:0", [np.inf], TypeError, "which has dtype int32: Cannot convert"),
    "text": ("x:0", "no", TypeError, "Cannot feed Tensor 'x:0'"),
    "symbol": ("x:0", tf.Graph, TypeError, "Cannot feed 'x:0' with the symbolic tensor"),
    "key": (3, 1.0, TypeError, "Cannot interpret feed_dict key 3 as Tensor"),
    "unknown key": ("y:0", 1.0, ValueError, "Cannot interpret feed_dict key 'y:0' as Tensor"),
    "operation": ("x", 1.0, TypeError, "it is an operation"),
    "rows of a shape": (
        "x:0",
        IndexedSlices(torch.ones(1, 3), [0]),
        ValueError,
        r"Cannot feed value of shape \(None, 3\) for Tensor 'x:0', which has shape \(None, 2\)",
    ),
    "rows of a dtype": ("i:0", IndexedSlices([1.5], [0]), TypeError, "which has dtype int32"),
    "row index": ("x:0", IndexedSlices(torch.ones(1, 2), [5], (2, 2)), ValueError, "= 5 is not in"),
}


@pytest.mark.parametrize(
    ("key", "value", "error", "message"), BAD_FEEDS.values(), ids=BAD_FEEDS.keys()
)
def test_invalid_feed_raises(key: Any, value: Any, error: type[Exception], message: str) -> None:
    x = tf.placeholder("float32", [None, 2], name="x")
    tf.placeholder("int32", [None], name="i")
    value = x if value is tf.Graph else value
    with pytest.raises(error, match=message):
        tf.Session().run(x, {key: value})


def test_fed_slices_take_the_dtype_of_the_placeholder() -> None:
    x = tf.placeholder("float32", [2, 1])
    slices = IndexedSlices(torch.ones(1, 1, dtype=torch.float64), [1])
    assert tf.Session().run(x, {x: slices}).values.dtype == np.float32
    with pytest.raises(ValueError, match="= 5 is not in"):
        tf.Session().run(x, {x: IndexedSlices(torch.ones(1, 1), [5])})


FED_ROWS = (np.full((1, 2), 3.0), np.array([1]))


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        (tf.IndexedSlicesValue(*FED_ROWS, None), 4),
        (FED_ROWS, 4),
        (tf.IndexedSlicesValue(*FED_ROWS, np.array([2, 2])), 2),
    ],
)
def test_values_of_slices_are_fed_to_their_components(value: Any, rows: int) -> None:
    x, i = tf.placeholder("float32", [None, 2]), tf.placeholder("int64", [None])
    slices = tf.SymbolicSlices(x, i, tf.constant([4, 2]))
    total, fetched = tf.Session().run([x + 1, slices], {slices: value})
    assert total.tolist() == [[4, 4]]
    assert [part.tolist() for part in fetched] == [[[3, 3]], [1], [rows, 2]]
    without_shape = tf.SymbolicSlices(x, i)
    assert tf.Session().run(without_shape, {without_shape: value}).dense_shape is None
    with pytest.raises(ValueError, match="with a tuple of 1"):
        tf.Session().run(slices, {slices: FED_ROWS[:1]})


def test_values_of_slices_are_fed_for_a_gradient() -> None:
    table = tf.Variable(np.ones((4, 2), "f4"))
    (slices,) = tf.gradients(tf.gather(table, [0, 2]), [table])
    fetches = [slices, slices.indices]
    fed_slices, indices = tf.Session().run(fetches, {slices: FED_ROWS})
    assert (fed_slices.values.tolist(), indices.tolist()) == ([[3, 3]], [1])


@pytest.mark.parametrize("value", [[1.0, 2.0], np.array([1.0, 2.0]), torch.tensor([1.0, 2.0])])
def test_integral_floats_are_fed_as_integers(value: Any) -> None:
    total = tf.Session().run(tf.placeholder("int32", [None]) + 1, {"Placeholder:0": value})
    np.testing.assert_array_equal(total, np.array([2, 3], "i4"), strict=True)


def test_missing_feed_raises_before_the_run() -> None:
    calls: list[float] = []
    x = tf.placeholder(torch.float32, name="x")
    message = "You must feed a value for placeholder tensor 'x' with dtype float32"
    with pytest.raises(InvalidArgumentError, match=message):
        tf.Session().run([counted(calls), x + 1])
    assert not calls


def test_closed_session_raises() -> None:
    x = tf.constant(1.0)
    with tf.Session() as session:
        assert session.run(x) == 1.0
    with pytest.raises(RuntimeError, match=r"Attempted to use a closed Session\."):
        session.run(x)


def test_run_error_names_the_operation_and_stops_dependents() -> None:
    calls: list[float] = []
    w = tf.Variable([1.0, 2.0], name="w")
    rows = tf.placeholder("int64", [None])
    w_rows = tf.gather(w, rows)
    with tf.control_dependencies([w_rows]):
        call_after = counted(calls)
    session = initialized()
    with pytest.raises(IndexError, match=r"indices\[1\] = 9 is not in \[0, 2\)") as excinfo:
        session.run([call_after, w.assign_add([1, 1])], {rows: [0, 9]})
    assert "In operation 'Gather' (Gather), made at " in excinfo.value.__notes__[0]
    assert f"{__file__}:" in excinfo.value.__notes__[0]
    assert not calls
    np.testing.assert_array_equal(session.run(w), [1, 2])


def test_session_can_be_used_after_an_error() -> None:
    x = tf.placeholder("int64", [None])
    y = tf.gather(tf.constant([1.0]), x)
    session = tf.Session()
    with pytest.raises(IndexError):
        session.run(y, {x: [4]})
    np.testing.assert_array_equal(session.run(y, {x: [0]}), [1])
    assert tf.current_session() is None
    assert torch.is_grad_enabled()


def test_default_sessions_are_a_stack() -> None:
    x = tf.constant(2.0)
    w = tf.Variable(1.0)
    with pytest.raises(ValueError, match="Cannot evaluate tensor 'Const:0': No default session"):
        x.eval()
    with pytest.raises(ValueError, match="Cannot run operation 'Variable/Assign'"):
        w.initializer.run()
    session = tf.Session()
    with session.as_default():
        assert tf.get_default_session() is session
        w.initializer.run()
        assert w.eval() + x.eval({x: 5.0}) == 6.0
    assert w.eval(session=session) == 1.0
    assert tf.get_default_session() is None


def test_interactive_session_is_the_default_session() -> None:
    session = tf.InteractiveSession()
    assert tf.constant(1.0).eval() == 1.0
    session.close()
    assert tf.get_default_session() is None
    session.close()


def test_sessions_have_separate_values() -> None:
    w = tf.Variable(1.0)
    increase = w.assign_add(1.0)
    first, two = initialized(), initialized()
    assert [first.run(increase), first.run(increase)] == [2.0, 3.0]
    assert (first.run(w), two.run(w)) == (3.0, 1.0)


def test_make_callable_returns_a_function_of_feeds() -> None:
    x = tf.placeholder("float32")
    double = tf.Session().make_callable(x * 2, [x])
    assert [double(1.0), double(2.0)] == [2.0, 4.0]


def test_repeated_runs_do_not_plan() -> None:
    x = tf.placeholder("float32", [])
    w = tf.Variable(1.0)
    train = w.assign_add(x)
    session = initialized()
    session.run([train, w], {x: 1.0})
    plan_count = session.plans_made
    for step in range(5):
        session.run([train, w], {x: float(step)})
    assert session.plans_made == plan_count
    session.run([train, w], {x: 1.0, w: 2.0})
    session.run([w, train], {x: 1.0})
    assert session.plans_made == plan_count + 2


def test_variable_fetched_beside_an_update_has_its_value_from_before() -> None:
    w = tf.Variable([1.0, 2.0])
    train = w.assign_add([1, 1])
    view, transposed, w_copy = w[1:], w.T, tf.identity(w)
    session = initialized()
    new, *old = session.run([train, w, view, transposed, w_copy])
    np.testing.assert_array_equal(new, [2, 3])
    assert [list(x) for x in old] == [[1, 2], [2], [1, 2], [1, 2]]


def test_reads_precede_updates_of_their_inputs() -> None:
    a, b = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    swap = tf.group(a.assign(b), b.assign(a))
    rotated = a.assign(torch.flip(b[...], [0])[...]), b.assign(tf.identity(a))
    session = initialized()
    session.run(swap)
    np.testing.assert_array_equal(session.run([a, b]), [[3, 4], [1, 2]])
    session.run(rotated)
    np.testing.assert_array_equal(session.run([a, b]), [[2, 1], [3, 4]])


def test_variable_can_be_assigned_a_view_of_itself() -> None:
    w = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    session = initialized()
    np.testing.assert_array_equal(session.run(w.assign(w.T)), [[1, 3], [2, 4]])


def test_control_dependencies_order_reads_after_updates() -> None:
    w = tf.Variable(1.0)
    with tf.control_dependencies([w.assign_add(1.0)]):
        w_after = w.read_value()
        with tf.control_dependencies([w.assign_add(10.0)]):
            late_w = w * 1
    session = initialized()
    assert session.run([w, w_after, late_w, w_after + 0]) == [1.0, 2.0, 12.0, 2.0]


def test_value_of_an_update_is_read_before_the_next() -> None:
    w = tf.Variable(1.0)
    first = w.assign_add(1.0)
    doubled = first * 2
    with tf.control_dependencies([first]):
        second = w.assign_add(10.0)
    assert initialized().run([doubled, second, first]) == [4.0, 12.0, 2.0]


def test_group_and_tuple_order_operations() -> None:
    calls: list[float] = []
    everything = tf.group(counted(calls, 1), [counted(calls, 2), None])
    gated = tf.tuple_([counted(calls, 3), None, counted(calls, 4)], control_inputs=[everything])
    assert gated[1] is None
    assert tf.Session().run(gated[0]) == 3.0
    assert sorted(calls) == [1, 2, 3, 4]
    with pytest.raises(TypeError, match="Can not convert a int"):
        tf.group(3)


def test_deep_graphs_need_no_recursion() -> None:
    x = tf.Variable(0.0)
    y = x
    for _ in range(3000):
        output = tf.Output(y.dtype, ())
        y = tf.operation(lambda v: v + 1, [y], "step", kind="pure", outputs=output)
    (slope,) = tf.gradients(y, [x])
    assert initialized().run([y, slope]) == [3000.0, 1.0]


def test_unneeded_values_are_freed() -> None:
    alive: list[Any] = []

    def make(*_: Any) -> Any:
        tensor = torch.ones(3)
        alive.append(weakref.ref(tensor))
        return tensor

    output = tf.Output(torch.float32, (3,))
    x = tf.operation(make, [], "first", kind="pure", outputs=output)
    y = tf.operation(make, [x], "second", kind="pure", outputs=output)
    counts: list[int] = []
    count = lambda _: counts.append(sum(ref() is not None for ref in alive))  # noqa: E731
    tf.Session().run(tf.operation(count, [y], "count"))
    assert counts == [1]


def test_concurrent_updates_are_not_lost() -> None:
    w = tf.Variable(torch.zeros(1000))
    step = tf.group(w.assign_add(torch.ones(1000)))
    session = initialized()
    run_together(
        *(partial(lambda _: [session.run(step) for _ in range(50)], number) for number in range(4))
    )
    np.testing.assert_array_equal(session.run(w), np.full(1000, 200))


def test_concurrent_runs_read_consistent_snapshots() -> None:
    a, b = tf.Variable(torch.zeros(2000)), tf.Variable(torch.zeros(2000))
    difference = torch.sum(torch.abs(a - b))
    loss = torch.sum(a * b)
    difference_op = tf.operation(
        lambda x, y: (x.add_(1), y.add_(1)), [tf.by_reference(a), tf.by_reference(b)], "both"
    )
    slopes = tf.gradients(loss, [a, b])
    train = a.assign_sub(slopes[0] - slopes[0])
    session = initialized()
    errors: list[float] = []

    def work(number: int) -> None:
        for _ in range(40):
            session.run(difference_op if number % 2 else train)
            gap, slope, other_slope = session.run([difference, *slopes])
            errors.append(gap + np.abs(slope - other_slope).sum())

    run_together(*(partial(work, number) for number in range(4)))
    assert not any(errors)


def test_concurrent_gradients_after_an_update_are_consistent() -> None:
    w, count = tf.Variable(torch.ones(20000)), tf.Variable(0.0)
    loss = torch.sum(torch.tanh(w) * w)
    with tf.control_dependencies([count.assign_add(1.0)]):
        train = w.assign_sub(0.001 * tf.gradients(loss, w)[0])
    session = initialized()
    run_together(
        *(
            partial(lambda _: [session.run(train.op) for _ in range(40)], number)
            for number in range(4)
        )
    )
    assert session.run(count) == 160


def test_blocking_operation_lets_other_runs_proceed() -> None:
    w = tf.Variable(0.0)
    event = threading.Event()
    wait = tf.operation(lambda: event.wait(120), [], "wait", kind="blocking")
    with tf.control_dependencies([wait]):
        increment = w.assign_add(1.0)
    session = initialized()
    thread = threading.Thread(target=session.run, args=(increment,))
    thread.start()
    assert session.run(w.assign_add(10.0)) == 10.0
    event.set()
    thread.join()
    assert session.run(w) == 11.0


def test_reading_run_gets_its_turn_among_runs_that_update() -> None:
    w = tf.Variable(0.0)
    add, doubled = w.assign_add(1.0).op, w * 2
    session = initialized()
    event = threading.Event()

    def work(number: int) -> None:
        while number and not event.is_set():
            session.run(add)
        if not number:
            for _ in range(100):
                w_before = session.run(w)
                assert session.run(doubled) >= 2 * w_before
            event.set()

    run_together(*(partial(work, number) for number in range(4)))
    assert session.run(w) < 2000  # it did not have to wait for a gap among the writers


def test_node_may_start_a_run_of_its_own() -> None:
    w = tf.Variable(1.0)
    inner_read, inner_write = w * 2, w.assign_add(1.0)
    session = initialized()
    scalar = tf.Output(torch.float32, ())
    node = tf.operation(
        lambda: torch.tensor(session.run(inner_read)), [], "outer", kind="pure", outputs=scalar
    )
    assert session.run(node) == 2.0
    assert session.run(tf.operation(lambda: session.run(inner_write), [], "w")) is None
    assert session.run(w) == 2.0
    with pytest.raises(FailedPreconditionError, match="declared as pure started a run"):
        session.run(tf.operation(lambda: session.run(inner_write), [], "w", kind="pure"))


def test_invalid_operation_kinds_raise() -> None:
    with pytest.raises(InvalidArgumentError, match='must be "pure", "update" or "blocking"'):
        tf.operation(print, [], "x", kind="other")
    with pytest.raises(InvalidTypeError, match="Can not convert a bytes"):
        tf.operation(print, [], "x", control_inputs=[b"no"])


def test_slice_may_be_shorter_than_requested() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(torch.float32, [None, None])
        product, total = x[:, :128] @ torch.ones(64, 2), x[:10] + torch.ones(4, 1)
        assert session.run(product, {x: torch.ones(4, 64).numpy()}).shape == (4, 2)
        assert session.run(total, {x: torch.ones(4, 2).numpy()}).shape == (4, 2)
        assert x[:10].shape == (None, None)
