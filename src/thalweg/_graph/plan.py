"""`RunPlan`: which operations a run needs, in which order, and what becomes of their values."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, groupby
from types import (
    BuiltinFunctionType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

from thalweg._base.context_managers import grad_kept
from thalweg._base.execution_context import thread
from thalweg._base.lazy import lazy
from thalweg._graph.early_counters import find_early_operations
from thalweg._graph.gradients import GradientsOfRun, as_differentiable
from thalweg._graph.locks import EXCLUSIVE, SHARED
from thalweg._graph.nodes import Operation, Subgraph, SymbolicTensor
from thalweg._graph.scopes import Unit
from thalweg._graph.variables import GraphVariable

_IN_C = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, MethodWrapperType)

Fed = frozenset[SymbolicTensor]


@dataclass
class Result:
    """Uses of one output of a step."""

    tensor: SymbolicTensor
    pick: int = 0  # its place among the leaves that the function returns
    kept: bool = False  # a later step needs it
    watched: bool = False  # a later step differentiates by it
    carried: bool = False  # variables may change while it is needed
    fetched: list[int] = field(default_factory=list)  # its places among the fetches

    @property
    def is_plain(self) -> bool:
        """True if the output is only stored."""
        return self.kept and not (self.watched or self.carried or self.fetched)


@dataclass
class Step:
    """Operation of a plan."""

    operation: Operation
    function: Callable[..., Any]
    fill: Callable[[Any], Sequence[Any]]
    lock: str | None
    differentiates: bool = False
    is_whole: bool = False  # the function returns the one output itself, and not a nest
    results: list[Result] = field(default_factory=list)
    argument: SymbolicTensor | None = None  # the one argument, where that is all of them
    plain: SymbolicTensor | None = None  # the one output, where it is just stored
    dropped: tuple[SymbolicTensor, ...] = ()  # what no later step needs
    grad: bool = False  # whether torch's autograd records

    @lazy
    def is_closed(self) -> bool:
        """True if the step runs only code of torch itself, which leaves variables unchanged."""
        function: Any = self.function
        while isinstance(function, partial):
            function = function.func
        return isinstance(function, _IN_C) and self.lock == SHARED and not self.operation.written


@dataclass
class RunPlan:
    """Plan of a run of one set of fetches with one set of fed tensors.

    Attributes:
        segments: Steps that run under one lock each, in order.
        given: Fetches that are fed: their places, and the tensors.
        watched_feeds: Fed tensors by which a step differentiates.
        count: The number of fetches.
        overwrites: Whether a variable is written to before a gradient needs the value it had.
    """

    segments: list[tuple[str | None, list[Step]]]
    given: list[tuple[int, SymbolicTensor]]
    watched_feeds: tuple[SymbolicTensor, ...]
    count: int
    overwrites: bool

    @property
    def differentiates(self) -> bool:
        """True if a step differentiates."""
        return any(step.differentiates for _, steps in self.segments for step in steps)

    @property
    def writes(self) -> bool:
        """True if the plan needs more than shared locks."""
        return any(lock != SHARED for lock, _ in self.segments)

    def abandon_waiting(self, failed: Step | None, error: BaseException) -> None:
        """Pass an error to those who wait for what has not run, unless it was `failed` itself.

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


class SubgraphRun:
    """A subgraph that a step has run, as a function of the values of its parameters.

    Its steps are those of the run that is under way: they find in its frame what was computed
    before them.
    """

    def __init__(self, subgraph: Subgraph, plan: RunPlan) -> None:
        self.parameters = subgraph.parameters
        self.plan = plan

    def __call__(self, *values: object) -> list[Any]:
        frame = thread.frames[-1]
        frame.update(zip(self.parameters, values, strict=True))
        with grad_kept():
            return frame.session.carry_out(self.plan, frame, frame.session.copy_if_shared)


def make_plan(fetches: Sequence[Operation | SymbolicTensor], fed: Fed) -> RunPlan:
    """Plan the run of `fetches` when `fed` are fed.

    Operations that only read come before all that update, unless data or control dependencies say
    otherwise. Fetches of reference variables come last, and assignments that count steps in one
    come first (see `early_counters`). Apart from that operations keep the order of their creation.

    Raises:
        InvalidArgumentError: A placeholder that is needed is not fed.
    """
    backward = [
        op for op in _all_operations(fetches, fed) if isinstance(op.function, GradientsOfRun)
    ]
    watched = {x for op in backward for x in op.function.watched}  # pyright: ignore
    reads = [x for x in fetches if isinstance(x, GraphVariable) and x not in fed]
    before = [
        *(_read_var(variable) for variable in dict.fromkeys(reads) if variable.is_resource),
        *(_watch_var(x) for x in watched if _needs_watching(x, fed)),
    ]
    after = [_read_var(variable) for variable in dict.fromkeys(reads) if not variable.is_resource]
    return _plan_block(fetches, fed, fed, _Derivatives(backward, watched), before, after)


@dataclass
class _Derivatives:
    """What a whole run differentiates.

    Attributes:
        operations: Those that do, in order.
        watched: The tensors by which they do.
    """

    operations: list[Operation]
    watched: set[SymbolicTensor]


def _plan_block(
    fetches: Sequence[Operation | SymbolicTensor],
    fed: Fed,
    given: Iterable[SymbolicTensor],
    derivatives: _Derivatives,
    before: Sequence[Step] = (),
    after: Sequence[Step] = (),
) -> RunPlan:
    """The plan of a run, or of one of its subgraphs, to which `given` are given."""
    operations = _sort_operations(_find_needed(fetches, fed), fed)
    steps = [
        *before,
        *(_plan_operation(op, derivatives, fed) for op in operations if op.function is not None),
        *after,
    ]
    _place_results(steps, fetches, fed, derivatives.watched)
    for step in steps:
        runs_others = bool(step.operation.subgraphs)  # which see to it themselves
        step.grad = bool(derivatives.operations) and (step.lock == SHARED or runs_others)
    last = max((place for place, step in enumerate(steps) if step.differentiates), default=-1)
    for step in steps[last + 1 :]:  # a unit reads all variables of an optimizer
        step.grad = step.grad and (step.operation.unit is None or step.operation.block is not None)
    steps = _as_units(steps, fed)
    known = [(i, x) for i, x in enumerate(fetches) if x in fed and isinstance(x, SymbolicTensor)]
    watched = tuple(x for x in given if x in derivatives.watched)
    return RunPlan(
        _split_by_lock(steps), known, watched, len(fetches), _overwrites_gradient_inputs(steps, fed)
    )


def _as_units(steps: Sequence[Step], fed: Fed) -> list[Step]:
    """The steps, and around the updates of each unit what puts them back if one fails.

    From the first that reads for it on, a unit runs under one lock.
    """
    members: dict[Unit, list[int]] = {}
    for place, step in enumerate(steps):
        unit = step.operation.unit
        if (
            unit is not None and unit.block is step.operation.block
        ):  # or what runs that block has it
            members.setdefault(unit, []).append(place)
    before: dict[int, list[Step]] = {}
    after: dict[int, list[Step]] = {}
    waits = list(accumulate(int(step.lock is None) for step in steps))
    for unit, all_places in members.items():
        own = [place for place in all_places if steps[place].lock is not None]
        # While it waits for other threads they may write: before that is one update, and after it.
        for _, undivided in groupby(own, key=waits.__getitem__):
            places = list(undivided)
            updates = [place for place in places if steps[place].lock != SHARED]
            if not updates:
                continue
            for step in steps[places[0] : places[-1] + 1]:
                step.lock = EXCLUSIVE
            inside = chain.from_iterable(_ops_in(steps[place].operation, fed) for place in updates)
            written = tuple(dict.fromkeys(x for op in inside for x in op.written))
            begin = partial(_begin_unit, unit=unit, written=written)
            if places[0] < updates[0]:  # what fails here has written nothing yet, and says so
                start = partial(_begin_unit, unit=unit, written=())
                before.setdefault(places[0], []).append(_make_unit_step(steps[places[0]], start))
            before.setdefault(updates[0], []).append(_make_unit_step(steps[updates[0]], begin))
            end = partial(_end_unit, unit=unit)
            after.setdefault(places[-1], []).append(_make_unit_step(steps[places[-1]], end))
    found: list[Step] = []
    for place, step in enumerate(steps):
        found += [*before.get(place, ()), step, *after.get(place, ())]
    return found


def _make_unit_step(step: Step, function: Callable[[Any], None]) -> Step:
    return Step(step.operation, function, lambda frame: (frame,), EXCLUSIVE)


def _begin_unit(frame: Any, unit: Unit, written: Sequence[SymbolicTensor]) -> None:
    frame.begin_unit(unit, written)


def _end_unit(frame: Any, unit: Unit) -> None:
    frame.end_unit(unit)


def _overwrites_gradient_inputs(steps: Iterable[Step], fed: Fed) -> bool:
    """See `RunPlan`."""
    written: set[SymbolicTensor] = set()
    for step in steps:
        inside = _ops_in(step.operation, fed)
        if step.operation.subgraphs:  # may be a loop, in which an update comes before, too
            written.update(x for op in inside for x in op.written)
        read = (op.function.read for op in inside if isinstance(op.function, GradientsOfRun))
        if written and any(not written.isdisjoint(each) for each in read):
            return True
        written.update(step.operation.written)
    return False


def _ops_in(op: Operation, fed: Fed) -> list[Operation]:
    """An operation, and those that its subgraphs have run."""
    found = [op]
    for each in op.subgraphs:
        for inner in _find_needed(each.results, fed):
            found += _ops_in(inner, fed)
    return found


def _find_needed(
    fetches: Iterable[Operation | SymbolicTensor], fed: Fed, inside: bool = False
) -> set[Operation]:
    """What must run for `fetches`, in their block; with `inside`, in the subgraphs as well."""
    stack = [x if isinstance(x, Operation) else x.op for x in fetches if x not in fed]
    needed: set[Operation] = set()
    while stack:
        op = stack.pop()
        if op in needed:
            continue
        if op.kind == "placeholder" and op.function is not None:
            op.function()  # raises
        needed.add(op)
        stack += [other for other in _predecessors_of(op, fed) if inside or other.block is op.block]
        if inside:
            stack += [x.op for subgraph in op.subgraphs for x in subgraph.results]
    return needed


def _all_operations(fetches: Sequence[Operation | SymbolicTensor], fed: Fed) -> Iterator[Operation]:
    """All operations of a run in order, those of subgraphs before the one that has them run."""
    for op in _sort_operations(_find_needed(fetches, fed), fed):
        for subgraph in op.subgraphs:
            yield from _all_operations(subgraph.results, fed)
        yield op


def _predecessors_of(op: Operation, fed: Fed) -> list[Operation]:
    """What must have run when `op` runs."""
    return [*(x.op for x in op.inputs if x not in fed), *op.control_inputs]


def _sort_operations(needed: set[Operation], fed: Fed) -> list[Operation]:
    waits = {op: needed.intersection(_predecessors_of(op, fed)) for op in needed}
    early = find_early_operations(needed, partial(_predecessors_of, fed=fed))

    def priority(op: Operation) -> int:
        return -1 if op in early else int(op.kind in ("update", "blocking"))

    followers: dict[Operation, list[Operation]] = {op: [] for op in needed}
    for op, before in waits.items():
        for other in before:
            followers[other].append(op)
    counts = {op: len(before) for op, before in waits.items()}
    ready = [(priority(op), op.index, op) for op in needed if not counts[op]]
    heapq.heapify(ready)
    ordered = []
    while ready:
        op = heapq.heappop(ready)[-1]
        ordered.append(op)
        for follower in followers[op]:
            counts[follower] -= 1
            if not counts[follower]:
                heapq.heappush(ready, (priority(follower), follower.index, follower))
    return ordered


def _plan_operation(op: Operation, derivatives: _Derivatives, fed: Fed) -> Step:
    lock = {"update": EXCLUSIVE, "blocking": None}.get(op.kind, SHARED)
    function, backward = op.function, derivatives.operations
    differentiates = isinstance(function, GradientsOfRun)
    if isinstance(function, GradientsOfRun):
        later = backward[backward.index(op) + 1 :]
        is_nested = any(op in _find_needed([other], fed, inside=True) for other in later)
        is_repeated = op.block is not None  # or may be
        function = partial(
            function, retain_graph=bool(later) or is_repeated, create_graph=is_nested
        )
    if op.subgraphs and function is not None:
        parts = [
            SubgraphRun(each, _plan_block(each.results, fed, each.parameters, derivatives))
            for each in op.subgraphs
        ]
        differentiates = any(part.plan.differentiates for part in parts)
        function = partial(function, *parts)
    step = Step(op, function, op.fill, lock, differentiates, op.picks is None)  # pyright: ignore
    step.argument = op.argument
    picks = range(len(op.outputs)) if op.picks is None else op.picks
    step.results = [Result(x, i) for x, i in zip(op.outputs, picks, strict=True) if x not in fed]
    return step


def _read_var(variable: GraphVariable) -> Step:
    """Fetch a variable."""
    return _pseudo_step(variable, lambda leaf: leaf, kept=False)


def _watch_var(variable: GraphVariable) -> Step:
    """Let a run differentiate by a variable that is not trained."""
    return _pseudo_step(variable, as_differentiable, kept=True)


def _pseudo_step(variable: GraphVariable, function: Callable[..., object], kept: bool) -> Step:
    def fill_variable(frame: Any) -> Sequence[object]:
        return (frame.session.leaf(variable),)

    results = [Result(variable, kept=kept)]
    return Step(variable.op, function, fill_variable, SHARED, is_whole=True, results=results)


def _needs_watching(x: SymbolicTensor, fed: Fed) -> bool:
    return isinstance(x, GraphVariable) and x not in fed and not x.trainable


def _place_results(
    steps: Sequence[Step],
    fetches: Sequence[Operation | SymbolicTensor],
    fed: Fed,
    watched: set[SymbolicTensor],
) -> None:
    """Say of each output how long it is needed and what for."""
    barriers = list(accumulate(int(step.lock != SHARED) for step in steps))
    last_use = {x: i for i, step in enumerate(steps) for x in step.operation.inputs}
    made: dict[SymbolicTensor, Result] = {}
    for index, step in enumerate(steps):
        for result in step.results:
            if not (result.kept and result.tensor in made):  # a variable may be watched, too
                made[result.tensor] = result
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


def _split_by_lock(steps: Sequence[Step]) -> list[tuple[str | None, list[Step]]]:
    """The steps by the lock they run under.

    Where a gradient cannot follow its forward pass under one shared lock, all up to the gradient
    runs under one exclusive lock, so that no other thread writes to what autograd has saved.
    """
    locks = [step.lock for step in steps]
    gradients = [i for i, step in enumerate(steps) if step.differentiates]
    writers = [i for i, step in enumerate(steps) if step.operation.stateful or step.lock != SHARED]
    stateful = [i for i in writers if steps[i].operation.stateful]
    if stateful or (writers and gradients and writers[0] <= gradients[-1]):
        end = max([*stateful, *gradients]) + 1
        locks[:end] = [EXCLUSIVE if lock == SHARED else lock for lock in locks[:end]]
    pairs = groupby(zip(locks, steps, strict=True), key=lambda pair: pair[0])
    return [(lock, [step for _, step in group]) for lock, group in pairs]
