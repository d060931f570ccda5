"""Slices, masks and indexed elements of tensors."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg._base.static_shape import UNKNOWN
from thalweg._graph import known_size, known_sizes, sizes_of
from thalweg.errors import InvalidArgumentError
from thalweg.tf.arrays import check_batch
from thalweg.tf.arrays import shape as shape_of
from thalweg.tf.convert import call, set_static, sizes, tensor
from thalweg.tf.elementwise import cast
from thalweg.tf.random import uniform
from thalweg.variable import as_dtype

__all__ = [
    "boolean_mask", "dynamic_partition", "gather_nd", "invert_permutation", "meshgrid", "pad",
    "random_crop", "repeat", "reverse", "scatter_nd", "sequence_mask", "slice", "strided_slice",
    "unique", "unique_with_counts",
]  # fmt: skip


def slice(input_: object, begin: object, size: object, name: str | None = None) -> Tensor:
    """Return the part of a tensor that begins at `begin` and has the shape `size`.

    A size of -1 reaches to the end of a dimension. Raise InvalidArgumentError if the part is not
    inside the tensor.
    """
    source, start_sizes, requested_sizes = tensor(input_), sizes_of(begin), sizes_of(size)

    def cut(x: Tensor, begin: Tensor, size: Tensor) -> Tensor:
        positions = zip(sizes(begin), sizes(size), x.shape, strict=True)
        ends = [
            (a, full_size if length == -1 else a + length, full_size)
            for a, length, full_size in positions
        ]
        if any(not 0 <= start <= end <= full_size for start, end, full_size in ends):
            raise InvalidArgumentError(
                f"A slice of size {sizes(size)} at {sizes(begin)} is not inside of a tensor of"
                f" shape {tuple(x.shape)}."
            )
        return x[tuple(builtins.slice(start, end) for start, end, _ in ends)]

    def static_shape() -> list[int | None] | None:
        dims, starts = known_sizes(requested_sizes), known_sizes(start_sizes)
        if dims is None or starts is None or source.shape is UNKNOWN:
            return dims and [None if count == -1 else count for count in dims]
        pairs = zip(starts, source.shape, strict=True)
        remaining_sizes = [None if a is None or b is None else b - a for a, b in pairs]
        return [
            remaining_size if count == -1 else count
            for remaining_size, count in zip(remaining_sizes, dims, strict=True)
        ]

    return set_static(
        call(cut, source, start_sizes, requested_sizes, name=name or "Slice"),
        source.dtype,
        static_shape,
    )


def strided_slice(
    input_: object,
    begin: object,
    end: object,
    strides: object = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: object = None,
    name: str | None = None,
) -> Tensor:
    """Return `input_[begin:end:strides]` for the first dimensions.

    Args:
        begin, end, strides: A number for each of these dimensions; strides are 1 by default.
        begin_mask, end_mask: Bit i ignores `begin[i]` or `end[i]`.
        shrink_axis_mask: Bit i selects the element `begin[i]` and drops dimension i.

    Raises:
        InvalidArgumentError: `ellipsis_mask`, `new_axis_mask` or `var` is given; index the tensor.
    """
    if ellipsis_mask or new_axis_mask or var is not None:
        raise InvalidArgumentError("Index the tensor, x[..., None]; assign to a variable.")
    source = tensor(input_)

    def cut(x: Tensor, begin: Tensor, end: Tensor, strides: Tensor) -> Tensor:
        starts, ends = sizes(begin), sizes(end)
        steps = (1,) * len(starts) if strides is None else sizes(strides)
        for dim in reversed(range(len(starts))):
            if shrink_axis_mask >> dim & 1:
                x = x.select(dim, starts[dim])
                continue
            start = None if begin_mask >> dim & 1 else starts[dim]
            stop = None if end_mask >> dim & 1 else ends[dim]
            # Unlike torch's slices, those of `range` accept negative steps.
            positions = range(x.shape[dim])[start : stop : steps[dim]]
            x = x.index_select(dim, torch.tensor(positions, dtype=torch.int64, device=x.device))
        return x

    operands = [
        None if argument is None else sizes_of(argument) for argument in (begin, end, strides)
    ]
    return set_static(call(cut, source, *operands, name=name or "StridedSlice"), source.dtype)


def pad(
    tensor: object,
    paddings: object,
    mode: str = "CONSTANT",
    constant_values: Any = 0,
    name: str | None = None,
) -> Tensor:
    """Return the tensor with elements added before and after each dimension.

    Args:
        paddings: For each dimension the numbers of elements added before and after.
        mode: "CONSTANT", "REFLECT", which mirrors at the first and last element, or "SYMMETRIC",
            which also repeats the first and last element.
        constant_values: The added value for "CONSTANT".

    Raises:
        InvalidArgumentError: The mode is unknown, or `paddings` is not two numbers per dimension.
    """
    kind = mode.lower()
    if kind not in ("constant", "reflect", "symmetric"):
        raise InvalidArgumentError(
            f"mode must be CONSTANT, REFLECT or SYMMETRIC, not {show_value(mode)}."
        )

    def widen(x: Any, paddings: Tensor) -> Tensor:
        flat = sizes(paddings)
        if len(flat) != 2 * x.dim():
            raise InvalidArgumentError(
                f"paddings must be two numbers for each dimension of {tuple(x.shape)}, not"
                f" {len(flat)} in all."
            )
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        if kind == "constant":
            reversed_pairs = [amount for amounts in reversed(pairs) for amount in amounts]
            return torch.nn.functional.pad(x, reversed_pairs, value=constant_values)
        for dim, amounts in enumerate(pairs):
            order = np.pad(np.arange(x.shape[dim]), amounts, mode=kind)
            x = x.index_select(dim, torch.from_numpy(order).to(x.device))
        return x

    source, padding_sizes = as_tensor(tensor), sizes_of(paddings)
    return set_static(call(widen, source, padding_sizes, name=name or "Pad"), source.dtype)


def reverse(tensor: object, axis: object, name: str | None = None) -> Tensor:
    """Return the elements in reverse order along axes."""
    return call(lambda x: x.flip(sizes(axis)), as_tensor(tensor), name=name or "ReverseV2")


def repeat(
    input: object, repeats: object, axis: int | None = None, name: str | None = None
) -> Tensor:
    """Repeat each element, or each part along an axis, a number of times."""
    times = tensor(repeats)
    return call(
        lambda x, many: torch.repeat_interleave(x, many.long(), axis), tensor(input), times,
        name=name or "Repeat",
    )  # fmt: skip


def meshgrid(*args: object, indexing: str = "xy", name: str | None = None) -> list[Tensor]:
    """Return coordinates of a grid; with "xy" the first varies along the second dimension."""

    def cross(*vectors: Tensor) -> tuple[Tensor, ...]:
        return torch.meshgrid(*vectors, indexing=indexing)

    return [*call(cross, *(tensor(vector) for vector in args), name=name or "meshgrid")]


def boolean_mask(
    tensor: object, mask: object, name: str = "boolean_mask", axis: int | None = None
) -> Tensor:
    """Return the slices of a tensor where `mask` is true, stacked along one dimension.

    The dimensions of `mask` are those of the tensor from `axis` on, by default from 0 on. Raise
    InvalidArgumentError if their sizes differ.
    """

    def choose(x: Tensor, bools: Tensor) -> Tensor:
        first = (axis or 0) % max(x.dim(), 1)
        sizes = tuple(x.shape[first : first + bools.dim()])
        if not bools.dim() or tuple(bools.shape) != sizes:
            raise InvalidArgumentError(
                f"A mask of shape {tuple(bools.shape)} does not fit a tensor of shape"
                f" {tuple(x.shape)} from axis {first} on."
            )
        return x[(builtins.slice(None),) * first + (bools.bool(),)]

    source, bools = as_tensor(tensor), as_tensor(mask)

    def static_shape() -> list[int | None] | None:
        if source.shape is UNKNOWN or bools.shape is UNKNOWN:
            return None
        first = (axis or 0) % max(len(source.shape), 1)
        return [*source.shape[:first], None, *source.shape[first + len(bools.shape) :]]

    return set_static(call(choose, source, bools, name=name), source.dtype, static_shape)


def gather_nd(
    params: object, indices: object, name: str | None = None, batch_dims: int = 0
) -> Tensor:
    """Return elements of `params` at index tuples, which are the last dimension of `indices`.

    An index tuple shorter than the rank of `params` selects a slice. `batch_dims` is 0, or 1 to
    index row i of `params` by row i of `indices`. Raise InvalidArgumentError for another
    `batch_dims`, for shapes that do not fit together, and on the CPU for an index out of range.
    """

    def pick(x: Tensor, positions: Tensor) -> Tensor:
        check_batch(x, positions, batch_dims)
        if positions.dim() <= batch_dims:
            raise InvalidArgumentError(
                f"indices of gather_nd must have more than {batch_dims} dimensions, not shape"
                f" {tuple(positions.shape)}."
            )
        picked, lead = indices_of(positions, x.shape[batch_dims:]), positions.shape[:-1]
        if batch_dims:
            rows = torch.arange(len(x), dtype=torch.int64, device=x.device)
            picked = (rows.view(-1, *[1] * (len(lead) - 1)).expand(lead), *picked)
        return x[picked] if picked else x.expand(*lead, *x.shape).clone()

    if batch_dims not in (0, 1):
        raise InvalidArgumentError("batch_dims of gather_nd must be 0 or 1.")
    return call(pick, tensor(params), tensor(indices), name=name or "GatherNd")


def indices_of(positions: Any, shape: Sequence[int]) -> tuple[Tensor, ...]:
    """Split `positions` along the last dimension into a tuple of index tensors.

    Raises:
        InvalidArgumentError: The last dimension of `positions` is larger than the rank of `shape`.
            On the CPU, an index is not inside a tensor of shape `shape`.
    """
    if positions.shape[-1] > len(shape):
        raise InvalidArgumentError(
            f"Index tuples of {positions.shape[-1]} numbers are too long for shape {tuple(shape)}."
        )
    # On a GPU the check would wait for the device.
    if positions.device.type == "cpu":
        limits = torch.tensor(shape[: positions.shape[-1]], dtype=torch.int64, device="cpu")
        wrong = ((positions < 0) | (positions >= limits)).any(-1).nonzero()
        if len(wrong):
            first = tuple(wrong[0].tolist())
            raise InvalidArgumentError(
                f"indices[{', '.join(map(str, first))}] = {positions[first].tolist()} is not inside"
                f" of a tensor of shape {tuple(shape)}."
            )
    return tuple(positions.long().unbind(-1))


def scatter_nd(indices: object, updates: object, shape: object, name: str | None = None) -> Tensor:
    """Return zeros of shape `shape`, with `updates` added at the index tuples of `indices`.

    See `gather_nd` for index tuples. Updates at equal index tuples are summed.
    """
    positions, values, output_sizes = tensor(indices), tensor(updates), sizes_of(shape)

    def put(positions: object, values: Tensor, shape: Tensor) -> Tensor:
        zeros = values.new_zeros(sizes(shape))
        return zeros.index_put(indices_of(positions, zeros.shape), values, accumulate=True)

    scattered = call(put, positions, values, output_sizes, name=name or "ScatterNd")
    return set_static(scattered, values.dtype, lambda: known_sizes(output_sizes))


def sequence_mask(
    lengths: object, maxlen: object = None, dtype: object = torch.bool, name: str | None = None
) -> Tensor:
    """Return for each length n a row of `maxlen` elements: n times True (1), then False (0).

    `maxlen` is by default the largest length.
    """

    def mark(lengths: Tensor, limit: Tensor) -> Tensor:
        largest = int(lengths.max()) if limit is None and lengths.numel() else 0
        count = max(largest, 0) if limit is None else int(limit)
        positions = torch.arange(count, dtype=torch.int64, device=lengths.device)
        return (positions < lengths.unsqueeze(-1)).to(kind)

    kind, all_lengths = as_dtype(dtype), tensor(lengths)
    width = None if maxlen is None else known_size(maxlen)
    masks = call(mark, all_lengths, maxlen, name=name or "SequenceMask")
    return set_static(
        masks, kind, lambda: None if all_lengths.shape is UNKNOWN else [*all_lengths.shape, width]
    )


class Unique(NamedTuple):
    """Unique elements of a vector, in the order of first occurrence."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """`Unique` with counts of the elements."""

    y: Tensor
    idx: Tensor
    count: Tensor


def unique(x: object, out_idx: object = torch.int32, name: str | None = None) -> Unique:
    """Return unique elements in order of first occurrence, and each element's index in them."""
    return Unique(*unique_with_counts(x, out_idx, name or "Unique")[:2])


def unique_with_counts(
    x: object, out_idx: object = torch.int32, name: str | None = None
) -> UniqueWithCounts:
    """Return (y, index, count): distinct elements y, `x == y[index]`, and the count of each y."""
    kind, vector = as_dtype(out_idx), tensor(x)

    def find(elements: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # torch sorts unique elements; TensorFlow keeps the order of first occurrence.
        values, positions, counts = elements.unique(return_inverse=True, return_counts=True)
        firsts = torch.full_like(values, len(elements), dtype=torch.int64)
        order_of_rows = torch.arange(len(elements), dtype=torch.int64, device=elements.device)
        firsts.scatter_reduce_(0, positions, order_of_rows, "amin")
        order = firsts.argsort()
        # `order.argsort()` is the inverse permutation: the new position of each sorted element.
        return values[order], order.argsort()[positions].to(kind), counts[order].to(kind)

    if not isinstance(vector, _graph.SymbolicTensor):
        return UniqueWithCounts(*find(vector))
    count = None if vector.shape is UNKNOWN else vector.shape[0]
    outputs = [
        _graph.Output(vector.dtype, (None,), ()),
        _graph.Output(kind, (count,), ()),
        _graph.Output(kind, (None,), ()),
    ]
    label = name or "UniqueWithCounts"
    node_outputs = _graph.operation(find, [vector], label, kind="pure", outputs=outputs)
    return UniqueWithCounts(*node_outputs)


def dynamic_partition(
    data: object, partitions: object, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """Return the rows of `data` of each partition, in a list."""
    source, positions, label = tensor(data), tensor(partitions), name or "DynamicPartition"
    masks = (call(torch.eq, positions, i) for i in range(num_partitions))
    return [boolean_mask(source, mask, label) for mask in masks]


def invert_permutation(x: object, name: str | None = None) -> Tensor:
    """Return the inverse permutation: the index of each number in `x`."""
    return call(lambda order: order.argsort().to(order.dtype), tensor(x),
                name=name or "InvertPermutation")  # fmt: skip


def random_crop(
    value: object, size: object, seed: int | None = None, name: str | None = None
) -> Tensor:
    """Return a part of the given size from a random place."""
    full_shape, crop_shape = shape_of(tensor(value)), tensor(size)
    uniform_numbers = uniform(shape_of(crop_shape), dtype=torch.float64, seed=seed)
    begin = cast(uniform_numbers * (full_shape - crop_shape + 1), torch.int32)
    return slice(value, begin, size, name or "random_crop")


# An argument of `pad` has the name `tensor`.
as_tensor = tensor
