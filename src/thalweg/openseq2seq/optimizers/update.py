"""Update of all variables, the last part of a step: eager, in a session's run, or as operations.

An optimizer that overrides hooks or `apply_gradients` is called once, while the graph is built. The
optimizer receives the outputs of an operation that processes the gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg import _graph, distribute
from thalweg._base.context_managers import writable
from thalweg._core.atomic_section import Call, run, unless_resized
from thalweg._core.commit import (
    LEFT,
    SKIPPED,
    TAKEN,
    StepResult,
    add_taken,
    copy_writes,
    says_not_taken,
)
from thalweg._core.gradient_transforms import Decision, GradientTransforms
from thalweg._core.grads_and_vars import distinct
from thalweg._core.validation import check_memories
from thalweg._graph import Output, SymbolicSlices
from thalweg.indexed_slices import IndexedSlices, whole
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.backward import BackwardResult
from thalweg.openseq2seq.optimizers.gradients import transform_present
from thalweg.v1.train.apply_gradients import StepArguments
from thalweg.v1.train.optimizer import Optimizer
from thalweg.v1.train.update_hooks import apply_if
from thalweg.variable import REDUCED


def capture_inputs(optimizer: Optimizer, targets: Sequence[Tensor]) -> list[Any]:
    """Create slots of graph variables; return the values that an operation of updates captures."""
    optimizer._create_slots(distinct(list(targets)))
    return optimizer._captured_inputs()


def decide_by_scaler(
    scaler: AutomaticLossScaler | None,
    report: list[object],
    calls: Sequence[Call] = (),
    decides_there: bool = True,
) -> dict[str, Any]:
    """Return a dict of arguments of `GradientTransforms`: the scaler decides about the update.

    Without a scaler, the dict has only "calls": `calls` and a function that extends `report`.

    Args:
        scaler: The scaler, whose state changes in the commit of the step; or None.
        report: A list. The commit appends a sentence, and a bool: True if the step was taken.
        calls: Further functions to call in the commit.
        decides_there: True if a GPU may decide, so that the host does not wait.
    """
    if scaler is None:
        return {"calls": [*calls, partial(report.extend, (f"{TAKEN}.", True))]}
    algorithm = scaler.scaler

    def decide(has_nan: object, amax: object) -> Decision:
        has_update, calls = algorithm.decide(has_nan, amax)
        outcome = LEFT if isinstance(has_update, Tensor) else f"{TAKEN if has_update else SKIPPED}."
        return Decision(has_update, [*calls, partial(report.extend, (outcome, has_update))])

    return {
        "decide": decide,
        "decides_there": decides_there,
        "exact": algorithm.READS_AMAX,
        "calls": calls,
    }


def update(
    optimizer: Optimizer,
    backward: BackwardResult,
    transforms: GradientTransforms,
    global_step: Any,
    captured: Any = None,
) -> StepResult:
    """Update the targets, and set each variable that has a master to the new master.

    An error before the commit changes nothing.

    Args:
        optimizer: The optimizer of the targets.
        backward: The targets and gradients. Gradients are scaled if `transforms` unscales.
        transforms: Transforms of the gradients before the update.
        global_step: The variable that counts updates, or None.
        captured: In a graph run, the values that the optimizer captured while building; else None.

    Returns:
        A `StepResult`: True if there was an update, and the errors of callbacks after the commit.
    """
    present, uses_transforms = backward.present(), optimizer.takes_transforms()
    arguments = StepArguments(global_step, optimizer.get_name(), captured)
    copies = present.copies if present.has_masters else None
    # Variables of 16 bits get gradients that are rounded to their dtype, as in OpenSeq2Seq.
    if uses_transforms and {target.dtype for target in present.targets}.isdisjoint(REDUCED):
        return optimizer._take(present.pairs, arguments, transforms, copies)
    with optimizer._turn_lock(), optimizer._locked():
        gradients, decision = transform_present(backward.gradients, backward.targets, transforms)
        if not decision.apply_flag:
            run(decision.calls)
            return StepResult(False, [])
        backward = backward.done(gradients)
        if uses_transforms:
            transforms = GradientTransforms(calls=decision.calls)
            pairs = backward.present().pairs
            return optimizer._take(pairs, arguments, transforms, copies)
        # Not an ExitStack, which is written in Python: an interruption at its end would leave the
        # step under way.
        block: Any = contextlib.nullcontext()
        if captured is not None:
            hooks = optimizer._make_hooks(global_step, arguments.name, captured[0])
            block = optimizer._while_taking(hooks)
        with block:
            return _update_by_override(optimizer, backward, decision.calls, global_step)


def _update_by_override(
    optimizer: Optimizer, backward: BackwardResult, calls: Sequence[Call], global_step: Any
) -> StepResult:
    """Call the overridden `apply_gradients`; then set variables to masters, and run `calls`.

    Raise an error that occurs before `global_step` changes. Return a later error in the
    `StepResult`, because the step was taken. Set variables and run `calls` in this case, too.
    """
    # After an error, a changed counter shows that `apply_gradients` took the step.
    step = global_step
    if step is None:
        step = torch.zeros((), dtype=torch.int64, device="cpu")
    old_step = step.detach().clone()
    try:
        # The gradients are means over the replicas already.
        with distribute.enter_single_replica():
            optimizer.apply_gradients(backward.pairs, step)
        run([*copies_of_masters(backward), *map(unless_resized, calls)])
    except BaseException as error:
        if says_not_taken(error) or torch.equal(step.detach(), old_step):
            raise
        add_taken(error)
        run([*copies_of_masters(backward), *map(unless_resized, calls)])
        return StepResult(True, [error])
    return StepResult(True, [])


def copies_of_masters(backward: BackwardResult) -> list[Call]:
    """Return calls that set variables to their masters: the nearest number, never infinite."""
    check_memories([*backward.targets, *(copy for copy in backward.copies if copy is not None)])
    return copy_writes(backward.copies, backward.targets)


class RecordedUpdate(NamedTuple):
    """Results of an update in a graph.

    Attributes:
        op: An operation that ends when the update has been made or left out.
        has_update: A bool tensor, True if there was an update.
    """

    op: Any
    has_update: Any


def calls_hooks_at_build(optimizer: Optimizer) -> bool:
    """Return True if an optimizer has to get its gradients while a graph is built."""
    return optimizer._is_recorded() or not optimizer.takes_transforms()


def process_gradients(backward: BackwardResult, transforms: GradientTransforms) -> list[Any] | None:
    """Return the transformed gradients; None if the loss scaler decides against an update.

    Also run the calls of the decision, which write the scaler's next state.
    """
    gradients, decision = transform_present(backward.gradients, backward.targets, transforms)
    run(decision.calls)
    return gradients if decision.apply_flag else None


def _find_sparse(backward: BackwardResult, dense: bool) -> list[bool]:
    """Return a list of bools, one per gradient: True if the gradient stays sparse."""
    return [
        isinstance(grad, SymbolicSlices | IndexedSlices) and penalty is None and not dense
        for grad, penalty in zip(backward.gradients, backward.penalties, strict=True)
    ]


def _run_process(
    process: Callable[..., Sequence[object] | None],
    targets: Sequence[Any],
    slices: Sequence[bool],
    *values: object,
) -> list[object]:
    """Return the outputs of an operation: [True if this run has an update, *gradients].

    The first output is a bool tensor. Without an update, a gradient is zeros, or `IndexedSlices`
    without rows.

    Args:
        process: `process(*values)` returns the gradients, or None without an update.
        targets: The variables of the gradients.
        slices: For each gradient, True to return `IndexedSlices`, False for a dense tensor.
        *values: The values of the inputs in this run.
    """
    with writable():
        run_gradients, leaves = process(*values), list(map(_graph.resolve, targets))
        is_update = torch.tensor(run_gradients is not None, dtype=torch.bool, device="cpu")
        if run_gradients is None:
            return [is_update, *map(_make_empty, slices, leaves)]
        return [is_update, *map(_as_declared, run_gradients, slices, leaves)]


def record_update(
    optimizer: Optimizer,
    backward: BackwardResult,
    process: Callable[..., Sequence[object] | None],
    inputs: Sequence[object],
    global_step: object,
    scaler: AutomaticLossScaler | None = None,
    name: str | None = None,
    dense: bool = False,
    always: bool = False,
) -> RecordedUpdate:
    """Build the update of an optimizer whose `apply_gradients` is called only now, not in runs.

    One operation processes the gradients in each run; its outputs are passed to `apply_gradients`.
    All operations form one update of the graph.

    Args:
        backward: Symbolic gradients, without None, with their variables and targets.
        process: `process(*values)` is called in each run. It returns a list, with a
            gradient or None per target, or None if the run has no update.
        inputs: Inputs of the operation, see `operation`; written variables are passed by reference.
        global_step: The variable that counts updates, or None.
        scaler: The loss scaler that `process` updates, or None.
        name: The `name` argument of `apply_gradients`.
        dense: True if all gradients become dense.
        always: True if every run has an update.

    Returns:
        A `RecordedUpdate`.
    """
    graph, targets = _graph.get_default_graph(), backward.targets
    slices = _find_sparse(backward, dense)
    outputs = [Output(torch.bool, (), ()), *(Output(x.dtype, x.shape, ()) for x in targets)]
    run_process = partial(_run_process, process, targets, slices)
    with graph.as_one():
        has_step, *process_outputs = _graph.operation(
            run_process, inputs, "process_gradients", outputs=outputs
        )
        has_step.op.written += _scale_of(scaler)
        gradients: list[Any] = []
        for gradient, is_sparse in zip(process_outputs, slices, strict=True):
            gradient.may_be_sparse = is_sparse
            gradients.append(SymbolicSlices.of(gradient) if is_sparse else gradient)
        name_argument = {} if name is None else {"name": name}
        args = optimizer, backward._replace(gradients=gradients), global_step, name_argument
        end_op = apply_if(always or has_step, partial(_apply_recorded, *args))
    return RecordedUpdate(end_op, has_step)


def _apply_recorded(
    optimizer: Optimizer, backward: BackwardResult, global_step: object, options: dict[str, Any]
) -> object:
    """Call `apply_gradients`, and copy masters to variables; return the last operation."""
    # Gradients are means over the replicas.
    with distribute.enter_single_replica():
        applied_op = _graph.group(optimizer.apply_gradients(backward.pairs, global_step, **options))
    if all(copy is None for copy in backward.copies):
        return applied_op
    references = by_references(backward._replace(gradients=[], penalties=[], scale=None))

    def set_to_masters(backward: BackwardResult) -> None:
        run(copies_of_masters(backward))

    return _graph.operation(set_to_masters, [references], "copy", control_inputs=[applied_op])


def _as_declared(grad: Any, is_sparse: bool, target: Tensor) -> object:
    """Return a gradient as slices or dense, as declared; zeros for None."""
    if grad is None:
        return _make_empty(is_sparse, target) if is_sparse else torch.zeros_like(target.detach())
    return grad if is_sparse else whole(grad, target)


def _make_empty(is_sparse: bool, target: Tensor) -> IndexedSlices | Tensor:
    """Return slices without rows, or a dense tensor of zeros that shares one element's memory."""
    tensor = target.detach()
    if is_sparse:
        no_rows = torch.zeros(0, dtype=torch.int64, device=tensor.device)
        return IndexedSlices(tensor.new_zeros((0, *tensor.shape[1:])), no_rows)
    return tensor.new_zeros(()).expand(tensor.shape)


def by_references(backward: BackwardResult) -> BackwardResult:
    """Return a copy with references to variables and targets, for a writing operation."""
    variables, targets = (
        [_graph.by_reference(var) for var in tensors]
        for tensors in (backward.variables, backward.targets)
    )
    return backward._replace(variables=variables, targets=targets)


def variables_written_by(
    optimizer: Optimizer, targets: Sequence[object], scaler: AutomaticLossScaler | None
) -> tuple[Any, ...]:
    """Return the variables other than targets that a step writes: slots, counters, scaler."""
    return (*optimizer._kept_in_graph(targets), *_scale_of(scaler))


def _scale_of(scaler: AutomaticLossScaler | None) -> tuple[object, ...]:
    return () if scaler is None else tuple(scaler.variables.values())
