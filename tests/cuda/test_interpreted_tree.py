"""What a launch makes of leaves, in Triton's interpreter, beside the engines' common tree."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from thalweg._engines.cuda.codegen_measure import FAN
from thalweg._engines.cuda.tree_reduction import LaunchedTree
from thalweg._engines.reduction_order import Tree

COUNTS = [[0], [1], [7], [FAN], [FAN + 1], [3 * FAN + 5, 0, 2, 1, FAN, 6], [0, 0, 3], [5] * 20]


def leaves(count, shape, seed):
    """Numbers of all magnitudes, with zeros of both signs, infinities and NaN."""
    chosen = np.random.default_rng(seed)
    found = (
        chosen.standard_normal((count, *shape))
        * 10.0 ** chosen.integers(-320, 300, count)[(slice(None), *[None] * len(shape))]
    )
    odd = chosen.choice([0.0, -0.0, np.inf, -np.inf, np.nan], found.shape)
    return torch.from_numpy(np.where(chosen.random(found.shape) < 0.02, odd, found))


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3,)], ids=str)
def test_bits_of_a_tree(counts, shape):
    sizes = np.array(counts)
    given = leaves(sizes.sum(), shape, len(counts))
    found = LaunchedTree(sizes, torch.device("cpu")).combine(given)
    wanted = Tree(sizes, "cpu").combine(given)
    assert found.shape == wanted.shape == (len(counts), *shape)
    same = (found.view(torch.int64) == wanted.view(torch.int64)) | (found.isnan() & wanted.isnan())
    assert same.all()


def test_zeros_keep_their_signs():
    given = torch.tensor([-0.0, -0.0, 0.0, -0.0], dtype=torch.float64)
    found = LaunchedTree(np.array([2, 2]), torch.device("cpu")).combine(given)
    assert torch.equal(found.signbit(), torch.tensor([True, False]))
