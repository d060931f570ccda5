"""`_distributed_apply` sums gradients over the ranks of a process group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from parallel_workers import run_ranks
from thalweg import Variable
from thalweg.v1 import train

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
    outcomes = run_ranks(RANK, tmp_path)
    assert outcomes[0] == outcomes[1]
    w, table, step = outcomes[0]
    assert w == pytest.approx([1 - 0.3, 1 - 0.6])
    assert table == pytest.approx([-0.1, -0.1, -0.2])
    assert step == 1


MASKS = """
import json, sys
from datetime import timedelta
import torch
from torch import distributed
import thalweg
from thalweg import IndexedSlices, Variable
from thalweg.openseq2seq.optimizers.optimizers import optimize_loss, reduce_gradients
from thalweg.v1 import train
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.all_reduce_gradients import sum_pairs

rank, path = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2,
                               timeout=timedelta(seconds=60))
told = {}
summed_over_replicas = lambda pairs: sum_pairs(pairs, Ranks())

def only_on(owner, grad):
    return grad if rank == owner else None

def rows(count, index=torch.int64, dtype=torch.float32):
    values = torch.full((count, 2), rank + 1.0, dtype=dtype)
    return IndexedSlices(values, torch.arange(count, dtype=index))

def tell(name, grad, dtype=torch.float32, reduce=summed_over_replicas):
    var = Variable(torch.zeros(3, 2, dtype=dtype), name=name)
    try:
        ((total, _),) = reduce([(grad, var)])
    except thalweg.ReplicaMismatchError as error:
        told[name] = str(error)
        return
    if isinstance(total, IndexedSlices):
        kinds = [str(total.values.dtype), str(total.indices.dtype)]
        told[name] = [total.values.tolist(), total.indices.tolist(), *kinds]
    else:
        told[name] = total if total is None else total.tolist()

ones = torch.ones(3, 2)
told["masks"] = [
    total if total is None else total.flatten().tolist()
    for total, _ in summed_over_replicas(
        [(grad, Variable(ones)) for grad in (only_on(0, 2 * ones), only_on(1, 3 * ones), None)]
    )
]
tell("nowhere", None)
tell("strided", ones.t().contiguous().t() * (rank + 1))
tell("counts", rows(1 + rank))
tell("no_rows", rows(2 * rank))
tell("no_rows_at_all", rows(0))
tell("sparse_on_one", only_on(1, rows(2, torch.int32)))
tell("int32", rows(1, torch.int32))
tell("both_widths", rows(1, torch.int64 if rank else torch.int32))
tell("bfloat16", rows(1 + rank, dtype=torch.bfloat16), torch.bfloat16)
tell("float16_on_one", only_on(0, ones.half()), torch.float16)
tell("kinds", rows(1) if rank else ones)
tell("dtypes", ones.double() if rank else ones)

mean = lambda pairs: reduce_gradients(pairs, True)
tell("mean_on_one", only_on(0, ones), reduce=mean)
tell("mean_of_rows", only_on(1, rows(1)), reduce=mean)
tell("mean_of_kinds", rows(1) if rank else ones, reduce=mean)

w, other = Variable([1.0], name="w"), Variable([1.0], name="other")
train.GradientDescentOptimizer(1.0)._distributed_apply(
    None, [(only_on(0, torch.ones(1)), w), (only_on(1, torch.ones(1)), other)]
)
told["applied"] = [w.item(), other.item()]
try:
    train.GradientDescentOptimizer(1.0)._distributed_apply(None, [(None, w)])
except ValueError as error:
    told["none"] = str(error)

w, other = Variable([1.0], name="w"), Variable([1.0], name="other")
step = optimize_loss(lambda: (other if rank else w).sum(), "SGD", {}, lambda s: 1.0, [w, other],
                     clip_gradients=100.0, summaries=[], on_horovod=True)
step()
told["trained"] = [w.item(), other.item()]

with thalweg.v1.Graph().as_default(), thalweg.v1.Session() as session:
    v1 = thalweg.v1
    w, other = v1.Variable([1.0], name="w"), v1.Variable([1.0], name="other")
    loss = (other if rank else w).sum()
    step = optimize_loss(loss, "SGD", {}, lambda s: 1.0, [w, other], summaries=[], on_horovod=True)
    grads = train.GradientDescentOptimizer(1.0).compute_gradients(loss, [w, other])
    means = [grad for grad, _ in reduce_gradients(grads, True)]
    session.run(v1.global_variables_initializer())
    told["graph_means"] = [grad.tolist() for grad in session.run(means)]
    session.run(step)
    told["graph_trained"] = [each.tolist() for each in session.run([w, other])]
print(json.dumps(told))
distributed.destroy_process_group()
"""
KINDS = "is dense on one rank and sparse on another."
ROWS = {
    "counts": ([[1, 1], [2, 2], [2, 2]], [0, 0, 1], "float32", "int64"),
    "no_rows": ([[2, 2], [2, 2]], [0, 1], "float32", "int64"),
    "no_rows_at_all": ([], [], "float32", "int64"),
    "sparse_on_one": ([[2, 2], [2, 2]], [0, 1], "float32", "int32"),
    "int32": ([[1, 1], [2, 2]], [0, 0], "float32", "int32"),
    "both_widths": ([[1, 1], [2, 2]], [0, 0], "float32", "int64"),
    "bfloat16": ([[1, 1], [2, 2], [2, 2]], [0, 0, 1], "bfloat16", "int64"),
    "mean_of_rows": ([[1, 1]], [0], "float32", "int64"),
}
VALUES: dict[str, Any] = {
    "masks": [[2] * 6, [3] * 6, None],
    "nowhere": None,
    "strided": [[3, 3]] * 3,
    "float16_on_one": [[1, 1]] * 3,
    "mean_on_one": [[0.5, 0.5]] * 3,
    "applied": [0, 0],
    "none": "No gradients provided for any variable: ['w:0'].",
    "trained": [0.5, 0.5],
    "graph_means": [[0.5], [0.5]],
    "graph_trained": [[0.5], [0.5]],
}
ERRORS = {
    "kinds": f"The gradient of 'kinds:0' {KINDS}",
    "dtypes": "The gradient of 'dtypes:0' is float32 on one rank and float64 on another.",
    "mean_of_kinds": f"The gradient of 'mean_of_kinds:0' {KINDS}",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    if not distributed.is_available():
        pytest.skip("torch without torch.distributed")
    return run_ranks(MASKS, tmp_path_factory.mktemp("ranks"))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", VALUES)
def test_missing_gradient_on_one_rank_counts_as_zero(
    outcomes: list[dict[str, Any]], name: str
) -> None:
    assert [outcome[name] for outcome in outcomes] == [VALUES[name]] * 2


@pytest.mark.parametrize("name", ROWS)
def test_sparse_rows_of_all_ranks_are_gathered(outcomes: list[dict[str, Any]], name: str) -> None:
    values, indices, dtype, index = ROWS[name]
    expected = [values, indices, f"torch.{dtype}", f"torch.{index}"]
    assert [outcome[name] for outcome in outcomes] == [expected] * 2


@pytest.mark.parametrize("name", ERRORS)
def test_differences_raise_on_every_rank(outcomes: list[dict[str, Any]], name: str) -> None:
    for outcome in outcomes:
        assert outcome[name].startswith(ERRORS[name])


def test_distributed_apply_without_ranks_applies_gradients() -> None:
    w = Variable([1.0])
    train.GradientDescentOptimizer(0.5)._distributed_apply(None, [(torch.ones(1), w)])
    assert w.item() == 0.5
    with pytest.raises(ValueError, match="No gradients provided for any"):
        train.GradientDescentOptimizer(0.5)._distributed_apply(None, [(None, w)])


REPLICAS = """
import json, sys
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from thalweg import GradientTape
from thalweg.keras import optimizers
from thalweg import v1
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.v1 import train

rank, path = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
torch.manual_seed(0)
batch = torch.randn(2, 8, 3)

def steps(kind, module, examples, views=False):
    parameters = list(module.parameters())
    model = module
    if len(examples) == 1:
        model = DistributedDataParallel(module, gradient_as_bucket_view=views)
    loss = lambda: sum(model(batch[each]).square().mean() for each in examples) / len(examples)
    keras, v1 = optimizers.SGD(0.1), train.GradientDescentOptimizer(0.1)
    step = optimize_loss(loss, "SGD", {}, lambda _: 0.1, parameters)
    for _ in range(3):
        if kind == "keras":
            keras.minimize(loss, parameters)
        elif kind == "keras part":
            keras.minimize(loss, parameters[:1])
        elif kind == "tape":
            with GradientTape(persistent=True) as tape:
                value = loss()
            keras.apply_gradients(zip(tape.gradient(value, parameters), parameters))
        elif kind == "v1":
            v1.minimize(loss)
        elif kind == "one by one":
            v1.minimize(loss, var_list=parameters, gate_gradients=v1.GATE_NONE)
        elif kind == "get_gradients":
            keras.apply_gradients(zip(keras.get_gradients(loss(), parameters), parameters))
        else:
            step()
    assert all(each.grad is None for each in parameters)
    return torch.cat([each.detach().flatten() for each in parameters])

def module():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))

kinds = "keras", "keras part", "tape", "v1", "one by one", "get_gradients", "optimize_loss"
told = {}
for kind in kinds:
    for views in (False, True):
        replica, alone = steps(kind, module(), [rank], views), steps(kind, module(), [0, 1])
        told[f"{kind} {views}"] = [replica.tolist(), float((replica - alone).abs().max())]
try:
    with v1.Graph().as_default():
        DistributedDataParallel(module())(v1.placeholder("float32", [8, 3]))
except NotImplementedError as error:
    told["graph"] = [str(error), 0.0]
print(json.dumps(told))
distributed.destroy_process_group()
"""


@pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed")
def test_module_replicas_equal_one_process_with_all_examples(tmp_path: Path) -> None:
    first, second = run_ranks(REPLICAS, tmp_path)
    assert {kind: replica for kind, (replica, _) in first.items()} == {
        kind: replica for kind, (replica, _) in second.items()
    }
    assert max(gap for _, gap in first.values()) < 1e-6
    assert first["graph"][0].startswith("DistributedDataParallel averages gradients in hooks")
