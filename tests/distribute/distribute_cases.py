"""Cases that run on every rank of a process group: each returns its report, as JSON.

Run by `test_distribute.py` and `test_sharding.py` on each rank: rank, a file to meet, the number of
ranks, and names of cases if not all of them are wanted.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, distributed
from torch.utils.checkpoint import checkpoint as computed_again

import agreement_cases
import resumed
import sharding_cases
import thalweg
import thalweg.tf as tf
from rank_process import joined_group
from sharding_cases import refused
from thalweg import IndexedSlices, Variable, checkpoint, diagnostics, optim, v1
from thalweg._graph import Graph, Session
from thalweg.distribute import (
    ReduceOp,
    Strategy,
    current_replica,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
    record_loss_reduction,
    scale_loss_for_estimator,
)
from thalweg.distribute.buckets import Bucket
from thalweg.distribute.process_group import Ranks
from thalweg.keras.optimizers import SGD, Adam, schedules
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.v1 import train

CASES: dict[str, Callable[[Strategy], Any]] = {}


def case(function: Callable[..., Any]) -> Callable[[Strategy], Any]:
    """Register a case under the name of its function."""
    CASES[function.__name__] = function
    return function


def ones(strategy: Strategy, size: int = 2) -> Tensor:
    """Return a gradient of rank + 1: its sum is 3 on two ranks, 6 on three."""
    return torch.full((size,), strategy.ranks.rank + 1.0)


def variable(name: str = "w") -> Variable:
    return Variable([1.0, 2.0], name=name)


FACES: dict[str, Callable[[], Any]] = {
    "keras": lambda: SGD(0.5),
    "v1": lambda: train.GradientDescentOptimizer(0.5),
}


@case
def sums_in_each_face(s: Strategy) -> Any:
    report = {}
    for name, make in FACES.items():
        w, opt = variable(), make()
        for _ in range(3):  # the second step is planned, the third repeats it
            s.run(opt.apply_gradients, ([(ones(s), w)],))
        report[name] = w.tolist()
    return report


@case
def sums_that_are_told_of(s: Strategy) -> Any:
    report, sharing = {}, Strategy(shard_slots=True)
    for name, make in {"keras": Adam, "v1": train.AdamOptimizer}.items():
        w, opt = variable(), make(0.5)
        recorder = diagnostics.attach(opt, every=2)
        steps = partial(opt.apply_gradients, [(ones(s), w)])
        for _ in range(4):
            s.run(steps)
        row, message = recorder.table["w:0"], refused(partial(sharing.run, steps))
        s.run(steps)
        diagnostics.detach(opt)
        sharing.run(steps)
        report[name] = [row.step, row.gradient_max, message, round(w.tolist()[0], 2)]
    return report


@case
def sums_of_a_loss(s: Strategy) -> Any:
    w, opt = variable(), SGD(0.5)
    s.run(lambda: opt.minimize(lambda: (w * ones(s)).sum(), [w]))
    v1_var, v1_opt = variable(), train.GradientDescentOptimizer(0.5)
    s.run(lambda: v1_opt.minimize(lambda: (v1_var * ones(s)).sum(), var_list=[v1_var]))
    gated = variable()
    s.run(
        lambda: v1_opt.minimize(
            lambda: (gated * ones(s)).sum(), var_list=[gated], gate_gradients=v1_opt.GATE_NONE
        )
    )
    return [var.tolist() for var in (w, v1_var, gated)]


@case
def sums_of_rows(s: Strategy) -> Any:
    report = {}
    for name, make in FACES.items():
        table = Variable([[0.0], [0.0], [0.0]], name="table")
        rows = IndexedSlices([[1.0], [1.0]], torch.tensor([s.ranks.rank, 2]))
        s.run(make().apply_gradients, ([(rows, table)],))
        report[name] = table.flatten().tolist()
    return report


@case
def gradients_as_they_are(s: Strategy) -> Any:
    w, opt = variable(), SGD(0.5)
    s.run(opt.apply_gradients, ([(torch.ones(2), w)], None, False))
    v1_var, v1_opt = variable(), train.GradientDescentOptimizer(0.5)
    s.run(v1_opt.apply_gradients, ([(torch.ones(2), v1_var)], None, None, True))
    with s.scope():  # skipping bypasses the refusal, too
        v1_opt.apply_gradients([(torch.ones(2), v1_var)], skip_gradients_aggregation=True)
    return [w.tolist(), v1_var.tolist()]


@case
def own_gradients_move_own_copies(s: Strategy) -> Any:
    w = variable()
    s.run(SGD(0.5).apply_gradients, ([(ones(s), w)], None, False))
    return [float(replica[0]) for replica in s.ranks.all_gather(w.detach())]


@case
def across_replicas(s: Strategy) -> Any:
    report = {}
    with s.scope():
        report["where"] = [has_strategy(), in_cross_replica_context(), get_replica_context()]
        report["own"] = get_strategy() is s
        for name, make in FACES.items():
            report[name] = refused(
                lambda make=make: make().apply_gradients([(ones(s), variable())])
            )
        report["nested"] = refused(lambda: Strategy().run(lambda: None))
    report["after"] = [has_strategy(), in_cross_replica_context()]
    report["within"] = s.run(lambda: [has_strategy(), in_cross_replica_context()])
    return report


@case
def merge_call(s: Strategy) -> Any:
    def across(strategy: Strategy, number: int, increment: int = 0) -> list[Any]:
        return [strategy is s, in_cross_replica_context(), number + increment]

    return s.run(lambda: current_replica().merge_call(across, (1,), {"increment": 2}))


@case
def nests(s: Strategy) -> Any:
    rank = s.ranks.rank
    context = current_replica
    rows = IndexedSlices(torch.ones(1, 2), torch.tensor([rank]))
    totals = s.run(
        lambda: context().all_reduce("sum", {"a": ones(s), "b": [None, rank + 1.0], "c": rows})
    )
    return {
        "a": totals["a"].tolist(),
        "none": totals["b"][0],
        "number": float(totals["b"][1]),
        "rows": [totals["c"].values.tolist(), totals["c"].indices.tolist()],
        "mean": s.run(lambda: context().all_reduce(ReduceOp.MEAN, [ones(s)]))[0].tolist(),
        "none on one": refused(lambda: s.reduce("sum", [None if rank else ones(s)])),
        "complex": str(s.reduce("sum", torch.complex(ones(s), ones(s)))[0].item()),
        "unknown": refused(lambda: s.reduce("max", ones(s))),
    }


@case
def reductions(s: Strategy) -> Any:
    uneven = torch.arange(2.0 + s.ranks.rank)
    return [
        s.reduce("SUM", ones(s)).tolist(),
        s.reduce("mean", uneven, axis=0).item(),
        s.reduce("sum", uneven, axis=0).item(),
        s.extended.reduce_to("mean", ones(s)).tolist(),
        [
            got.tolist()
            for got in s.extended.batch_reduce_to(ReduceOp.SUM, [(ones(s), None), (ones(s), None)])
        ],
    ]


@case
def reductions_of_whole_numbers(s: Strategy) -> Any:
    """Reduce a nest with None over replicas and an axis, at once and in a graph."""
    value = {"a": torch.tensor([[1, 2 + s.ranks.rank]]), "none": None}
    means = [s.reduce("mean", value, axis) for axis in (None, 1)]
    with Graph().as_default(), Session() as session:
        x = v1.placeholder(torch.int64, [None, 2])
        nest = {**value, "a": x}
        nodes = [s.reduce("mean", nest, axis) for axis in (None, 1)]
        node = s.reduce("sum", 1.5)
        assert node.dtype == torch.float32
        means += [{**mean, "a": session.run(mean["a"], {x: value["a"].numpy()})} for mean in nodes]
        dtypes = [str(mean["a"].dtype) for mean in nodes]
        total = float(session.run(node))
    return [[[mean["a"].tolist(), mean["none"]] for mean in means], dtypes, total]


@case
def missing_gradients_are_said(s: Strategy) -> Any:
    """Warn of variables without a gradient on any rank; graphs and shared-out slots included."""
    report = []
    for sharing in (s, Strategy(shard_slots=True)):
        first_var, second_var, nowhere = variable("one"), variable("other"), variable("nowhere")
        first, second = (ones(s), None) if s.ranks.rank == 0 else (None, ones(s))
        pairs = [(first, first_var), (second, second_var), (None, nowhere)]
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always")
            sharing.run(SGD(0.5).apply_gradients, (pairs,))
        report.append([str(record.message) for record in records])
    with Graph().as_default(), warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        var, nowhere = v1.Variable([1.0], name="made"), v1.Variable([1.0], name="nowhere")
        s.run(SGD(0.5).apply_gradients, ([(v1.constant([1.0]), var), (None, nowhere)],))
    return [*report, [str(record.message) for record in records]]


@case
def what_ordered_sums_depend_on(s: Strategy) -> Any:
    """Use other numbers of threads or of micro-batches on one rank."""
    rank, report = s.ranks.rank, []
    for threads, batches in ((1 + rank, 8), (1, 8 * (1 + rank)), (1, 8)):
        if s.ranks.size & (s.ranks.size - 1):
            return report
        strategy, opt, w = Strategy(reduction="ordered"), SGD(0.5), variable()
        torch.set_num_threads(threads)
        pairs = strategy.gradients(lambda number, w=w: w.sum() / 8, [w], batches)
        report.append(refused(lambda: strategy.run(opt.apply_gradients, (pairs,))))
        torch.set_num_threads(1)
    return report


@case
def none_counts_as_zeros(s: Strategy) -> Any:
    rank, report = s.ranks.rank, {}
    for name, make in FACES.items():
        w1, w2, nowhere = variable("one"), variable("other"), variable("nowhere")
        first, second = (ones(s), None) if rank == 0 else (None, ones(s))
        opt = make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            s.run(opt.apply_gradients, ([(first, w1), (second, w2), (None, nowhere)],))
            report[name] = [var.tolist() for var in (w1, w2, nowhere)]
            report[f"{name} none"] = refused(
                lambda opt=opt, first_var=w1: s.run(opt.apply_gradients, ([(None, first_var)],))
            ).split(".")[0]
    return report


@case
def none_in_a_loss(s: Strategy) -> Any:
    report = []
    for minimize in (SGD(0.5).minimize, train.GradientDescentOptimizer(0.5).minimize):
        first_var, second_var = variable("one"), variable("other")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            used = second_var if s.ranks.rank else first_var
            s.run(
                lambda used=used, m=minimize, variables=[first_var, second_var]: m(
                    lambda: used.sum(), var_list=variables
                )
            )
        report.append([first_var.tolist(), second_var.tolist()])
    return report


@case
def hooks_of_keras(s: Strategy) -> Any:
    events: list[str] = []

    class Hooked(SGD):
        def _transform_unaggregated_gradients(self, grads_and_vars):
            events.append("own")
            return [(grad * 2, var) for grad, var in grads_and_vars]

        def _aggregate_gradients(self, grads_and_vars):
            events.append("sum")
            return super()._aggregate_gradients(grads_and_vars)

    w, opt = variable(), Hooked(0.5)
    for _ in range(2):
        s.run(opt.apply_gradients, ([(ones(s), w)],))
    aggregated, calls = variable(), []
    optimizer = SGD(0.5, gradient_aggregator=lambda pairs: calls.append(len(pairs)) or pairs)
    s.run(optimizer.apply_gradients, ([(torch.ones(2), aggregated)],))
    return [w.tolist(), events, aggregated.tolist(), calls]


@case
def clipping_follows_the_sum(s: Strategy) -> Any:
    w = Variable([1.0, 1.0], name="w")
    s.run(SGD(1.0, global_clipnorm=1.0).apply_gradients, ([(3 * ones(s, 1).repeat(2), w)],))
    var = Variable([1.0, 1.0], name="w")
    s.run(SGD(1.0, clipvalue=4.0).apply_gradients, ([(3 * ones(s), var)],))
    return [w.tolist(), var.tolist()]


@case
def distributed_apply(s: Strategy) -> Any:
    report = []
    for distribution in (s, None, distributed.group.WORLD):
        w, step = variable(), Variable(0, name="step")
        opt = train.GradientDescentOptimizer(0.5)
        opt._distributed_apply(distribution, [(ones(s), w)], step)
        report.append([w.tolist(), step.item()])
    return report


@case
def extended(s: Strategy) -> Any:
    w, step = variable(), Variable(0, name="step")
    ext = s.extended
    with ext.colocate_vars_with(w):
        second_var = Variable([0.0])
    return [
        ext.update(
            w, lambda var, delta: [in_cross_replica_context(), (var + delta).tolist()], (1.0,)
        ),
        ext.update(step, lambda var: var.assign_add(1).item(), group=False),
        ext.update_non_slot(ext.non_slot_devices([w]), lambda a, b=0: a + b, (1,), {"b": 2}),
        list(ext.non_slot_devices([w, second_var])),
    ]


@case
def assignments_are_aggregated(s: Strategy) -> Any:
    rank, report = s.ranks.rank, {}
    opt = SGD(0.5)

    class Counting(SGD):
        def _resource_apply_dense(self, grad, var, apply_state=None):
            self.total.assign_add(grad.sum())  # hooks get what is the same on all replicas
            return super()._resource_apply_dense(grad, var, apply_state)

    for kind in thalweg.VariableAggregation:
        for sync in (thalweg.VariableSynchronization.AUTO, thalweg.VariableSynchronization.ON_READ):
            w = opt.add_weight("w", (2,), "float32", "ones", False, sync, kind)
            s.run(w.assign, ([rank + 1.0, 4.0],))
            s.run(w.assign_add, ([rank + 1.0, 0.0],))
            s.run(w.assign_sub, ([1.0, 1.0],))
            with s.scope():
                w.assign_add([10.0, 0.0])  # as it is
            replicas = [replica.tolist() for replica in s.ranks.all_gather(w.detach())]
            report[f"{kind.name} {sync.name}"] = replicas
    counting, u = Counting(0.5), variable()
    counting.total = counting.add_weight("total", (), aggregation=thalweg.VariableAggregation.SUM)
    s.run(counting.apply_gradients, ([(ones(s), u)],))
    report["hook"] = [counting.total.item(), u.tolist()]
    mean = thalweg.VariableAggregation.MEAN
    counter = opt.add_weight("n", (), "int64", trainable=False, aggregation=mean)
    report["integers"] = refused(lambda: s.run(counter.assign, (rank,)))
    named_var = tf.Variable([0.0], aggregation=tf.VariableAggregation.SUM, name="named")
    s.run(named_var.assign, ([rank + 1.0],))
    report["tf"] = [named_var.tolist(), named_var.name]
    return report


@case
def assignments_in_graphs(s: Strategy) -> Any:
    rank, report = s.ranks.rank, {}
    modes, sync = v1.VariableAggregation, v1.VariableSynchronization
    with Graph().as_default():
        x = v1.placeholder(torch.float32)
        variables: dict[str, Any] = {
            "add_weight": SGD(0.5).add_weight("a", (2,), aggregation=modes.MEAN),
            "tf": tf.Variable([0.0, 0.0], aggregation=modes.SUM),
            "v1": v1.Variable([0.0, 0.0], aggregation=modes.ONLY_FIRST_REPLICA),
            "get_variable": v1.get_variable("g", initializer=[0.0, 0.0], aggregation=modes.MEAN),
            "compat": tf.compat.v1.Variable([0.0, 0.0], aggregation=modes.SUM),
            "on read": v1.Variable([0.0, 0.0], aggregation=modes.SUM, synchronization=sync.ON_READ),
        }
        sets = {name: s.run(w.assign, (x,)) for name, w in variables.items()}
        adds = {name: s.run(v1.assign_add, (w, [rank + 1.0, 0.0])) for name, w in variables.items()}
        with s.scope():
            unaggregated = variables["tf"].assign_sub([1.0, 1.0])
        counter = v1.Variable(0, aggregation=modes.MEAN)
        mean = s.run(counter.assign, (rank,))
        with Session() as session:
            session.run(v1.global_variables_initializer())
            feeds = {x: [rank + 1.0, 4.0]}
            report["new"] = {k: array.tolist() for k, array in session.run(sets, feeds).items()}
            session.run([*adds.values(), unaggregated])
            bad = {x: [1.0, 2.0, 3.0][rank:]}
            report["refused"] = refused(lambda: session.run(sets["tf"], bad)).splitlines()[0]
            report["integers"] = refused(lambda: session.run(mean)).splitlines()[0]
            report["values"] = {k: array.tolist() for k, array in session.run(variables).items()}
    return report


@case
def refused_assignments(s: Strategy) -> Any:
    """Assign a value that does not fit on the last rank: no rank waits, and no variable changes."""
    rank, modes = s.ranks.rank, thalweg.VariableAggregation
    w, u = (tf.Variable([0.0, 0.0], aggregation=modes.MEAN, name=name) for name in "wu")
    first = tf.Variable([0.0, 0.0], aggregation=modes.ONLY_FIRST_REPLICA)
    is_last_rank, report = rank == s.ranks.size - 1, []
    for value in ([1.0] if is_last_rank else [1.0, 2.0], "no" if is_last_rank else [1.0, 2.0]):
        for var in (w, first):
            report.append(refused(lambda var=var, value=value: s.run(var.assign, (value,))))
    report.append(refused(lambda: s.run((u if is_last_rank else w).assign, ([1.0, 2.0],))))
    s.run(w.assign_add, ([rank + 1.0, 3.0],))
    return [report, w.tolist(), u.tolist(), first.tolist()]


@case
def optimizers_of_torchs_kind(s: Strategy) -> Any:
    """Raise in a strategy, where steps of these optimizers sum nothing, and step outside of it."""
    w = torch.nn.Parameter(torch.zeros(2))
    u = torch.nn.Parameter(torch.zeros(2))
    optimizer, early = optim.SGD([w], 0.5), optim.SGD([u], 0.5, in_backward=True)
    calls: list[int] = []
    w.grad = ones(s)
    errors = [
        refused(lambda: s.run(optimizer.step, (lambda: calls.append(1),))),
        refused(lambda: s.run(u.sum().backward)),
    ]
    with s.scope():
        errors.append(refused(early.step))
    initial = [w.tolist(), u.tolist(), calls]
    optimizer.step()
    Strategy.alone().run(optimizer.step)
    return [errors, initial, torch.equal(w.detach(), -ones(s))]


@case
def examples_of_the_documents(s: Strategy) -> Any:
    """Run the examples of `tf.keras.optimizers.Optimizer` and `tf.train.Optimizer` on each rank."""
    mirrored, opt, report = tf.distribute.MirroredStrategy(), tf.keras.optimizers.SGD(0.1), {}
    batch = torch.arange(1.0, 13.0).view(-1, 2)[s.ranks.rank :: s.ranks.size]
    global_batch = 6.0

    def loss(w: Any) -> Tensor:
        return (batch @ w).square().sum() / global_batch  # tf.math.reduce_sum over examples

    by_hand, clipped, by_minimize = variable("by_hand"), variable("clipped"), variable("summed")

    def replica() -> None:
        for w, bound in ((by_hand, 1e9), (clipped, 1.0)):
            with tf.GradientTape() as tape:
                value = loss(w)
            grads = tape.gradient(value, [w])
            context: Any = tf.distribute.get_replica_context()
            grads = context.all_reduce("sum", grads)
            grads = [grad.clamp(-bound, bound) for grad in grads]
            opt.apply_gradients(zip(grads, [w]), experimental_aggregate_gradients=False)
        opt.minimize(lambda: loss(by_minimize), [by_minimize])

    mirrored.run(replica)
    report["aggregated"] = [by_hand.tolist(), clipped.tolist(), by_minimize.tolist()]
    calls = []
    with v1.Graph().as_default(), s.scope():
        w = v1.Variable([1.0], name="w")
        step = v1.train.get_or_create_global_step()

        def update(strategy: Strategy, grad: Any) -> Any:  # as `_distributed_apply` is written
            ext = strategy.extended
            (grad,) = ext.batch_reduce_to(ReduceOp.SUM, [(grad, w)])
            with ext.colocate_vars_with(w):
                ops = ext.update(w, lambda var: var.assign_sub(grad), group=False)
            finish = ext.update_non_slot(
                ext.non_slot_devices([w]), lambda moves: strategy.group(moves), (ops,), group=False
            )
            calls.append(in_cross_replica_context())
            with v1.control_dependencies(finish):
                return strategy.group(ext.update(step, v1.assign_add, (1,)), name="all")

        op = s.run(lambda: current_replica().merge_call(update, (v1.constant([1.0]),)))
        with Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(op)
            report["written"] = [op.name, session.run(w).tolist(), int(session.run(step))]
    report["across"] = calls
    report["eager group"] = s.group([None])
    return report


@case
def losses_without_a_list_of_variables(s: Strategy) -> Any:
    rank, report = s.ranks.rank, {}
    for gate in (0, 1, 2):
        w, second_var, opt = variable(), variable("other"), train.GradientDescentOptimizer(0.5)

        def told(loss: Any, opt: Any = opt, gate: int = gate) -> str:
            words = refused(lambda: s.run(opt.minimize, (loss,), {"gate_gradients": gate}))
            return words.split(".")[0]

        def broken(w: Any = w) -> Tensor:
            if rank:
                raise KeyError("no such batch")
            return w.sum()

        report[gate] = [
            told(lambda w=w: (w * ones(s)).sum()),
            told(broken),
            told(lambda w=w, second_var=second_var: (w + second_var if rank else w).sum()),
            told(lambda w=w: torch.zeros(()) if rank else w.sum()),
            told(lambda w=w: (w * ones(s)).sum()),
            [w.tolist(), second_var.tolist()],
        ]
    return report


@case
def graphs(s: Strategy) -> Any:
    rank, report = s.ranks.rank, {}
    with Graph().as_default() as graph, s.scope():
        w, u = v1.Variable([1.0, 2.0], name="w"), v1.Variable([1.0, 2.0], name="u")
        k, x = v1.Variable([1.0, 2.0], name="k"), v1.placeholder(torch.float32, [2])
        unused = v1.Variable([5.0], name="unused")
        step = v1.train.get_or_create_global_step()
        op = s.run(
            lambda: train.AdamOptimizer(0.5, epsilon=0.0).minimize(
                (w * x).sum() if rank == 0 else (u * x).sum() * 0.5,
                step,
                var_list=[w, u, unused],
            )
        )
        keras = s.run(lambda: SGD(0.5).apply_gradients([(x, k)]))
        total = s.run(lambda: current_replica().all_reduce("sum", x))
        report["train_op"] = [node.name for node in graph.get_collection("train_op")] == [op.name]
        report["across"] = refused(lambda: train.AdamOptimizer().minimize((w * x).sum()))
        with Session() as session:
            session.run(v1.global_variables_initializer())
            feed = {x: [rank + 1.0, 2.0]}
            for _ in range(2):
                session.run(op, feed)
                session.run(keras, feed)
            report["values"] = [array.tolist() for array in session.run([w, u, k])]
            report["unused"] = session.run(unused).tolist()
            report["step"] = int(session.run(step))
            report["total"] = session.run(total, feed).tolist()
    return report


@case
def scaled_losses(s: Strategy) -> Any:
    report = []

    def gradient() -> Any:
        w = Variable([1.0], name="w")
        ((grad, _),) = train.GradientDescentOptimizer(1.0).compute_gradients(
            lambda: w.sum(), var_list=[w]
        )
        return [float(grad), v1.get_default_graph()._is_loss_scaled_by_optimizer]

    for reduction in (None, "sum", "mean"):
        record_loss_reduction(reduction)
        report.append(s.run(gradient))
        with scale_loss_for_estimator():
            report.append(s.run(gradient))
            report.append(gradient())
    record_loss_reduction(None)
    return report


@case
def horovod_is_the_mean(s: Strategy) -> Any:
    w = Variable([4.0], name="w")
    step = optimize_loss(
        lambda: (w * (s.ranks.rank + 1)).sum(), "SGD", {}, lambda _: 1.0, [w],
        summaries=[], on_horovod=True,
    )  # fmt: skip
    s.run(step)
    step()
    return w.item()


@case
def steps_of_horovod(s: Strategy) -> Any:
    rank, report = s.ranks.rank, {}

    class Own(train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            return super().apply_gradients(grads_and_vars, global_step, name)

    def made(w: Any, optimizer: Any = "SGD", rate: float = 1.0, **options: Any) -> Any:
        def loss() -> Tensor:
            if broken:
                raise KeyError("no such batch")
            return (w * (rank + 1)).sum()

        options = {"summaries": [], "on_horovod": True, **options}
        return optimize_loss(loss, optimizer, {}, lambda _: rate, [w], **options)

    broken, w = False, Variable([4.0], name="w")
    step = made(w, Own)
    s.run(step)
    report["own apply_gradients"] = w.item()
    broken = rank == 1
    report["an error on one"] = refused(lambda: s.run(step))
    broken = False
    s.run(step)
    report["after it"] = w.item()
    report["rates"] = refused(made(w, rate=1.0 + rank))
    report["alone"] = [refused(lambda: s.run(made, (w,), {"on_horovod": False}))]
    late = made(w, on_horovod=False)
    report["alone"].append(refused(lambda: s.run(late)))
    report["untouched"] = w.item()
    narrow, u = compressing("bfloat16"), Variable([0.0], name="u")
    step = made(u)
    for _ in range(8):
        narrow.run(step)
    report["compressed"] = u.item()
    if s.ranks.size == 2:
        strategy = Strategy(reduction="ordered")
        adding = {"iter_size": 2, "skip_update_ph": lambda: False}
        early = refused(lambda: strategy.run(made, (w,), adding))
        late = made(w, **adding)
        report["ordered"] = [early, refused(lambda: strategy.run(late)), w.item()]
        strategy.run(made(w))
        report["ordered"] += [w.item()]
    return report


@case
def ranks_that_differ(s: Strategy) -> Any:
    rank, report = s.ranks.rank, {}
    sgd = lambda rate=0.5: SGD(rate)  # noqa: E731

    def apply(pairs: Any, opt: Any = None) -> str:
        opt = sgd() if opt is None else opt
        return refused(lambda: s.run(opt.apply_gradients, (pairs,)))

    first_var, second_var = variable("enc/one"), variable("enc/other")
    pairs = [(ones(s), first_var), (ones(s), second_var)]
    report["order"] = apply(pairs[::-1] if rank else pairs)
    report["count"] = apply(pairs[:1] if rank else pairs)
    report["name"] = apply([(ones(s), variable(f"w{rank}"))])
    report["shape"] = apply([(ones(s, 2 + rank), Variable(ones(s, 2 + rank), name="w"))])
    wide = torch.float64 if rank else torch.float32
    report["dtype"] = apply([(ones(s).to(wide), Variable(ones(s), name="w", dtype=wide))])
    report["rate"] = apply([(ones(s), first_var)], sgd(0.5 + rank))
    report["class"] = apply([(ones(s), first_var)], Adam(0.5) if rank else sgd())
    report["clipping"] = apply([(ones(s), first_var)], SGD(0.5, clipnorm=1.0 + rank))
    report["epsilon"] = apply([(ones(s), first_var)], Adam(0.5, epsilon=0.5 + rank))
    falling = schedules.ExponentialDecay(1.0, 10, 0.5 + rank)
    report["schedule"] = apply([(ones(s), first_var)], SGD(falling))
    report["nesterov"] = apply(
        [(ones(s), first_var)], train.MomentumOptimizer(0.5, 0.5, use_nesterov=bool(rank))
    )
    ahead = train.AdamOptimizer(0.5)
    for _ in range(1 + rank):
        ahead.apply_gradients([(torch.zeros(2), first_var)])
    report["power"] = apply([(ones(s), first_var)], ahead)
    advanced = sgd()
    if rank:
        advanced.iterations.fill_(7)
    report["step"] = apply([(ones(s), first_var)], advanced)
    report["values"] = apply([(ones(s), Variable(ones(s), name="w"))])
    report["compression"] = refused(
        lambda: Strategy(compression="float16" if rank else None).run(
            sgd().apply_gradients, ([(ones(s), first_var)],)
        )
    )
    report["kinds"] = apply(
        [(IndexedSlices([[1.0]], [0]) if rank else ones(s, 1)[None], Variable([[1.0]], name="w"))]
    )
    report["trouble"] = apply([("no gradient" if rank else ones(s), first_var)])
    report["untouched"] = [first_var.tolist(), second_var.tolist()]
    return report


@case
def broadcast(s: Strategy) -> Any:
    w = Variable(ones(s), name="w")
    module = torch.nn.Linear(2, 1)
    module.weight.data = module.weight.data.t().contiguous().t() + s.ranks.rank
    s.broadcast([w])
    s.broadcast(module)
    matches = [
        torch.equal(module.weight, weight)
        for weight in s.ranks.all_gather(module.weight.detach().contiguous())
    ]
    refusal = refused(lambda: s.broadcast([w, w] if s.ranks.rank else [w]))
    return [w.tolist(), matches, refusal]


@case
def many_buckets(s: Strategy) -> Any:
    torch.manual_seed(s.ranks.rank)
    gradients = [
        torch.randn(n, dtype=d) for n in (3, 700, 1, 0, 40) for d in (torch.float32, torch.float64)
    ]
    totals = [torch.stack(s.ranks.all_gather(gradient)).sum(0) for gradient in gradients]
    report = []
    for size in (1, 1000, 10**9):
        small = Strategy(bucket_size=size)
        sums = small.reduce("sum", gradients)
        report.append(all(torch.allclose(got, two) for got, two in zip(sums, totals, strict=True)))
    return report


@case
def gradients_are_sent_while_others_are_computed(s: Strategy) -> Any:
    report = {}
    for name, make in FACES.items():
        rank, opt = s.ranks.rank, make()
        small = Strategy(bucket_size=1)
        a, b, table = variable("a"), variable("b"), Variable([[0.0], [0.0], [0.0]], name="table")
        frozen = Variable([5.0], name="frozen", trainable=False)
        sizes: list[int] = []
        real = Bucket.send

        def send(self: Any, *args: Any, sizes: list[int] = sizes, real: Any = real) -> None:
            sizes.append(len(self.indices))
            real(self, *args)

        def step(number: int) -> Tensor:
            rows = thalweg.embedding_lookup(table, torch.tensor([rank, 2])).sum()
            if number == 2 and rank == 0:  # no gradient for b
                return (a * ones(s)).sum() + rows
            if number == 3:  # none for b anywhere
                return (a * ones(s)).sum() + rows
            if number == 4 and rank == 1:
                raise KeyError("no such batch")
            return (a * ones(s)).sum() + (b * b.detach() * 0 + b).sum() + rows

        messages = []
        Bucket.send = send  # pyright: ignore[reportAttributeAccessIssue]
        try:
            for number in range(6):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    messages.append(
                        refused(
                            lambda: small.run(
                                lambda: opt.minimize(
                                    lambda: step(number),
                                    var_list=[a, b, table, frozen],
                                )
                            )
                        ).split(":")[0]
                    )
        finally:
            Bucket.send = real
        report[name] = [a.tolist(), b.tolist(), table.flatten().tolist(), frozen.item()]
        report[f"{name} sent"] = len(sizes)
        report[f"{name} told"] = messages
    return report


@case
def gradients_that_somebody_changes(s: Strategy) -> Any:
    class Doubling(SGD):
        def _get_gradients(self, tape, loss, var_list, grad_loss):
            pairs = super()._get_gradients(tape, loss, var_list, grad_loss)
            return [(None if grad is None else grad * 2, var) for grad, var in pairs]

    class DoublingInPlace(SGD):
        def _get_gradients(self, tape, loss, var_list, grad_loss):
            pairs = super()._get_gradients(tape, loss, var_list, grad_loss)
            return [(grad.mul_(2), var) for grad, var in pairs]

    def once(w: Variable) -> Tensor:
        return (w * ones(s)).sum()

    def twice(w: Variable) -> Tensor:
        # Each runs a backward pass of its own, inside of the whole.
        start = torch.zeros((), requires_grad=True)
        for _ in range(2):
            start = computed_again(lambda x: x + once(w), start, use_reentrant=True)
        return start

    report = []
    for opt, loss in ((Doubling(0.5), once), (DoublingInPlace(0.5), once), (SGD(0.5), twice)):
        w = variable()
        for _ in range(4):
            s.run(lambda opt=opt, loss=loss, w=w: opt.minimize(lambda: loss(w), [w]))
        report.append(w.tolist())
    return report


@case
def gradients_that_change_their_kind(s: Strategy) -> Any:
    """Change gradients in each step, so that expected ones do not come."""
    report = {}

    class Adding(SGD):
        def _get_gradients(self, tape, loss, var_list, grad_loss):
            pairs = super()._get_gradients(tape, loss, var_list, grad_loss)
            return [(ones(s) if grad is None else grad, var) for grad, var in pairs]

    w, table, opt = variable(), Variable([[0.0], [0.0], [0.0]], name="table"), SGD(0.5)

    def loss(number: int) -> Tensor:
        rows = thalweg.embedding_lookup(table, torch.tensor([s.ranks.rank, 2])).sum()
        return (w * ones(s)).sum() + (rows if number % 2 else table.sum())

    for number in range(4):
        s.run(lambda number=number: opt.minimize(lambda: loss(number), [w, table]))
    report["sparse"] = [w.tolist(), table.flatten().tolist()]

    w1, w2, adding = variable("one"), variable("other"), Adding(0.5)
    for number in range(3):
        used = w1 if number == 1 else w1 + w2
        s.run(lambda used=used: adding.minimize(lambda: (used * ones(s)).sum(), [w1, w2]))
    report["added"] = [w1.tolist(), w2.tolist()]

    twice, optimizer = variable(), SGD(0.5)
    for _ in range(3):
        s.run(lambda: optimizer.minimize(lambda: (twice * ones(s)).sum(), [twice, twice]))
    report["twice"] = twice.tolist()

    # One rank alone computes gradients of a variable that is not the optimizer's.
    leaf, foreign, opt = variable(), variable("foreign"), SGD(0.5)
    for number in range(5):
        plus = foreign.sum() if number > 2 and s.ranks.rank == 0 else 0.0
        s.run(lambda plus=plus: opt.minimize(lambda: (leaf * ones(s)).sum() + plus, [leaf]))
    report["foreign"] = leaf.tolist()
    return report


@case
def memory_of_buckets(s: Strategy) -> Any:
    report, retained = {}, []

    class Keeping(SGD):
        def _transform_gradients(self, grads_and_vars):
            pairs: list[Any] = list(grads_and_vars)
            places.append(pairs[0][0].untyped_storage().data_ptr())
            if retains:
                retained.append(pairs[1][0][1:] if len(retained) % 2 else pairs[1][0])
            return pairs

    for name in ("minimize", "apply_gradients"):
        for retains in (False, True):
            places: list[int] = []
            a, b, opt = variable("a"), variable("b"), Keeping(0.5)
            retained.clear()
            for number in range(8):
                grad = ones(s) * (number + 1)
                if name == "minimize":
                    s.run(opt.minimize, (lambda grad=grad: ((a + b) * grad).sum(), [a, b]))
                else:
                    with torch.inference_mode(number == 0):
                        s.run(opt.apply_gradients, ([(grad, a), (grad, b)],))
            # A message that has just arrived may still be held by the thread that sent it.
            report[name, retains] = [len(set(places[2:])) <= 2, a.tolist(), b.tolist()]
            report[name, retains] += [float(grad[0]) for grad in retained]
    return [[*key, *value] for key, value in report.items()]


def compressing(dtype: Any) -> Strategy:
    return Strategy(compression=dtype)


@case
def compressed_sums(s: Strategy) -> Any:
    """Sum numbers that 16 bits cannot hold, with and without error feedback.

    Rank 0 alone has a gradient, for the sum is rounded as well.
    """
    report = {}
    grad = torch.tensor([1e-8, 1 + 2**-12]) * (s.ranks.rank == 0)
    for dtype in ("float16", "bfloat16"):
        for feeds_back in (True, False):
            w, opt, small = Variable([0.0, 0.0], name="w"), SGD(-1.0), compressing(dtype)
            for _ in range(32):
                small = small if feeds_back else compressing(dtype)
                small.run(opt.apply_gradients, ([(grad, w)],))
            is_equal = all(torch.equal(w, replica) for replica in s.ranks.all_gather(w.detach()))
            report[f"{dtype} {feeds_back}"] = [is_equal, w.tolist()]
    return report


@case
def bytes_that_are_compressed(s: Strategy) -> Any:
    byte_counts: list[int] = []
    real = Ranks.begin_adding

    def counting(self: Any, tensor: Tensor) -> Any:
        byte_counts.append(tensor.numel() * tensor.element_size())
        return real(self, tensor)

    report = []
    Ranks.begin_adding = counting  # pyright: ignore[reportAttributeAccessIssue]
    try:
        for dtype in (None, "float16", "bfloat16"):
            byte_counts.clear()
            strategy, opt = compressing(dtype), SGD(1.0)
            sizes = {"float32": 100, "float64": 10, "float16": 7, "complex64": 3}
            variables = [Variable(torch.zeros(n), dtype=kind) for kind, n in sizes.items()]
            table = Variable([[0.0], [0.0], [0.0]], name="table")
            for _ in range(2):
                rows = IndexedSlices([[1 + 2**-20]], torch.tensor([s.ranks.rank]))
                pairs = [(torch.full_like(var, s.ranks.size), var) for var in variables]
                strategy.run(opt.apply_gradients, ([*pairs, (rows, table)],))
            report.append([sum(byte_counts) // 2, table.flatten().tolist()])
            report[-1].append([complex(var.detach()[0]).real for var in variables])
    finally:
        Ranks.begin_adding = real
    return report


@case
def steps_that_fail_leave_what_was_left_out(s: Strategy) -> Any:
    """Train twice, once with steps in between that fail."""
    ends = []
    for fails in (False, True):
        generator = torch.Generator().manual_seed(s.ranks.rank)
        w, small, broken = Variable(torch.zeros(50), name="w"), compressing("bfloat16"), False

        def fail(learning_rate: Any = 0.1) -> Any:
            if broken:
                raise KeyError("a transformer, or a learning rate")
            return learning_rate

        keras = SGD(0.1, gradient_transformers=[fail])
        v1_opt, v1_var = train.GradientDescentOptimizer(fail), Variable(torch.zeros(50), name="v")
        messages = []
        for _ in range(5):
            grad = torch.randn(50, generator=generator)
            for broken in (True, False) if fails else (False,):
                messages.append(
                    refused(
                        lambda grad=grad: small.run(keras.minimize, (lambda: (w * grad).sum(), [w]))
                    )[:5]
                )
                messages.append(
                    refused(
                        lambda grad=grad: small.run(v1_opt.apply_gradients, ([(grad, v1_var)],))
                    )[:5]
                )
                if broken:  # a rank that has no gradients; those of others may be under way
                    trouble = "no" if s.ranks.rank else grad
                    refused(lambda t=trouble: small.run(keras.apply_gradients, ([(t, w)],)))
        ends.append([w.tolist(), v1_var.tolist(), sorted(set(messages))])
    return [ends[0][:2] == ends[1][:2], ends[0][2], ends[1][2], ends[0][0][:1] != [0.0]]


@case
def numbers_too_large_for_16_bits(s: Strategy) -> Any:
    w, opt, small = variable(), SGD(1.0), compressing("float16")
    grads: list[Any] = []

    def look(pairs: Any) -> Any:
        grads.append(pairs[0][0].tolist())
        return pairs

    opt.gradient_transformers = [look]
    for value in (1e6, float("inf"), float("nan"), 2.0):
        small.run(opt.apply_gradients, ([(torch.tensor([value, 3.0]), w)],))
    return [str(grad) for grad in grads]


@case
def ordered_sums(s: Strategy) -> Any:
    if s.num_replicas_in_sync == 3:
        return refused(lambda: Strategy(reduction="ordered"))
    strategy = Strategy(reduction="ordered")
    w, table = Variable(torch.zeros(1001), name="w"), torch.nn.Embedding(7, 3, sparse=True)
    torch.nn.init.zeros_(table.weight)
    unused = variable("never")

    def loss(number: int) -> Tensor:
        noise = torch.Generator().manual_seed(number)
        x = torch.randn(1001, generator=noise) * 10.0 ** torch.randint(
            -6, 6, (1001,), generator=noise
        )
        row = table(torch.tensor([number % 7])).sum() * 0.1
        return (torch.sin(w) * x).sum() + row

    variables = [w, table.weight, unused]
    opt = train.AdamOptimizer(0.01)
    for _ in range(3):
        strategy.run(lambda: opt.apply_gradients(strategy.gradients(loss, variables, 8)))
    single = Strategy.alone()
    v, embedding = Variable(torch.zeros(1001), name="w"), torch.nn.Embedding(7, 3, sparse=True)
    torch.nn.init.zeros_(embedding.weight)
    parallel, w, table = (w, table), v, embedding
    opt = train.AdamOptimizer(0.01)
    for _ in range(3):
        opt.apply_gradients(single.gradients(loss, [w, table.weight], 8))
    return [
        torch.equal(parallel[0], v),
        torch.equal(parallel[1].weight, embedding.weight),
        unused.tolist(),
        refused(lambda: strategy.gradients(loss, variables, 9)),
    ]


@case
def replicas_hold_equal_bits(s: Strategy) -> Any:
    """Compare the whole state of every rule after each step, with other gradients on each rank."""
    with thalweg.engine("reference"):
        return compared(s)


@case
def replicas_hold_equal_bits_in_kernels(s: Strategy) -> Any:
    return compared(s)


WIDE = {"replicas_hold_equal_bits_in_kernels"}  # may have to compile them


def compared(s: Strategy) -> Any:
    real, differ, names = resumed.normal, [], []

    def digest(training: Any) -> Tensor:
        state = blake2b(digest_size=8)
        for name, value in sorted(resumed.copy_everything(training).items()):
            bits = value.reshape(-1).view(torch.uint8).tolist() if isinstance(value, Tensor) else 0
            state.update(f"{name} {bits or value}".encode())
        return torch.tensor(list(state.digest()))

    for face in ("keras", "v1"):
        for name, make in resumed.FACES[face].items():
            training, states = make(), []
            for number in range(2):
                normal_of_rank = lambda shape, seed: real(shape, seed + 1000 * s.ranks.rank)  # noqa: E731
                with mock.patch.object(resumed, "normal", normal_of_rank):
                    s.run(training.step, (number,))
                digests = s.ranks.all_gather(digest(training))
                if any(not torch.equal(entry, digests[0]) for entry in digests):
                    differ.append(f"{name} after {number + 1}")
                states.append(digests[0].tolist())
            assert states[0] != states[1]
            names.append(name)
    return [names, differ]


class Job:
    """A training in which each rank has a part of the examples; one file holds all of it."""

    EXAMPLES, STEPS = 12, 6

    def __init__(self, strategy: Strategy) -> None:
        torch.manual_seed(0)
        self.strategy = strategy
        self.table, self.layer = torch.nn.Embedding(7, 5, sparse=True), torch.nn.Linear(5, 3)
        self.model = torch.nn.ModuleList([self.table, self.layer])
        self.optimizer = Adam(schedules.ExponentialDecay(0.05, 4, 0.5), global_clipnorm=1.0)
        self.variables = thalweg.named_variables(self.model)

    def loss(self, batch: int, examples: Any) -> Tensor:
        generator = torch.Generator().manual_seed(batch)
        words = torch.randint(7, (self.EXAMPLES,), generator=generator)[examples]
        expected = torch.randn(self.EXAMPLES, 3, generator=generator)[examples]
        error = self.layer(thalweg.embedding_lookup(self.table.weight, words)) - expected
        return error.square().sum() / self.EXAMPLES

    def step(self, number: int) -> None:
        ranks = self.strategy.ranks
        if not self.strategy.sending.ordered:
            examples = slice(ranks.rank, None, ranks.size)
            self.optimizer.minimize(lambda: self.loss(number, examples), self.variables)
            return
        pairs = self.strategy.gradients(
            lambda place: self.loss(number, slice(3 * place, 3 * place + 3)), self.variables, 4
        )
        self.optimizer.apply_gradients(pairs)

    def train(self, steps: Any) -> Tensor:
        for number in steps:
            self.strategy.run(self.step, (number,))
        return torch.cat([var.detach().flatten() for var in self.variables])


@case
def resumed_jobs(s: Strategy) -> Any:
    """Save jobs of n ranks after half of their steps, and continue them with m ranks."""
    folder = Path(sys.argv[2]).parent
    sizes = range(1, s.ranks.size + 1)
    groups = {size: distributed.new_group(list(range(size))) for size in sizes}
    report = {}
    for reduction in ("sum", "ordered"):
        able = [size for size in sizes if reduction == "sum" or not size & (size - 1)]
        able_sizes = [size for size in able if s.ranks.rank < size]
        jobs = {size: Strategy(groups[size], reduction=reduction) for size in able_sizes}
        single = Strategy.alone()
        single.sending = replace(single.sending, ordered=reduction == "ordered")
        expected = Job(single).train(range(Job.STEPS))
        half = Job.STEPS // 2
        for size, strategy in jobs.items():
            job = Job(strategy)
            job.train(range(half))
            if strategy.ranks.rank == 0:
                path = folder / f"{reduction}-{size}"
                checkpoint.save(path, optimizer=job.optimizer, module=job.model)
        distributed.barrier()
        for old in able:
            for new, strategy in jobs.items():
                job = Job(strategy)
                with torch.no_grad():
                    job.table.weight.zero_()
                path = folder / f"{reduction}-{old}"
                job.optimizer = checkpoint.restore(path, module=job.model).optimizer
                end = job.train(range(int(job.optimizer.iterations), Job.STEPS))
                distance = float((end - expected).abs().max())
                report[f"{reduction} {old} {new}"] = [torch.equal(end, expected), distance]
    return report


@case
def storages_that_were_cut_on_the_last_rank(s: Strategy) -> Any:
    shared = Strategy(shard_slots=True)

    def cut(tensor: Tensor) -> Tensor:
        if s.ranks.rank == s.ranks.size - 1:
            tensor.untyped_storage().resize_(0)
        return tensor

    def stepped(strategy: Strategy, victim: str) -> Callable[[], Any]:
        w, opt = Variable(torch.ones(64, 2), name="w"), Adam(0.5)
        strategy.run(opt.apply_gradients, ([(torch.ones(64, 2), w)],))
        grad: Any = torch.ones(64, 2)
        if victim in ("values", "indices"):
            grad = IndexedSlices(torch.ones(4, 2), torch.arange(4), (64, 2))
        cut(w if victim == "variable" else getattr(grad, victim, grad))
        return lambda: strategy.run(opt.apply_gradients, ([(grad, w)],))

    def read(ask: Callable[[Any], Any]) -> Callable[[], Any]:
        variables, opt = [variable(name) for name in "wxyz"], Adam(0.5)  # parts for each rank
        shared.run(opt.apply_gradients, ([(torch.ones(2), var) for var in variables],))
        for var in variables:
            cut(opt._slots.of(var, ["m"])[0])
        return lambda: ask(opt)

    x = torch.ones(8)
    slices = IndexedSlices(torch.ones(8), torch.arange(8))
    acts: dict[str, Callable[[], Any]] = {
        **{
            f"{name}, {victim}": stepped(strategy, victim)
            for name, strategy in (("step", s), ("step of parts", shared))
            for victim in ("gradient", "values", "indices", "variable")
        },
        "state_dict": read(lambda opt: opt.state_dict()),
        "get_weights": read(lambda opt: opt.get_weights()),
        "broadcast": lambda: s.broadcast([cut(x)]),
        "reduce": lambda: s.reduce("sum", cut(x)),
        "reduce, axis": lambda: s.reduce("mean", cut(x), axis=0),
        "reduce, rows": lambda: s.reduce("sum", (cut(slices.indices), slices)[1]),
    }
    return {name: refused(act) for name, act in acts.items()}


@case
def files_that_several_ranks_write(s: Strategy) -> Any:
    folder = Path(sys.argv[2]).parent / "many"
    manager, job = checkpoint.CheckpointManager(folder, keep=2), Job(s)
    s.run(job.step, (0,))
    for number in range(8):
        s.ranks.take_maximum(torch.zeros(1))  # all at the same time
        checkpoint.save(folder / "one", optimizer=job.optimizer, module=job.model)
        manager.save(number, optimizer=job.optimizer, module=job.model)
    s.ranks.take_maximum(torch.zeros(1))
    copy = Job(s)
    for path in (folder / "one", manager.latest() or folder):
        checkpoint.restore(path, optimizer=copy.optimizer, module=copy.model)
    matches = [torch.equal(a, b) for a, b in zip(job.variables, copy.variables, strict=True)]
    return [matches, sorted(file.name for file in folder.iterdir())]


def main() -> None:
    warnings.simplefilter("error")
    rank, path, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with joined_group(rank, path, count):
        strategy = Strategy()
        cases = {**CASES, **sharding_cases.CASES, **agreement_cases.CASES}
        names = sys.argv[4:] or [name for name in cases if name not in WIDE]
        print(json.dumps({name: cases[name](strategy) for name in names}))


if __name__ == "__main__":
    assert thalweg.distribute is not None
    main()
