"""Functions of TensorFlow 1 that TensorFlow 2 removed or renamed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._graph import GraphKeys
from thalweg.errors import InvalidArgumentError
from thalweg.tf import arrays, reductions, signatures, slicing
from thalweg.tf.arrays import linspace as lin_space
from thalweg.tf.checks import check_numerics
from thalweg.tf.convert import call, pair, tensor
from thalweg.tf.elementwise import add_n, cast
from thalweg.tf.elementwise import divide_no_nan as div_no_nan
from thalweg.tf.matrices import band_part as matrix_band_part
from thalweg.tf.matrices import cholesky, matrix_transpose, svd, trace
from thalweg.tf.matrices import det as matrix_determinant
from thalweg.tf.matrices import diag as matrix_diag
from thalweg.tf.matrices import diag_part as matrix_diag_part
from thalweg.tf.matrices import eigh as self_adjoint_eig
from thalweg.tf.matrices import inv as matrix_inverse
from thalweg.tf.matrices import solve as matrix_solve
from thalweg.tf.operators import name_function
from thalweg.tf.python_functions import numpy_function as py_func
from thalweg.tf.python_functions import print_identity as Print
from thalweg.tf.random import categorical
from thalweg.variable import dtype_name

__all__ = [
    "Print", "accumulate_n", "arg_max", "arg_min", "cholesky", "clip_by_average_norm", "concat_v2",
    "count_nonzero", "diag", "diag_part", "div", "div_no_nan", "lin_space", "make_template",
    "matrix_band_part", "matrix_determinant", "matrix_diag", "matrix_diag_part", "matrix_inverse",
    "matrix_solve", "matrix_transpose", "model_variables", "multinomial", "pad", "py_func",
    "self_adjoint_eig", "sparse_to_dense", "svd", "to_bfloat16", "to_double", "to_float",
    "to_int32", "to_int64", "trace", "verify_tensor_all_finite",
]  # fmt: skip


def _cast_function(dtype: torch.dtype, label: str) -> Callable[..., Tensor]:
    def convert(x: object, name: str | None = None) -> Tensor:
        return cast(x, dtype, name or label)

    dtype_text = str(dtype).removeprefix("torch.")
    return name_function(convert, label, f"The elements as {dtype_text}.")


def clip_by_average_norm(t: object, clip_norm: object, name: str | None = None) -> Tensor:
    """Return a tensor of n elements, scaled to a norm of at most `n * clip_norm`.

        t clip_norm min(n / |t|, 1 / clip_norm)

    Raises:
        InvalidArgumentError: The dtype is not float32, the only one in TensorFlow.
    """
    source = tensor(t)
    if source.dtype not in (torch.float32, None):
        raise InvalidArgumentError(
            f"clip_by_average_norm takes float32, not {dtype_name(source.dtype)}."
            " clip_by_norm(t, clip_norm * n) takes any float."
        )

    def clip(operand: Tensor, limit: Tensor) -> Tensor:
        limit = torch.as_tensor(limit, dtype=operand.dtype, device=operand.device)
        inverse = (operand * operand).sum().rsqrt()
        return operand * limit * torch.minimum(inverse * operand.numel(), 1 / limit)

    limit = clip_norm if isinstance(clip_norm, int | float) else tensor(clip_norm)
    return call(clip, source, limit, name=name or "clip_by_average_norm")


to_float = _cast_function(torch.float32, "to_float")
to_double = _cast_function(torch.float64, "to_double")
to_int32 = _cast_function(torch.int32, "to_int32")
to_int64 = _cast_function(torch.int64, "to_int64")
to_bfloat16 = _cast_function(torch.bfloat16, "to_bfloat16")


def div(x: object, y: object, name: str | None = None) -> Tensor:
    """Return the quotient, rounded down for integers."""

    def quotient(dividend: Tensor, divisor: Tensor) -> Tensor:
        kind = torch.promote_types(dividend.dtype, divisor.dtype)
        is_exact = kind.is_floating_point or kind.is_complex
        return dividend / divisor if is_exact else torch.floor_divide(dividend, divisor)

    return call(quotient, *pair(x, y), name=name or "div")


def accumulate_n(
    inputs: Sequence[object],
    shape: object = None,
    tensor_dtype: object = None,
    name: str | None = None,
) -> Tensor:
    """Return the sum of tensors of one shape; `shape` and `tensor_dtype` are ignored."""
    return add_n(inputs, name or "AccumulateN")


with_older_arguments = partial(signatures.with_older_arguments, __name__)
arg_max, arg_min = (
    with_older_arguments(
        function,
        "input dimension output_type name",
        {"dimension": "axis"},
        label,
        dimension=inspect.Parameter.empty,
    )
    for function, label in ((reductions.argmax, "arg_max"), (reductions.argmin, "arg_min"))
)
multinomial = with_older_arguments(
    categorical,
    "logits num_samples seed name output_dtype",
    {"output_dtype": "dtype"},
    "multinomial",
)
concat_v2 = with_older_arguments(
    arrays.concat, "values axis name", label="concat_v2", name="concat_v2"
)
count_nonzero = with_older_arguments(
    reductions.count_nonzero,
    "input_tensor axis keepdims dtype name reduction_indices keep_dims input",
    {"input_tensor": "input", "reduction_indices": "axis", "keep_dims": "keepdims"},
    keepdims=None,
    input=None,
)
pad = with_older_arguments(slicing.pad, "tensor paddings mode name constant_values")


def diag(diagonal: object, name: str | None = None) -> Tensor:
    """Return a tensor of shape (*s, *s) for a `diagonal` of shape s.

    The element at [*i, *i] is `diagonal[i]`; all further elements are 0.
    """

    def spread(x: Tensor) -> Tensor:
        return torch.diag(x.reshape(-1)).reshape(*x.shape, *x.shape)

    return call(spread, tensor(diagonal), name=name or "Diag")


def diag_part(input: object, name: str | None = None) -> Tensor:
    """Return a tensor of shape s: the elements at [*i, *i] of a tensor of shape (*s, *s)."""

    def pick(x: Tensor) -> Tensor:
        half = x.dim() // 2
        if x.dim() % 2 or not half or x.shape[:half] != x.shape[half:]:
            raise InvalidArgumentError(
                f"diag_part takes a tensor whose shape repeats itself, not {tuple(x.shape)}."
            )
        size = math.prod(x.shape[:half])
        return x.reshape(size, size).diagonal().reshape(x.shape[:half])

    return call(pick, tensor(input), name=name or "DiagPart")


def sparse_to_dense(
    sparse_indices: object,
    output_shape: object,
    sparse_values: object,
    default_value: object = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """Return a tensor with `sparse_values` at `sparse_indices`, and `default_value` elsewhere.

    Indices may be unordered; an index out of range raises an error. `validate_indices` is ignored.
    """
    values = tensor(sparse_values)
    start = arrays.fill(output_shape, tensor(default_value, values.dtype))

    def put(dense: Tensor, indices: Tensor, values: Tensor) -> Tensor:
        indices = indices.long()
        rows = indices.reshape(-1, 1) if indices.dim() < 2 else indices
        return dense.index_put(slicing.indices_of(rows, dense.shape), values)

    return call(put, start, tensor(sparse_indices), values, name=name or "SparseToDense")


def verify_tensor_all_finite(
    t: Any = None,
    msg: str | None = None,
    name: str | None = None,
    x: Any = None,
    message: Any = None,
) -> Tensor:
    """Check as `check_numerics` does."""
    return check_numerics(t if x is None else x, msg or message or "", name)


def model_variables(scope: str | None = None) -> list[Any]:
    """Return the variables of the default graph in MODEL_VARIABLES."""
    return _graph.get_collection(GraphKeys.MODEL_VARIABLES, scope)


def make_template(
    name_: str,
    func_: Callable[..., object],
    create_scope_now_: bool = False,
    unique_name_: str | None = None,
    custom_getter_: object = None,
    **kwargs: object,
) -> Callable[..., Any]:
    """Return a function that calls `func_`; later calls reuse the variables of the first call.

    Args:
        name_: The name of the variable scope, made unique.
        func_: Function that creates variables with `get_variable`.
        create_scope_now_: True to name the scope now, not in the first call.
        unique_name_: Optional. The exact name of the scope, instead of `name_`.
        custom_getter_: Must be None.
        kwargs: Further arguments of `func_`.

    Raises:
        InvalidArgumentError: `custom_getter_` is given.
    """
    if custom_getter_ is not None:
        raise InvalidArgumentError("make_template takes no custom_getter_.")
    scope: Any = None

    def enter() -> Any:
        # A scope that was only named has no variables to reuse before the first call.
        if scope is not None:
            return _graph.variable_scope(scope, reuse=True if used else None)
        return _graph.variable_scope(unique_name_, default_name=name_)

    used = False

    def template(*args: object, **options: object) -> Any:
        nonlocal scope, used
        with enter() as scope:
            result_object = func_(*args, **{**kwargs, **options})
        used = True
        return result_object

    if create_scope_now_:
        with enter() as scope:
            pass
    return template
