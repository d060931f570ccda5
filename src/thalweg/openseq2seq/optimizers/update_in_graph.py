"""Updates in graphs by optimizers that are called once, while the graph is built.

One operation processes the gradients, and its outputs are passed to the optimizer. This is for
subclasses that override hooks or `apply_gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg import distribute
from thalweg._base.context_managers import writable
from thalweg._core.atomic_section import run
from thalweg._core.gradient_stats import transform_gradients
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._engines import current
from thalweg._graph import (
    GraphKeys,
    Output,
    SymbolicSlices,
    by_reference,
    cond,
    get_default_graph,
    group,
    no_op,
    operation,
    resolve,
)
from thalweg.indexed_slices import IndexedSlices, whole
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.backward import BackwardResult
from thalweg.openseq2seq.optimizers.update import copying
from thalweg.v1.train.optimizer import Optimizer


class Update(NamedTuple):
    """Results of an update in a graph.

    Attributes:
        op: An operation that ends when the update has been made or left out.
        has_update: Whether there was an update, a bool tensor.
    """

    op: Any
    has_update: Any


def is_called_at_the_build(optimizer: Optimizer) -> bool:
    """Return True if an optimizer has to get its gradients while a graph is built."""
    return optimizer._is_recorded() or not optimizer.takes_transforms()


def processed_now(backward: BackwardResult, transforms: GradientTransforms) -> list[Any] | None:
    """Return the transformed gradients; None for no update.

    The state of the loss scaler is updated, and the other calls of the decision are made.
    """
    present = backward.present()
    pairs, decision = transform_gradients(present.pairs, transforms, current().denormals == "flush")
    run(decision.calls)
    if not decision.apply_flag:
        return None
    new_gradients = iter([grad for grad, _ in pairs])
    return [None if grad is None else next(new_gradients) for grad in backward.gradients]


def _sparse_flags(backward: BackwardResult, dense: bool) -> list[bool]:
    """Return for each gradient whether it stays sparse."""
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
    """Return whether a run has an update, and the gradients, in a form that the graph knows."""
    with writable():
        run_gradients, leaves = process(*values), list(map(resolve, targets))
        is_update = torch.tensor(run_gradients is not None, dtype=torch.bool, device="cpu")
        if run_gradients is None:
            return [is_update, *map(_none, slices, leaves)]
        return [is_update, *map(_as_known, run_gradients, slices, leaves)]


def updated(
    optimizer: Optimizer,
    backward: BackwardResult,
    process: Callable[..., Sequence[object] | None],
    inputs: Sequence[object],
    global_step: object,
    scaler: AutomaticLossScaler | None = None,
    name: str | None = None,
    dense: bool = False,
    always: bool = False,
) -> Update:
    """Build the update of variables by an optimizer that is called now; all of it is one update.

    Args:
        optimizer: The optimizer.
        backward: Symbolic gradients, none of them None, and what they belong to.
        process: Gets the values of `inputs` in a run; gives a gradient or None for each target, or
            None for a run without an update.
        inputs: See `operation`; what is written of them is by reference.
        global_step: The variable that counts updates, or None.
        scaler: What answers to the gradients in `process`, or None.
        name: The name that the optimizer is given.
        dense: Whether all gradients become whole tensors.
        always: Whether there is an update in each run.
    """
    graph, targets = get_default_graph(), backward.targets
    slices = _sparse_flags(backward, dense)

    def apply() -> object:
        # Gradients are means over the replicas.
        with distribute.enter_single_replica():
            applied_op = group(optimizer.apply_gradients(pairs, global_step, **name_argument))
        if all(copy is None for copy in backward.copies):
            return applied_op
        return operation(_copy, referred(backward), "copy", control_inputs=[applied_op])

    name_argument: dict[str, Any] = {} if name is None else {"name": name}
    outputs = [Output(torch.bool, (), ()), *(Output(x.dtype, x.shape, ()) for x in targets)]
    run_process = partial(_run_process, process, targets, slices)
    collection = graph.get_collection_ref(GraphKeys.TRAIN_OP)
    old_ops = list(collection)
    with graph.as_one():
        has_step, *process_outputs = operation(
            run_process, inputs, "process_gradients", outputs=outputs
        )
        has_step.op.written += _scale_of(scaler)
        pairs: list[tuple[Any, Any]] = []
        for gradient, is_sparse, target in zip(process_outputs, slices, targets, strict=True):
            gradient.may_be_sparse = is_sparse
            pairs.append((SymbolicSlices.of(gradient) if is_sparse else gradient, target))
        end_op = apply() if always else cond(has_step, apply, no_op)
    # Operations of a branch cannot be run alone.
    collection[:] = old_ops
    return Update(end_op, has_step)


def _as_known(grad: Any, is_sparse: bool, target: Tensor) -> object:
    """Return a gradient as slices or dense, as declared; zeros for None."""
    if grad is None:
        return _none(is_sparse, target) if is_sparse else torch.zeros_like(target.detach())
    return grad if is_sparse else whole(grad, target)


def _none(is_sparse: bool, target: Tensor) -> IndexedSlices | Tensor:
    """Return slices without rows, or zeros that take no memory."""
    tensor = target.detach()
    if is_sparse:
        no_rows = torch.zeros(0, dtype=torch.int64, device=tensor.device)
        return IndexedSlices(tensor.new_zeros((0, *tensor.shape[1:])), no_rows)
    return tensor.new_zeros(()).expand(tensor.shape)


def referred(backward: BackwardResult) -> list[Any]:
    """Return [variables, targets] by reference, for an operation that writes to both."""
    variable_lists = backward.variables, backward.targets
    return [[by_reference(var) for var in part] for part in variable_lists]


def written_beside(
    optimizer: Optimizer, targets: Sequence[object], scaler: AutomaticLossScaler | None
) -> tuple[Any, ...]:
    """Return the variables that an operation that takes a step writes, other than the targets."""
    return (*optimizer._kept_in_graph(targets), *_scale_of(scaler))


def _scale_of(scaler: AutomaticLossScaler | None) -> tuple[object, ...]:
    return () if scaler is None else tuple(scaler.variables.values())


def _copy(variables: list[object], targets: list[object]) -> None:
    run(copying(BackwardResult([None] * len(targets), variables, targets, [None] * len(targets))))
