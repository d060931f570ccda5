"""Cases in which one rank deviates, and all ranks are informed and can continue."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from thalweg import Variable, optim, v1
from thalweg._graph import Graph, Session
from thalweg.distribute import Strategy, current_replica
from thalweg.keras.optimizers import SGD
from thalweg.optim.diagnostics import Spikes
from thalweg.v1 import train

CASES: dict[str, Callable[[Strategy], Any]] = {}


def case(function: Callable[..., Any]) -> Callable[[Strategy], Any]:
    """Register a case under the name of its function."""
    CASES[function.__name__] = function
    return function


def said(function: Callable[..., Any]) -> str:
    """Return the class and message of the error that a call raises."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Training:
    """A variable, and an optimizer that takes a step that all ranks can take."""

    def __init__(self, strategy: Strategy, optimizer: Any = None) -> None:
        self.strategy, self.optimizer = strategy, optimizer or SGD(0.5)
        self.w = Variable([0.0, 0.0], name="w")

    def apply(self, *pairs: Any) -> str:
        return said(lambda: self.strategy.run(self.optimizer.apply_gradients, (list(pairs),)))

    def minimize(self) -> str:
        run, w = self.strategy.run, self.w
        return said(lambda: run(self.optimizer.minimize, (lambda: w.sum(), [w])))

    def good(self) -> str:
        return self.apply((torch.ones(2), self.w))


def broken(var: Tensor) -> Tensor:
    raise KeyError("constraint")


@case
def other_calls(s: Strategy) -> Any:
    """Make one call on the last rank, another on the others, then a step on all of them."""
    is_last_rank = s.ranks.rank == s.ranks.size - 1
    report: dict[str, Any] = {}

    def tried(name: str, call: Callable[..., Any], peer: Callable[[], str], job: Training) -> None:
        words = call() if is_last_rank else peer()
        old = job.w.tolist()
        report[name] = [words, job.good(), [b - a for a, b in zip(old, job.w.tolist())]]

    def fresh(make: Callable[..., Any] = lambda: SGD(0.5)) -> Training:
        return Training(s, make())

    def reduced(value: Any) -> Callable[[], str]:
        return lambda: said(lambda: s.reduce("sum", value))

    training = fresh()
    tried("apply and minimize", training.good, training.minimize, training)

    def later(name: str, last_call: Callable[[Training], str]) -> None:
        training = fresh()
        for _ in range(3):
            training.minimize()  # gradients are sent while others are computed
        tried(name, lambda: last_call(training), training.minimize, training)

    later("apply later", Training.good)
    later("a value later", lambda training: reduced(torch.ones(2))())
    later("values of rank 0 later", lambda training: said(lambda: s.broadcast([training.w])))
    second_training = Training(s, SGD(0.5, momentum=0.5))
    second_training.minimize()
    later("another optimizer", lambda training: second_training.minimize())
    training = fresh()
    tried("a step and a value", training.good, reduced(torch.ones(2)), training)
    tried("no pairs", training.apply, training.good, training)
    tried("values", reduced([torch.ones(2)] * 2), reduced([torch.ones(2)]), training)
    tried("shapes", reduced(torch.ones(2, 3)), reduced(torch.ones(3, 2)), training)
    tried("dtypes", reduced(torch.ones(2, dtype=torch.int16)), reduced(torch.ones(2)), training)

    def changed() -> str:
        training.optimizer.learning_rate = 0.25
        words = training.good()
        training.optimizer.learning_rate = 0.5
        return words

    tried("a rate", changed, training.good, training)

    def ahead() -> str:
        training.optimizer.iterations.add_(1)
        words = training.good()
        training.optimizer.iterations.sub_(1)
        return words

    tried("a step", ahead, training.good, training)
    classic = fresh(lambda: train.GradientDescentOptimizer(0.5))
    malformed: Any = torch.ones(2)
    tried("no pair", lambda: classic.apply((malformed,)), classic.good, classic)
    return report


class Hooked(SGD):
    """An optimizer with a hook that sees gradients before their sum, and can raise."""

    raises = False

    def _transform_unaggregated_gradients(self, grads_and_vars: Any) -> Iterable[Any]:
        if self.raises:
            raise KeyError("hook")
        return [(2 * grad, var) for grad, var in grads_and_vars]


@case
def hooks_before_the_sum(s: Strategy) -> Any:
    is_last_rank = s.ranks.rank == s.ranks.size - 1
    job = Training(s, Hooked(0.5))
    var = Variable([0.0, 0.0], name="other")
    job.optimizer.raises = is_last_rank
    first = job.good()
    job.optimizer.raises = False
    second = job.apply((torch.ones(2), job.w), (torch.ones(2) if is_last_rank else None, var))
    return [first, second, job.w.tolist(), var.tolist()]


@case
def optimizers_of_torch(s: Strategy) -> Any:
    param = torch.nn.Parameter(torch.zeros(2))
    param.grad = torch.ones(2)
    opt = optim.SGD([param], lr=0.5)
    words = said(lambda: s.run(opt.step))
    opt.step()
    return [words, param.tolist()]


@case
def own_aggregators(s: Strategy) -> Any:
    """Run an optimizer that does not sum; no rank waits for another."""
    training = Training(s, SGD(0.5, gradient_aggregator=lambda pairs: pairs))

    def loss() -> Tensor:
        if s.ranks.rank:
            raise KeyError("no batch")
        return training.w.sum()

    words = said(lambda: s.run(training.optimizer.minimize, (loss, [training.w])))
    return [words, training.w.tolist()]


@case
def variables_that_one_rank_changes(s: Strategy) -> Any:
    """Change the shape, strides or constraint of a variable on one rank."""
    is_last_rank = s.ranks.rank == s.ranks.size - 1
    report: dict[str, Any] = {}
    training = Training(s)
    for _ in range(3):
        training.minimize()
    original = training.w.data
    if is_last_rank:
        training.w.data = torch.zeros(3)
    words = training.minimize()
    training.w.data = original
    report["shape"] = [words, training.minimize(), training.w.tolist()]
    square = Variable(torch.zeros(2, 3), name="square")
    if is_last_rank:
        square.data = torch.zeros(3, 2).t()
    report["strides"] = [training.apply((torch.ones(2, 3), square)), square.tolist()]
    for name, optimizer in (("keras", SGD(0.5)), ("v1", train.GradientDescentOptimizer(0.5))):
        training = Training(s, optimizer)
        training.good()
        training.w.constraint = broken if is_last_rank else torch.abs
        messages = [training.good()]
        training.w.constraint = None
        messages.append(training.good())
        s.broadcast([training.w])
        report[name] = [*messages, training.good(), training.w.tolist()]
    return report


@case
def gradients_that_fail(s: Strategy) -> Any:
    training = Training(s)

    def loss(number: int) -> Tensor:
        if number == s.ranks.size - 1:
            raise KeyError("no batch")
        return training.w.sum()

    def step() -> None:
        pairs = s.gradients(loss, [training.w], s.ranks.size)
        s.run(training.optimizer.apply_gradients, (pairs,))

    return [said(step), training.good(), training.w.tolist()]


@case
def graphs_that_differ(s: Strategy) -> Any:
    """Build graphs of other orders and rates, and fail on one rank, before and in a run."""
    rank, report = s.ranks.rank, {}
    for name, order, rate in (("order", rank, 0), ("rate", 0, rank)):
        with Graph().as_default(), s.scope():
            variables = [v1.Variable([1.0], name=letter) for letter in "ab"]
            pairs = [(v1.constant([1.0]), variable) for variable in variables]
            opt = train.GradientDescentOptimizer(0.5 + rate)
            report[name] = said(
                lambda opt=opt, pairs=pairs, order=order: s.run(
                    opt.apply_gradients, (pairs[::-1] if order else pairs,)
                )
            )
    with Graph().as_default(), s.scope():
        w, x = v1.Variable([0.0, 0.0], name="w"), v1.placeholder(torch.float32, [None])
        op = s.run(lambda: train.GradientDescentOptimizer(1.0).minimize((w * x).sum()))
        total = s.run(lambda: current_replica().all_reduce("sum", x))
        with Session() as session:
            session.run(v1.global_variables_initializer())
            feed = {x: [1.0, 1.0]}
            report["feed"] = said(lambda: session.run(op, {} if rank == s.ranks.size - 1 else feed))
            long = {x: [1.0, 1.0, 1.0]} if rank == s.ranks.size - 1 else feed
            report["run"] = said(lambda: session.run(op, long))
            session.run(op, feed)
            report["w"] = session.run(w).tolist()
            report["total"] = session.run(total, feed).tolist()
    return report


@case
def other_dtypes_are_broadcast(s: Strategy) -> Any:
    kinds = (torch.bool, torch.int16, torch.float8_e4m3fn, torch.complex64)
    tensors = [torch.full((2, 3), s.ranks.rank + 1).to(kind).t() for kind in kinds]
    s.broadcast(tensors)
    return [bool((tensor.to(torch.complex64) == 1).all()) for tensor in tensors]


@case
def judged_steps(s: Strategy) -> Any:
    """Judge steps of which the last rank alone has a bad batch, loss or shard, and go back."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Spikes: ")
        return {fault: judged_training(s, fault) for fault in ("batch", "loss", "nan", "shard")}


def judged_training(s: Strategy, fault: str) -> Any:
    """Return the numbers of the steps that were taken back, and the weights at the end."""
    torch.manual_seed(0)
    model: Any = torch.nn.Linear(4, 6, bias=False)
    if fault == "shard":
        mesh = init_device_mesh("cpu", (s.ranks.size,))
        model.weight = torch.nn.Parameter(distribute_tensor(model.weight.data, mesh, [Shard(0)]))
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    spikes = Spikes("rollback", keep=4)
    optimizer: Any = optim.AdamW(model.parameters(), 0.01, spikes=spikes)
    (weight,) = model.parameters()
    for step in range(1, 31):
        is_bad = step == 28 and s.ranks.rank == s.ranks.size - 1
        inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
        if fault == "shard":
            part = weight.to_local().detach()
            part = torch.full_like(part, float(step)).sin() * (1e4 if is_bad else 1.0)
            weight.grad = DTensor.from_local(part, mesh, [Shard(0)], run_check=False)
        else:
            (model(inputs) * (1e4 if is_bad and fault == "batch" else 1.0)).sum().backward()
            bad_loss = {"loss": 1e4, "nan": math.nan}.get(fault, 1.0)
            spikes.log_loss(bad_loss if is_bad else 1.0)
        optimizer.step()
        optimizer.zero_grad()
    whole = weight.full_tensor() if fault == "shard" else weight
    return [[list(action.steps) for action in spikes.actions], whole.tolist()]
