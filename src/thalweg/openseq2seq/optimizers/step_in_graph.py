"""A training step as one operation of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from thalweg import _graph, distribute
from thalweg._base.execution_context import thread
from thalweg._base.showing import show_value
from thalweg._core.commit import note_not_applied, raise_first
from thalweg.distribute import current_strategy, fill_missing
from thalweg.errors import InvalidTypeError
from thalweg.openseq2seq.optimizers.accumulation import Accumulators, as_skip
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.backward import BackwardResult
from thalweg.openseq2seq.optimizers.gradient_pipeline import (
    ACCUMULATED,
    SCOPE,
    StepInputs,
    StepPipeline,
    Treatment,
)
from thalweg.openseq2seq.optimizers.mp_wrapper import check_inner
from thalweg.openseq2seq.optimizers.name_tables import OF_GRADIENTS
from thalweg.openseq2seq.optimizers.precision import check_scalar
from thalweg.openseq2seq.optimizers.summaries import (
    RunSummaries,
    SummaryCollector,
    SummaryQueue,
    collect_scalar,
    collect_summaries,
)
from thalweg.openseq2seq.optimizers.update import (
    SKIPPED,
    TAKEN,
    by_references,
    calls_hooks_at_build,
    capture_inputs,
    process_gradients,
    record_update,
    variables_written_by,
)
from thalweg.v1.train.gradients import check_any
from thalweg.v1.train.optimizer import Optimizer


def step_in_graph(
    loss: Any,
    optimizer: Optimizer,
    var_list: Any,
    rate: Any,
    global_step: Any,
    scaler: AutomaticLossScaler | None,
    treatment: Treatment,
    skip_update: Any,
) -> Any:
    """Return a symbolic tensor that takes a training step when a session evaluates it.

    The value is the loss before the step. Operations of the collection UPDATE_OPS run before the
    step, also in runs without an update. Summaries of `treatment` are added to the collection
    SUMMARIES.

    Raises:
        InvalidTypeError: The loss is not symbolic, a variable is not of the graph, or the optimizer
            wraps another optimizer.
        ValueError: The loss is not a scalar, or a required gradient is None.
    """
    loss = _resolve_loss(loss)
    collected = (*(["loss"] if treatment.shows_loss else []), *treatment.post.summaries)
    _collect_scalars(collected, learning_rate=rate)
    update_ops = _graph.get_collection(_graph.GraphKeys.UPDATE_OPS)
    pipeline = StepPipeline(optimizer, treatment)
    with _graph.variable_scope(SCOPE.rstrip("/")):
        backward = _check_backward(pipeline.differentiate(loss, var_list), treatment)
        check_inner(pipeline.inner)
        sums = _make_accumulators(backward) if treatment.iter_size > 1 else []
        loss_scale = None if scaler is None else scaler.loss_scale
        _collect_scalars(collected, loss=loss, loss_scale=loss_scale)
        averaged = RunSummaries() if collected and _is_averaged(treatment) else None
        skip = skip_update if treatment.iter_size > 1 else False
        step_inputs = StepInputs(by_references(backward), sums, rate, skip)
        run_inputs = step_inputs._replace(
            loss=loss, loss_scale=loss_scale, global_step=_graph.by_reference(global_step)
        )
        step_run = _StepRun(pipeline, averaged)
        if calls_hooks_at_build(pipeline.inner):
            train_op = _train_op_of_hooks(step_run, backward, run_inputs, global_step, update_ops)
        else:
            train_op = _train_op(step_run, backward, run_inputs, update_ops)
        train_op.op.optimizer = pipeline.inner
        _graph.get_default_graph().add_to_collection(_graph.GraphKeys.TRAIN_OP, train_op.op)
        if averaged is not None:
            averaged.collect()
        elif OF_GRADIENTS.intersection(collected):
            collect_summaries(step_run.preview, [step_inputs])
    return train_op


def _resolve_loss(loss: Any) -> Any:
    """Return a scalar symbolic loss, or the result of a callable loss; raise for other values."""
    if callable(loss) and not _graph.is_symbolic(loss):
        loss = loss()
    if not _graph.is_symbolic(loss):
        raise InvalidTypeError(f"loss must be a tensor of the graph, not {show_value(loss)}.")
    check_scalar(loss)
    return loss


def _collect_scalars(collected: Sequence[str], **scalars: Any) -> None:
    """Add the summaries of those scalars that are collected and not None."""
    for name, scalar in scalars.items():
        if name in collected and scalar is not None:
            collect_scalar(name, scalar)


def _is_averaged(treatment: Treatment) -> bool:
    """Return True if gradients are averaged over workers."""
    return treatment.reduces and bool(treatment.all_reduce or not current_strategy().ranks.is_alone)


def _make_accumulators(backward: BackwardResult) -> list[Any]:
    """Return references to new sums of the targets, for an operation that writes them."""
    accumulators = Accumulators()
    accumulators.make(backward.targets)
    return [_graph.by_reference(total) for total in accumulators.of(backward.targets)]


class _StepRun:
    """Functions that operations of a training step call in a session's run.

    Args:
        pipeline: The steps of the optimizer, also an attribute.
        averaged: Receives the summaries of the run if workers average gradients; else None.
    """

    def __init__(self, pipeline: StepPipeline, averaged: RunSummaries | None) -> None:
        self.pipeline, self._averaged = pipeline, averaged

    def _begin(self, values: StepInputs) -> tuple[StepPipeline, StepInputs]:
        """Check the loss; return (pipeline, `values` with a bool `skip`).

        The pipeline is `self.pipeline`. If workers average gradients, it is a copy that also
        collects summaries for the collection SUMMARIES.
        """
        pipeline, values = self.pipeline, values._replace(skip=as_skip(values.skip))
        pipeline.check_loss(values.loss)
        if self._averaged is None:
            return pipeline, values
        treatment = pipeline.treatment
        writer = None if treatment.summary_queue is None else treatment.summary_queue.writer
        summaries = SummaryCollector(
            ("learning_rate", f"{SCOPE}loss", f"{SCOPE}loss_scale"), writer
        )
        self._averaged.keep(summaries)
        queue = SummaryQueue(summaries, waits=True)
        # `replace` shares `_check_mixed`, so only the first loss of all runs is checked.
        return replace(pipeline, treatment=treatment._replace(summary_queue=queue)), values

    def run(self, values: StepInputs) -> Tensor:
        """Take a step and return the loss before it."""
        pipeline, step_inputs = self._begin(values)
        old_loss = values.loss.detach().clone()  # pyright: ignore[reportOptionalMemberAccess]
        raise_first(pipeline.apply(step_inputs, []).errors)
        return old_loss

    def process(self, values: StepInputs) -> list[object] | None:
        """Return the processed gradients for the update in this run; None if there is no update.

        Store the pipeline and a `Ready` in the run's frame, for `finish`.
        """
        pipeline, step_inputs = self._begin(values)
        report: list[Any] = []
        with note_not_applied(report):
            ready = pipeline.make_ready(step_inputs, report)
            # The frame is a dict of one run: runs of other sessions have their own.
            thread.frames[-1][self] = pipeline, ready
            if ready.gradient_transforms is None:
                return None
            return process_gradients(ready.backward, ready.gradient_transforms)

    def finish(self, loss: Tensor, has_update: Tensor) -> Tensor:
        """Send the summaries of this run, with or without an update; return a copy of the loss."""
        pipeline, ready = thread.frames[-1].pop(self)
        if has_update:
            distribute.commit_sums(pipeline.inner)
        outcome = (
            TAKEN if has_update else ACCUMULATED if ready.gradient_transforms is None else SKIPPED
        )
        raise_first(pipeline.send_summaries(ready, outcome))
        return loss.detach().clone()

    def preview(self, values: StepInputs, scope: str) -> Callable[[Any], None]:
        """Return a function that writes the summaries of gradients to a writer."""
        step_inputs = values._replace(skip=as_skip(values.skip))
        return self.pipeline.preview_summaries(step_inputs, scope).write


def _train_op(
    step_run: _StepRun,
    backward: BackwardResult,
    step_inputs: StepInputs,
    update_ops: Sequence[object],
) -> Any:
    """Return the operation of a step. Each run of it calls the methods of the optimizer."""
    loss: Any = step_inputs.loss
    inner = step_run.pipeline.inner
    train_op = _graph.operation(
        step_run.run,
        [step_inputs._replace(captured=capture_inputs(inner, backward.targets))],
        "train",
        kind="update",
        outputs=_graph.Output(loss.dtype, loss.shape, ()),
        control_inputs=update_ops,
    )
    train_op.op.written += variables_written_by(inner, backward.targets, step_run.pipeline.scaler)
    return train_op


def _train_op_of_hooks(
    step_run: _StepRun,
    backward: BackwardResult,
    step_inputs: StepInputs,
    global_step: object,
    update_ops: Sequence[object],
) -> Any:
    """Return the operation of a step. The methods of the optimizer are called now, not in runs.

    Args:
        step_inputs: Symbolic inputs. Variables, targets and global step are passed by reference.
        global_step: The variable that counts updates, or None.
        update_ops: Operations that run before the returned operation.
    """
    loss: Any = step_inputs.loss
    pipeline = step_run.pipeline
    treatment, scaler = pipeline.treatment, pipeline.scaler
    update = record_update(
        pipeline.inner,
        backward,
        step_run.process,
        [step_inputs],
        global_step,
        scaler,
        dense=treatment.post.larc is not None or treatment.iter_size > 1,
        always=scaler is None and treatment.iter_size == 1,
    )
    return _graph.operation(
        step_run.finish,
        [loss, update.has_update],
        "train",
        outputs=_graph.Output(loss.dtype, loss.shape, ()),
        control_inputs=[update.op, *update_ops],
    )


def _check_backward(backward: BackwardResult, treatment: Treatment) -> BackwardResult:
    """Return `backward` without variables that have no gradient on any worker.

    A variable is kept if another worker has a gradient of it.

    Raises:
        InvalidTypeError: A variable is not of the graph.
        ValueError: A required gradient is None, or all gradients are None.
    """
    for var in backward.variables:
        if not isinstance(var, _graph.GraphVariable):
            raise InvalidTypeError(
                f"var_list holds {show_value(var)}, which is not a variable of the graph."
            )
    pairs = list(zip(backward.gradients, backward.variables, strict=True))
    if treatment.reduces and treatment.all_reduce is None:
        pairs = fill_missing(pairs, current_strategy().ranks)
    treatment.post.check(pairs)
    check_any(pairs)
    return backward.only([i for i, (grad, _) in enumerate(pairs) if grad is not None])
