"""A step of training as one operation of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from thalweg import distribute
from thalweg._base.execution_context import thread
from thalweg._base.showing import show_value
from thalweg._core.commit import note_not_applied, raise_first
from thalweg._graph import (
    GraphKeys,
    GraphVariable,
    Output,
    by_reference,
    get_collection,
    get_default_graph,
    is_symbolic,
    operation,
    variable_scope,
)
from thalweg.distribute import current_strategy, fill_missing
from thalweg.errors import InvalidTypeError
from thalweg.openseq2seq.optimizers.accumulation import Accumulators, as_skip
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.backward import BackwardResult
from thalweg.openseq2seq.optimizers.gradient_pipeline import (
    ADDED_UP,
    SCOPE,
    ReceivedGradients,
    Treatment,
    apply_processed,
    readied,
    told,
    told_of,
)
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper, check_inner
from thalweg.openseq2seq.optimizers.name_tables import OF_GRADIENTS
from thalweg.openseq2seq.optimizers.precision import MixedCheck
from thalweg.openseq2seq.optimizers.scaled_loss import check_scalar
from thalweg.openseq2seq.optimizers.summaries import Outbox
from thalweg.openseq2seq.optimizers.summaries_in_graph import (
    Collected,
    OfThisRun,
    collect,
    collect_scalar,
)
from thalweg.openseq2seq.optimizers.update import SKIPPED, TAKEN, captured_by
from thalweg.openseq2seq.optimizers.update_in_graph import (
    is_called_at_the_build,
    processed_now,
    referred,
    updated,
    written_beside,
)
from thalweg.v1.train.optimizer import Optimizer, check_any


def step_in_graph(
    loss: Any,
    optimizer: Optimizer,
    var_list: Any,
    rate: Any,
    global_step: Any,
    scaler: AutomaticLossScaler | None,
    how: Treatment,
    skip_update: Any,
    collected: Sequence[str] = (),
) -> Any:
    """Return the tensor that takes a step when a session runs it; its value is the loss before
    that.

    Operations of the collection UPDATE_OPS run with it, also where there is no update. The
    summaries that are `collected`, "loss" among them, go to the collection SUMMARIES.

    Raises:
        InvalidTypeError: The loss is not symbolic, a variable is none of the graph, or the
            optimizer wraps another one.
        ValueError: No variable has a gradient, or one has none that needs it; the loss is no
            scalar.
    """
    if callable(loss) and not is_symbolic(loss):
        loss = loss()
    if not is_symbolic(loss):
        raise InvalidTypeError(f"loss must be a tensor of the graph, not {show_value(loss)}.")
    check_scalar(loss)
    if "learning_rate" in collected:
        collect_scalar("learning_rate", rate)
    update_ops = get_collection(GraphKeys.UPDATE_OPS)
    with variable_scope(SCOPE.rstrip("/")):
        mixed = optimizer if isinstance(optimizer, MixedPrecisionOptimizerWrapper) else None
        backward = _connected(_differentiated(optimizer, mixed, loss, var_list), how)
        inner = optimizer if mixed is None else mixed.optimizer
        check_inner(inner)
        sums = _accumulators(backward) if how.iter_size > 1 else []
        shown = None if scaler is None else scaler.loss_scale
        if "loss" in collected:
            collect_scalar("loss", loss)
        if "loss_scale" in collected and shown is not None:
            collect_scalar("loss_scale", shown)
        averaged = None
        if collected and how.reduces and (how.all_reduce or not current_strategy().ranks.is_alone):
            averaged = OfThisRun()
        parts = _parts(backward)
        skip = skip_update if how.iter_size > 1 else False
        inputs = [loss, parts, sums, rate, skip, shown, by_reference(global_step)]
        taking = _Taking(inner, mixed, how, averaged)
        if is_called_at_the_build(inner):
            made = _called_now(
                inner, backward, taking.begin, inputs, global_step, taking.watcher, how, update_ops
            )
        else:
            made = _called_in_runs(taking, backward, inputs, update_ops)
        made.op.optimizer = inner
        get_default_graph().add_to_collection(GraphKeys.TRAIN_OP, made.op)
        if averaged is not None:
            averaged.collect()
        elif OF_GRADIENTS.intersection(collected):
            collect(taking.tell, [parts, sums, rate, skip])
    return made


def _differentiated(
    optimizer: Optimizer,
    mixed: MixedPrecisionOptimizerWrapper | None,
    loss: object,
    var_list: object,
) -> BackwardResult:
    if mixed is None:
        return BackwardResult.plain(optimizer.compute_gradients(loss, var_list))
    return mixed.differentiate(loss, var_list)


def _accumulators(backward: BackwardResult) -> list[Any]:
    """The sums of the targets, as an operation takes them that writes to them."""
    accumulators = Accumulators()
    accumulators.make(backward.targets)
    return [by_reference(each) for each in accumulators.of(backward.targets)]


def _parts(backward: BackwardResult) -> dict[str, Any]:
    """A backward pass, as an operation takes it that writes to variables and targets."""
    variables, targets = referred(backward)
    return {
        "gradients": backward.gradients,
        "variables": variables,
        "targets": targets,
        "penalties": backward.penalties,
        "scale": backward.scale,
    }


class _Taking:
    """What a run does with the values of the inputs.

    Args:
        inner: The optimizer, which no other wraps.
        mixed: What wrapped it, or None.
        how: What the step does to its gradients.
        averaged: Is told the summaries of the run, if workers average its gradients, or None.
    """

    def __init__(
        self,
        inner: Optimizer,
        mixed: MixedPrecisionOptimizerWrapper | None,
        how: Treatment,
        averaged: OfThisRun | None,
    ) -> None:
        self.inner, self._how, self._averaged = inner, how, averaged
        self.watcher = None if mixed is None else mixed.loss_scaler
        self._check_mixed = None if mixed is None else MixedCheck()

    def begin(
        self,
        value: Tensor,
        parts: dict[str, Any],
        sums: list[Tensor],
        rate: Any,
        skip: Any,
        captured: Any = None,
    ) -> tuple[Treatment, ReceivedGradients]:
        """Check the loss, and return the settings and inputs of a step from the values of a
        graph.
        """
        check_scalar(value)
        if self._check_mixed is not None:
            self._check_mixed(value)
        given = ReceivedGradients(
            BackwardResult(**parts), sums, rate, as_skip(skip), captured, loss=value
        )
        if self._averaged is None:
            return self._how, given
        writer = None if self._how.outbox is None else self._how.outbox.writer
        told = Collected(("learning_rate", f"{SCOPE}loss", f"{SCOPE}loss_scale"), writer)
        self._averaged.keep(told)
        return self._how._replace(outbox=Outbox(told, waits=True)), given

    def run(self, value: Tensor, *given: Any) -> Tensor:
        """Take a step; the loss before it."""
        *parts, scale, step, captured = given
        how, own = self.begin(value, *parts, captured=captured)
        before = value.detach().clone()
        outcome = apply_processed(self.inner, how, own, self.watcher, scale, step, [])
        raise_first(outcome.errors)
        return before

    def tell(
        self, parts: dict[str, Any], sums: list[Tensor], rate: Any, skip: Any, scope: str
    ) -> Callable[[Any], None]:
        """Return the summaries of gradients, as what writes them."""
        given = ReceivedGradients(BackwardResult(**parts), sums, rate, as_skip(skip))
        return told_of(self._how, given, scope).write


def _called_in_runs(
    taking: _Taking, backward: BackwardResult, inputs: Sequence[Any], update_ops: Sequence[object]
) -> Any:
    """The tensor that takes a step of an optimizer whose hooks are called in each run."""
    loss, inner = inputs[0], taking.inner
    made = operation(
        taking.run,
        [*inputs, captured_by(inner, backward.targets)],
        "train",
        kind="update",
        outputs=Output(loss.dtype, loss.shape, ()),
        control_inputs=update_ops,
    )
    made.op.written += written_beside(inner, backward.targets, taking.watcher)
    return made


def _called_now(
    inner: Optimizer,
    backward: BackwardResult,
    begin: Callable[..., tuple[Treatment, ReceivedGradients]],
    inputs: Sequence[Any],
    global_step: object,
    scaler: AutomaticLossScaler | None,
    how: Treatment,
    update_ops: Sequence[object],
) -> Any:
    """The tensor that takes a step of an optimizer whose hooks are called now.

    Args:
        inner, backward, global_step, how: Of the step.
        begin: Gives what the values of the first of `inputs` mean.
        inputs: The loss first, the value of the loss scale and the global step last.
        scaler: What watches the gradients, or None.
        update_ops: What runs with it.
    """
    key = object()  # of what one run keeps from the gradients to the summaries

    def process(*values: Any) -> list[object] | None:
        *parts, scale, step = values
        own, given = begin(*parts)
        done: list[Any] = []
        with note_not_applied(done):
            ready = readied(inner, own, given, scaler, scale, step, done)
            thread.frames[-1][key] = own, ready
            if ready.gradient_transforms is None:
                return None
            return processed_now(ready.backward, ready.gradient_transforms)

    def tell(loss: Tensor, taken: Tensor) -> Tensor:
        own, ready = thread.frames[-1].pop(key)
        if taken:
            distribute.commit_sums(inner)
        what = TAKEN if taken else ADDED_UP if ready.gradient_transforms is None else SKIPPED
        raise_first(told(own, ready, what))
        return loss.detach().clone()

    loss = inputs[0]
    update = updated(
        inner,
        backward,
        process,
        inputs,
        global_step,
        scaler,
        dense=how.post.larc is not None or how.iter_size > 1,
        always=scaler is None and how.iter_size == 1,
    )
    return operation(
        tell,
        [loss, update.taken],
        "train",
        outputs=Output(loss.dtype, loss.shape, ()),
        control_inputs=[update.done, *update_ops],
    )


def _connected(backward: BackwardResult, how: Treatment) -> BackwardResult:
    """Without the variables that have no gradient for any worker, if nothing needs one.

    Raises:
        InvalidTypeError: A variable is none of the graph.
        ValueError: One has no gradient but needs it, or none has.
    """
    for var in backward.variables:
        if not isinstance(var, GraphVariable):
            raise InvalidTypeError(
                f"var_list holds {show_value(var)}, which is not a variable of the graph."
            )
    pairs = list(zip(backward.gradients, backward.variables, strict=True))
    if how.reduces and how.all_reduce is None:
        pairs = fill_missing(pairs, current_strategy().ranks)
    how.post.check([grad for grad, _ in pairs], backward.variables)
    check_any(pairs)
    return backward.only([i for i, (grad, _) in enumerate(pairs) if grad is not None])
