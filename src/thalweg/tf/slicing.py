"""Parts of tensors: slices, rows, masks and elements by their places."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg._base.static_shape import UNKNOWN
from thalweg._graph import known_size, known_sizes, sizes_of
from thalweg.errors import InvalidArgumentError
from thalweg.tf.arrays import shape as shape_of
from thalweg.tf.convert import call, is_tensor, pair, sizes, tensor, told
from thalweg.tf.elementwise import cast
from thalweg.tf.random import uniform
from thalweg.variable import as_dtype

__all__ = [
    "boolean_mask",
    "dynamic_partition",
    "gather_nd",
    "invert_permutation",
    "meshgrid",
    "pad",
    "random_crop",
    "repeat",
    "reverse",
    "scatter_nd",
    "sequence_mask",
    "slice",
    "strided_slice",
    "unique",
    "unique_with_counts",
]


def slice(input_: object, begin: object, size: object, name: str | None = None) -> Tensor:
    """Return the part of the given size that begins at a place; a size of -1 reaches to the end.

    Raises:
        InvalidArgumentError: The part is not inside of the tensor.
    """
    given, first, wanted = tensor(input_), sizes_of(begin), sizes_of(size)

    def cut(x: Tensor, begin: Tensor, size: Tensor) -> Tensor:
        places = zip(sizes(begin), sizes(size), x.shape, strict=True)
        ends = [(a, whole if many == -1 else a + many, whole) for a, many, whole in places]
        if any(not 0 <= start <= end <= whole for start, end, whole in ends):
            raise InvalidArgumentError(
                f"A slice of size {sizes(size)} at {sizes(begin)} is not inside of a tensor of"
                f" shape {tuple(x.shape)}."
            )
        return x[tuple(builtins.slice(start, end) for start, end, _ in ends)]

    def static_shape() -> list[int | None] | None:
        found, starts = known_sizes(wanted), known_sizes(first)
        if found is None or starts is None or given.shape is UNKNOWN:
            return found and [None if many == -1 else many for many in found]
        pairs = zip(starts, given.shape, strict=True)
        rest = [None if a is None or b is None else b - a for a, b in pairs]
        return [left if many == -1 else many for left, many in zip(rest, found, strict=True)]

    return told(call(cut, given, first, wanted, name=name or "Slice"), given.dtype, static_shape)


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
    """`input_[begin:end:strides]` in each dimension that is named.

    Args:
        input_: A tensor.
        begin, end, strides: Numbers for the first dimensions; strides of 1 by default.
        begin_mask, end_mask: Bits of dimensions in which `begin` or `end` does not count.
        shrink_axis_mask: Bits of dimensions of which `begin` names one element.
        name: Optional.

    Raises:
        InvalidArgumentError: `ellipsis_mask`, `new_axis_mask` or `var` is given; index the tensor.
    """
    if ellipsis_mask or new_axis_mask or var is not None:
        raise InvalidArgumentError("Index the tensor, x[..., None]; assign to a variable.")
    given = tensor(input_)

    def cut(x: Tensor, begin: Tensor, end: Tensor, strides: Tensor) -> Tensor:
        starts, ends = sizes(begin), sizes(end)
        steps = (1,) * len(starts) if strides is None else sizes(strides)
        for place in reversed(range(len(starts))):
            if shrink_axis_mask >> place & 1:
                x = x.select(place, starts[place])
                continue
            start = None if begin_mask >> place & 1 else starts[place]
            stop = None if end_mask >> place & 1 else ends[place]
            chosen = range(x.shape[place])[start : stop : steps[place]]
            x = x.index_select(place, torch.tensor(chosen, dtype=torch.int64, device=x.device))
        return x

    parts = [None if each is None else sizes_of(each) for each in (begin, end, strides)]
    return told(call(cut, given, *parts, name=name or "StridedSlice"), given.dtype)


def pad(
    tensor: object,
    paddings: object,
    mode: str = "CONSTANT",
    constant_values: Any = 0,
    name: str | None = None,
) -> Tensor:
    """Return the tensor with elements added before and after each dimension.

    Args:
        tensor: The tensor.
        paddings: For each dimension how many before and how many after.
        mode: "CONSTANT", "REFLECT", which mirrors at the first and last element, or "SYMMETRIC",
            which mirrors before and after them.
        constant_values: What is added with "CONSTANT".
        name: Optional.
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
            reversed_pairs = [number for both in reversed(pairs) for number in both]
            return torch.nn.functional.pad(x, reversed_pairs, value=constant_values)
        for place, both in enumerate(pairs):
            order = np.pad(np.arange(x.shape[place]), both, mode=kind)
            x = x.index_select(place, torch.from_numpy(order).to(x.device))
        return x

    given, wanted = as_tensor(tensor), sizes_of(paddings)
    return told(call(widen, given, wanted, name=name or "Pad"), given.dtype)


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
    """Vectors as coordinates of a grid; "xy" has the first vary along the second dimension."""

    def cross(*given: Tensor) -> tuple[Tensor, ...]:
        return torch.meshgrid(*given, indexing=indexing)

    return [*call(cross, *(tensor(each) for each in args), name=name or "meshgrid")]


def boolean_mask(
    tensor: object, mask: object, name: str = "boolean_mask", axis: int | None = None
) -> Tensor:
    """Return the parts of a tensor where a mask holds, in one dimension in place of those of the
    mask.
    """

    def choose(x: Tensor, chosen: Tensor) -> Tensor:
        first = (axis or 0) % max(x.dim(), 1)
        sizes = tuple(x.shape[first : first + chosen.dim()])
        if not chosen.dim() or tuple(chosen.shape) != sizes:
            raise InvalidArgumentError(
                f"A mask of shape {tuple(chosen.shape)} does not fit a tensor of shape"
                f" {tuple(x.shape)} from axis {first} on."
            )
        return x[(builtins.slice(None),) * first + (chosen.bool(),)]

    given, chosen = as_tensor(tensor), as_tensor(mask)

    def static_shape() -> list[int | None] | None:
        if given.shape is UNKNOWN or chosen.shape is UNKNOWN:
            return None
        first = (axis or 0) % max(len(given.shape), 1)
        return [*given.shape[:first], None, *given.shape[first + len(chosen.shape) :]]

    return told(call(choose, given, chosen, name=name), given.dtype, static_shape)


def gather_nd(
    params: object, indices: object, name: str | None = None, batch_dims: int = 0
) -> Tensor:
    """Return the elements or parts of `params` whose places are the last dimension of `indices`."""

    def pick(x: Tensor, places: Tensor) -> Tensor:
        if batch_dims:
            return torch.stack([_pick_elements(*one) for one in zip(x, places, strict=True)])
        return _pick_elements(x, places)

    if batch_dims not in (0, 1):
        raise InvalidArgumentError("batch_dims of gather_nd must be 0 or 1.")
    return call(pick, tensor(params), tensor(indices), name=name or "GatherNd")


def _pick_elements(x: Tensor, places: Tensor) -> Tensor:
    return x[indices_of(places, x.shape)]


def indices_of(places: Any, shape: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the last dimension of `places` as indices of a tensor of this shape.

    Raises:
        InvalidArgumentError: On the CPU, if one is out of range.
    """
    if places.device.type == "cpu":  # elsewhere the check would wait for the device
        limits = torch.tensor(shape[: places.shape[-1]], dtype=torch.int64, device="cpu")
        wrong = ((places < 0) | (places >= limits)).any(-1).nonzero()
        if len(wrong):
            first = tuple(wrong[0].tolist())
            raise InvalidArgumentError(
                f"indices[{', '.join(map(str, first))}] = {places[first].tolist()} is not inside of"
                f" a tensor of shape {tuple(shape)}."
            )
    return tuple(places.long().unbind(-1))


def scatter_nd(indices: object, updates: object, shape: object, name: str | None = None) -> Tensor:
    """Zeros of a shape, to which updates are added at the places in the last dimension of
    `indices`.
    """
    places, values, wanted = tensor(indices), tensor(updates), sizes_of(shape)

    def put(places: object, values: Tensor, shape: Tensor) -> Tensor:
        zeros = values.new_zeros(sizes(shape))
        return zeros.index_put(indices_of(places, zeros.shape), values, accumulate=True)

    made = call(put, places, values, wanted, name=name or "ScatterNd")
    return told(made, values.dtype, lambda: known_sizes(wanted))


def sequence_mask(
    lengths: object, maxlen: object = None, dtype: object = torch.bool, name: str | None = None
) -> Tensor:
    """For each length so many ones and then zeros; `maxlen` of them, by default the largest."""

    def mark(given: Tensor, most: Tensor) -> Tensor:
        largest = int(given.max()) if most is None and given.numel() else 0
        count = max(largest, 0) if most is None else int(most)
        positions = torch.arange(count, dtype=torch.int64, device=given.device)
        return (positions < given.unsqueeze(-1)).to(kind)

    kind, given = as_dtype(dtype), tensor(lengths)
    most = None if maxlen is None else known_size(maxlen)
    made = call(mark, given, maxlen, name=name or "SequenceMask")
    return told(made, kind, lambda: None if given.shape is UNKNOWN else [*given.shape, most])


class Unique(NamedTuple):
    """The elements of a vector, each once in the order of its first place."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """`Unique`, and how often each element occurs."""

    y: Tensor
    idx: Tensor
    count: Tensor


def unique(x: object, out_idx: object = torch.int32, name: str | None = None) -> Unique:
    """Return the elements of a vector in the order of their first places, and for each element of
    the vector its place among them.
    """
    return Unique(*unique_with_counts(x, out_idx, name or "Unique")[:2])


def unique_with_counts(
    x: object, out_idx: object = torch.int32, name: str | None = None
) -> UniqueWithCounts:
    """Return the results of `unique`, and how often each element occurs."""
    kind, given = as_dtype(out_idx), tensor(x)

    def find(given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, places, counts = given.unique(return_inverse=True, return_counts=True)
        firsts = torch.full_like(values, len(given), dtype=torch.int64)
        order_of_rows = torch.arange(len(given), dtype=torch.int64, device=given.device)
        firsts.scatter_reduce_(0, places, order_of_rows, "amin")
        order = firsts.argsort()
        return values[order], order.argsort()[places].to(kind), counts[order].to(kind)

    if not isinstance(given, _graph.SymbolicTensor):
        return UniqueWithCounts(*find(given))
    count = None if given.shape is UNKNOWN else given.shape[0]
    outputs = [
        _graph.Output(given.dtype, (None,), ()),
        _graph.Output(kind, (count,), ()),
        _graph.Output(kind, (None,), ()),
    ]
    title = name or "UniqueWithCounts"
    found = _graph.operation(find, [given], title, kind="pure", outputs=outputs)
    return UniqueWithCounts(*found)


def dynamic_partition(
    data: object, partitions: object, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """For each number of a partition the parts of `data` that are in it."""
    given, places, title = tensor(data), tensor(partitions), name or "DynamicPartition"
    chosen = (call(torch.eq, places, i) for i in range(num_partitions))
    return [boolean_mask(given, mask, title) for mask in chosen]


def invert_permutation(x: object, name: str | None = None) -> Tensor:
    """For each number from 0 its place in `x`."""
    return call(lambda order: order.argsort().to(order.dtype), tensor(x),
                name=name or "InvertPermutation")  # fmt: skip


def random_crop(
    value: object, size: object, seed: int | None = None, name: str | None = None
) -> Tensor:
    """Return a part of the given size from a random place."""
    whole, wanted = shape_of(tensor(value)), tensor(size)
    share = uniform(shape_of(wanted), dtype=torch.float64, seed=seed)
    begin = cast(share * (whole - wanted + 1), torch.int32)
    return slice(value, begin, size, name or "random_crop")


as_tensor = tensor  # an argument of `pad` has this name
