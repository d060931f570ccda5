"""Cases of ranks that do not do the same: what each of them is told, and that they can go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from thalweg import Variable, optim, v1
from thalweg._graph import Graph, Session
from thalweg.distribute import Strategy, current_replica
from thalweg.keras.optimizers import SGD
from thalweg.v1 import train

CASES: dict[str, Callable[[Strategy], Any]] = {}


def case(function: Callable[[Strategy], Any]) -> Callable[[Strategy], Any]:
    """A case of that name."""
    CASES[function.__name__] = function
    return function


def said(function: Callable[[], Any]) -> str:
    """What a call raises, in words."""
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
    """A call on the last rank, and another one on the others, each followed by a step of all."""
    is_last = s.ranks.rank == s.ranks.size - 1
    found: dict[str, Any] = {}

    def tried(name: str, one: Callable[[], str], other: Callable[[], str], own: Training) -> None:
        words = one() if is_last else other()
        before = own.w.tolist()
        found[name] = [words, own.good(), [b - a for a, b in zip(before, own.w.tolist())]]

    def fresh(make: Callable[[], Any] = lambda: SGD(0.5)) -> Training:
        return Training(s, make())

    def reduced(value: Any) -> Callable[[], str]:
        return lambda: said(lambda: s.reduce("sum", value))

    own = fresh()
    tried("apply and minimize", own.good, own.minimize, own)

    def later(name: str, one: Callable[[Training], str]) -> None:
        own = fresh()
        for _ in range(3):
            own.minimize()  # gradients are sent while others are computed
        tried(name, lambda: one(own), own.minimize, own)

    later("apply later", Training.good)
    later("a value later", lambda own: reduced(torch.ones(2))())
    later("values of rank 0 later", lambda own: said(lambda: s.broadcast([own.w])))
    other = Training(s, SGD(0.5, momentum=0.5))
    other.minimize()
    later("another optimizer", lambda own: other.minimize())
    own = fresh()
    tried("a step and a value", own.good, reduced(torch.ones(2)), own)
    tried("no pairs", own.apply, own.good, own)
    tried("values", reduced([torch.ones(2)] * 2), reduced([torch.ones(2)]), own)
    tried("shapes", reduced(torch.ones(2, 3)), reduced(torch.ones(3, 2)), own)
    tried("dtypes", reduced(torch.ones(2, dtype=torch.int16)), reduced(torch.ones(2)), own)

    def changed() -> str:
        own.optimizer.learning_rate = 0.25
        words = own.good()
        own.optimizer.learning_rate = 0.5
        return words

    tried("a rate", changed, own.good, own)

    def ahead() -> str:
        own.optimizer.iterations.add_(1)
        words = own.good()
        own.optimizer.iterations.sub_(1)
        return words

    tried("a step", ahead, own.good, own)
    classic = fresh(lambda: train.GradientDescentOptimizer(0.5))
    malformed: Any = torch.ones(2)
    tried("no pair", lambda: classic.apply((malformed,)), classic.good, classic)
    return found


class Hooked(SGD):
    """An optimizer whose hook sees gradients before they are summed, and raises if told to."""

    raises = False

    def _transform_unaggregated_gradients(self, grads_and_vars: Any) -> Iterable[Any]:
        if self.raises:
            raise KeyError("hook")
        return [(2 * grad, var) for grad, var in grads_and_vars]


@case
def hooks_before_the_sum(s: Strategy) -> Any:
    is_last = s.ranks.rank == s.ranks.size - 1
    own = Training(s, Hooked(0.5))
    other = Variable([0.0, 0.0], name="other")
    own.optimizer.raises = is_last
    first = own.good()
    own.optimizer.raises = False
    second = own.apply((torch.ones(2), own.w), (torch.ones(2) if is_last else None, other))
    return [first, second, own.w.tolist(), other.tolist()]


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
    """Who does not sum waits for nobody, and is waited for by nobody."""
    own = Training(s, SGD(0.5, gradient_aggregator=lambda pairs: pairs))

    def loss() -> Tensor:
        if s.ranks.rank:
            raise KeyError("no batch")
        return own.w.sum()

    words = said(lambda: s.run(own.optimizer.minimize, (loss, [own.w])))
    return [words, own.w.tolist()]


@case
def variables_that_one_rank_changes(s: Strategy) -> Any:
    """In shape, where gradients are sent before a word, in strides, and in a constraint."""
    is_last = s.ranks.rank == s.ranks.size - 1
    found: dict[str, Any] = {}
    own = Training(s)
    for _ in range(3):
        own.minimize()
    before = own.w.data
    if is_last:
        own.w.data = torch.zeros(3)
    words = own.minimize()
    own.w.data = before
    found["shape"] = [words, own.minimize(), own.w.tolist()]
    square = Variable(torch.zeros(2, 3), name="square")
    if is_last:
        square.data = torch.zeros(3, 2).t()
    found["strides"] = [own.apply((torch.ones(2, 3), square)), square.tolist()]
    for name, optimizer in (("keras", SGD(0.5)), ("v1", train.GradientDescentOptimizer(0.5))):
        own = Training(s, optimizer)
        own.good()
        own.w.constraint = broken if is_last else torch.abs
        other = [own.good()]
        own.w.constraint = None
        other.append(own.good())
        s.broadcast([own.w])
        found[name] = [*other, own.good(), own.w.tolist()]
    return found


@case
def gradients_that_fail(s: Strategy) -> Any:
    own = Training(s)

    def loss(number: int) -> Tensor:
        if number == s.ranks.size - 1:
            raise KeyError("no batch")
        return own.w.sum()

    def step() -> None:
        pairs = s.gradients(loss, [own.w], s.ranks.size)
        s.run(own.optimizer.apply_gradients, (pairs,))

    return [said(step), own.good(), own.w.tolist()]


@case
def graphs_that_differ(s: Strategy) -> Any:
    """Graphs of other orders and rates, and runs that fail on one rank, before and in the run."""
    rank, found = s.ranks.rank, {}
    for name, order, rate in (("order", rank, 0), ("rate", 0, rank)):
        with Graph().as_default(), s.scope():
            made = [v1.Variable([1.0], name=each) for each in "ab"]
            pairs = [(v1.constant([1.0]), each) for each in made]
            opt = train.GradientDescentOptimizer(0.5 + rate)
            found[name] = said(
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
            feeds = {x: [1.0, 1.0]}
            found["feed"] = said(lambda: session.run(op, {} if rank == s.ranks.size - 1 else feeds))
            long = {x: [1.0, 1.0, 1.0]} if rank == s.ranks.size - 1 else feeds
            found["run"] = said(lambda: session.run(op, long))
            session.run(op, feeds)
            found["w"] = session.run(w).tolist()
            found["total"] = session.run(total, feeds).tolist()
    return found


@case
def other_dtypes_are_broadcast(s: Strategy) -> Any:
    kinds = (torch.bool, torch.int16, torch.float8_e4m3fn, torch.complex64)
    tensors = [torch.full((2, 3), s.ranks.rank + 1).to(kind).t() for kind in kinds]
    s.broadcast(tensors)
    return [bool((each.to(torch.complex64) == 1).all()) for each in tensors]
