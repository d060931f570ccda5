"""Step after a backward pass, over concrete tensors, for eager steps and graphs alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import NoneType
from typing import Any, NamedTuple

from torch import Tensor

from thalweg import distribute
from thalweg._base.context_managers import writable
from thalweg._base.device_counters import number_of
from thalweg._base.execution_context import thread
from thalweg._core.atomic_section import Call, run
from thalweg._core.commit import LEFT, SKIPPED, TAKEN, StepResult, note_not_applied
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.options.iter_size import adding, check_addable, clearing, totals
from thalweg._core.replay_trigger import ReplayResult
from thalweg.openseq2seq.optimizers.accumulation import are_addable
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.backward import BackwardResult, raw, unscaled
from thalweg.openseq2seq.optimizers.gradients import processed
from thalweg.openseq2seq.optimizers.post_process import PostProcessing
from thalweg.openseq2seq.optimizers.reduction import AllReduce, check_replicas, reduced
from thalweg.openseq2seq.optimizers.summaries import Journal, Letter, Outbox
from thalweg.openseq2seq.optimizers.update import update, watching
from thalweg.v1.train.optimizer import Optimizer, check_any

SCOPE = "Loss_Optimization/"
ACCUMULATED = "The run added its gradients up"


class Treatment(NamedTuple):
    """Settings of the processing of gradients, equal in all steps.

    Attributes:
        post: Clipping, LARC and summaries.
        iter_size: The number of runs per update.
        reduces: Whether gradients are averaged over workers.
        all_reduce: See `reduced`.
        model: See `reduced`.
        outbox: The receiver of summaries, or None.
        shows_loss: Whether the loss is among the summaries.
    """

    post: PostProcessing
    iter_size: int = 1
    reduces: bool = False
    all_reduce: AllReduce | None = None
    model: Any = None
    outbox: Outbox | None = None
    shows_loss: bool = False

    def is_waited_for(self, skips: bool) -> bool:
        """Return True if other ranks of torch.distributed wait for this rank's gradients."""
        return self.reduces and self.all_reduce is None and not skips


class ReceivedGradients(NamedTuple):
    """Inputs of a step.

    Attributes:
        backward: The raw gradients and their variables.
        sums: The accumulators of the targets; [] where every run makes an update.
        rate: The learning rate, a number or tensor of shape ().
        skip: Whether this run only adds to the accumulators.
        captured: In a graph the values that the optimizer captured when the graph was built.
        counts: Further calls of C functions that count the run.
        loss: The loss, or None where gradients were computed elsewhere.
    """

    backward: BackwardResult
    sums: list[Tensor]
    rate: Any
    skip: bool = False
    captured: Any = None
    counts: Sequence[Call] = ()
    loss: Tensor | None = None


class Ready(NamedTuple):
    """A run with complete gradients, before anything but accumulators is written.

    Attributes:
        backward: The unprocessed gradients of the update.
        gradient_transforms: Their transforms; None if the run only accumulated them.
        journal: The summaries of the run, or None.
        step: The step number for the writer.
    """

    backward: BackwardResult
    gradient_transforms: GradientTransforms | None
    journal: Journal | None
    step: int


def _check_addends(
    gradients: Sequence[Any], targets: Sequence[Tensor], sums: Sequence[Tensor]
) -> None:
    """Raise if gradients cannot be added to their sums."""
    if not are_addable(gradients, targets, sums):
        check_addable(gradients, targets, sums)


def readied(
    optimizer: Optimizer,
    treatment: Treatment,
    step_inputs: ReceivedGradients,
    scaler: AutomaticLossScaler | None,
    loss_scale: object,
    global_step: Tensor,
    report: list[object],
) -> Ready:
    """Accumulate and reduce gradients; return the run with the transforms of its update.

    If this function raises an error, nothing has changed.

    Args:
        optimizer, how, given, scaler, loss_scale, global_step, done: See `apply_processed`.
    """
    if treatment.reduces or thread.strategies:
        check_replicas(treatment.reduces, treatment.iter_size)
    journal = _begun(treatment, step_inputs, loss_scale)
    step = 0 if journal is None else int(number_of(global_step))
    backward = step_inputs.backward
    # Another worker may have a gradient that this one lacks: checked after the reduction.
    if step_inputs.skip or not treatment.reduces:
        _check(treatment, backward)
    if treatment.iter_size > 1 or treatment.reduces:
        gradients = unscaled(backward)
        if treatment.iter_size > 1:
            _check_addends(gradients, backward.targets, step_inputs.sums)
            accumulation = step_inputs.sums, gradients, treatment.iter_size
            if step_inputs.skip:
                note = partial(report.extend, (f"{ACCUMULATED}.", False))
                run([*adding(*accumulation), *step_inputs.counts, note])
                return Ready(backward, None, journal, step)
            gradients = totals(*accumulation)
        if treatment.reduces:
            reduction = treatment.all_reduce, treatment.model, treatment.post.as_shipped
            gradients = reduced(gradients, backward.targets, *reduction, optimizer)
        backward = backward.done(gradients)
        if treatment.reduces:
            _check(treatment, backward)
    backward, unscaling = raw(backward)
    # The host tells other ranks of the step.
    clears = clearing(step_inputs.sums) if step_inputs.sums else ()
    parts = watching(scaler, report, [*clears, *step_inputs.counts], not treatment.reduces)
    parts |= {"rate": step_inputs.rate, "journal": journal, "unscaling": unscaling}
    transforms = treatment.post.gradient_transforms(backward.present().pairs, **parts)
    return Ready(backward, transforms, journal, step)


def apply_processed(
    optimizer: Optimizer,
    treatment: Treatment,
    step_inputs: ReceivedGradients,
    scaler: AutomaticLossScaler | None,
    loss_scale: object,
    global_step: Tensor,
    report: list[Any],
) -> StepResult:
    """Run a step: accumulate, reduce, unscale, clip, check and update; write summaries.

    If this function raises an error, nothing has changed, and a note on the error says so.

    Args:
        optimizer: The optimizer.
        treatment: The settings of the processing of gradients.
        step_inputs: The inputs of the run. Gradients are not written to.
        scaler: The scaler that decides by the gradients whether to update, or None.
        loss_scale: The value of the summary of that name, or None for no such summary.
        global_step: The variable that counts updates.
        report: An empty list; as soon as something has been written it is given a sentence, and
            whether the step was taken: a bool, or a tensor where a device decides.

    Returns:
        Whether there was an update, see `StepResult`, and what was raised after it by constraints,
        the optimizer's `_finish` and the writer.
    """
    if _is_plain(treatment, step_inputs, scaler) and optimizer.takes_transforms():
        pairs = step_inputs.backward.pairs
        follows = report if isinstance(report, ReplayResult) else ReplayResult()
        # Pairs without gradients, since the transforms are kept until the next step.
        larc_pairs: Any = (
            []
            if treatment.post.larc is None
            else [(None, var) for var in step_inputs.backward.targets]
        )
        first = treatment.post.gradient_transforms(larc_pairs, step_inputs.rate, None)
        if optimizer._take_again(pairs, global_step, step_inputs.captured, follows, first):
            if not report:
                report.extend((f"{TAKEN}.", True))
            distribute.commit_sums(optimizer)
            return StepResult(True, [])
    with writable(), note_not_applied(report):
        ready = readied(optimizer, treatment, step_inputs, scaler, loss_scale, global_step, report)
        if ready.gradient_transforms is None:
            return StepResult(False, told(treatment, ready, ACCUMULATED))
        has_update, errors = update(
            optimizer, ready.backward, ready.gradient_transforms, global_step, step_inputs.captured
        )
        if isinstance(has_update, Tensor):
            return StepResult(has_update, errors + told(treatment, ready, LEFT.rstrip(".")))
        if has_update:
            distribute.commit_sums(optimizer, bool(errors))
        return StepResult(
            has_update, errors + told(treatment, ready, TAKEN if has_update else SKIPPED)
        )


def _is_plain(
    treatment: Treatment, step_inputs: ReceivedGradients, scaler: AutomaticLossScaler | None
) -> bool:
    """Return whether a run only updates by its own gradients, clipped or scaled by LARC."""
    backward = step_inputs.backward
    return (
        scaler is None
        and treatment.outbox is None
        and treatment.iter_size == 1
        and not treatment.reduces
        and not treatment.post.as_shipped
        and backward.scale is None
        and not backward.has_masters
        and not step_inputs.counts
    )


def told_of(treatment: Treatment, step_inputs: ReceivedGradients, scope: str) -> Letter:
    """Return the summaries of a run's gradients and variables, without its update.

    A run that only accumulates gradients has none.

    Args:
        treatment: What would be done to the gradients of this worker alone.
        step_inputs: The gradients of the run.
        scope: What tags begin with.
    """
    journal = Journal(treatment.post.summaries, scope)
    with writable():
        backward = step_inputs.backward
        if treatment.iter_size > 1 and not step_inputs.skip:
            backward = backward.done(
                totals(step_inputs.sums, unscaled(backward), treatment.iter_size)
            )
        if not step_inputs.skip:
            backward, unscaling = raw(backward)
            pairs = backward.present().pairs
            gradient_transforms = treatment.post.gradient_transforms(
                pairs, step_inputs.rate, journal, unscaling=unscaling
            )
            processed([grad for grad, _ in pairs], [var for _, var in pairs], gradient_transforms)
    return journal.sent(0)


def _check(treatment: Treatment, backward: BackwardResult) -> None:
    if not treatment.post.as_shipped and NoneType not in set(map(type, backward.gradients)):
        return
    treatment.post.check(backward.gradients, backward.targets)
    check_any(backward.pairs)


def _begun(treatment: Treatment, step_inputs: ReceivedGradients, loss_scale: Any) -> Journal | None:
    """Return a journal with the summaries that need no gradients; None without an outbox."""
    if treatment.outbox is None:
        return None
    journal = Journal(treatment.post.summaries, SCOPE)
    if "learning_rate" in journal.names:
        journal.scalar("learning_rate", step_inputs.rate, scoped=False)
    if treatment.shows_loss and step_inputs.loss is not None:
        journal.scalar("loss", step_inputs.loss.detach())
    if "loss_scale" in journal.names and loss_scale is not None:
        journal.scalar("loss_scale", loss_scale.clone())
    return journal


def told(treatment: Treatment, ready: Ready, outcome: str) -> list[BaseException]:
    """Send the summaries of a run to the writer; return [error of the writer] or []."""
    if ready.journal is None or treatment.outbox is None:
        return []
    try:
        treatment.outbox.send(ready.journal.sent(ready.step))
    except BaseException as error:
        error.add_note(f"{outcome}, but its summaries were not written.")
        return [error]
    return []
