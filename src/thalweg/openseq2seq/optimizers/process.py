"""All that follows a backward pass, over concrete tensors: eager steps and graphs call it alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.core.outcome import not_taken
from thalweg.openseq2seq.optimizers.accumulation import add, check_addable, zero
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.backward import Backward, unscaled
from thalweg.openseq2seq.optimizers.gradients import Gradient
from thalweg.openseq2seq.optimizers.in_sweeps import InSweeps
from thalweg.openseq2seq.optimizers.post_process import PostProcessing, post_processed
from thalweg.openseq2seq.optimizers.reduction import AllReduce, reduced
from thalweg.openseq2seq.optimizers.summaries import Journal
from thalweg.openseq2seq.optimizers.update import Inner, update
from thalweg.v1.train.optimizer import check_any

SCOPE = "Loss_Optimization/"
_ADDED_UP = "The run added its gradients up"
_SKIPPED = "The step was skipped"
_TAKEN = "The step was taken"


class Processing(NamedTuple):
    """What a step does to its gradients; the same in all steps.

    Attributes:
        post: Clipping, LARC and summaries.
        iter_size: How many runs make an update.
        reduces: Whether gradients are averaged over workers.
        all_reduce: See `reduced`.
        model: See `reduced`.
        writer: What summaries are handed to, or None.
    """

    post: PostProcessing
    iter_size: int = 1
    reduces: bool = False
    all_reduce: AllReduce | None = None
    model: Any = None
    writer: Any = None


class Outcome(NamedTuple):
    """What has become of a run.

    Attributes:
        taken: Whether there was an update.
        errors: What constraints, the optimizer's `_finish` and the writer raised afterwards.
    """

    taken: bool
    errors: list[BaseException]


class Given(NamedTuple):
    """What a step is taken with.

    Attributes:
        backward: The gradients, raw, and what they belong to.
        sums: The accumulators of the targets; [] where every run makes an update.
        rate: The learning rate, a number or tensor of shape ().
        skip: Whether this run only adds to the accumulators.
    """

    backward: Backward
    sums: list[Tensor]
    rate: Any
    skip: bool = False


def apply_processed(
    inner: Inner,
    how: Processing,
    given: Given,
    scaler: AutomaticLossScaler | None,
    loss_scale: Any,
    global_step: Tensor,
) -> Outcome:
    """Unscale, add up, reduce, clip or LARC, check, update, copy and tell: one run of a step.

    An error that is raised changes nothing, and says so.

    Args:
        inner: The optimizer that updates.
        how: What is done to the gradients.
        given: The gradients of this run. None of them is written to.
        scaler: What watches the gradients and decides, or None.
        loss_scale: The value of the summary of that name, or None for no such summary.
        global_step: The variable that counts updates.

    Returns:
        Whether there was an update, and the errors that came after it, which say so.
    """
    backward = given.backward
    with torch.inference_mode(False), torch.no_grad(), not_taken():
        journal = _begun(how, given, loss_scale)
        step = 0 if journal is None else int(global_step)
        # What this worker has no gradient for another one may have: looked at once they agree.
        if given.skip or not how.reduces:
            _check(how, backward)
        if how.iter_size > 1 or how.reduces:
            gradients = unscaled(backward)
            if how.iter_size > 1:
                check_addable(gradients, backward.targets)
                if given.skip:
                    add(given.sums, gradients, how.iter_size)
                    return Outcome(False, _told(how, journal, step, _ADDED_UP))
                gradients = _totals(given.sums, gradients, how.iter_size)
            if how.reduces:
                gradients = reduced(
                    gradients, backward.targets, how.all_reduce, how.model, how.post.as_shipped
                )
            backward = backward.done(gradients)
            if how.reduces:
                _check(how, backward)
        sweeps = InSweeps(how.post, given.rate, scaler, journal)
        taken, error = sweeps.take(inner, backward, global_step) or _step_by_step(
            inner, how, backward, given.rate, scaler, journal, global_step
        )
        zero(given.sums)
    errors = [] if error is None else [error]
    return Outcome(taken, errors + _told(how, journal, step, _TAKEN if taken else _SKIPPED))


def _check(how: Processing, backward: Backward) -> None:
    how.post.check(backward.gradients, backward.targets)
    check_any(zip(backward.gradients, backward.targets, strict=True))


def _step_by_step(
    inner: Inner,
    how: Processing,
    backward: Backward,
    rate: Any,
    scaler: AutomaticLossScaler | None,
    journal: Journal | None,
    global_step: Tensor,
) -> tuple[bool, BaseException | None]:
    """The same as `InSweeps.take` for any gradients and optimizers; each part makes tensors."""
    gradients = post_processed(how.post, unscaled(backward), backward.targets, rate, journal)
    return update(inner, gradients, backward, scaler, global_step)


def _totals(sums: Sequence[Tensor], gradients: Sequence[Gradient], count: int) -> list[Gradient]:
    """The sums with these gradients; None for a variable that had no gradient in any run."""
    totals = [total.detach().clone() for total in sums]
    add(totals, gradients, count)
    return [
        None if grad is None and not total.any() else total
        for total, grad in zip(totals, gradients, strict=True)
    ]


def _begun(how: Processing, given: Given, loss_scale: Any) -> Journal | None:
    if how.writer is None:
        return None
    journal = Journal(how.post.summaries, SCOPE)
    if "learning_rate" in journal.wanted:
        journal.scalar("learning_rate", given.rate, scoped=False)
    if "loss_scale" in journal.wanted and loss_scale is not None:
        journal.scalar("loss_scale", loss_scale.clone())
    return journal


def _told(how: Processing, journal: Journal | None, step: int, done: str) -> list[BaseException]:
    """Hand the summaries to the writer; what it raised."""
    if journal is None:
        return []
    try:
        journal.write(how.writer, step)
    except BaseException as error:
        error.add_note(f"{done}, but its summaries were not written.")
        return [error]
    return []
