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
ADDED_UP = "The run added its gradients up"


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
    """A run whose gradients are known, before anything is written of it but what adds them up.

    Attributes:
        backward: The gradients, raw, of the update.
        processing: What is to happen to them; None if the run only added them up.
        journal: The summaries of the run, or None.
        step: What the writer is told the step to be.
    """

    backward: BackwardResult
    gradient_transforms: GradientTransforms | None
    journal: Journal | None
    step: int


def readied(
    optimizer: Optimizer,
    how: Treatment,
    given: ReceivedGradients,
    scaler: AutomaticLossScaler | None,
    loss_scale: object,
    global_step: Tensor,
    done: list[object],
) -> Ready:
    """Add up and reduce, and say what is to unscale, clip or scale, and decide.

    An error that is raised changes nothing.

    Args:
        optimizer, how, given, scaler, loss_scale, global_step, done: See `apply_processed`.
    """
    if how.reduces or thread.strategies:
        check_replicas(how.reduces, how.iter_size)
    journal = _begun(how, given, loss_scale)
    step = 0 if journal is None else int(number_of(global_step))
    backward = given.backward
    # What this worker has no gradient for another one may have: looked at once they agree.
    if given.skip or not how.reduces:
        _check(how, backward)
    if how.iter_size > 1 or how.reduces:
        gradients = unscaled(backward)
        if how.iter_size > 1:
            if not are_addable(gradients, backward.targets, given.sums):
                check_addable(gradients, backward.targets, given.sums)
            own = given.sums, gradients, how.iter_size
            if given.skip:
                said = partial(done.extend, (f"{ADDED_UP}.", False))
                run([*adding(*own), *given.counts, said])
                return Ready(backward, None, journal, step)
            gradients = totals(*own)
        if how.reduces:
            gradients = reduced(
                gradients,
                backward.targets,
                how.all_reduce,
                how.model,
                how.post.as_shipped,
                optimizer,
            )
        backward = backward.done(gradients)
        if how.reduces:
            _check(how, backward)
    backward, unscaling = raw(backward)
    # The host tells other ranks of the step.
    clears = clearing(given.sums) if given.sums else ()
    parts = watching(scaler, done, [*clears, *given.counts], not how.reduces)
    pairs = backward.present().pairs
    gradient_transforms = how.post.gradient_transforms(
        pairs, given.rate, journal, unscaling=unscaling, **parts
    )
    return Ready(backward, gradient_transforms, journal, step)


def apply_processed(
    optimizer: Optimizer,
    how: Treatment,
    given: ReceivedGradients,
    scaler: AutomaticLossScaler | None,
    loss_scale: object,
    global_step: Tensor,
    done: list[Any],
) -> StepResult:
    """Add up, reduce, unscale, clip or LARC, check, update, copy and tell: one run of a step.

    An error that is raised changes nothing, and says so.

    Args:
        optimizer: What takes the step.
        how: What is done to the gradients.
        given: The gradients of this run. None of them is written to.
        scaler: What watches the gradients and decides, or None.
        loss_scale: The value of the summary of that name, or None for no such summary.
        global_step: The variable that counts updates.
        done: An empty list; as soon as something has been written it is given a sentence, and
            whether the step was taken: a bool, or a tensor where a device decides.

    Returns:
        Whether there was an update, see `StepResult`, and what was raised after it by constraints,
        the optimizer's `_finish` and the writer.
    """
    if _is_plain(how, given, scaler) and optimizer.takes_transforms():
        pairs = given.backward.pairs
        follows = done if isinstance(done, ReplayResult) else ReplayResult()
        # Nothing that is kept until the next step holds a gradient.
        own: Any = [] if how.post.larc is None else [(None, var) for var in given.backward.targets]
        first = how.post.gradient_transforms(own, given.rate, None)
        if optimizer._take_again(pairs, global_step, given.captured, follows, first):
            if not done:
                done.extend((f"{TAKEN}.", True))
            distribute.commit_sums(optimizer)
            return StepResult(True, [])
    with writable(), note_not_applied(done):
        ready = readied(optimizer, how, given, scaler, loss_scale, global_step, done)
        if ready.gradient_transforms is None:
            return StepResult(False, told(how, ready, ADDED_UP))
        taken, errors = update(
            optimizer, ready.backward, ready.gradient_transforms, global_step, given.captured
        )
        if isinstance(taken, Tensor):
            return StepResult(taken, errors + told(how, ready, LEFT.rstrip(".")))
        if taken:
            distribute.commit_sums(optimizer, bool(errors))
        return StepResult(taken, errors + told(how, ready, TAKEN if taken else SKIPPED))


def _is_plain(how: Treatment, given: ReceivedGradients, scaler: AutomaticLossScaler | None) -> bool:
    """Return whether a run is the update of an optimizer by its own gradients, clipped or by
    LARC.
    """
    backward = given.backward
    return (
        scaler is None
        and how.outbox is None
        and how.iter_size == 1
        and not how.reduces
        and not how.post.as_shipped
        and backward.scale is None
        and not backward.has_masters
        and not given.counts
    )


def told_of(how: Treatment, given: ReceivedGradients, scope: str) -> Letter:
    """Return the summaries of a run's gradients and variables, without its update.

    A run that only adds its gradients up has none.

    Args:
        how: What would be done to the gradients of this worker alone.
        given: The gradients of the run.
        scope: What tags begin with.
    """
    journal = Journal(how.post.summaries, scope)
    with writable():
        backward = given.backward
        if how.iter_size > 1 and not given.skip:
            backward = backward.done(totals(given.sums, unscaled(backward), how.iter_size))
        if not given.skip:
            backward, unscaling = raw(backward)
            pairs = backward.present().pairs
            gradient_transforms = how.post.gradient_transforms(
                pairs, given.rate, journal, unscaling=unscaling
            )
            processed([grad for grad, _ in pairs], [var for _, var in pairs], gradient_transforms)
    return journal.sent(0)


def _check(how: Treatment, backward: BackwardResult) -> None:
    if not how.post.as_shipped and NoneType not in set(map(type, backward.gradients)):
        return
    how.post.check(backward.gradients, backward.targets)
    check_any(backward.pairs)


def _begun(how: Treatment, given: ReceivedGradients, loss_scale: Any) -> Journal | None:
    """Return a journal with the summaries that need no gradients; None without an outbox."""
    if how.outbox is None:
        return None
    journal = Journal(how.post.summaries, SCOPE)
    if "learning_rate" in journal.wanted:
        journal.scalar("learning_rate", given.rate, scoped=False)
    if how.shows_loss and given.loss is not None:
        journal.scalar("loss", given.loss.detach())
    if "loss_scale" in journal.wanted and loss_scale is not None:
        journal.scalar("loss_scale", loss_scale.clone())
    return journal


def told(how: Treatment, ready: Ready, done: str) -> list[BaseException]:
    """Hand the summaries of a run to the writer; what it raised."""
    if ready.journal is None or how.outbox is None:
        return []
    try:
        how.outbox.send(ready.journal.sent(ready.step))
    except BaseException as error:
        error.add_note(f"{done}, but its summaries were not written.")
        return [error]
    return []
