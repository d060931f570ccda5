"""`_distributed_apply` sums gradients over the ranks of a process group."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import distributed

from thalweg import Variable
from thalweg.v1 import train
from workers import told_by_ranks

RANK = """
import json, sys
import torch
from torch import distributed
from thalweg import IndexedSlices, Variable
from thalweg.v1 import train

rank, path = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
w, table = Variable([1.0, 1.0], name="w"), Variable([[0.0], [0.0], [0.0]], name="table")
unused = Variable(1.0)
rows = IndexedSlices([[1.0], [1.0]], torch.tensor([rank, 2]))
step = Variable(0, name="step")
opt = train.GradientDescentOptimizer(0.1)
opt._distributed_apply(
    None, [(torch.tensor([1.0, 2.0]) * (rank + 1), w), (rows, table), (None, unused)], step
)
print(json.dumps([w.tolist(), table.flatten().tolist(), step.item()]))
distributed.destroy_process_group()
"""


@pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed")
def test_gradients_are_summed_over_ranks(tmp_path: Path) -> None:
    told = told_by_ranks(RANK, tmp_path)
    assert told[0] == told[1]
    w, table, step = told[0]
    assert w == pytest.approx([1 - 0.3, 1 - 0.6])
    assert table == pytest.approx([-0.1, -0.1, -0.2])
    assert step == 1


def test_alone_it_is_apply_gradients() -> None:
    w = Variable([1.0])
    train.GradientDescentOptimizer(0.5)._distributed_apply(None, [(torch.ones(1), w)])
    assert w.item() == 0.5
    with pytest.raises(ValueError, match="No variables provided"):
        train.GradientDescentOptimizer(0.5)._distributed_apply(None, [(None, w)])
