"""Partitioned variables of TensorFlow 1: a variable divided along one axis into several variables.

A partitioner is a function of a shape and a dtype that returns the number of parts along each axis.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from thalweg._base.execution_context import executing_eagerly
from thalweg._base.static_shape import Shape
from thalweg._graph.default_graph import get_default_graph
from thalweg._graph.initializers import as_initializer
from thalweg._graph.nodes import SymbolicTensor
from thalweg._graph.ops import convert_to_tensor
from thalweg._graph.slice_info import SaveSliceInfo
from thalweg._graph.variable_scopes import get_variable_scope
from thalweg.errors import InvalidArgumentError
from thalweg.variable import as_dtype, dtype_name


class PartitionedVariable:
    """List of variables, the parts, that is used like the concatenation of the parts.

    Iteration yields the parts. `trainable_variables` and optimizers have the parts.

    Attributes:
        name: Name of the whole variable.
        dtype: Dtype of all parts.
        shape: Shape of the whole variable.
    """

    def __init__(
        self, name: str, shape: Any, dtype: Any, variable_list: Sequence[Any], partitions: list[int]
    ) -> None:
        self.name, self.dtype, self.shape = name, dtype, Shape(shape)
        self._shards, self._partitions = list(variable_list), list(partitions)
        # One concatenation for all uses, with TensorFlow's name.
        with self._shards[0].graph.name_scope(f"{name}/ConcatPartitions/"):
            shards, axis = list(self._shards), self.partition_axes[0]
            self._joined_tensor = self._shards[0].graph.call(
                torch.cat, (shards, axis), name="concat"
            )

    @property
    def partition_axes(self) -> list[int]:
        """The axes that have more than one part, or the first axis."""
        return [axis for axis, count in enumerate(self._partitions) if count > 1] or [0]

    def as_tensor(self) -> SymbolicTensor:
        """Return the concatenation of the parts."""
        return self._joined_tensor

    value = read_value = _as_graph_element = as_tensor

    def get_shape(self) -> Shape:
        """Return the shape of the whole variable."""
        return self.shape

    def _get_variable_list(self) -> list[Any]:
        """Return the parts."""
        return self._shards

    def _get_partitions(self) -> list[int]:
        """Return the number of parts along each axis."""
        return self._partitions

    def _assign(self, method: str, value: Any) -> list[Any]:
        """Return the operations of `method`, called on each part with its slice of `value`."""
        tensor = convert_to_tensor(value, self.dtype)
        return [getattr(var, method)(var._save_slice_info.cut(tensor)) for var in self._shards]

    def assign(self, value: object, use_locking: bool = False, name: object = None) -> list[Any]:
        """Return operations that replace the values of the parts."""
        return self._assign("assign", value)

    def assign_add(self, value: object, use_locking: bool = False) -> list[Any]:
        """Return operations that add to the parts."""
        return self._assign("assign_add", value)

    def assign_sub(self, value: object, use_locking: bool = False) -> list[Any]:
        """Return operations that subtract from the parts."""
        return self._assign("assign_sub", value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: Any) -> Any:
        return self._joined_tensor[index]

    def __repr__(self) -> str:
        return f"<tf.PartitionedVariable '{self.name}' shape={self.shape} of {len(self)} parts>"


def _delegate(name: str) -> Callable[..., Any]:
    """Return a method that applies the operator `name` to the concatenation of the parts."""
    return lambda self, *args: getattr(self.as_tensor(), name)(*args)


# Set on the class, where Python looks for the methods of operators.
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(PartitionedVariable, f"__{_name}__", _delegate(f"__{_name}__"))
    setattr(PartitionedVariable, f"__r{_name}__", _delegate(f"__r{_name}__"))
for _name in ("neg", "abs", "lt", "le", "gt", "ge"):
    setattr(PartitionedVariable, f"__{_name}__", _delegate(f"__{_name}__"))


def get_partitioned(
    get_shard: Callable[..., Any],
    name: str,
    partitioner: Any,
    shape: Any,
    dtype: Any,
    initializer: Any,
    reuse: Any,
    **options: Any,
) -> PartitionedVariable:
    """Find or create the partitioned variable `name` of the default graph; return the variable.

    Args:
        get_shard: `get_shard(name, shape, dtype, initializer, ...)` finds or creates one part.
        partitioner: Function of `shape` and `dtype`; None to find an existing variable.
        shape: Shape of the whole variable, or None if `initializer` is a value.
        dtype: Dtype, or None for the dtype of the variable scope.
        initializer: Initializer or value of the whole variable.
        reuse: False or None to create the variable, True to find it, AUTO_REUSE for either.
        **options: Further arguments of `get_shard`.

    Raises:
        NotImplementedError: Called in eager mode.
        InvalidArgumentError: The partitioner does not fit the shape, or divides several axes. The
            variable exists without `reuse`, or is missing with `reuse=True`. An existing variable
            is not partitioned, or has another shape, dtype or number of parts.
    """
    _check_partitionable(name)
    if initializer is not None and not callable(initializer):
        initializer = _convert_value(initializer, name, shape, dtype)
        shape, dtype = initializer.shape, initializer.dtype
    kind = as_dtype(get_variable_scope().dtype if dtype is None else dtype)
    variables = get_default_graph().partitioned_store
    partitions = None if partitioner is None else _call_partitioner(partitioner, name, shape, kind)
    if name in variables:
        requested_dtype = None if dtype is None else kind
        _check_reuse(variables[name], reuse, shape, requested_dtype, partitions)
        return variables[name]
    if reuse is True:
        raise InvalidArgumentError(
            f"PartitionedVariable {name} does not exist, or was not created with get_variable()."
            " Did you mean to set reuse=tf.AUTO_REUSE in VarScope?"
        )
    get_shard = functools.partial(get_shard, reuse=reuse, **options)
    slices = list(_slices(name, [int(size) for size in shape], partitions or []))
    shards = [_make_shard(get_shard, info, initializer, kind) for info in slices]
    variables[name] = PartitionedVariable(name, shape, kind, shards, partitions or [])
    return variables[name]


def _check_partitionable(name: str) -> None:
    """Raise an error in eager mode, or if the graph has an unpartitioned variable `name`."""
    if executing_eagerly():
        raise NotImplementedError(
            f"'{name}' cannot be partitioned in eager mode. Leave partitioner out."
        )
    if name in get_default_graph().variable_store:
        raise InvalidArgumentError(
            "A partitioner was provided, but an unpartitioned version of the variable was found:"
            f" {name}. Leave partitioner out."
        )


def _make_shard(
    get_shard: Callable[..., Any], info: SaveSliceInfo, initializer: Any, kind: torch.dtype
) -> Any:
    """Find or create the part at the position `info`; return the part.

    An initializer that is a function is called for the part. A value of the whole variable is cut.
    """
    if initializer is None or callable(initializer):
        start = (info.var_shape, kind, _initializer_of_part(initializer, info, kind))
    else:
        start = (None, None, info.cut(initializer))
    shard = get_shard(info.key, *start)
    shard._save_slice_info = info
    return shard


def _convert_value(value: Any, name: str, shape: Any, dtype: Any) -> Any:
    """Return the initial value of the whole variable `name` as a tensor.

    Raise InvalidArgumentError if the value does not have the shape `shape`.
    """
    tensor = convert_to_tensor(value, None if dtype is None else as_dtype(dtype))
    if not Shape(shape).accepts(tensor.shape):
        raise InvalidArgumentError(
            f"'{name}' of shape {Shape(shape)} cannot begin with a value of shape"
            f" {tensor.shape}. Leave shape out."
        )
    return tensor


def _check_reuse(
    var: PartitionedVariable, reuse: Any, shape: Any, kind: torch.dtype | None, partitions: Any
) -> None:
    """Raise InvalidArgumentError if `reuse` is false, or `var` differs from the requested variable.

    `partitions` is the requested number of parts along each axis, `kind` the dtype. None accepts
    any number or dtype.
    """
    if not reuse:
        raise InvalidArgumentError(
            f"Partitioned variable with name {var.name} already exists. Did you mean to set"
            " reuse=True or reuse=tf.AUTO_REUSE in VarScope?"
        )
    differences = []
    if not var.shape.accepts(Shape(shape)):
        differences.append(f"shape {tuple(shape)} and found shape {tuple(var.shape)}")
    if kind is not None and kind != var.dtype:
        differences.append(f"dtype {dtype_name(kind)} and found dtype {dtype_name(var.dtype)}")
    if partitions is not None and partitions != var._get_partitions():
        differences.append(f"partitions {partitions} and found {var._get_partitions()}")
    if differences:
        raise InvalidArgumentError(
            f"Trying to reuse partitioned variable {var.name}, but specified "
            + "; ".join(differences)
        )


def _call_partitioner(partitioner: Any, name: str, shape: Any, dtype: Any) -> list[int]:
    """Return `partitioner(shape=shape, dtype=dtype)`, the number of parts along each axis.

    Raise InvalidArgumentError if the shape is unknown, or the numbers do not fit the shape.
    """
    sizes = Shape(shape)
    if not sizes.is_fully_defined():
        raise InvalidArgumentError(
            f"Shape of a new partitioned variable ({name}) must be fully defined, but instead was"
            f" {sizes}."
        )
    counts = partitioner(shape=sizes, dtype=dtype)
    if not isinstance(counts, Sequence):
        raise InvalidArgumentError(f"Partitioner must return a sequence, but saw: {counts}")
    if len(counts) != len(sizes):
        raise InvalidArgumentError(
            "Partitioner returned a partition list that does not match the Variable's rank:"
            f" {counts} vs. {tuple(sizes)}"
        )
    if any(count < 1 for count in counts):
        raise InvalidArgumentError(f"Partitioner returned zero partitions for some axes: {counts}")
    for count, size in zip(counts, sizes, strict=True):
        if count > max(size, 1):
            raise InvalidArgumentError(
                f"Partitioner returned {count} parts along an axis of {size} elements of {name}."
            )
    if sum(count > 1 for count in counts) > 1:
        raise InvalidArgumentError(
            f"Can only slice a variable along one dimension: shape: {tuple(sizes)}, partitioning:"
            f" {counts}"
        )
    return list(map(operator.index, counts))


def _slices(name: str, shape: list[int], counts: list[int]) -> Iterator[SaveSliceInfo]:
    """Yield the position of each part along the divided axis.

    If the axis cannot be divided evenly, the first parts are longer by one element.
    """
    axis = next((index for index, count in enumerate(counts) if count > 1), 0)
    length, remainder = divmod(shape[axis], counts[axis])
    start = 0
    for index in range(counts[axis]):
        size = length + (index < remainder)
        offset = [start if index == axis else 0 for index in range(len(shape))]
        shard_shape = [*shape[:axis], size, *shape[axis + 1 :]]
        yield SaveSliceInfo(name, shape, offset, shard_shape, index)
        start += size


def _initializer_of_part(initializer: Any, info: SaveSliceInfo, kind: torch.dtype) -> Any:
    """Return `as_initializer`, with `partition_info=info` bound if it accepts this argument."""
    initializer = as_initializer(initializer, kind)
    try:
        takes_info = "partition_info" in inspect.signature(initializer).parameters
    except (TypeError, ValueError):
        # Functions that are written in C have no signature.
        takes_info = False
    return functools.partial(initializer, partition_info=info) if takes_info else initializer
