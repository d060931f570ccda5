"""`IndexedSlices`, sparse gradients of rows of a variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch

from thalweg._base.execution_context import is_symbolic
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import REDUCED, check_held, dtype_name, numpy_array, numpy_copy, to_tensor


def assert_in_range(indices: torch.Tensor, rows: int) -> None:
    """Assert on the device, without synchronization, that indices are in [0, rows)."""
    in_range = ((indices >= 0) & (indices < rows)).all()
    torch._assert_async(in_range, f"indices of a sparse gradient are not in [0, {rows})")  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


class IndexedSlices:
    """Rows of a dense tensor: row `indices[i]` has the value `values[i]`.

    The values of repeated indices are added. A row without an index is zero. Tensors are not
    copied, and `values` and `indices` are never written to.

    Args:
        values: A tensor of shape `(n, *row shape)`; other types are converted by `to_tensor`.
        indices: int32 or int64, of shape (n,), on the device of `values`. The constructor does not
            check their range; `check_range` and conversions to dense tensors do.
        dense_shape: Optional. Shape of the dense tensor: `(number of rows, *row shape)`.

    Raises:
        InvalidTypeError: The indices are not int32 or int64.
        InvalidArgumentError: Shapes or devices do not match.

    Example:
        >>> slices = IndexedSlices([[1.0], [2.0], [4.0]], [3, 0, 3], dense_shape=(4, 1))
        >>> slices.to_dense().flatten()
        tensor([2., 0., 0., 5.])
    """

    __slots__ = ("dense_shape", "indices", "values")

    # Makes `numpy_scalar * slices` call `__rmul__` instead of building an array of objects.
    __array_ufunc__ = None

    values: torch.Tensor
    indices: torch.Tensor
    dense_shape: torch.Size | None

    def __init__(
        self, values: object, indices: Any, dense_shape: Sequence[int] | torch.Tensor | None = None
    ) -> None:
        try:
            self.values = to_tensor(values)
            self.indices = to_tensor(indices)
            size = None if dense_shape is None else torch.Size(int(n) for n in dense_shape)
        except InvalidTypeError:
            for argument in (values, indices, dense_shape):
                _refuse_symbol(argument, "IndexedSlices")
            raise
        self.dense_shape = size
        self._validate()

    def _validate(self) -> None:
        values, indices = self.values, self.indices
        if indices.dtype not in (torch.int32, torch.int64):
            raise InvalidTypeError(
                f"indices must be int32 or int64, not {dtype_name(indices.dtype)}."
            )
        if indices.dim() != 1:
            raise InvalidArgumentError(
                f"indices must have one dimension; they have shape {tuple(indices.shape)}."
            )
        if values.dim() == 0 or len(values) != len(indices):
            raise InvalidArgumentError(
                f"values of shape {tuple(values.shape)} do not match {len(indices)} indices; "
                "the first dimensions must be equal."
            )
        if values.device != indices.device:
            raise InvalidArgumentError(
                f"values are on {values.device}, indices on {indices.device}."
            )
        if self.dense_shape is not None and self.dense_shape[1:] != values.shape[1:]:
            raise InvalidArgumentError(
                f"values of shape {tuple(values.shape)} are not rows of a tensor of shape "
                f"{tuple(self.dense_shape)}."
            )

    @classmethod
    def from_sparse(cls, tensor: torch.Tensor) -> IndexedSlices:
        """Return slices over the memory of torch's sparse gradient, as of a sparse `nn.Embedding`.

        Args:
            tensor: A COO tensor with one sparse dimension, coalesced or not. Repeated rows and the
                order of entries are kept.

        Raises:
            InvalidTypeError: The tensor is not in COO layout.
            InvalidArgumentError: The tensor has several sparse dimensions.
            LayoutError: The storage of the indices was truncated.
        """
        if tensor.layout != torch.sparse_coo:
            raise InvalidTypeError(f"expected a sparse COO tensor, not {tensor.layout}.")
        if tensor.sparse_dim() != 1:
            raise InvalidArgumentError(
                f"expected one sparse dimension, not {tensor.sparse_dim()}: rows are indexed "
                "by one number."
            )
        check_held(tensor._indices(), "The indices of a sparse gradient")
        return cls(tensor._values(), tensor._indices()[0], tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Return the device of values and indices."""
        return self.values.device

    @property
    def shape(self) -> torch.Size | None:
        """Return the shape of the dense tensor, or None if unknown."""
        return self.dense_shape

    def check_range(self, rows: int, style: Literal["fused", "scatter"] = "scatter") -> None:
        """Raise InvalidArgumentError unless all indices are in [0, rows).

        On a GPU the check is asynchronous. A bad index then fails a device assertion, and all later
        CUDA calls raise, as after a bad index in torch's functions.

        Args:
            rows: Number of rows of the variable.
            style: TensorFlow's message to use: "fused" for kernels that update slots and variable
                together, "scatter" for scatter operations.
        """
        check_held(self.indices, "The indices of slices")
        if self.indices.is_cuda:
            assert_in_range(self.indices, rows)
            return
        indices = self.indices.detach().cpu().numpy()
        # As unsigned numbers negative indices are the largest, so that one pass finds both kinds.
        unsigned = indices.view(np.uint32 if indices.dtype == np.int32 else np.uint64)
        if not len(indices) or unsigned.max() < rows:
            return
        offset = int(np.argmax(unsigned >= rows))
        index = int(indices[offset])
        if style == "fused":
            raise InvalidArgumentError(
                f"Index {index} at offset {offset} in indices is out of range"
            )
        raise InvalidArgumentError(f"indices[{offset}] = {index} is not in [0, {rows})")

    def deduplicated(self) -> IndexedSlices:
        """Return new slices with unique indices and the sum of the values of each index.

        Indices are in order of first appearance. Values are added to 0 in order of appearance, as
        in TensorFlow. float16 and bfloat16 are summed in float32 and rounded once. The sum runs on
        the CPU for every device.

        Returns:
            Slices on the same device, without shared memory and without autograd.
        """
        check_held(self.indices, "The indices of slices")
        check_held(self.values, "The values of slices")
        indices = self.indices.detach().cpu().numpy()
        _, first, inverse = np.unique(indices, return_index=True, return_inverse=True)
        order = np.argsort(first)  # from order by row to order of appearance
        first, rank = first[order], np.empty_like(order)
        rank[order] = np.arange(len(order))

        values = self.values.detach().cpu()
        wide = (values.float() if values.dtype in REDUCED else values).numpy()
        sums = wide[first]
        sums += 0  # turns -0.0 into 0.0, as adding to zero does
        if len(first) < len(indices):
            repeats = np.ones(len(indices), bool)
            repeats[first] = False
            _add_rows(sums, rank[inverse[repeats]], wide[repeats])

        values_by_row = torch.from_numpy(sums).to(values.dtype).to(self.device)
        rows = torch.from_numpy(indices[first]).to(self.device)
        return IndexedSlices(values_by_row, rows, self.dense_shape)

    def to_dense(self) -> torch.Tensor:
        """Return a new dense tensor; values of repeated indices are summed as in `deduplicated`.

        Raises:
            InvalidArgumentError: `dense_shape` is None, or an index is outside `dense_shape`.
        """
        shape = self._checked_shape()
        unique = self.deduplicated()
        dense = torch.zeros(shape, dtype=self.dtype, device=self.device)
        return dense.index_copy_(0, unique.indices.long(), unique.values)

    def to_sparse(self) -> torch.Tensor:
        """Return the rows as torch's uncoalesced COO tensor; the values are not copied.

        Raises:
            InvalidArgumentError: There is no `dense_shape`, or an index is outside it.
        """
        shape = self._checked_shape()
        indices = self.indices.long().unsqueeze(0)
        return _sparse_tensor(indices, self.values, shape)

    def _checked_shape(self) -> torch.Size:
        if self.dense_shape is None:
            raise InvalidArgumentError("IndexedSlices without dense_shape have no dense form.")
        self.check_range(self.dense_shape[0])
        return self.dense_shape

    def __add__(self, operand: object) -> torch.Tensor:
        """Return the sum with a tensor as a tensor."""
        return self.to_dense() + _dense(operand)

    def __radd__(self, operand: object) -> torch.Tensor:
        return _dense(operand) + self.to_dense()

    def __sub__(self, operand: object) -> torch.Tensor:
        return self.to_dense() - _dense(operand)

    def __rsub__(self, operand: object) -> torch.Tensor:
        return _dense(operand) - self.to_dense()

    def __neg__(self) -> IndexedSlices:
        return IndexedSlices(-self.values, self.indices, self.dense_shape)

    def __mul__(self, factor: object) -> IndexedSlices:
        return IndexedSlices(self.values * _scalar(factor), self.indices, self.dense_shape)

    __rmul__ = __mul__

    def __truediv__(self, divisor: object) -> IndexedSlices:
        return IndexedSlices(self.values / _scalar(divisor), self.indices, self.dense_shape)

    def __repr__(self) -> str:
        shape = None if self.dense_shape is None else tuple(self.dense_shape)
        for tensor in (self.values, self.indices):
            check_held(tensor, "A part of IndexedSlices")
        return f"IndexedSlices(values={self.values}, indices={self.indices}, dense_shape={shape})"


Gradient = torch.Tensor | IndexedSlices | None


def as_gradient(gradient: torch.Tensor | None) -> Gradient:
    """Return a gradient as optimizers take it: torch's sparse rows become IndexedSlices."""
    if gradient is None or gradient.layout == torch.strided:
        return gradient
    if gradient.layout == torch.sparse_coo and gradient.sparse_dim() == 1:
        return IndexedSlices.from_sparse(gradient)
    return gradient.to_dense()


def values_of(grad: torch.Tensor | IndexedSlices) -> torch.Tensor:
    """Return the elements of a gradient; the rows of slices as they are, repeated or not."""
    return grad.values if isinstance(grad, IndexedSlices) else grad


def with_values(
    grad: torch.Tensor | IndexedSlices, values: torch.Tensor
) -> torch.Tensor | IndexedSlices:
    """Return the gradient with other elements."""
    if isinstance(grad, IndexedSlices):
        return IndexedSlices(values, grad.indices, grad.dense_shape)
    return values


def whole(grad: torch.Tensor | IndexedSlices, var: torch.Tensor) -> torch.Tensor:
    """Return the gradient as one tensor of the variable's shape; rows that repeat are added up."""
    if isinstance(grad, IndexedSlices):
        return IndexedSlices(grad.values, grad.indices, var.shape).to_dense()
    return grad


def table_of(params: object) -> Any:
    """Return the table of an embedding lookup: `params`, or the element of a list of length 1.

    The parts of a partitioned variable count as a list.

    Raises:
        InvalidTypeError: The list is empty or has several tables.
    """
    if hasattr(params, "partition_axes"):
        # TensorFlow looks up the parts of a partitioned variable as several tables.
        params = list(cast(Any, params))
    if not isinstance(params, list | tuple):
        return params
    if len(params) != 1:
        raise InvalidTypeError(
            f"embedding_lookup takes one table, not a list of {len(params)}: TensorFlow's versions"
            " share rows out over several tables in different ways. Give it one table, or join"
            " several by torch.cat."
        )
    return params[0]


def embedding_lookup(params: Any, ids: Any) -> torch.Tensor:
    """Return the rows of `params` with the indices `ids`.

    The gradient of a variable is IndexedSlices. A tensor computed from variables gets a dense
    gradient, which torch's functions need for `backward`.

    Args:
        params: A tensor of shape `(rows, *row shape)`, or a list of one tensor.
        ids: int32 or int64 indices of any shape: a tensor, array, list or number.

    Returns:
        A tensor of shape `(*ids shape, *row shape)`.

    Raises:
        InvalidArgumentError: `params` is a scalar; or on the CPU, an id is not in [0, rows).
        InvalidTypeError: `ids` are not int32 or int64, `params` has several tables, or an argument
            belongs to a graph.
    """
    params = table_of(params)
    for argument in (params, ids):
        _refuse_symbol(argument, "embedding_lookup")
    if not params.dim():
        raise InvalidArgumentError("params must have at least one axis, not rank 0.")
    ids = to_tensor(ids).to(params.device)
    rows = IndexedSlices(ids.reshape(-1), ids.reshape(-1))  # validates the ids
    if ids.device.type == "cpu":  # elsewhere the check would wait for the device
        rows.check_range(len(params))
    by_rows = _takes_rows(params)
    if params.dim() == 2 and not (by_rows and params.is_complex()):  # torch has no such gradient
        return torch.nn.functional.embedding(ids, params, sparse=by_rows)
    flat: Any = (
        _RowLookup.apply(params, rows.indices) if by_rows else params.index_select(0, rows.indices)
    )
    return flat.reshape(ids.shape + params.shape[1:])


# Nodes of torch's graph that pass on sparse gradients unchanged.
_PASSING = ("AliasBackward0", "CloneBackward0")


def _takes_rows(params: torch.Tensor) -> bool:
    """Return True if the tensor's gradient may be sparse: for a variable, its alias or clone."""
    node = params.grad_fn
    while node is not None and node.name() in _PASSING:
        node = node.next_functions[0][0]
    return node is None or node.name() == "torch::autograd::AccumulateGrad"


def _refuse_symbol(argument: Any, name: str) -> None:
    """Raise an error for a tensor of a graph that names the function for graphs."""
    if not isinstance(argument, torch.Tensor) and is_symbolic(argument):
        raise InvalidTypeError(
            f"thalweg.{name} takes tensors of eager mode, and '{argument.name}' belongs to a graph:"
            f" use thalweg.v1.{name} there."
        )


def _sparse_tensor(
    indices: torch.Tensor, values: torch.Tensor, shape: Sequence[int]
) -> torch.Tensor:
    """Return an unchecked COO tensor of dense shape `shape`, on the device of `values`."""
    return torch.sparse_coo_tensor(
        indices,
        values,
        tuple(shape),
        dtype=values.dtype,
        device=values.device,
        check_invariants=False,
    )


class _RowLookup(torch.autograd.Function):
    """Embedding lookup for rows that are scalars or have several dimensions."""

    @staticmethod
    def forward(ctx: Any, params: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(ids)
        ctx.shape = params.shape
        return params.index_select(0, ids)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (ids,) = ctx.saved_tensors
        # Not IndexedSlices.to_sparse(), whose range check would wait for the device.
        rows = ids.long().unsqueeze(0)
        values = grad_outputs[0]
        return _sparse_tensor(rows, values, ctx.shape), None


def _dense(operand: object) -> Any:
    return operand.to_dense() if isinstance(operand, IndexedSlices) else operand


def _scalar(factor: Any) -> Any:
    """Return a number or tensor of shape (), which keeps the dtype of values; raise otherwise."""
    if np.ndim(factor.detach() if isinstance(factor, torch.Tensor) else factor) != 0:
        raise InvalidArgumentError("IndexedSlices can be scaled by a scalar only.")
    return factor.item() if isinstance(factor, np.generic) else factor


def _add_rows(sums: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """Add `values[i]` to `sums[rows[i]]`, one i after the other."""
    # NumPy's indexed addition is sequential, and five times faster on flat arrays than on rows.
    width = sums[0].size
    flat = rows[:, None] * width + np.arange(width)
    np.add.at(sums.reshape(-1), flat.reshape(-1), values.reshape(-1))


class IndexedSlicesValue(NamedTuple):
    """NumPy arrays that a session returns for IndexedSlices."""

    values: Any
    indices: Any
    dense_shape: Any


def exported(value: object) -> Any:
    """Return a NumPy copy of a tensor or IndexedSlices, as sessions return it.

    A tensor of shape () becomes a NumPy scalar, and IndexedSlices an `IndexedSlicesValue`. A sparse
    tensor is cloned; an object of another type is returned itself. Instead of a dtype that NumPy
    lacks, the array has a dtype of ml_dtypes, or else float32 or complex64.
    """
    if isinstance(value, IndexedSlices):
        shape = None if value.dense_shape is None else np.array(value.dense_shape, np.int64)
        return IndexedSlicesValue(exported(value.values), exported(value.indices), shape)
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if value.layout != torch.strided:
        return value.clone()
    try:
        return numpy_array(value)[()]
    except TypeError:
        wide = torch.complex64 if value.is_complex() else torch.float32
        return numpy_copy(value.to(wide))[()]
