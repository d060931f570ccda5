"""Last part of a step: the update of all tensors at once."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg import distribute
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
from thalweg._core.gradient_stats import transform_gradients
from thalweg._core.gradient_transforms import Decision, GradientTransforms
from thalweg._core.grads_and_vars import distinct
from thalweg._core.validation import check_memories
from thalweg._engines import current
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.backward import BackwardResult
from thalweg.v1.train.optimizer import Optimizer
from thalweg.variable import REDUCED


def captured_by(optimizer: Optimizer, targets: Sequence[Tensor]) -> list[Any]:
    """Create slots of graph variables, and return the values that an operation updating them
    captures.
    """
    optimizer._create_slots(distinct(list(targets)))
    return optimizer._captured_inputs()


def watching(
    scaler: AutomaticLossScaler | None,
    report: list[object],
    calls: Sequence[Call] = (),
    decides_there: bool = True,
) -> dict[str, Any]:
    """Return the parts of a `GradientTransforms` by which a scaler, if there is one, decides.

    Args:
        scaler: The scaler, which answers to the gradients as the step is written.
        report: Is given a sentence then, what has become of the step, and whether it was taken.
        calls: Functions in C that are called then, too.
        decides_there: Whether a device may decide.
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
    """Update the targets, and set the variables that they are masters of; all of it or nothing.

    Args:
        optimizer: What takes the step.
        backward: Gradients by the targets, as `transforms` takes them.
        transforms: What happens to the gradients.
        global_step: The variable that counts updates, or None.
        captured: In a graph the values that the optimizer captured when the graph was built.

    Returns:
        Whether there was an update, see `StepResult`, and what was raised after it.
    """
    present, uses_transforms, name = (
        backward.present(),
        optimizer.takes_transforms(),
        optimizer.get_name(),
    )
    copies = present.copies if present.has_masters else None
    # Variables of 16 bits get gradients that are rounded to their dtype, as in OpenSeq2Seq.
    if uses_transforms and {target.dtype for target in present.targets}.isdisjoint(REDUCED):
        return optimizer._take(present.pairs, global_step, name, transforms, copies, captured)
    with optimizer._turn_lock(), optimizer._locked():
        pairs, decision = transform_gradients(
            present.pairs, transforms, current().denormals == "flush"
        )
        if not decision.apply_flag:
            run(decision.calls)
            return StepResult(False, [])
        if uses_transforms:
            transforms = GradientTransforms(calls=decision.calls)
            return optimizer._take(pairs, global_step, name, transforms, copies, captured)
        new_gradients = iter([grad for grad, _ in pairs])
        gradients = [None if grad is None else next(new_gradients) for grad in backward.gradients]
        # Not an ExitStack, which is written in Python: an interruption at its end would leave the
        # step under way.
        block: Any = contextlib.nullcontext()
        if captured is not None:
            hooks = optimizer._make_hooks(global_step, name, captured[0])
            block = optimizer._while_taking(hooks)
        with block:
            return _by_override(optimizer, backward.done(gradients), decision.calls, global_step)


def _by_override(
    optimizer: Optimizer, backward: BackwardResult, calls: Sequence[Call], global_step: Any
) -> StepResult:
    """Take a step by an optimizer that overrides `apply_gradients`.

    If an error comes after the counter has changed, the step counts as taken.
    """
    step = global_step
    if step is None:
        step = torch.zeros((), dtype=torch.int64, device="cpu")
    old_step = step.detach().clone()
    try:
        # The gradients are means over the replicas already.
        with distribute.enter_single_replica():
            optimizer.apply_gradients(backward.pairs, step)
        run([*copying(backward), *map(unless_resized, calls)])
    except BaseException as error:
        if says_not_taken(error) or torch.equal(step.detach(), old_step):
            raise
        add_taken(error)
        run([*copying(backward), *map(unless_resized, calls)])
        return StepResult(True, [error])
    return StepResult(True, [])


def copying(backward: BackwardResult) -> list[Call]:
    """Return calls that set variables to their masters: the nearest number, never infinite."""
    check_memories([*backward.targets, *(copy for copy in backward.copies if copy is not None)])
    return copy_writes(backward.copies, backward.targets)
