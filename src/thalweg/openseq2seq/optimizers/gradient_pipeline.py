"""Parts of a training step, from the loss to the summaries, for eager mode and for graph runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
from thalweg.openseq2seq.optimizers.gradients import transform_present
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.openseq2seq.optimizers.post_process import PostProcessing
from thalweg.openseq2seq.optimizers.precision import MixedCheck, check_scalar
from thalweg.openseq2seq.optimizers.reduction import AllReduce, check_replicas, reduced
from thalweg.openseq2seq.optimizers.summaries import Journal, StepSummaries, SummaryQueue
from thalweg.openseq2seq.optimizers.update import decide_by_scaler, update
from thalweg.v1.train.gradients import check_any
from thalweg.v1.train.optimizer import Optimizer

SCOPE = "Loss_Optimization/"
ACCUMULATED = "The run added its gradients up"


class Treatment(NamedTuple):
    """Settings of the processing of gradients, equal in all steps.

    Attributes:
        post: Clipping, LARC and summaries.
        iter_size: The number of runs per update.
        reduces: True if gradients are averaged over workers.
        all_reduce: See `reduced`.
        model: See `reduced`.
        summary_queue: The receiver of summaries, or None.
        shows_loss: True if the loss is among the summaries.
    """

    post: PostProcessing
    iter_size: int = 1
    reduces: bool = False
    all_reduce: AllReduce | None = None
    model: Any = None
    summary_queue: SummaryQueue | None = None
    shows_loss: bool = False

    def is_waited_for(self, skips: bool) -> bool:
        """Return True if other ranks of torch.distributed wait for gradients of this rank."""
        return self.reduces and self.all_reduce is None and not skips


class StepInputs(NamedTuple):
    """Values of one step.

    Attributes:
        backward: The raw gradients and their variables; they are not written to.
        sums: The accumulators of the targets; [] if every run makes an update.
        rate: The learning rate, a number or tensor of shape ().
        skip: True if this run only adds to the accumulators.
        captured: In a graph the values that the optimizer captured when the graph was built.
        counts: Further functions to call in the commit, which count the run.
        loss: The loss, or None if the caller computed the gradients.
        loss_scale: The value of the summary "loss_scale"; None omits the summary.
        global_step: The variable that counts updates, or None without an update.
    """

    backward: BackwardResult
    sums: list[Tensor]
    rate: Any
    skip: bool = False
    captured: Any = None
    counts: Sequence[Call] = ()
    loss: Tensor | None = None
    loss_scale: Any = None
    global_step: Any = None


class Ready(NamedTuple):
    """Result of a run before the update; only accumulators have been written.

    Attributes:
        backward: The unprocessed gradients of the update.
        gradient_transforms: The transforms of the gradients; None if the run only accumulated.
        journal: The summaries of the run, or None.
        step: The step number for the writer.
    """

    backward: BackwardResult
    gradient_transforms: GradientTransforms | None
    journal: Journal | None
    step: int


@dataclass(frozen=True)
class StepPipeline:
    """Training steps of one optimizer on concrete tensors, in eager mode or in a graph's run.

    Attributes:
        optimizer: The optimizer; a `MixedPrecisionOptimizerWrapper` in mixed precision.
        treatment: The settings of the processing of gradients.
    """

    optimizer: Optimizer
    treatment: Treatment
    _check_mixed: MixedCheck = field(default_factory=MixedCheck)

    @property
    def mixed(self) -> MixedPrecisionOptimizerWrapper | None:
        """The optimizer if it trains in mixed precision, or None."""
        optimizer = self.optimizer
        return optimizer if isinstance(optimizer, MixedPrecisionOptimizerWrapper) else None

    @property
    def inner(self) -> Optimizer:
        """The optimizer of the masters, and of variables without one."""
        return self.optimizer if self.mixed is None else self.mixed.optimizer

    @property
    def scaler(self) -> AutomaticLossScaler | None:
        """Loss scaler, which skips updates with gradients that are not finite; or None."""
        return None if self.mixed is None else self.mixed.loss_scaler

    def check_loss(self, loss: object) -> None:
        """Raise if a loss is not a scalar; warn if the first one of "mixed" has no 16-bit dtype."""
        check_scalar(loss)
        if self.mixed is not None:
            self._check_mixed(loss)

    def differentiate(self, loss: object, var_list: object) -> BackwardResult:
        """Return the gradients of a loss, scaled in mixed precision; symbolic in a graph."""
        if self.mixed is not None:
            return self.mixed.differentiate(loss, var_list)
        return BackwardResult.plain(self.optimizer.compute_gradients(loss, var_list))

    def make_ready(self, step_inputs: StepInputs, report: list[object]) -> Ready:
        """Prepare an update: accumulate and average gradients, and choose gradient transforms.

        If `step_inputs.skip` is True, only add the gradients to the accumulators, and call
        `step_inputs.counts`. Otherwise write nothing: the update does. An error changes nothing.

        Returns:
            A `Ready`; its `gradient_transforms` is None if the run only accumulated gradients.
            In this case `report` is extended as in `apply`, with False.
        """
        treatment = self.treatment
        if treatment.reduces or thread.strategies:
            check_replicas(treatment.reduces, treatment.iter_size)
        journal = self._begin_journal(step_inputs)
        step = 0 if journal is None else int(number_of(step_inputs.global_step))
        backward = step_inputs.backward
        # Another worker may have a gradient that this one lacks: checked after the reduction.
        if step_inputs.skip or not treatment.reduces:
            self._check_gradients(backward)
        if treatment.iter_size > 1 or treatment.reduces:
            gradients = unscaled(backward)
            if treatment.iter_size > 1:
                if not are_addable(gradients, backward.targets, step_inputs.sums):
                    check_addable(gradients, backward.targets, step_inputs.sums)
                accumulation = step_inputs.sums, gradients, treatment.iter_size
                if step_inputs.skip:
                    note = partial(report.extend, (f"{ACCUMULATED}.", False))
                    run([*adding(*accumulation), *step_inputs.counts, note])
                    return Ready(backward, None, journal, step)
                gradients = totals(*accumulation)
            if treatment.reduces:
                reduction = treatment.all_reduce, treatment.model, treatment.post.as_shipped
                gradients = reduced(gradients, backward.targets, *reduction, self.inner)
            backward = backward.done(gradients)
            if treatment.reduces:
                self._check_gradients(backward)
        backward, unscaling = raw(backward)
        # The host tells other ranks of the step.
        clears = clearing(step_inputs.sums) if step_inputs.sums else ()
        calls = [*clears, *step_inputs.counts]
        options = decide_by_scaler(self.scaler, report, calls, not treatment.reduces)
        options |= {"rate": step_inputs.rate, "journal": journal, "unscaling": unscaling}
        transforms = treatment.post.gradient_transforms(backward.present().pairs, **options)
        return Ready(backward, transforms, journal, step)

    def apply(self, step_inputs: StepInputs, report: list[Any]) -> StepResult:
        """Take a step: accumulate, average, unscale, clip, check, update; then send summaries.

        An error before the commit gets a note, and changes nothing.

        Args:
            report: An empty list. The commit appends a sentence for notes of later errors, and a
                bool: True if the step was taken. The bool is a tensor if a GPU decides.

        Returns:
            A `StepResult` (taken, errors). The errors are of callbacks after the commit: variable
            constraints, the optimizer's `_finish` and the summary writer.
        """
        if self._replay(step_inputs, report):
            return StepResult(True, [])
        optimizer = self.inner
        with writable(), note_not_applied(report):
            ready = self.make_ready(step_inputs, report)
            if ready.gradient_transforms is None:
                return StepResult(False, self.send_summaries(ready, ACCUMULATED))
            has_update, errors = update(
                optimizer,
                ready.backward,
                ready.gradient_transforms,
                step_inputs.global_step,
                step_inputs.captured,
            )
            if isinstance(has_update, Tensor):
                outcome = LEFT.rstrip(".")
            else:
                outcome = TAKEN if has_update else SKIPPED
                if has_update:
                    distribute.commit_sums(optimizer, bool(errors))
            return StepResult(has_update, errors + self.send_summaries(ready, outcome))

    def _replay(self, step_inputs: StepInputs, report: list[Any]) -> bool:
        """Take a step by repeating the previous step's recorded calls with new gradients.

        Return True if the step was taken and `report` was extended, False if nothing changed.
        """
        optimizer, post, backward = self.inner, self.treatment.post, step_inputs.backward
        if not (self._is_plain(step_inputs) and optimizer.takes_transforms()):
            return False
        follows = report if isinstance(report, ReplayResult) else ReplayResult()
        # Pairs without gradients, since the transforms are kept until the next step.
        larc_pairs: Any = [] if post.larc is None else [(None, var) for var in backward.targets]
        transforms = post.gradient_transforms(larc_pairs, step_inputs.rate, None)
        replay_args = backward.pairs, step_inputs.global_step, step_inputs.captured
        if not optimizer._take_again(*replay_args, follows, transforms):
            return False
        # A `ReplayResult` records a replay by itself, as soon as its truth value is asked for.
        if not report:
            report.extend((f"{TAKEN}.", True))
        distribute.commit_sums(optimizer)
        return True

    def _is_plain(self, step_inputs: StepInputs) -> bool:
        """Return True if a run has no loss scale, masters, summaries, sums or averaging."""
        treatment, backward = self.treatment, step_inputs.backward
        return (
            self.scaler is None
            and treatment.summary_queue is None
            and treatment.iter_size == 1
            and not treatment.reduces
            and not treatment.post.as_shipped
            and backward.scale is None
            and not backward.has_masters
            and not step_inputs.counts
        )

    def preview_summaries(self, step_inputs: StepInputs, scope: str) -> StepSummaries:
        """Return the summaries of a run's gradients and variables without taking a step.

        Return no summaries for a run that only accumulates gradients. Gradients are not averaged
        over workers. `scope` is the prefix of the tags.
        """
        treatment, backward = self.treatment, step_inputs.backward
        journal = Journal(treatment.post.summaries, scope)
        if step_inputs.skip:
            return journal.finish(0)
        with writable():
            if treatment.iter_size > 1:
                backward = backward.done(
                    totals(step_inputs.sums, unscaled(backward), treatment.iter_size)
                )
            backward, unscaling = raw(backward)
            transforms = treatment.post.gradient_transforms(
                backward.present().pairs, step_inputs.rate, journal, unscaling=unscaling
            )
            transform_present(backward.gradients, backward.targets, transforms)
        return journal.finish(0)

    def _check_gradients(self, backward: BackwardResult) -> None:
        post = self.treatment.post
        if post.as_shipped or NoneType in set(map(type, backward.gradients)):
            post.check(backward.pairs)
            check_any(backward.pairs)

    def _begin_journal(self, step_inputs: StepInputs) -> Journal | None:
        """Return a new journal with learning rate, loss and loss scale; None without a writer."""
        treatment, loss_scale = self.treatment, step_inputs.loss_scale
        if treatment.summary_queue is None:
            return None
        journal = Journal(treatment.post.summaries, SCOPE)
        if "learning_rate" in journal.names:
            journal.scalar("learning_rate", step_inputs.rate, scoped=False)
        if treatment.shows_loss and step_inputs.loss is not None:
            journal.scalar("loss", step_inputs.loss.detach())
        if "loss_scale" in journal.names and loss_scale is not None:
            # The commit writes the next scale before the summaries are read.
            journal.scalar("loss_scale", loss_scale.clone())
        return journal

    def send_summaries(self, ready: Ready, outcome: str) -> list[BaseException]:
        """Send the summaries of a run to the writer; return [error of the writer] or [].

        `outcome` is the beginning of the error's note, such as "The step was taken".
        """
        if ready.journal is None or self.treatment.summary_queue is None:
            return []
        try:
            self.treatment.summary_queue.send(ready.journal.finish(ready.step))
        except BaseException as error:
            error.add_note(f"{outcome}, but its summaries were not written.")
            return [error]
        return []
