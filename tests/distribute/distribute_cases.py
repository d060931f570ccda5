"""What ranks of a process group do in tests: each case returns what it found, as JSON.

Run by `test_distribute.py` and `test_sharding.py` on each rank: rank, a file to meet, the number of
ranks, and names of cases if not all of them are wanted.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
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
from busy import scale_to_load
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


def case(function: Callable[[Strategy], Any]) -> Callable[[Strategy], Any]:
    """A case of that name."""
    CASES[function.__name__] = function
    return function


def refused(function: Callable[[], Any]) -> str:
    """What a call raises, in words."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def ones(strategy: Strategy, size: int = 2) -> Tensor:
    """A gradient of rank + 1: 3 is the sum on two ranks, 6 on three."""
    return torch.full((size,), strategy.ranks.rank + 1.0)


def variable(name: str = "w") -> Variable:
    return Variable([1.0, 2.0], name=name)


FACES: dict[str, Callable[[], Any]] = {
    "keras": lambda: SGD(0.5),
    "v1": lambda: train.GradientDescentOptimizer(0.5),
}


@case
def sums_in_each_face(s: Strategy) -> Any:
    found = {}
    for name, make in FACES.items():
        w, opt = variable(), make()
        for _ in range(3):  # the second step is planned, the third repeats it
            s.run(opt.apply_gradients, ([(ones(s), w)],))
        found[name] = w.tolist()
    return found


@case
def sums_that_are_told_of(s: Strategy) -> Any:
    found, sharing = {}, Strategy(shard_slots=True)
    for name, make in {"keras": Adam, "v1": train.AdamOptimizer}.items():
        w, opt = variable(), make(0.5)
        told = diagnostics.attach(opt, every=2)
        steps = partial(opt.apply_gradients, [(ones(s), w)])
        for _ in range(4):
            s.run(steps)
        row, said = told.table["w:0"], refused(partial(sharing.run, steps))
        s.run(steps)
        diagnostics.detach(opt)
        sharing.run(steps)
        found[name] = [row.step, row.gradient_max, said, round(w.tolist()[0], 2)]
    return found


@case
def sums_of_a_loss(s: Strategy) -> Any:
    w, opt = variable(), SGD(0.5)
    s.run(lambda: opt.minimize(lambda: (w * ones(s)).sum(), [w]))
    other, v1_opt = variable(), train.GradientDescentOptimizer(0.5)
    s.run(lambda: v1_opt.minimize(lambda: (other * ones(s)).sum(), var_list=[other]))
    gated = variable()
    s.run(
        lambda: v1_opt.minimize(
            lambda: (gated * ones(s)).sum(), var_list=[gated], gate_gradients=v1_opt.GATE_NONE
        )
    )
    return [each.tolist() for each in (w, other, gated)]


@case
def sums_of_rows(s: Strategy) -> Any:
    found = {}
    for name, make in FACES.items():
        table = Variable([[0.0], [0.0], [0.0]], name="table")
        rows = IndexedSlices([[1.0], [1.0]], torch.tensor([s.ranks.rank, 2]))
        s.run(make().apply_gradients, ([(rows, table)],))
        found[name] = table.flatten().tolist()
    return found


@case
def gradients_as_they_are(s: Strategy) -> Any:
    w, opt = variable(), SGD(0.5)
    s.run(opt.apply_gradients, ([(torch.ones(2), w)], None, False))
    other, v1_opt = variable(), train.GradientDescentOptimizer(0.5)
    s.run(v1_opt.apply_gradients, ([(torch.ones(2), other)], None, None, True))
    with s.scope():  # skipping bypasses the refusal, too
        v1_opt.apply_gradients([(torch.ones(2), other)], skip_gradients_aggregation=True)
    return [w.tolist(), other.tolist()]


@case
def own_gradients_move_own_copies(s: Strategy) -> Any:
    w = variable()
    s.run(SGD(0.5).apply_gradients, ([(ones(s), w)], None, False))
    return [float(each[0]) for each in s.ranks.all_gather(w.detach())]


@case
def across_replicas(s: Strategy) -> Any:
    found = {}
    with s.scope():
        found["where"] = [has_strategy(), in_cross_replica_context(), get_replica_context()]
        found["own"] = get_strategy() is s
        for name, make in FACES.items():
            found[name] = refused(lambda make=make: make().apply_gradients([(ones(s), variable())]))
        found["nested"] = refused(lambda: Strategy().run(lambda: None))
    found["after"] = [has_strategy(), in_cross_replica_context()]
    found["within"] = s.run(lambda: [has_strategy(), in_cross_replica_context()])
    return found


@case
def merge_call(s: Strategy) -> Any:
    def across(strategy: Strategy, number: int, more: int = 0) -> list[Any]:
        return [strategy is s, in_cross_replica_context(), number + more]

    return s.run(lambda: current_replica().merge_call(across, (1,), {"more": 2}))


@case
def nests(s: Strategy) -> Any:
    rank = s.ranks.rank
    context = current_replica
    rows = IndexedSlices(torch.ones(1, 2), torch.tensor([rank]))
    found = s.run(
        lambda: context().all_reduce("sum", {"a": ones(s), "b": [None, rank + 1.0], "c": rows})
    )
    return {
        "a": found["a"].tolist(),
        "none": found["b"][0],
        "number": float(found["b"][1]),
        "rows": [found["c"].values.tolist(), found["c"].indices.tolist()],
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
            each.tolist()
            for each in s.extended.batch_reduce_to(ReduceOp.SUM, [(ones(s), None), (ones(s), None)])
        ],
    ]


@case
def reductions_of_whole_numbers(s: Strategy) -> Any:
    """Means of a nest with None over replicas and an axis, at once and in a graph."""
    value = {"a": torch.tensor([[1, 2 + s.ranks.rank]]), "none": None}
    found = [s.reduce("mean", value, axis) for axis in (None, 1)]
    with Graph().as_default(), Session() as session:
        x = v1.placeholder(torch.int64, [None, 2])
        nest = {**value, "a": x}
        made = [s.reduce("mean", nest, axis) for axis in (None, 1)]
        more = s.reduce("sum", 1.5)
        assert more.dtype == torch.float32
        found += [{**each, "a": session.run(each["a"], {x: value["a"].numpy()})} for each in made]
        dtypes = [str(each["a"].dtype) for each in made]
        whole = float(session.run(more))
    return [[[each["a"].tolist(), each["none"]] for each in found], dtypes, whole]


@case
def missing_gradients_are_said(s: Strategy) -> Any:
    """Which variables have no gradient on any rank; graphs and shared-out slots included."""
    found = []
    for sharing in (s, Strategy(shard_slots=True)):
        one, other, nowhere = variable("one"), variable("other"), variable("nowhere")
        first, second = (ones(s), None) if s.ranks.rank == 0 else (None, ones(s))
        pairs = [(first, one), (second, other), (None, nowhere)]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            sharing.run(SGD(0.5).apply_gradients, (pairs,))
        found.append([str(each.message) for each in said])
    with Graph().as_default(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made, nowhere = v1.Variable([1.0], name="made"), v1.Variable([1.0], name="nowhere")
        s.run(SGD(0.5).apply_gradients, ([(v1.constant([1.0]), made), (None, nowhere)],))
    return [*found, [str(each.message) for each in said]]


@case
def what_ordered_sums_depend_on(s: Strategy) -> Any:
    """Ranks with other numbers of threads or of micro-batches."""
    rank, found = s.ranks.rank, []
    for threads, batches in ((1 + rank, 8), (1, 8 * (1 + rank)), (1, 8)):
        if s.ranks.size & (s.ranks.size - 1):
            return found
        ordered, opt, w = Strategy(reduction="ordered"), SGD(0.5), variable()
        torch.set_num_threads(threads)
        pairs = ordered.gradients(lambda number, w=w: w.sum() / 8, [w], batches)
        found.append(refused(lambda: ordered.run(opt.apply_gradients, (pairs,))))
        torch.set_num_threads(1)
    return found


@case
def none_counts_as_zeros(s: Strategy) -> Any:
    rank, found = s.ranks.rank, {}
    for name, make in FACES.items():
        one, other, nowhere = variable("one"), variable("other"), variable("nowhere")
        first, second = (ones(s), None) if rank == 0 else (None, ones(s))
        opt = make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            s.run(opt.apply_gradients, ([(first, one), (second, other), (None, nowhere)],))
            found[name] = [each.tolist() for each in (one, other, nowhere)]
            found[f"{name} none"] = refused(
                lambda opt=opt, one=one: s.run(opt.apply_gradients, ([(None, one)],))
            ).split(".")[0]
    return found


@case
def none_in_a_loss(s: Strategy) -> Any:
    found = []
    for minimize in (SGD(0.5).minimize, train.GradientDescentOptimizer(0.5).minimize):
        one, other = variable("one"), variable("other")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            used = other if s.ranks.rank else one
            s.run(
                lambda used=used, m=minimize, all_=[one, other]: m(
                    lambda: used.sum(), var_list=all_
                )
            )
        found.append([one.tolist(), other.tolist()])
    return found


@case
def hooks_of_keras(s: Strategy) -> Any:
    said: list[str] = []

    class Hooked(SGD):
        def _transform_unaggregated_gradients(self, grads_and_vars):
            said.append("own")
            return [(grad * 2, var) for grad, var in grads_and_vars]

        def _aggregate_gradients(self, grads_and_vars):
            said.append("sum")
            return super()._aggregate_gradients(grads_and_vars)

    w, opt = variable(), Hooked(0.5)
    for _ in range(2):
        s.run(opt.apply_gradients, ([(ones(s), w)],))
    aggregated, calls = variable(), []
    own = SGD(0.5, gradient_aggregator=lambda pairs: calls.append(len(pairs)) or pairs)
    s.run(own.apply_gradients, ([(torch.ones(2), aggregated)],))
    return [w.tolist(), said, aggregated.tolist(), calls]


@case
def clipping_follows_the_sum(s: Strategy) -> Any:
    w = Variable([1.0, 1.0], name="w")
    s.run(SGD(1.0, global_clipnorm=1.0).apply_gradients, ([(3 * ones(s, 1).repeat(2), w)],))
    other = Variable([1.0, 1.0], name="w")
    s.run(SGD(1.0, clipvalue=4.0).apply_gradients, ([(3 * ones(s), other)],))
    return [w.tolist(), other.tolist()]


@case
def distributed_apply(s: Strategy) -> Any:
    found = []
    for how in (s, None, distributed.group.WORLD):
        w, step = variable(), Variable(0, name="step")
        opt = train.GradientDescentOptimizer(0.5)
        opt._distributed_apply(how, [(ones(s), w)], step)
        found.append([w.tolist(), step.item()])
    return found


@case
def extended(s: Strategy) -> Any:
    w, step = variable(), Variable(0, name="step")
    more = s.extended
    with more.colocate_vars_with(w):
        made = Variable([0.0])
    return [
        more.update(w, lambda var, by: [in_cross_replica_context(), (var + by).tolist()], (1.0,)),
        more.update(step, lambda var: var.assign_add(1).item(), group=False),
        more.update_non_slot(more.non_slot_devices([w]), lambda a, b=0: a + b, (1,), {"b": 2}),
        list(more.non_slot_devices([w, made])),
    ]


@case
def assignments_are_aggregated(s: Strategy) -> Any:
    rank, found = s.ranks.rank, {}
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
            all_ = [each.tolist() for each in s.ranks.all_gather(w.detach())]
            found[f"{kind.name} {sync.name}"] = all_
    counting, u = Counting(0.5), variable()
    counting.total = counting.add_weight("total", (), aggregation=thalweg.VariableAggregation.SUM)
    s.run(counting.apply_gradients, ([(ones(s), u)],))
    found["hook"] = [counting.total.item(), u.tolist()]
    mean = thalweg.VariableAggregation.MEAN
    whole = opt.add_weight("n", (), "int64", trainable=False, aggregation=mean)
    found["integers"] = refused(lambda: s.run(whole.assign, (rank,)))
    named = tf.Variable([0.0], aggregation=tf.VariableAggregation.SUM, name="named")
    s.run(named.assign, ([rank + 1.0],))
    found["tf"] = [named.tolist(), named.name]
    return found


@case
def assignments_in_graphs(s: Strategy) -> Any:
    rank, found = s.ranks.rank, {}
    modes, when = v1.VariableAggregation, v1.VariableSynchronization
    with Graph().as_default():
        x = v1.placeholder(torch.float32)
        made: dict[str, Any] = {
            "add_weight": SGD(0.5).add_weight("a", (2,), aggregation=modes.MEAN),
            "tf": tf.Variable([0.0, 0.0], aggregation=modes.SUM),
            "v1": v1.Variable([0.0, 0.0], aggregation=modes.ONLY_FIRST_REPLICA),
            "get_variable": v1.get_variable("g", initializer=[0.0, 0.0], aggregation=modes.MEAN),
            "compat": tf.compat.v1.Variable([0.0, 0.0], aggregation=modes.SUM),
            "on read": v1.Variable([0.0, 0.0], aggregation=modes.SUM, synchronization=when.ON_READ),
        }
        sets = {name: s.run(w.assign, (x,)) for name, w in made.items()}
        adds = {name: s.run(v1.assign_add, (w, [rank + 1.0, 0.0])) for name, w in made.items()}
        with s.scope():
            as_it_is = made["tf"].assign_sub([1.0, 1.0])
        whole = v1.Variable(0, aggregation=modes.MEAN)
        mean = s.run(whole.assign, (rank,))
        with Session() as session:
            session.run(v1.global_variables_initializer())
            own = {x: [rank + 1.0, 4.0]}
            found["new"] = {k: each.tolist() for k, each in session.run(sets, own).items()}
            session.run([*adds.values(), as_it_is])
            bad = {x: [1.0, 2.0, 3.0][rank:]}
            found["refused"] = refused(lambda: session.run(sets["tf"], bad)).splitlines()[0]
            found["integers"] = refused(lambda: session.run(mean)).splitlines()[0]
            found["values"] = {k: each.tolist() for k, each in session.run(made).items()}
    return found


@case
def refused_assignments(s: Strategy) -> Any:
    """A value that does not fit on the last rank keeps no other waiting, nor do other variables."""
    rank, modes = s.ranks.rank, thalweg.VariableAggregation
    w, u = (tf.Variable([0.0, 0.0], aggregation=modes.MEAN, name=name) for name in "wu")
    first = tf.Variable([0.0, 0.0], aggregation=modes.ONLY_FIRST_REPLICA)
    is_last, found = rank == s.ranks.size - 1, []
    for value in ([1.0] if is_last else [1.0, 2.0], "no" if is_last else [1.0, 2.0]):
        for each in (w, first):
            found.append(refused(lambda each=each, value=value: s.run(each.assign, (value,))))
    found.append(refused(lambda: s.run((u if is_last else w).assign, ([1.0, 2.0],))))
    s.run(w.assign_add, ([rank + 1.0, 3.0],))
    return [found, w.tolist(), u.tolist(), first.tolist()]


@case
def optimizers_of_torchs_kind(s: Strategy) -> Any:
    """Their steps, which sum nothing, are refused in a strategy and free outside of it."""
    w = torch.nn.Parameter(torch.zeros(2))
    u = torch.nn.Parameter(torch.zeros(2))
    whole, early = optim.SGD([w], 0.5), optim.SGD([u], 0.5, in_backward=True)
    called: list[int] = []
    w.grad = ones(s)
    errors = [
        refused(lambda: s.run(whole.step, (lambda: called.append(1),))),
        refused(lambda: s.run(u.sum().backward)),
    ]
    with s.scope():
        errors.append(refused(early.step))
    before = [w.tolist(), u.tolist(), called]
    whole.step()
    Strategy.alone().run(whole.step)
    return [errors, before, torch.equal(w.detach(), -ones(s))]


@case
def examples_of_the_documents(s: Strategy) -> Any:
    """Those of `tf.keras.optimizers.Optimizer` and of `tf.train.Optimizer`, on each rank."""
    mirrored, opt, found = tf.distribute.MirroredStrategy(), tf.keras.optimizers.SGD(0.1), {}
    batch = torch.arange(1.0, 13.0).view(-1, 2)[s.ranks.rank :: s.ranks.size]
    of_all = 6.0

    def loss(w: Any) -> Tensor:
        return (batch @ w).square().sum() / of_all  # tf.math.reduce_sum over examples

    by_hand, clipped, summed = variable("by_hand"), variable("clipped"), variable("summed")

    def replica() -> None:
        for w, most in ((by_hand, 1e9), (clipped, 1.0)):
            with tf.GradientTape() as tape:
                value = loss(w)
            grads = tape.gradient(value, [w])
            context: Any = tf.distribute.get_replica_context()
            grads = context.all_reduce("sum", grads)
            grads = [grad.clamp(-most, most) for grad in grads]
            opt.apply_gradients(zip(grads, [w]), experimental_aggregate_gradients=False)
        opt.minimize(lambda: loss(summed), [summed])

    mirrored.run(replica)
    found["aggregated"] = [by_hand.tolist(), clipped.tolist(), summed.tolist()]
    calls = []
    with v1.Graph().as_default(), s.scope():
        w = v1.Variable([1.0], name="w")
        step = v1.train.get_or_create_global_step()

        def update(strategy: Strategy, grad: Any) -> Any:  # as `_distributed_apply` is written
            more = strategy.extended
            (grad,) = more.batch_reduce_to(ReduceOp.SUM, [(grad, w)])
            with more.colocate_vars_with(w):
                ops = more.update(w, lambda var: var.assign_sub(grad), group=False)
            finish = more.update_non_slot(
                more.non_slot_devices([w]), lambda given: strategy.group(given), (ops,), group=False
            )
            calls.append(in_cross_replica_context())
            with v1.control_dependencies(finish):
                return strategy.group(more.update(step, v1.assign_add, (1,)), name="all")

        op = s.run(lambda: current_replica().merge_call(update, (v1.constant([1.0]),)))
        with Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(op)
            found["written"] = [op.name, session.run(w).tolist(), int(session.run(step))]
    found["across"] = calls
    found["eager group"] = s.group([None])
    return found


@case
def losses_without_a_list_of_variables(s: Strategy) -> Any:
    rank, found = s.ranks.rank, {}
    for gate in (0, 1, 2):
        w, other, opt = variable(), variable("other"), train.GradientDescentOptimizer(0.5)

        def told(loss: Any, opt: Any = opt, gate: int = gate) -> str:
            words = refused(lambda: s.run(opt.minimize, (loss,), {"gate_gradients": gate}))
            return words.split(".")[0]

        def broken(w: Any = w) -> Tensor:
            if rank:
                raise KeyError("no such batch")
            return w.sum()

        found[gate] = [
            told(lambda w=w: (w * ones(s)).sum()),
            told(broken),
            told(lambda w=w, other=other: (w + other if rank else w).sum()),
            told(lambda w=w: torch.zeros(()) if rank else w.sum()),
            told(lambda w=w: (w * ones(s)).sum()),
            [w.tolist(), other.tolist()],
        ]
    return found


@case
def graphs(s: Strategy) -> Any:
    rank, found = s.ranks.rank, {}
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
        found["train_op"] = [each.name for each in graph.get_collection("train_op")] == [op.name]
        found["across"] = refused(lambda: train.AdamOptimizer().minimize((w * x).sum()))
        with Session() as session:
            session.run(v1.global_variables_initializer())
            feed = {x: [rank + 1.0, 2.0]}
            for _ in range(2):
                session.run(op, feed)
                session.run(keras, feed)
            found["values"] = [each.tolist() for each in session.run([w, u, k])]
            found["unused"] = session.run(unused).tolist()
            found["step"] = int(session.run(step))
            found["total"] = session.run(total, feed).tolist()
    return found


@case
def scaled_losses(s: Strategy) -> Any:
    found = []

    def gradient() -> Any:
        w = Variable([1.0], name="w")
        ((grad, _),) = train.GradientDescentOptimizer(1.0).compute_gradients(
            lambda: w.sum(), var_list=[w]
        )
        return [float(grad), v1.get_default_graph()._is_loss_scaled_by_optimizer]

    for reduction in (None, "sum", "mean"):
        record_loss_reduction(reduction)
        found.append(s.run(gradient))
        with scale_loss_for_estimator():
            found.append(s.run(gradient))
            found.append(gradient())
    record_loss_reduction(None)
    return found


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
    rank, found = s.ranks.rank, {}

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
    found["own apply_gradients"] = w.item()
    broken = rank == 1
    found["an error on one"] = refused(lambda: s.run(step))
    broken = False
    s.run(step)
    found["after it"] = w.item()
    found["rates"] = refused(made(w, rate=1.0 + rank))
    found["alone"] = [refused(lambda: s.run(made, (w,), {"on_horovod": False}))]
    late = made(w, on_horovod=False)
    found["alone"].append(refused(lambda: s.run(late)))
    found["untouched"] = w.item()
    narrow, u = compressing("bfloat16"), Variable([0.0], name="u")
    step = made(u)
    for _ in range(8):
        narrow.run(step)
    found["compressed"] = u.item()
    if s.ranks.size == 2:
        ordered = Strategy(reduction="ordered")
        adding = {"iter_size": 2, "skip_update_ph": lambda: False}
        early = refused(lambda: ordered.run(made, (w,), adding))
        late = made(w, **adding)
        found["ordered"] = [early, refused(lambda: ordered.run(late)), w.item()]
        ordered.run(made(w))
        found["ordered"] += [w.item()]
    return found


@case
def ranks_that_differ(s: Strategy) -> Any:
    rank, found = s.ranks.rank, {}
    sgd = lambda rate=0.5: SGD(rate)  # noqa: E731

    def apply(pairs: Any, opt: Any = None) -> str:
        opt = sgd() if opt is None else opt
        return refused(lambda: s.run(opt.apply_gradients, (pairs,)))

    one, other = variable("enc/one"), variable("enc/other")
    pairs = [(ones(s), one), (ones(s), other)]
    found["order"] = apply(pairs[::-1] if rank else pairs)
    found["count"] = apply(pairs[:1] if rank else pairs)
    found["name"] = apply([(ones(s), variable(f"w{rank}"))])
    found["shape"] = apply([(ones(s, 2 + rank), Variable(ones(s, 2 + rank), name="w"))])
    wide = torch.float64 if rank else torch.float32
    found["dtype"] = apply([(ones(s).to(wide), Variable(ones(s), name="w", dtype=wide))])
    found["rate"] = apply([(ones(s), one)], sgd(0.5 + rank))
    found["class"] = apply([(ones(s), one)], Adam(0.5) if rank else sgd())
    found["clipping"] = apply([(ones(s), one)], SGD(0.5, clipnorm=1.0 + rank))
    found["epsilon"] = apply([(ones(s), one)], Adam(0.5, epsilon=0.5 + rank))
    falling = schedules.ExponentialDecay(1.0, 10, 0.5 + rank)
    found["schedule"] = apply([(ones(s), one)], SGD(falling))
    found["nesterov"] = apply(
        [(ones(s), one)], train.MomentumOptimizer(0.5, 0.5, use_nesterov=bool(rank))
    )
    ahead = train.AdamOptimizer(0.5)
    for _ in range(1 + rank):
        ahead.apply_gradients([(torch.zeros(2), one)])
    found["power"] = apply([(ones(s), one)], ahead)
    started = sgd()
    if rank:
        started.iterations.fill_(7)
    found["step"] = apply([(ones(s), one)], started)
    found["values"] = apply([(ones(s), Variable(ones(s), name="w"))])
    found["compression"] = refused(
        lambda: Strategy(compression="float16" if rank else None).run(
            sgd().apply_gradients, ([(ones(s), one)],)
        )
    )
    found["kinds"] = apply(
        [(IndexedSlices([[1.0]], [0]) if rank else ones(s, 1)[None], Variable([[1.0]], name="w"))]
    )
    found["trouble"] = apply([("no gradient" if rank else ones(s), one)])
    found["untouched"] = [one.tolist(), other.tolist()]
    return found


@case
def broadcast(s: Strategy) -> Any:
    w = Variable(ones(s), name="w")
    module = torch.nn.Linear(2, 1)
    module.weight.data = module.weight.data.t().contiguous().t() + s.ranks.rank
    s.broadcast([w])
    s.broadcast(module)
    alike = [
        torch.equal(module.weight, each)
        for each in s.ranks.all_gather(module.weight.detach().contiguous())
    ]
    refusal = refused(lambda: s.broadcast([w, w] if s.ranks.rank else [w]))
    return [w.tolist(), alike, refusal]


@case
def many_buckets(s: Strategy) -> Any:
    torch.manual_seed(s.ranks.rank)
    gradients = [
        torch.randn(n, dtype=d) for n in (3, 700, 1, 0, 40) for d in (torch.float32, torch.float64)
    ]
    expected = [torch.stack(s.ranks.all_gather(each)).sum(0) for each in gradients]
    found = []
    for size in (1, 1000, 10**9):
        small = Strategy(bucket_size=size)
        sums = small.reduce("sum", gradients)
        found.append(all(torch.allclose(one, two) for one, two in zip(sums, expected, strict=True)))
    return found


@case
def gradients_are_sent_while_others_are_computed(s: Strategy) -> Any:
    found = {}
    for name, make in FACES.items():
        rank, opt = s.ranks.rank, make()
        small = Strategy(bucket_size=1)
        a, b, table = variable("a"), variable("b"), Variable([[0.0], [0.0], [0.0]], name="table")
        frozen = Variable([5.0], name="frozen", trainable=False)
        sent: list[int] = []
        real = Bucket.send

        def send(self: Any, *args: Any, sent: list[int] = sent, real: Any = real) -> None:
            sent.append(len(self.places))
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

        told = []
        Bucket.send = send  # pyright: ignore[reportAttributeAccessIssue]
        try:
            for number in range(6):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    told.append(
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
        found[name] = [a.tolist(), b.tolist(), table.flatten().tolist(), frozen.item()]
        found[f"{name} sent"] = len(sent)
        found[f"{name} told"] = told
    return found


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

    found = []
    for opt, loss in ((Doubling(0.5), once), (DoublingInPlace(0.5), once), (SGD(0.5), twice)):
        w = variable()
        for _ in range(4):
            s.run(lambda opt=opt, loss=loss, w=w: opt.minimize(lambda: loss(w), [w]))
        found.append(w.tolist())
    return found


@case
def gradients_that_change_their_kind(s: Strategy) -> Any:
    """Step after step what was expected to be sent while others are computed is not what comes."""
    found = {}

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
    found["sparse"] = [w.tolist(), table.flatten().tolist()]

    one, other, adding = variable("one"), variable("other"), Adding(0.5)
    for number in range(3):
        used = one if number == 1 else one + other
        s.run(lambda used=used: adding.minimize(lambda: (used * ones(s)).sum(), [one, other]))
    found["added"] = [one.tolist(), other.tolist()]

    twice, again = variable(), SGD(0.5)
    for _ in range(3):
        s.run(lambda: again.minimize(lambda: (twice * ones(s)).sum(), [twice, twice]))
    found["twice"] = twice.tolist()

    # One rank alone computes gradients of a variable that is not the optimizer's.
    mine, foreign, opt = variable(), variable("foreign"), SGD(0.5)
    for number in range(5):
        more = foreign.sum() if number > 2 and s.ranks.rank == 0 else 0.0
        s.run(lambda more=more: opt.minimize(lambda: (mine * ones(s)).sum() + more, [mine]))
    found["foreign"] = mine.tolist()
    return found


@case
def memory_of_buckets(s: Strategy) -> Any:
    found, kept = {}, []

    class Keeping(SGD):
        def _transform_gradients(self, grads_and_vars):
            pairs: list[Any] = list(grads_and_vars)
            places.append(pairs[0][0].untyped_storage().data_ptr())
            if keeps:
                kept.append(pairs[1][0][1:] if len(kept) % 2 else pairs[1][0])
            return pairs

    for name in ("minimize", "apply_gradients"):
        for keeps in (False, True):
            places: list[int] = []
            a, b, opt = variable("a"), variable("b"), Keeping(0.5)
            kept.clear()
            for number in range(8):
                grad = ones(s) * (number + 1)
                if name == "minimize":
                    s.run(opt.minimize, (lambda grad=grad: ((a + b) * grad).sum(), [a, b]))
                else:
                    with torch.inference_mode(number == 0):
                        s.run(opt.apply_gradients, ([(grad, a), (grad, b)],))
            # A message that has just arrived may still be held by the thread that sent it.
            found[name, keeps] = [len(set(places[2:])) <= 2, a.tolist(), b.tolist()]
            found[name, keeps] += [float(grad[0]) for grad in kept]
    return [[*key, *value] for key, value in found.items()]


def compressing(dtype: Any) -> Strategy:
    return Strategy(compression=dtype)


@case
def compressed_sums(s: Strategy) -> Any:
    """Numbers that 16 bits cannot hold, with and without what is fed back.

    Rank 0 alone has a gradient, for the sum is rounded as well.
    """
    found = {}
    grad = torch.tensor([1e-8, 1 + 2**-12]) * (s.ranks.rank == 0)
    for dtype in ("float16", "bfloat16"):
        for feeds_back in (True, False):
            w, opt, small = Variable([0.0, 0.0], name="w"), SGD(-1.0), compressing(dtype)
            for _ in range(32):
                small = small if feeds_back else compressing(dtype)
                small.run(opt.apply_gradients, ([(grad, w)],))
            alike = all(torch.equal(w, each) for each in s.ranks.all_gather(w.detach()))
            found[f"{dtype} {feeds_back}"] = [alike, w.tolist()]
    return found


@case
def bytes_that_are_compressed(s: Strategy) -> Any:
    sent: list[int] = []
    real = Ranks.begin_adding

    def counting(self: Any, tensor: Tensor) -> Any:
        sent.append(tensor.numel() * tensor.element_size())
        return real(self, tensor)

    found = []
    Ranks.begin_adding = counting  # pyright: ignore[reportAttributeAccessIssue]
    try:
        for dtype in (None, "float16", "bfloat16"):
            sent.clear()
            strategy, opt = compressing(dtype), SGD(1.0)
            made = {"float32": 100, "float64": 10, "float16": 7, "complex64": 3}
            variables = [Variable(torch.zeros(n), dtype=kind) for kind, n in made.items()]
            table = Variable([[0.0], [0.0], [0.0]], name="table")
            for _ in range(2):
                rows = IndexedSlices([[1 + 2**-20]], torch.tensor([s.ranks.rank]))
                pairs = [(torch.full_like(var, s.ranks.size), var) for var in variables]
                strategy.run(opt.apply_gradients, ([*pairs, (rows, table)],))
            found.append([sum(sent) // 2, table.flatten().tolist()])
            found[-1].append([complex(var.detach()[0]).real for var in variables])
    finally:
        Ranks.begin_adding = real
    return found


@case
def steps_that_fail_leave_what_was_left_out(s: Strategy) -> Any:
    """The same trainings, one of them with steps in between that are not taken."""
    ends = []
    for fails in (False, True):
        generator = torch.Generator().manual_seed(s.ranks.rank)
        w, small, broken = Variable(torch.zeros(50), name="w"), compressing("bfloat16"), False

        def fail(given: Any = 0.1) -> Any:
            if broken:
                raise KeyError("a transformer, or a learning rate")
            return given

        keras = SGD(0.1, gradient_transformers=[fail])
        v1_opt, other = train.GradientDescentOptimizer(fail), Variable(torch.zeros(50), name="v")
        told = []
        for _ in range(5):
            grad = torch.randn(50, generator=generator)
            for broken in (True, False) if fails else (False,):
                told.append(
                    refused(
                        lambda grad=grad: small.run(keras.minimize, (lambda: (w * grad).sum(), [w]))
                    )[:5]
                )
                told.append(
                    refused(
                        lambda grad=grad: small.run(v1_opt.apply_gradients, ([(grad, other)],))
                    )[:5]
                )
                if broken:  # a rank that has no gradients; those of others may be under way
                    trouble = "no" if s.ranks.rank else grad
                    refused(lambda t=trouble: small.run(keras.apply_gradients, ([(t, w)],)))
        ends.append([w.tolist(), other.tolist(), sorted(set(told))])
    return [ends[0][:2] == ends[1][:2], ends[0][2], ends[1][2], ends[0][0][:1] != [0.0]]


@case
def numbers_too_large_for_16_bits(s: Strategy) -> Any:
    w, opt, small = variable(), SGD(1.0), compressing("float16")
    seen: list[Any] = []

    def look(pairs: Any) -> Any:
        seen.append(pairs[0][0].tolist())
        return pairs

    opt.gradient_transformers = [look]
    for value in (1e6, float("inf"), float("nan"), 2.0):
        small.run(opt.apply_gradients, ([(torch.tensor([value, 3.0]), w)],))
    return [str(each) for each in seen]


@case
def ordered_sums(s: Strategy) -> Any:
    if s.num_replicas_in_sync == 3:
        return refused(lambda: Strategy(reduction="ordered"))
    ordered = Strategy(reduction="ordered")
    w, table = Variable(torch.zeros(1001), name="w"), torch.nn.Embedding(7, 3, sparse=True)
    torch.nn.init.zeros_(table.weight)
    never = variable("never")

    def loss(number: int) -> Tensor:
        noise = torch.Generator().manual_seed(number)
        x = torch.randn(1001, generator=noise) * 10.0 ** torch.randint(
            -6, 6, (1001,), generator=noise
        )
        row = table(torch.tensor([number % 7])).sum() * 0.1
        return (torch.sin(w) * x).sum() + row

    chosen = [w, table.weight, never]
    opt = train.AdamOptimizer(0.01)
    for _ in range(3):
        ordered.run(lambda: opt.apply_gradients(ordered.gradients(loss, chosen, 8)))
    alone = Strategy.alone()
    v, other = Variable(torch.zeros(1001), name="w"), torch.nn.Embedding(7, 3, sparse=True)
    torch.nn.init.zeros_(other.weight)
    parallel, w, table = (w, table), v, other
    opt = train.AdamOptimizer(0.01)
    for _ in range(3):
        opt.apply_gradients(alone.gradients(loss, [w, table.weight], 8))
    return [
        torch.equal(parallel[0], v),
        torch.equal(parallel[1].weight, other.weight),
        never.tolist(),
        refused(lambda: ordered.gradients(loss, chosen, 9)),
    ]


@case
def replicas_hold_equal_bits(s: Strategy) -> Any:
    """Every rule, with other gradients on each rank: all that it remembers, after every step."""
    with thalweg.engine("reference"):
        return compared(s)


@case
def replicas_hold_equal_bits_in_kernels(s: Strategy) -> Any:
    return compared(s)


WIDE = {"replicas_hold_equal_bits_in_kernels"}  # may have to compile them


def compared(s: Strategy) -> Any:
    real, differ, found = resumed.normal, [], []

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
                own = lambda shape, seed: real(shape, seed + 1000 * s.ranks.rank)  # noqa: E731
                with mock.patch.object(resumed, "normal", own):
                    s.run(training.step, (number,))
                all_ = s.ranks.all_gather(digest(training))
                if any(not torch.equal(each, all_[0]) for each in all_):
                    differ.append(f"{name} after {number + 1}")
                states.append(all_[0].tolist())
            assert states[0] != states[1]
            found.append(name)
    return [found, differ]


class Job:
    """A training of which each rank has its part of the examples; all of it goes into a file."""

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
        wanted = torch.randn(self.EXAMPLES, 3, generator=generator)[examples]
        error = self.layer(thalweg.embedding_lookup(self.table.weight, words)) - wanted
        return error.square().sum() / self.EXAMPLES

    def step(self, number: int) -> None:
        ranks = self.strategy.ranks
        if not self.strategy.sending.ordered:
            own = slice(ranks.rank, None, ranks.size)
            self.optimizer.minimize(lambda: self.loss(number, own), self.variables)
            return
        pairs = self.strategy.gradients(
            lambda place: self.loss(number, slice(3 * place, 3 * place + 3)), self.variables, 4
        )
        self.optimizer.apply_gradients(pairs)

    def train(self, steps: Any) -> Tensor:
        for number in steps:
            self.strategy.run(self.step, (number,))
        return torch.cat([each.detach().flatten() for each in self.variables])


@case
def resumed_jobs(s: Strategy) -> Any:
    """Jobs of n ranks that are saved after half of their steps, and go on with m."""
    folder = Path(sys.argv[2]).parent
    sizes = range(1, s.ranks.size + 1)
    groups = {size: distributed.new_group(list(range(size))) for size in sizes}
    found = {}
    for reduction in ("sum", "ordered"):
        able = [size for size in sizes if reduction == "sum" or not size & (size - 1)]
        taking = [size for size in able if s.ranks.rank < size]
        jobs = {size: Strategy(groups[size], reduction=reduction) for size in taking}
        alone = Strategy.alone()
        alone.sending = replace(alone.sending, ordered=reduction == "ordered")
        whole = Job(alone).train(range(Job.STEPS))
        half = Job.STEPS // 2
        for size, strategy in jobs.items():
            job = Job(strategy)
            job.train(range(half))
            if strategy.ranks.rank == 0:
                path = folder / f"{reduction}-{size}"
                checkpoint.save(path, optimizer=job.optimizer, module=job.model)
        distributed.barrier()
        for before in able:
            for after, strategy in jobs.items():
                job = Job(strategy)
                with torch.no_grad():
                    job.table.weight.zero_()
                path = folder / f"{reduction}-{before}"
                job.optimizer = checkpoint.restore(path, module=job.model).optimizer
                end = job.train(range(int(job.optimizer.iterations), Job.STEPS))
                distance = float((end - whole).abs().max())
                found[f"{reduction} {before} {after}"] = [torch.equal(end, whole), distance]
    return found


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
    other = Job(s)
    for path in (folder / "one", manager.latest() or folder):
        checkpoint.restore(path, optimizer=other.optimizer, module=other.model)
    alike = [torch.equal(a, b) for a, b in zip(job.variables, other.variables, strict=True)]
    return [alike, sorted(each.name for each in folder.iterdir())]


def main() -> None:
    warnings.simplefilter("error")
    rank, path, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=scale_to_load(60)),
    )
    torch.set_num_threads(1)
    strategy = Strategy()
    cases = {**CASES, **sharding_cases.CASES, **agreement_cases.CASES}
    names = sys.argv[4:] or [name for name in cases if name not in WIDE]
    print(json.dumps({name: cases[name](strategy) for name in names}))
    distributed.destroy_process_group()


if __name__ == "__main__":
    assert thalweg.distribute is not None
    main()
