"""Positions of the shards of DTensors in full tensors, for any mesh and any `Shard` placements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from torch import Size, Tensor, cat, distributed

from thalweg._core.dtensor import slot_placements
from thalweg._engines.random_bits import ElementRuns

Run = tuple[int, int]  # the first index, and the one after the last
Mesh = Any  # a `DeviceMesh`, whose module is not imported


class ShardIndex(NamedTuple):
    """Indices of the elements of a full tensor that one shard holds.

    Attributes:
        runs: For each dimension the runs of consecutive indices, in the order of the shard.
    """

    runs: tuple[tuple[Run, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the shard."""
        return tuple(sum(stop - start for start, stop in runs) for runs in self.runs)

    def rows(self, first: int, end: int) -> tuple[ShardIndex, int]:
        """Return the part of this shard within a range of rows of the full tensor.

        Args:
            first: The first row, which is row 0 of the returned index.
            end: The row after the last.

        Returns:
            (index of the part, first row of the part within the shard).
        """
        runs, *other_runs = self.runs
        cut = [(max(start, first) - first, min(stop, end) - first) for start, stop in runs]
        offset = sum(max(0, min(stop, first) - start) for start, stop in runs)
        inner_runs = tuple((start, stop) for start, stop in cut if start < stop)
        return ShardIndex((inner_runs, *other_runs)), offset

    def read(self, full: Tensor) -> Tensor:
        """Return the elements of the shard; a view of `full` if each dimension has one run."""
        for dim, runs in enumerate(self.runs):
            pieces = [full.narrow(dim, start, stop - start) for start, stop in runs]
            full = pieces[0] if len(pieces) == 1 else cat([full.narrow(dim, 0, 0), *pieces], dim)
        return full

    def write(self, full: Tensor, shard: Tensor) -> None:
        """Copy `shard` into its place in `full`, in place."""
        for target, source in self._blocks(full, shard):
            target.copy_(source)

    def _blocks(self, full: Tensor, shard: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (view of `full`, view of `shard`) pairs of the same elements."""
        for block in product(*map(_with_offsets, self.runs)):
            target, source = full, shard
            for dim, (start, length, offset) in enumerate(block):
                target = target.narrow(dim, start, length)
                source = source.narrow(dim, offset, length)
            yield target, source


def _with_offsets(runs: tuple[Run, ...]) -> list[tuple[int, int, int]]:
    """Return (start, length, offset in the shard) of each run of one dimension."""
    lengths = [stop - start for start, stop in runs]
    starts = (start for start, _ in runs)
    return list(zip(starts, lengths, accumulate(lengths, initial=0)))


@lru_cache(1 << 16)
def shard_index(
    shape: Size, mesh_shape: tuple[int, ...], placements: tuple[Any, ...], position: tuple[int, ...]
) -> ShardIndex:
    """Return the indices of the elements of a full tensor that the rank at `position` holds.

    The first mesh dimension cuts the tensor first, as in torch.

    Args:
        shape: The shape of the full tensor.
        mesh_shape: The shape of the mesh.
        placements: A `Shard`, `_StridedShard` or `Replicate` for each mesh dimension.
        position: The coordinates of the rank in the mesh.
    """
    runs = [*full_index(shape).runs]
    for count, placement, coordinate in zip(mesh_shape, placements, position, strict=True):
        if placement.is_replicate():
            continue
        dim: int = placement.dim % len(shape)
        factor: int = getattr(placement, "split_factor", 1)
        # With `_StridedShard`, a rank has one chunk of each of `split_factor` pieces.
        pieces = [_chunk(runs[dim], factor, piece) for piece in range(factor)]
        runs[dim] = _merge_adjacent(
            run for piece in pieces for run in _chunk(piece, count, coordinate)
        )
    return ShardIndex(tuple(runs))


def _chunk(runs: Sequence[Run], count: int, index: int) -> tuple[Run, ...]:
    """Cut the indices in `runs` into `count` chunks as `torch.chunk` does; return chunk `index`."""
    size = -(-sum(stop - start for start, stop in runs) // count)
    first, chunk_end = index * size, (index + 1) * size
    chunk: list[Run] = []
    offset = 0
    for start, stop in runs:
        begin, end = max(start, start + first - offset), min(stop, start + chunk_end - offset)
        if begin < end:
            chunk.append((begin, end))
        offset += stop - start
    return tuple(chunk)


def _merge_adjacent(runs: Iterator[Run]) -> tuple[Run, ...]:
    """Return the runs, with adjacent ones merged."""
    joined_runs: list[Run] = []
    for start, stop in runs:
        if joined_runs and joined_runs[-1][1] == start:
            joined_runs[-1] = joined_runs[-1][0], stop
        else:
            joined_runs.append((start, stop))
    return tuple(joined_runs)


class ShardedTensor(NamedTuple):
    """Full tensor whose shards are on the ranks of a mesh.

    Attributes:
        mesh_shape: The shape of the mesh.
        placements: The placement of the tensor for each mesh dimension.
        shape: The shape of the full tensor.
    """

    mesh_shape: tuple[int, ...]
    placements: tuple[Any, ...]
    shape: Size

    def shard(self, position: tuple[int, ...]) -> ShardIndex:
        """Return the indices of the shard of the rank at `position`, a mesh coordinate."""
        return shard_index(self.shape, self.mesh_shape, self.placements, position)

    def slot(self, shape: tuple[int, ...]) -> ShardedTensor:
        """Return the placement of a slot of this full shape; see `_core.dtensor.filled_beside`."""
        return self._replace(
            shape=Size(shape), placements=tuple(slot_placements(self.placements, len(shape)))
        )


def sharded_tensor(var: Any) -> ShardedTensor:
    """Return the mesh shape, placements and full shape of a DTensor."""
    return ShardedTensor(tuple(var.device_mesh.shape), tuple(var.placements), var.shape)


def local_index(var: Any) -> ShardIndex:
    """Return the indices of this rank's shard of a DTensor."""
    return sharded_tensor(var).shard(tuple(var.device_mesh.get_coordinate()))


def full_index(shape: Sequence[int]) -> ShardIndex:
    """Return the index of a shard that is the full tensor of this shape."""
    return ShardIndex(tuple(((0, size),) if size else () for size in shape))


Team = dict[int, tuple[int, ...]]  # coordinates in the mesh, by the rank in the default group


@lru_cache(1 << 12)
def teams(mesh: Mesh, dims: tuple[int, ...]) -> tuple[Team, ...]:
    """Return groups of ranks that together hold one full copy of a tensor.

    Args:
        mesh: The device mesh.
        dims: The mesh dimensions along which the tensor is cut.

    Returns:
        For each group, {rank: mesh coordinates}.
    """
    ranks, sizes = mesh.mesh, mesh.shape
    copy_ranges = [range(1) if dim in dims else range(size) for dim, size in enumerate(sizes)]
    inner = [range(size) if dim in dims else range(1) for dim, size in enumerate(sizes)]
    copies: list[Team] = []
    for start in product(*copy_ranges):
        positions = [tuple(map(sum, zip(start, step, strict=True))) for step in product(*inner)]
        copies.append({int(ranks[position]): position for position in positions})
    return tuple(copies)


@lru_cache(1 << 14)
def element_runs(index: ShardIndex, shape: Size) -> int | ElementRuns:
    """Return the positions of a shard's elements in the flattened full tensor.

    If all elements are adjacent, return the position of the first element; 0 if there are none.
    Else return `ElementRuns`, the first positions and lengths of runs of adjacent elements.
    """
    if not prod(index.shape):
        return 0
    firsts, lengths = np.zeros(1, np.int64), np.ones(1, np.int64)
    stride = 1
    for runs, size in zip(reversed(index.runs), reversed(shape), strict=True):
        if len(firsts) == 1 and lengths[0] == stride:
            # Rows inside of this dimension are complete.
            firsts = np.array([start * stride for start, _ in runs], np.int64)
            lengths = np.array([(stop - start) * stride for start, stop in runs], np.int64)
        else:
            indices = np.concatenate([np.arange(start, stop) for start, stop in runs])
            firsts = (indices[:, None] * stride + firsts).reshape(-1)
            lengths = np.tile(lengths, len(indices))
        stride *= size
    return int(firsts[0]) if len(firsts) == 1 else ElementRuns(firsts, lengths)


def are_known(var: Any) -> bool:
    """Return True if placements alone determine the elements of a DTensor's local part."""
    tensor = sharded_tensor(var)
    if not all(map(is_supported, tensor.placements)) or is_ambiguous(tensor):
        return False
    return tuple(var.to_local().shape) == local_index(var).shape


def is_supported(placement: Any) -> bool:
    """Return True for `Shard`, `_StridedShard`, `Replicate`; not for pending sums, subclasses."""
    return placement.is_replicate() or type(placement).__name__ in ("Shard", "_StridedShard")


@lru_cache(1 << 12)
def is_ambiguous(tensor: ShardedTensor) -> bool:
    """Return True if FSDP2 and DTensor assign different elements of a tensor to ranks.

    With a `_StridedShard`, FSDP2 and DTensor cut in different orders. The shards then differ if
    chunks have unequal lengths.
    """
    dims = range(len(tensor.placements))
    factors = [getattr(placement, "split_factor", 1) for placement in tensor.placements]
    if max(factors, default=1) == 1:
        return False
    # The order of FSDP2: sharding by `_StridedShard`, with a factor above 1, comes last.
    order = sorted(dims, key=lambda dim: factors[dim] > 1)
    for position in product(*map(range, tensor.mesh_shape)):
        runs = [*full_index(tensor.shape).runs]
        for dim in order:
            placement = tensor.placements[dim]
            if not placement.is_replicate():
                cut: int = placement.dim
                runs[cut] = _chunk(runs[cut], tensor.mesh_shape[dim], position[dim])
        if tensor.shard(position).runs != tuple(runs):
            return True
    return False


def connected_ranks(cuts: Sequence[tuple[Mesh, tuple[int, ...]]]) -> list[int]:
    """Return the ranks connected to this rank: a tensor cut over two ranks connects both.

    Args:
        cuts: (mesh, mesh dimensions along which a tensor is cut) pairs of all tensors.
    """
    all_teams = [set(team) for mesh, dims in cuts for team in teams(mesh, dims)]
    connected, size = {distributed.get_rank()}, 0
    # A tensor of another rank may connect this rank to further ranks.
    while len(connected) > size:
        size = len(connected)
        connected = connected.union(*(team for team in all_teams if team & connected))
    return sorted(connected)
