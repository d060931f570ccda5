"""Assertions that raise at once, or in graph mode when the returned operation runs.

Positional arguments are in TensorFlow 1's order, `data` before `message`; a string as `data` is
the message, as in TensorFlow 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.static_shape import UNKNOWN
from thalweg._graph import must_hold
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.tf.control import control_dependencies, group
from thalweg.tf.convert import call, pair, set_static, tensor
from thalweg.tf.operators import name_function
from thalweg.tf.signatures import with_common_arguments
from thalweg.variable import as_dtype, dtype_name

__all__ = [
    "Assert", "add_check_numerics_ops", "assert_equal", "assert_greater", "assert_greater_equal",
    "assert_integer", "assert_less", "assert_less_equal", "assert_near", "assert_negative",
    "assert_non_negative", "assert_non_positive", "assert_none_equal", "assert_positive",
    "assert_rank", "assert_rank_at_least", "assert_rank_in", "assert_scalar", "assert_type",
    "check_numerics", "ensure_shape",
]  # fmt: skip


def Assert(
    condition: object, data: Sequence[object], summarize: int | None = None, name: str | None = None
) -> Any:
    """Raise InvalidArgumentError with the values of `data` unless `condition` holds."""
    message = "assertion failed:"
    cond = tensor(condition)
    return must_hold(lambda x: x.all(), [cond], message, data, summarize, name or "Assert")


def _data_and_message(data: Any, message: str | None) -> tuple[Sequence[Any], str]:
    """Return (data, message) from arguments in the order of TensorFlow 1 or 2."""
    if isinstance(data, str):
        return (), f"{data} "
    return data or (), f"{message} " if message else ""


def _asserting(label: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that turns a function into an assertion, by default named `label`.

    The function returns (check, tensors, beginning of the error's message); `check(*tensors)`
    returns bools that must be True. The assertion has four further arguments: `data`, `summarize`,
    `message` and `name`.
    """

    def hold(
        condition: tuple[Callable[..., object], Sequence[Tensor], str],
        data: object = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Any:
        accepts, tensors, text = condition
        values, prefix = _data_and_message(data, message)
        return must_hold(accepts, tensors, prefix + text, values, summarize, name or label)

    return with_common_arguments(hold)


def _compare_two(
    accepts: Callable[[Tensor, Tensor], object], sign: str, label: str
) -> Callable[..., Any]:
    @_asserting(label)
    def check(x: object, y: object) -> object:
        return accepts, pair(x, y), f"Condition x {sign} y did not hold element-wise:"

    doc = f"Raise InvalidArgumentError unless x {sign} y for all elements."
    return name_function(check, label, doc)


def _compare_with_zero(
    accepts: Callable[[Tensor], object], sign: str, label: str
) -> Callable[..., Any]:
    @_asserting(label)
    def check(x: object) -> object:
        return accepts, [tensor(x)], f"Condition x {sign} 0 did not hold element-wise:"

    doc = f"Raise InvalidArgumentError unless x {sign} 0 for all elements."
    return name_function(check, label, doc)


assert_equal = _compare_two(torch.eq, "==", "assert_equal")
assert_none_equal = _compare_two(torch.ne, "!=", "assert_none_equal")
assert_greater = _compare_two(torch.gt, ">", "assert_greater")
assert_greater_equal = _compare_two(torch.ge, ">=", "assert_greater_equal")
assert_less = _compare_two(torch.lt, "<", "assert_less")
assert_less_equal = _compare_two(torch.le, "<=", "assert_less_equal")
assert_positive = _compare_with_zero(lambda x: x > 0, ">", "assert_positive")
assert_negative = _compare_with_zero(lambda x: x < 0, "<", "assert_negative")
assert_non_negative = _compare_with_zero(lambda x: x >= 0, ">=", "assert_non_negative")
assert_non_positive = _compare_with_zero(lambda x: x <= 0, "<=", "assert_non_positive")


@_asserting("assert_near")
def assert_near(x: object, y: object, rtol: object = None, atol: object = None) -> Any:
    """Raise InvalidArgumentError unless |x - y| <= atol + rtol |y| for all elements.

    `atol` and `rtol` are by default 10 times the machine epsilon of the dtype.
    """

    def near(lhs: Any, rhs: Any) -> Tensor:
        unit = 10 * torch.finfo(lhs.dtype).eps
        absolute, relative = (unit if tol is None else tol for tol in (atol, rtol))
        return (lhs - rhs).abs() <= absolute + relative * rhs.abs()

    return near, pair(x, y), "x and y not equal to tolerance:"


def _check_rank(
    condition: tuple[str, object, Callable[[int], bool], str],
    data: object = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Any:
    """Raise InvalidArgumentError unless a tensor has an accepted number of dimensions.

    Return None in eager mode, and in graph mode an operation. Its runs check the number if it is
    unknown now. `condition` is (default of `name`, tensor, `accepts`, text about valid numbers);
    `accepts(number)` returns True for a valid number. `summarize` is ignored.
    """
    label, x, accepts, rank_text = condition
    source, name = tensor(x), name or label
    values, text = _data_and_message(data, message)
    text += f"The tensor must have {rank_text}"
    if source.shape is UNKNOWN:
        return must_hold(
            lambda operand: accepts(operand.dim()), [source], f"{text}:", values, name=name
        )
    if not accepts(len(source.shape)):
        raise InvalidArgumentError(f"{text}, but has shape {tuple(source.shape)}.")
    return group(name=name)


@with_common_arguments(_check_rank)
def assert_rank(x: object, rank: int) -> Any:
    """Raise InvalidArgumentError unless `x` has `rank` dimensions.

    A known shape is checked now. In graph mode an unknown shape is checked by a run of the
    returned operation.

    Args:
        rank: The number of dimensions.
        data: Optional. Values that the error of a run shows. A string is the message.
        summarize: Ignored.
        message: Optional text at the beginning of the error's message.

    Returns:
        In graph mode an operation, otherwise None.
    """
    count = int(rank)
    return "assert_rank", x, lambda n: n == count, f"rank {count}"


@with_common_arguments(_check_rank)
def assert_rank_at_least(x: object, rank: int) -> Any:
    """Raise as `assert_rank` unless `x` has at least `rank` dimensions."""
    count = int(rank)
    return "assert_rank_at_least", x, lambda n: n >= count, f"rank {count} or more"


@with_common_arguments(_check_rank)
def assert_rank_in(x: object, ranks: Iterable[int]) -> Any:
    """Raise as `assert_rank` unless `x` has one of several numbers of dimensions."""
    counts = [int(rank) for rank in ranks]
    return "assert_rank_in", x, lambda n: n in counts, f"a rank of {counts}"


def assert_scalar(tensor: object, name: str | None = None, message: str | None = None) -> Tensor:
    """Return the tensor; raise InvalidArgumentError unless it has no dimensions."""
    source = as_tensor(tensor)
    condition = "assert_scalar", source, lambda n: n == 0, "rank 0"
    check = _check_rank(condition, message=message, name=name)
    if check is None:
        return source
    with control_dependencies([check]):
        return _graph.identity(source)


def assert_type(
    tensor: object, tf_type: object, message: str | None = None, name: str | None = None
) -> Any:
    """Raise InvalidTypeError unless a tensor has the dtype `tf_type`.

    Return an operation without effect in graph mode, otherwise None.
    """
    dtype, expected = as_tensor(tensor).dtype, as_dtype(tf_type)
    if dtype != expected:
        dtype_text = "not known" if dtype is None else dtype_name(dtype)
        text = f"{message} " if message else ""
        kinds = f"{dtype_name(expected)}, not {dtype_text}"
        raise InvalidTypeError(f"{text}The tensor must be of type {kinds}.")
    return group(name=name or "assert_type")


def assert_integer(x: object, message: str | None = None, name: str | None = None) -> Any:
    """Raise InvalidTypeError unless the elements are integers; an operation in graph mode."""
    kind = tensor(x).dtype
    if kind is None or kind.is_floating_point or kind.is_complex or kind == torch.bool:
        text = f"{message} " if message else ""
        raise InvalidTypeError(f"{text}The tensor must be of an integer type, not {kind}.")
    return group(name=name or "assert_integer")


def ensure_shape(x: object, shape: Any, name: str | None = None) -> Tensor:
    """Return a copy of a tensor with shape `shape`. None in `shape` accepts any size.

    Raises:
        InvalidArgumentError: The tensor has another shape. In a graph, a run raises the error if
            the shape was unknown before.
    """
    expected, source = _graph.Shape(shape), tensor(x)

    def check(operand: Tensor) -> Tensor:
        # Shapes are inferred by calls on meta tensors, in which unknown sizes are trial values.
        if operand.device.type != "meta":
            check_shape(operand)
        return operand.clone()

    def check_shape(operand: Tensor) -> None:
        if not expected.accepts(operand.shape):
            raise InvalidArgumentError(
                f"Shape of tensor {tuple(operand.shape)} is not compatible with expected shape"
                f" {tuple(expected)}."
            )

    check_shape(source)
    output = call(check, source, name=name or "EnsureShape")
    return set_static(output, shape=lambda: expected)


def check_numerics(tensor: object, message: str, name: str | None = None) -> Tensor:
    """Return a copy of the tensor; raise InvalidArgumentError if an element is NaN or infinite."""

    def check(operand: Tensor) -> Tensor:
        # Shapes are inferred on meta tensors, which have no elements.
        if operand.device.type == "meta":
            return operand.clone()
        kinds = [("NaN", operand.isnan().any()), ("Inf", operand.isinf().any())]
        bad_kinds = " and ".join(kind for kind, is_present in reversed(kinds) if is_present)
        if bad_kinds:
            raise InvalidArgumentError(f"{message} : Tensor had {bad_kinds} values")
        return operand.clone()

    return call(check, as_tensor(tensor), name=name or "CheckNumerics")


def add_check_numerics_ops() -> Any:
    """Return an operation that raises an error for NaN or infinity in the default graph's tensors.

    Placeholders, and tensors in branches and loops, are not checked. Return None in eager mode.
    """
    if _graph.executing_eagerly():
        return None
    outputs = [x for op in _graph.get_default_graph().get_operations() for x in op.outputs
               if op.block is None and op.kind != "placeholder"]  # fmt: skip
    floats = [x for x in outputs if x.dtype is not None and x.dtype.is_floating_point]
    return group(*(check_numerics(x, x.name) for x in floats), name="check_numerics_ops")


# An argument of `assert_type` has the name `tensor`.
as_tensor = tensor
