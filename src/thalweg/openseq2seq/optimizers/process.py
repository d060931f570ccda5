"""All that follows a backward pass, over concrete tensors: eager steps and graphs call it alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.openseq2seq.optimizers.accumulation import add, check_addable, zero
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.backward import Backward, unscaled
from thalweg.openseq2seq.optimizers.gradients import Gradient
from thalweg.openseq2seq.optimizers.post_process import PostProcessing, post_processed
from thalweg.openseq2seq.optimizers.reduction import AllReduce, reduced
from thalweg.openseq2seq.optimizers.summaries import Journal
from thalweg.openseq2seq.optimizers.update import Inner, update
from thalweg.outcome import raise_first

SCOPE = "Loss_Optimization/"


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
) -> bool:
    """Unscale, add up, reduce, clip or LARC, check, update, copy and tell: one run of a step.

    An error changes nothing; one that a constraint, the optimizer's `_finish` or the writer raises
    comes after the update, and says so.

    Args:
        inner: The optimizer that updates.
        how: What is done to the gradients.
        given: The gradients of this run. None of them is written to.
        scaler: What watches the gradients and decides, or None.
        loss_scale: The value of the summary of that name, or None for no such summary.
        global_step: The variable that counts updates.

    Returns:
        Whether there was an update.
    """
    backward = given.backward
    with torch.inference_mode(False), torch.no_grad():
        journal = _begun(how, given, loss_scale)
        step = 0 if journal is None else int(global_step)
        gradients = unscaled(backward)
        if how.iter_size > 1:
            check_addable(gradients, backward.targets)
            if given.skip:
                add(given.sums, gradients, how.iter_size)
                _tell(how, journal, step, None)
                return False
            gradients = _totals(given.sums, gradients, how.iter_size)
        if how.reduces:
            gradients = reduced(
                gradients, backward.targets, how.all_reduce, how.model, how.post.as_shipped
            )
        gradients = post_processed(how.post, gradients, backward.targets, given.rate, journal)
        taken, error = update(inner, gradients, backward, scaler, global_step)
        zero(given.sums)
        _tell(how, journal, step, error)
    return taken


def _totals(sums: Sequence[Tensor], gradients: Sequence[Gradient], count: int) -> list[Gradient]:
    totals = [total.detach().clone() for total in sums]
    add(totals, gradients, count)
    return list(totals)


def _begun(how: Processing, given: Given, loss_scale: Any) -> Journal | None:
    if how.writer is None:
        return None
    journal = Journal(how.post.summaries, SCOPE)
    if "learning_rate" in journal.wanted:
        journal.scalar("learning_rate", given.rate, scoped=False)
    if "loss_scale" in journal.wanted and loss_scale is not None:
        journal.scalar("loss_scale", loss_scale.clone())
    return journal


def _tell(how: Processing, journal: Journal | None, step: int, error: BaseException | None) -> None:
    errors = [] if error is None else [error]
    if journal is not None:
        try:
            journal.write(how.writer, step)
        except BaseException as failure:
            failure.add_note("The run was made, but its summaries were not written.")
            errors.append(failure)
    raise_first(errors)
