"""`Plan`: which operations a run needs, in which order, and what becomes of their values."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

from thalweg.graph.gradients import Backward, differentiable
from thalweg.graph.locks import EXCLUSIVE, SHARED
from thalweg.graph.nodes import Operation, SymbolicTensor
from thalweg.graph.variables import GraphVariable


@dataclass
class Result:
    """What becomes of one output of a step."""

    tensor: SymbolicTensor
    pick: int = 0  # its place among the leaves that the function returns
    kept: bool = False  # a later step needs it
    watched: bool = False  # a later step differentiates by it
    carried: bool = False  # variables may change while it is needed
    fetched: list[int] = field(default_factory=list)  # its places among the fetches

    @property
    def is_plain(self) -> bool:
        """Whether it is just stored."""
        return self.kept and not (self.watched or self.carried or self.fetched)


@dataclass
class Step:
    """One operation of a plan."""

    operation: Operation
    function: Callable[..., Any]
    fill: Callable[[Any], Sequence[Any]]
    lock: str | None
    differentiates: bool = False
    is_whole: bool = False  # the function returns the one output itself, and not a nest
    results: list[Result] = field(default_factory=list)
    plain: SymbolicTensor | None = None  # the one output, where it is just stored
    dropped: tuple[SymbolicTensor, ...] = ()  # what no later step needs
    grad: bool = False  # whether torch's autograd records


@dataclass
class Plan:
    """How to run one set of fetches with one set of fed tensors.

    Attributes:
        segments: Steps that run under one lock each, in order.
        given: Fetches that are fed: their places, and the tensors.
        watched_feeds: Fed tensors by which a step differentiates.
    """

    segments: list[tuple[str | None, list[Step]]]
    given: list[tuple[int, SymbolicTensor]]
    watched_feeds: tuple[SymbolicTensor, ...]

    @property
    def writes(self) -> bool:
        """Whether it needs more than shared locks."""
        return any(lock != SHARED for lock, _ in self.segments)

    def abandon(self, failed: Step | None, error: BaseException) -> None:
        """Tell of an error those who wait for what has not run, if `failed` was not it.

        Args:
            failed: The step that failed; None if the run has not begun.
            error: What it raised.
        """
        is_left = failed is None
        for step in (each for _, segment in self.segments for each in segment):
            is_left = is_left or step is failed
            if is_left and step.operation.abandoned is not None:
                if step is not failed:
                    step.operation.abandoned(error)
                return


def make_plan(
    fetches: Sequence[Operation | SymbolicTensor], fed: frozenset[SymbolicTensor]
) -> Plan:
    """Plan the run of `fetches` when `fed` are fed.

    All that only reads comes before all that updates, unless data or control dependencies say
    otherwise; apart from that operations keep the order of their creation.

    Raises:
        InvalidArgumentError: A placeholder that is needed is not fed.
    """
    operations = _ordered(_needed(fetches, fed), fed)
    backward = [op for op in operations if isinstance(op.function, Backward)]
    watched = {x for op in backward for x in op.function.watched}  # pyright: ignore
    reads = [x for x in fetches if isinstance(x, GraphVariable) and x not in fed]
    steps = [
        *(_read(variable) for variable in dict.fromkeys(reads)),
        *(_watch(x) for x in watched if _needs_watching(x, fed)),
        *(_step(op, backward, fed) for op in operations if op.function is not None),
    ]
    _place_results(steps, fetches, fed, watched)
    for step in steps:
        step.grad = bool(backward) and step.lock == SHARED
    given = [(i, x) for i, x in enumerate(fetches) if x in fed and isinstance(x, SymbolicTensor)]
    return Plan(_segments(steps), given, tuple(x for x in watched if x in fed))


def _needed(
    fetches: Iterable[Operation | SymbolicTensor], fed: frozenset[SymbolicTensor]
) -> set[Operation]:
    stack = [x if isinstance(x, Operation) else x.op for x in fetches if x not in fed]
    needed: set[Operation] = set()
    while stack:
        op = stack.pop()
        if op in needed:
            continue
        if op.kind == "placeholder" and op.function is not None:
            op.function()  # raises
        needed.add(op)
        stack += _before(op, fed)
    return needed


def _before(op: Operation, fed: frozenset[SymbolicTensor]) -> list[Operation]:
    """What must have run when `op` runs."""
    return [*(x.op for x in op.inputs if x not in fed), *op.control_inputs]


def _ordered(needed: set[Operation], fed: frozenset[SymbolicTensor]) -> list[Operation]:
    waits = {op: set(_before(op, fed)) for op in needed}
    followers: dict[Operation, list[Operation]] = {op: [] for op in needed}
    for op, before in waits.items():
        for other in before:
            followers[other].append(op)
    counts = {op: len(before) for op, before in waits.items()}
    ready = [(_turn(op), op.index, op) for op in needed if not counts[op]]
    heapq.heapify(ready)
    ordered = []
    while ready:
        op = heapq.heappop(ready)[-1]
        ordered.append(op)
        for follower in followers[op]:
            counts[follower] -= 1
            if not counts[follower]:
                heapq.heappush(ready, (_turn(follower), follower.index, follower))
    return ordered


def _turn(op: Operation) -> int:
    return int(op.kind in ("update", "blocking"))


def _step(op: Operation, backward: Sequence[Operation], fed: frozenset[SymbolicTensor]) -> Step:
    lock = {"update": EXCLUSIVE, "blocking": None}.get(op.kind, SHARED)
    function = op.function
    if isinstance(function, Backward):
        later = [other for other in backward if backward.index(other) > backward.index(op)]
        nested = any(op in _needed([other], fed) for other in later)
        function = functools.partial(function, retain_graph=bool(later), create_graph=nested)
    step = Step(op, function, op.fill, lock, is_whole=op.picks is None)  # pyright: ignore
    step.differentiates = isinstance(op.function, Backward)
    picks = range(len(op.outputs)) if op.picks is None else op.picks
    step.results = [Result(x, i) for x, i in zip(op.outputs, picks, strict=True) if x not in fed]
    return step


def _read(variable: GraphVariable) -> Step:
    """Fetch a variable, before anything can change it."""
    return _pseudo_step(variable, lambda leaf: leaf, kept=False)


def _watch(variable: GraphVariable) -> Step:
    """Let a run differentiate by a variable that is not trained."""
    return _pseudo_step(variable, differentiable, kept=True)


def _pseudo_step(variable: GraphVariable, function: Callable[..., Any], kept: bool) -> Step:
    def fill(frame: Any) -> Sequence[Any]:
        return (frame.session.leaf(variable),)

    results = [Result(variable, kept=kept)]
    return Step(variable.op, function, fill, SHARED, is_whole=True, results=results)


def _needs_watching(x: SymbolicTensor, fed: frozenset[SymbolicTensor]) -> bool:
    return isinstance(x, GraphVariable) and x not in fed and not x.trainable


def _place_results(
    steps: Sequence[Step],
    fetches: Sequence[Operation | SymbolicTensor],
    fed: frozenset[SymbolicTensor],
    watched: set[SymbolicTensor],
) -> None:
    """Say of each output how long it is needed and what for."""
    barriers = list(accumulate(int(step.lock != SHARED) for step in steps))
    last_use = {x: i for i, step in enumerate(steps) for x in step.operation.inputs}
    made: dict[SymbolicTensor, Result] = {}
    for index, step in enumerate(steps):
        for result in step.results:
            made.setdefault(result.tensor, result)
            last = last_use.get(result.tensor)
            if last is None or isinstance(result.tensor, GraphVariable):
                continue
            result.kept = True
            result.watched = result.tensor in watched
            result.carried = barriers[last] > barriers[index]
            steps[last].dropped += (result.tensor,)
    for place, fetch in enumerate(fetches):
        if isinstance(fetch, SymbolicTensor) and fetch not in fed:
            made[fetch].fetched.append(place)
    for step in steps:
        if step.is_whole and len(step.results) == 1 and step.results[0].is_plain:
            step.plain = step.results[0].tensor
        step.results = [x for x in step.results if x.kept or x.fetched]


def _segments(steps: Sequence[Step]) -> list[tuple[str | None, list[Step]]]:
    """The steps by the lock they run under.

    Where a gradient cannot follow its forward pass under one shared lock, all up to the gradient
    runs under one exclusive lock, so that no other thread writes to what autograd has saved.
    """
    locks = [step.lock for step in steps]
    gradients = [i for i, step in enumerate(steps) if step.differentiates]
    writers = [i for i, step in enumerate(steps) if step.operation.stateful or step.lock != SHARED]
    stateful = [i for i in writers if steps[i].operation.stateful]
    if stateful or (writers and gradients and writers[0] < gradients[-1]):
        end = max([*stateful, *gradients]) + 1
        locks[:end] = [EXCLUSIVE if lock == SHARED else lock for lock in locks[:end]]
    pairs = groupby(zip(locks, steps, strict=True), key=lambda pair: pair[0])
    return [(lock, [step for _, step in group]) for lock, group in pairs]
