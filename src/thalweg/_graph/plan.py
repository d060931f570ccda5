"""`RunPlan`: the *steps* of a run in order. A step runs one operation.

A *segment* is a sequence of steps that run under one lock.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, groupby
from operator import methodcaller
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
    """Output of a step, with the later uses of the output."""

    tensor: SymbolicTensor
    # Index among the leaves of the function's result.
    pick: int = 0
    # True if a later step needs the output.
    is_live: bool = False
    # True if a later step differentiates with respect to the output.
    watched: bool = False
    # True if variables may change before the last use, so that shared memory must be copied.
    crosses_write: bool = False
    # Indices of the output among the fetches.
    fetched: list[int] = field(default_factory=list)

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
    # True if the function returns the only output, not a nest of outputs.
    returns_output: bool = False
    results: list[Result] = field(default_factory=list)
    # The only argument, if it is a tensor.
    argument: SymbolicTensor | None = None
    # The only output, if it is stored without further processing.
    plain: SymbolicTensor | None = None
    # Tensors that no later step needs.
    dead_tensors: tuple[SymbolicTensor, ...] = ()
    # True if autograd records the step.
    grad: bool = False

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
        """Report a run's error to the ranks that wait in the run's next collective operation.

        `failed` is the step that raised `error`; None if no step was run. The next collective
        operation is the first one with a callback `abandoned`, from the step `failed` on. Call
        `abandoned(error)`. Do nothing if the operation itself failed, or if there is none.
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

    The body runs in the present `Frame` of the thread, where it finds values computed earlier.
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
    All else runs in order of creation. Raise InvalidArgumentError if a placeholder is not fed.
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
        fetches: The outputs of the plan.
        fed: The tensors whose values are fed to the run.
        parameters: The fed tensors of a run, or the arguments of a body.
        derivatives: The gradient operations of the whole run.
        first, final: Additional steps at the beginning and at the end.
    """
    operations = _sort_operations(_find_needed(fetches, fed), fed)
    steps = [
        *first,
        *(_plan_operation(op, derivatives, fed) for op in operations if op.function is not None),
        *final,
    ]
    _record_uses(steps, fetches, fed, derivatives.watched)
    for step in steps:
        # A branch or loop sets the gradient mode for its own steps.
        has_subgraphs = bool(step.operation.subgraphs)
        step.grad = bool(derivatives.operations) and (step.lock == SHARED or has_subgraphs)
    last_gradient = max(
        (index for index, step in enumerate(steps) if step.differentiates), default=-1
    )
    # After the last gradient, the steps of an update, which read all variables, record nothing.
    for step in steps[last_gradient + 1 :]:
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
    """Return `steps` with an additional step before and after each unit (update).

    The step before a unit saves values of variables, so that an error can undo the unit. The step
    after the unit drops the saved values. In place, set `lock` of a unit's steps to `EXCLUSIVE`.
    """
    members: dict[Unit, list[int]] = {}
    for index, step in enumerate(steps):
        unit = step.operation.unit
        # In a branch or loop of the unit, the operation that runs the body is the member.
        if unit is not None and unit.block is step.operation.block:
            members.setdefault(unit, []).append(index)
    begin_steps: defaultdict[int, list[Step]] = defaultdict(list)
    end_steps: defaultdict[int, list[Step]] = defaultdict(list)
    wait_counts = list(accumulate(int(step.lock is None) for step in steps))
    for unit, all_indices in members.items():
        locked_indices = [index for index in all_indices if steps[index].lock is not None]
        # Other threads may write while a blocking step waits, so such steps divide a unit.
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
            first, last, first_update = steps[indices[0]], steps[indices[-1]], steps[updates[0]]
            # A failure before the first update adds the note that nothing was written.
            if first is not first_update:
                begin_steps[indices[0]].append(_make_unit_step(first, "begin_unit", unit, ()))
            begin = _make_unit_step(first_update, "begin_unit", unit, variables)
            begin_steps[updates[0]].append(begin)
            end_steps[indices[-1]].append(_make_unit_step(last, "end_unit", unit))
    return [
        member
        for index, step in enumerate(steps)
        for member in (*begin_steps[index], step, *end_steps[index])
    ]


def _make_unit_step(step: Step, method: str, *arguments: object) -> Step:
    """Return a step that calls a method of the frame in front of, or behind, another step."""
    return Step(step.operation, methodcaller(method, *arguments), lambda frame: (frame,), EXCLUSIVE)


def _overwrites_gradient_inputs(steps: Iterable[Step], fed: Fed) -> bool:
    """Return True if a step writes to a variable from which a later gradient is computed."""
    variables: set[SymbolicTensor] = set()
    for step in steps:
        inner_ops = _nested_operations(step.operation, fed)
        # In a loop, an update of one iteration comes before a gradient of the next.
        if step.operation.subgraphs:
            variables.update(x for op in inner_ops for x in op.written)
        read = (op.function.read for op in inner_ops if isinstance(op.function, GradientsOfRun))
        if variables and any(not variables.isdisjoint(inputs) for inputs in read):
            return True
        variables.update(step.operation.written)
    return False


def _nested_operations(op: Operation, fed: Fed) -> list[Operation]:
    """Return all operations of an operation's subgraphs, in order, and then the operation."""
    bodies = [_all_operations(subgraph.results, fed) for subgraph in op.subgraphs]
    return [*chain.from_iterable(bodies), op]


def _find_needed(
    fetches: Iterable[Operation | SymbolicTensor], fed: Fed, nested: bool = False
) -> set[Operation]:
    """Return the operations on which `fetches` depend.

    `nested` includes the operations of branches and loops. Otherwise, leave these out, and leave
    out operations outside of the body of the fetches. Raise InvalidArgumentError if a placeholder
    among the operations is not fed.
    """
    stack = [x if isinstance(x, Operation) else x.op for x in fetches if x not in fed]
    operations: set[Operation] = set()
    while stack:
        op = stack.pop()
        if op in operations:
            continue
        if op.kind == "placeholder" and op.function is not None:
            # Raises an error.
            op.function()
        operations.add(op)
        stack += [prior for prior in _predecessors_of(op, fed) if nested or prior.block is op.block]
        if nested:
            stack += [x.op for subgraph in op.subgraphs for x in subgraph.results]
    return operations


def _all_operations(fetches: Sequence[Operation | SymbolicTensor], fed: Fed) -> list[Operation]:
    """Return all operations of a run in order; subgraphs come before their operation."""
    operations = _sort_operations(_find_needed(fetches, fed), fed)
    return [inner for op in operations for inner in _nested_operations(op, fed)]


def _predecessors_of(op: Operation, fed: Fed) -> list[Operation]:
    """Return the operations that must run before `op`."""
    return [*(x.op for x in op.inputs if x not in fed), *op.control_inputs]


def _sort_operations(operations: set[Operation], fed: Fed) -> list[Operation]:
    """Return operations in run order: each one comes after the operations on which it depends.

    Apart from this, step counters come first, then reads, then updates, each in order of creation.
    """
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
    # Topological order; among the ready operations, priority and creation decide.
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
        # A body may run again, and differentiate the same outer computation once more.
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
    """Set `results`, `plain` and `dead_tensors` of each step in place: how its outputs are used.

    Results that neither a later step nor a fetch uses are dropped. `fed` are the tensors of
    `feed_dict`, `sources` the tensors for which a step computes gradients.
    """
    barriers = list(accumulate(int(step.lock != SHARED) for step in steps))
    last_use = {x: i for i, step in enumerate(steps) for x in step.operation.inputs}
    uses: dict[SymbolicTensor, Result] = {}
    for index, step in enumerate(steps):
        for result in step.results:
            # A variable may have two results: a step that watches it, and a step that fetches it.
            if not (result.is_live and result.tensor in uses):
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
    """Return (lock mode or None, consecutive steps with this mode) pairs, in order.

    If a write precedes the last gradient, `SHARED` becomes `EXCLUSIVE` in all steps up to this
    gradient. A module that updates buffers counts as a write and as a gradient.
    """
    # Between two segments other threads may write, also to tensors saved by autograd.
    locks = [step.lock for step in steps]
    gradients = [i for i, step in enumerate(steps) if step.differentiates]
    writers = [i for i, step in enumerate(steps) if step.operation.stateful or step.lock != SHARED]
    stateful = [i for i in writers if steps[i].operation.stateful]
    if stateful or (writers and gradients and writers[0] <= gradients[-1]):
        end = max([*stateful, *gradients]) + 1
        locks[:end] = [EXCLUSIVE if lock == SHARED else lock for lock in locks[:end]]
    pairs = groupby(zip(locks, steps, strict=True), key=lambda pair: pair[0])
    return [(lock, [step for _, step in group]) for lock, group in pairs]
