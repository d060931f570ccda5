"""Places of shards in full tensors, beside torch's `chunk`."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
import torch
from torch import Size, Tensor, distributed

from thalweg._engines.random_bits import ElementRuns
from thalweg.distribute.sharding.matrix_owners import assign_owners
from thalweg.distribute.sharding.shard_index import (
    ShardedTensor,
    element_runs,
    is_ambiguous,
    shard_index,
)

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="torch without torch.distributed"
)


def chunks(tensor: Tensor, count: int, dim: int) -> list[Tensor]:
    """Return chunks of a tensor; the last ones may be empty."""
    parts = [*tensor.chunk(count, dim)]
    return parts + [tensor.narrow(dim, 0, 0)] * (count - len(parts))


def expected_shard(full: Tensor, sizes: Any, placements: Any, position: Any) -> Tensor:
    """Return a shard that torch's functions cut."""
    for count, placement, number in zip(sizes, placements, position, strict=True):
        if not placement.is_replicate():
            pieces = chunks(full, getattr(placement, "split_factor", 1), placement.dim)
            parts = [chunks(piece, count, placement.dim)[number] for piece in pieces]
            full = torch.cat(parts, placement.dim)
    return full


def meshes() -> list[Any]:
    """Return shapes with sizes and placements of meshes, even and uneven."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    draw, cases = random.Random(0), list[Any]()
    for _ in range(60):
        shape = Size(draw.randrange(1, 14) for _ in range(draw.randrange(1, 4)))
        sizes = tuple(draw.choice((1, 2, 3)) for _ in range(draw.randrange(1, 4)))
        choices = [Replicate(), *map(Shard, range(len(shape))), _StridedShard(0, split_factor=2)]
        cases.append((shape, sizes, tuple(draw.choice(choices) for _ in sizes)))
    return cases


def test_shards_are_those_of_torch() -> None:
    for shape, sizes, placements in meshes():
        full = torch.arange(shape.numel()).view(shape)
        for position in product(*map(range, sizes)):
            index = shard_index(shape, sizes, placements, position)
            shard = expected_shard(full, sizes, placements, position)
            assert index.shape == shard.shape
            assert torch.equal(index.read(full), shard)
            copy = torch.zeros_like(full)
            index.write(copy, shard)
            assert copy.sum() == shard.sum()
            runs = element_runs(index, shape)
            if isinstance(runs, ElementRuns):
                assert runs.positions().tolist() == shard.flatten().tolist()
                assert len(runs.firsts) > 1
            elif shard.numel():
                assert shard.flatten().tolist() == [*range(runs, runs + shard.numel())]
            cut, first = index.rows(1, 3)
            rows = torch.zeros(2, *shape[1:], dtype=torch.int64)
            if shape[0] >= 3:
                cut.write(rows, shard.narrow(0, first, cut.shape[0]))
                inside = shard[(shard // shape[1:].numel() >= 1) & (shard // shape[1:].numel() < 3)]
                assert rows.sum() == inside.sum()


def test_uneven_stripes_are_ambiguous() -> None:
    """Seven rows on (3, 2) ranks: FSDP2 leaves a rank without rows, DTensor another one."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    placements = _StridedShard(0, split_factor=2), Shard(0)
    for rows, sizes, is_uneven in ((7, (3, 2), True), (7, (2, 2), False), (12, (3, 2), False)):
        assert is_ambiguous(ShardedTensor(sizes, placements, Size((rows, 2)))) == is_uneven
    assert not is_ambiguous(ShardedTensor((3, 2), (Shard(0), Shard(1)), Size((7, 2))))


def test_matrices_of_one_rank_count_before_others_are_spread() -> None:
    assert assign_owners([1, 9, 1, 1], [[0, 1], [0], [0, 1], [1]]) == [1, 0, 1, 1]
