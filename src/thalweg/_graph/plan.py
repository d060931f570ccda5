"""`RunPlan`: the operations of a run in order, with the later uses of each output."""

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
    """Output of a step, with its later uses."""

    tensor: SymbolicTensor
    pick: int = 0  # its index among the leaves that the function returns
    is_live: bool = False  # a later step needs it
    watched: bool = False  # a later step differentiates by it
    crosses_write: bool = False  # variables may change while it is needed
    fetched: list[int] = field(default_factory=list)  # its indices among the fetches

    @property
    def is_plain(self) -> bool:
        """True if the output is only stored."""
        return self.is_live and not (self.watched or self.crosses_write or self.fetched)


@dataclass
class Step:
    """Operation of a plan, with its arguments, lock and results."""

    operation: Operation
    function: Callable[..., Any]
    fill: Callable[[Any], Sequence[Any]]
    lock: str | None
    differentiates: bool = False
    returns_output: bool = False  # the function returns the one output itself, and not a nest
    results: list[Result] = field(default_factory=list)
    argument: SymbolicTensor | None = None  # the one argument, where that is all of them
    plain: SymbolicTensor | None = None  # the one output, where it is just stored
    dead_tensors: tuple[SymbolicTensor, ...] = ()  # what no later step needs
    grad: bool = False  # autograd records

    @lazy
    def is_closed(self) -> bool:
        """True if the step runs only code of torch itself, which leaves variables unchanged."""
        function: Any = self.function
        while isinstance(function, partial):
            function = function.func
        return isinstance(function, _IN_C) and self.lock == SHARED and not self.operation.written


@dataclass
class RunPlan:
    """Execution plan for one set of fetches and one set of fed tensors.

    Attributes:
        segments: (lock mode, steps) pairs in order; the steps of a pair run under one lock.
        fed_fetches: (index, tensor) pairs of the fetches that are fed.
        watched_feeds: Fed tensors for which a step computes gradients.
        overwrites: True if a run writes to a variable before a gradient needs the former value.
    """

    segments: list[tuple[str | None, list[Step]]]
    fed_fetches: list[tuple[int, SymbolicTensor]]
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
        """Report an error to threads that wait for an operation of this run.

        Find the first step, from the failed step on, with a callback `operation.abandoned`. Call
        `abandoned(error)`, unless the step found is the failed step.

        Args:
            failed: The step that failed; None if the run has not begun.
        """
        is_unreached = failed is None
        for step in (member for _, segment in self.segments for member in segment):
            is_unreached = is_unreached or step is failed
            if is_unreached and step.operation.abandoned is not None:
                if step is not failed:
                    step.operation.abandoned(error)
                return


class SubgraphRun:
    """Callable body of a branch or loop: `run(*arguments)` returns a list of results.

    The body runs in the innermost frame of the thread, and reads values computed earlier.
    """

    def __init__(self, subgraph: Subgraph, plan: RunPlan) -> None:
        self.parameters = subgraph.parameters
        self.plan = plan

    def __call__(self, *values: object) -> list[Any]:
        """Return the values of the subgraph's results."""
        frame = thread.frames[-1]
        frame.update(zip(self.parameters, values, strict=True))
        with grad_kept():
            return frame.session.carry_out(self.plan, frame, frame.session.values.copy_if_shared)


def make_plan(fetches: Sequence[Operation | SymbolicTensor], fed: Fed) -> RunPlan:
    """Return the execution plan for `fetches` in a run that receives the values of `fed`.

    Reads come before updates, unless data or control dependencies require another order. Step
    counters are assigned first (see `early_counters`). Fetches of reference variables come last.
    Otherwise operations run in order of creation. Raise InvalidArgumentError if a placeholder is
    needed and not fed.
    """
    backward = [
        op for op in _all_operations(fetches, fed) if isinstance(op.function, GradientsOfRun)
    ]
    sources = {x for op in backward for x in op.function.watched}  # pyright: ignore
    reads = [x for x in fetches if isinstance(x, GraphVariable) and x not in fed]
    first = [
        *(_read_var(variable) for variable in dict.fromkeys(reads) if variable.is_resource),
        # A run differentiates by variables that are not trained, too.
        *(
            _pseudo_step(x, as_differentiable, is_live=True)
            for x in sources
            if isinstance(x, GraphVariable) and x not in fed and not x.trainable
        ),
    ]
    final = [_read_var(variable) for variable in dict.fromkeys(reads) if not variable.is_resource]
    return _plan_block(fetches, fed, fed, _Derivatives(backward, sources), first, final)


@dataclass
class _Derivatives:
    """Gradient operations of a whole run, and the tensors that have gradients.

    Attributes:
        operations: The gradient operations, in order.
        watched: The tensors for which the operations compute gradients.
    """

    operations: list[Operation]
    watched: set[SymbolicTensor]


def _plan_block(
    fetches: Sequence[Operation | SymbolicTensor],
    fed: Fed,
    parameters: Iterable[SymbolicTensor],
    derivatives: _Derivatives,
    first: Sequence[Step] = (),
    final: Sequence[Step] = (),
) -> RunPlan:
    """Return the plan of a run, or of the body of a branch or loop.

    Args:
        fetches, fed: The outputs, and the tensors whose values are fed to the run.
        parameters: Tensors with values from outside: `fed`, or the arguments of the body. Those in
            `derivatives.watched` become `watched_feeds` of the plan.
        derivatives: The gradient operations of the whole run.
        first, final: Additional steps for the beginning and the end.
    """
    operations = _sort_operations(_find_needed(fetches, fed), fed)
    steps = [
        *first,
        *(_plan_operation(op, derivatives, fed) for op in operations if op.function is not None),
        *final,
    ]
    _record_uses(steps, fetches, fed, derivatives.watched)
    for step in steps:
        has_subgraphs = bool(step.operation.subgraphs)  # which see to it themselves
        step.grad = bool(derivatives.operations) and (step.lock == SHARED or has_subgraphs)
    last_gradient = max(
        (index for index, step in enumerate(steps) if step.differentiates), default=-1
    )
    for step in steps[last_gradient + 1 :]:  # a unit reads all variables of an optimizer
        step.grad = step.grad and (step.operation.unit is None or step.operation.block is not None)
    steps = _as_units(steps, fed)
    fed_fetches = [
        (i, x) for i, x in enumerate(fetches) if x in fed and isinstance(x, SymbolicTensor)
    ]
    sources = tuple(x for x in parameters if x in derivatives.watched)
    return RunPlan(
        _split_by_lock(steps),
        fed_fetches,
        sources,
        len(fetches),
        _overwrites_gradient_inputs(steps, fed),
    )


def _as_units(steps: Sequence[Step], fed: Fed) -> list[Step]:
    """Return `steps` with added steps that begin and end each unit, to undo its writes on failure.

    From the first step of a unit to the last, set the lock to `EXCLUSIVE`, in place.
    """
    members: dict[Unit, list[int]] = {}
    for index, step in enumerate(steps):
        unit = step.operation.unit
        if (
            unit is not None and unit.block is step.operation.block
        ):  # or what runs that block has it
            members.setdefault(unit, []).append(index)
    begin_steps: dict[int, list[Step]] = {}
    end_steps: dict[int, list[Step]] = {}
    wait_counts = list(accumulate(int(step.lock is None) for step in steps))
    for unit, all_indices in members.items():
        locked_indices = [index for index in all_indices if steps[index].lock is not None]
        # While it waits for other threads they may write: before that is one update, and after it.
        for _, undivided in groupby(locked_indices, key=wait_counts.__getitem__):
            indices = list(undivided)
            updates = [index for index in indices if steps[index].lock != SHARED]
            if not updates:
                continue
            for step in steps[indices[0] : indices[-1] + 1]:
                step.lock = EXCLUSIVE
            nested = chain.from_iterable(
                _nested_operations(steps[index].operation, fed) for index in updates
            )
            variables = tuple(dict.fromkeys(x for op in nested for x in op.written))
            begin = partial(_begin_unit, unit=unit, written=variables)
            if indices[0] < updates[0]:  # what fails here has written nothing yet, and says so
                start = partial(_begin_unit, unit=unit, written=())
                begin_steps.setdefault(indices[0], []).append(
                    _make_unit_step(steps[indices[0]], start)
                )
            begin_steps.setdefault(updates[0], []).append(_make_unit_step(steps[updates[0]], begin))
            end = partial(_end_unit, unit=unit)
            end_steps.setdefault(indices[-1], []).append(_make_unit_step(steps[indices[-1]], end))
    ordered_steps: list[Step] = []
    for index, step in enumerate(steps):
        ordered_steps += [*begin_steps.get(index, ()), step, *end_steps.get(index, ())]
    return ordered_steps


def _make_unit_step(step: Step, function: Callable[[Any], None]) -> Step:
    """Return a step that calls `function(frame)` in front of, or behind, another step."""
    return Step(step.operation, function, lambda frame: (frame,), EXCLUSIVE)


def _begin_unit(frame: Any, unit: Unit, written: Sequence[SymbolicTensor]) -> None:
    """Make the frame record the values of variables that the unit writes to."""
    frame.begin_unit(unit, written)


def _end_unit(frame: Any, unit: Unit) -> None:
    """Make the frame keep the writes of the unit."""
    frame.end_unit(unit)


def _overwrites_gradient_inputs(steps: Iterable[Step], fed: Fed) -> bool:
    """Return True if a step writes to a variable that a later gradient is computed from."""
    variables: set[SymbolicTensor] = set()
    for step in steps:
        inner_ops = _nested_operations(step.operation, fed)
        if step.operation.subgraphs:  # may be a loop, in which an update comes before, too
            variables.update(x for op in inner_ops for x in op.written)
        read = (op.function.read for op in inner_ops if isinstance(op.function, GradientsOfRun))
        if variables and any(not variables.isdisjoint(inputs) for inputs in read):
            return True
        variables.update(step.operation.written)
    return False


def _nested_operations(op: Operation, fed: Fed) -> list[Operation]:
    """Return an operation and all operations of its subgraphs."""
    operations = [op]
    for subgraph in op.subgraphs:
        for inner in _find_needed(subgraph.results, fed):
            operations += _nested_operations(inner, fed)
    return operations


def _find_needed(
    fetches: Iterable[Operation | SymbolicTensor], fed: Fed, nested: bool = False
) -> set[Operation]:
    """Return the operations that `fetches` depend on; those of other blocks only if `nested`.

    Raise InvalidArgumentError if a placeholder among the operations is not fed.
    """
    stack = [x if isinstance(x, Operation) else x.op for x in fetches if x not in fed]
    operations: set[Operation] = set()
    while stack:
        op = stack.pop()
        if op in operations:
            continue
        if op.kind == "placeholder" and op.function is not None:
            op.function()  # raises
        operations.add(op)
        stack += [prior for prior in _predecessors_of(op, fed) if nested or prior.block is op.block]
        if nested:
            stack += [x.op for subgraph in op.subgraphs for x in subgraph.results]
    return operations


def _all_operations(fetches: Sequence[Operation | SymbolicTensor], fed: Fed) -> Iterator[Operation]:
    """Yield all operations of a run in order; subgraphs come before their operation."""
    for op in _sort_operations(_find_needed(fetches, fed), fed):
        for subgraph in op.subgraphs:
            yield from _all_operations(subgraph.results, fed)
        yield op


def _predecessors_of(op: Operation, fed: Fed) -> list[Operation]:
    """Return the operations that must run before `op`."""
    return [*(x.op for x in op.inputs if x not in fed), *op.control_inputs]


def _sort_operations(operations: set[Operation], fed: Fed) -> list[Operation]:
    """Return operations in run order: counters, reads, updates, each in order of creation."""
    predecessors_of = {op: operations.intersection(_predecessors_of(op, fed)) for op in operations}
    early = find_early_operations(operations, partial(_predecessors_of, fed=fed))

    def priority(op: Operation) -> int:
        """Return -1 for early counters, 0 for reads, 1 for updates."""
        return -1 if op in early else int(op.kind in ("update", "blocking"))

    followers: dict[Operation, list[Operation]] = {op: [] for op in operations}
    for op, predecessors in predecessors_of.items():
        for predecessor in predecessors:
            followers[predecessor].append(op)
    counts = {op: len(predecessors) for op, predecessors in predecessors_of.items()}
    ready = [(priority(op), op.index, op) for op in operations if not counts[op]]
    heapq.heapify(ready)
    sequence = []
    while ready:
        op = heapq.heappop(ready)[-1]
        sequence.append(op)
        for follower in followers[op]:
            counts[follower] -= 1
            if not counts[follower]:
                heapq.heappush(ready, (priority(follower), follower.index, follower))
    return sequence


def _plan_operation(op: Operation, derivatives: _Derivatives, fed: Fed) -> Step:
    """Return the step that runs an operation; also plan the bodies of a branch or loop."""
    lock = {"update": EXCLUSIVE, "blocking": None}.get(op.kind, SHARED)
    function, backward = op.function, derivatives.operations
    differentiates = isinstance(function, GradientsOfRun)
    if isinstance(function, GradientsOfRun):
        grad_ops = backward[backward.index(op) + 1 :]
        is_nested = any(op in _find_needed([grad_op], fed, nested=True) for grad_op in grad_ops)
        may_repeat = op.block is not None
        function = partial(
            function, retain_graph=bool(grad_ops) or may_repeat, create_graph=is_nested
        )
    if op.subgraphs and function is not None:
        parts = [
            SubgraphRun(block, _plan_block(block.results, fed, block.parameters, derivatives))
            for block in op.subgraphs
        ]
        differentiates = any(part.plan.differentiates for part in parts)
        function = partial(function, *parts)
    step = Step(op, function, op.fill, lock, differentiates, op.picks is None)  # pyright: ignore
    step.argument = op.argument
    picks = range(len(op.outputs)) if op.picks is None else op.picks
    step.results = [Result(x, i) for x, i in zip(op.outputs, picks, strict=True) if x not in fed]
    return step


def _read_var(variable: GraphVariable) -> Step:
    """Return a step that fetches a variable."""
    return _pseudo_step(variable, lambda leaf: leaf, is_live=False)


def _pseudo_step(variable: GraphVariable, function: Callable[..., object], is_live: bool) -> Step:
    """Return a step that passes a variable's leaf tensor to `function`."""

    def fill_variable(frame: Any) -> Sequence[object]:
        return (frame.session.leaf(variable),)

    results = [Result(variable, is_live=is_live)]
    return Step(variable.op, function, fill_variable, SHARED, returns_output=True, results=results)


def _record_uses(
    steps: Sequence[Step],
    fetches: Sequence[Operation | SymbolicTensor],
    fed: Fed,
    sources: set[SymbolicTensor],
) -> None:
    """Record the later uses of each result in the steps, in place, and drop unused results.

    Set `results`, `dead_tensors` and `plain` of each step, and the fields of its results.

    Args:
        steps: All steps, in the order of the run.
        fetches: The operations and tensors to fetch. A tensor's index is added to its `fetched`.
        fed: Tensors with values from the caller, which are not results of a step.
        sources: Tensors for which a step computes gradients.
    """
    barriers = list(accumulate(int(step.lock != SHARED) for step in steps))
    last_use = {x: i for i, step in enumerate(steps) for x in step.operation.inputs}
    uses: dict[SymbolicTensor, Result] = {}
    for index, step in enumerate(steps):
        for result in step.results:
            if not (result.is_live and result.tensor in uses):  # a variable may be watched
                uses[result.tensor] = result
            end = last_use.get(result.tensor)
            if end is None or isinstance(result.tensor, GraphVariable):
                continue
            result.is_live = True
            result.watched = result.tensor in sources
            result.crosses_write = barriers[end] > barriers[index]
            steps[end].dead_tensors += (result.tensor,)
    for index, fetch in enumerate(fetches):
        if isinstance(fetch, SymbolicTensor) and fetch not in fed:
            uses[fetch].fetched.append(index)
    for step in steps:
        if step.returns_output and len(step.results) == 1 and step.results[0].is_plain:
            step.plain = step.results[0].tensor
        step.results = [x for x in step.results if x.is_live or x.fetched]


def _split_by_lock(steps: Sequence[Step]) -> list[tuple[str | None, list[Step]]]:
    """Return (lock mode or None, steps) pairs of consecutive steps with one lock mode.

    If a write comes before the last gradient, all steps up to this gradient have the mode
    `EXCLUSIVE`: no other thread may write to tensors saved by autograd. A module that updates
    buffers counts like a gradient.
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
