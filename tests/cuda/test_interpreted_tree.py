"""Launched sums of leaves in Triton's interpreter, compared with the engines' tree."""

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
    rng = np.random.default_rng(seed)
    tree_leaves = (
        rng.standard_normal((count, *shape))
        * 10.0 ** rng.integers(-320, 300, count)[(slice(None), *[None] * len(shape))]
    )
    specials = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], tree_leaves.shape)
    return torch.from_numpy(np.where(rng.random(tree_leaves.shape) < 0.02, specials, tree_leaves))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3,)], ids=str)
def test_tree_reduction_equals_the_reference(counts, shape):
    sizes = np.array(counts)
    tree_leaves = leaves(sizes.sum(), shape, len(counts))
    got = LaunchedTree(sizes, torch.device("cpu")).combine(tree_leaves)
    expected = Tree(sizes, "cpu").combine(tree_leaves)
    assert got.shape == expected.shape == (len(counts), *shape)
    equal = (got.view(torch.int64) == expected.view(torch.int64)) | (got.isnan() & expected.isnan())
    assert equal.all()


def test_zeros_keep_their_signs():
    tree_leaves = torch.tensor([-0.0, -0.0, 0.0, -0.0], dtype=torch.float64)
    got = LaunchedTree(np.array([2, 2]), torch.device("cpu")).combine(tree_leaves)
    assert torch.equal(got.signbit(), torch.tensor([True, False]))
