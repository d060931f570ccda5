"""`optimize_loss`: a training step from a loss and the values of a config."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.execution_context import is_deferred
from thalweg._base.showing import show_value
from thalweg._base.tracing import untraced
from thalweg._graph import is_symbolic
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.openseq2seq.optimizers.accumulation import check_count
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.gradient_pipeline import SCOPE, Treatment
from thalweg.openseq2seq.optimizers.learning_rate import LiveRate, called, scaled_decay
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.openseq2seq.optimizers.name_tables import optimizer_class
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.openseq2seq.optimizers.post_process import PostProcessing
from thalweg.openseq2seq.optimizers.precision import is_mixed
from thalweg.openseq2seq.optimizers.reduction import AllReduce, check_replicas
from thalweg.openseq2seq.optimizers.step import TrainingStep
from thalweg.openseq2seq.optimizers.step_in_graph import step_in_graph
from thalweg.openseq2seq.optimizers.summaries import SummaryQueue
from thalweg.v1.train.global_step import assert_global_step, get_or_create_global_step
from thalweg.v1.train.optimizer import Optimizer
from thalweg.variable import Variable


@untraced
def optimize_loss(
    loss: Any,
    optimizer: object,
    optimizer_params: Mapping[str, object] | None,
    learning_rate_decay_fn: Callable[[Any], object],
    var_list: Any = None,
    dtype: object = torch.float32,
    clip_gradients: float | None = None,
    summaries: Sequence[str] | None = None,
    larc_params: Mapping[str, object] | None = None,
    loss_scaling: object = 1.0,
    loss_scaling_params: Mapping[str, object] | None = None,
    on_horovod: bool = False,
    iter_size: int = 1,
    skip_update_ph: Any = None,
    model: object = None,
    *,
    global_step: object = None,
    all_reduce: AllReduce | None = None,
    summary_writer: object = None,
    as_shipped: bool = False,
) -> Any:
    """Build a training step from the values of a config.

    Gradients of the loss are added over `iter_size` runs, averaged over workers, clipped or scaled
    by LARC, and applied by the optimizer. In mixed precision the loss is scaled, and float32
    masters are updated. A loss scaler skips the update if a gradient is not finite.

    Args:
        loss: A callable without arguments that returns a tensor of shape (); in graph mode a
            symbolic tensor.
        optimizer: A name in `OPTIMIZER_CLS_NAMES`, or an optimizer class of `thalweg.v1` or a
            subclass, such as `NovoGrad`.
        optimizer_params: The optimizer's arguments without the learning rate. For the name "AdamW",
            `weight_decay` is multiplied by the learning rate.
        learning_rate_decay_fn: A policy: `policy(global_step)` returns the learning rate as a
            number, a tensor, or a callable without arguments. In eager mode it is called for each
            step.
        var_list: Optional. The variables to train. By default all trainable variables of the graph;
            in eager mode the variables of the loss in the first run.
        dtype: "mixed" trains float16 and bfloat16 variables by float32 masters, and scales the
            loss. A floating-point dtype has no effect.
        clip_gradients: Optional. The maximum global norm, 0 or more.
        summaries: Names in `OPTIMIZER_SUMMARIES`. None selects learning rate, global norm and loss
            scale, in graph mode also the loss. In graph mode summaries are in the collection
            SUMMARIES, for `tf.summary.merge_all`. If workers average gradients, run summaries of
            gradients together with the step.
        larc_params: Optional. See `post_process_gradients`.
        loss_scaling: For "mixed": a number, or the algorithm of an `AutomaticLossScaler`.
        loss_scaling_params: Optional. Parameters of the algorithm.
        on_horovod: True to average gradients over workers, see `reduce_gradients`; required in a
            strategy of several replicas.
        iter_size: The number of runs per update. Gradients are divided by this number and added.
        skip_update_ph: For `iter_size` above 1: True in a run that only adds its gradients. A bool,
            a callable that returns a bool, or in graph mode a placeholder. Not in a strategy whose
            `reduction` is "ordered".
        model: Optional. See `reduce_gradients`.
        global_step: Optional. The variable that counts updates, int64 of shape (). By default the
            graph's global step, or in eager mode a new variable.
        all_reduce: Optional. See `reduce_gradients`.
        summary_writer: Optional. A writer like torch's SummaryWriter: each run calls
            `add_scalar(tag, value, step)` and `add_histogram(tag, values, step)`. In eager mode on
            a GPU the next run calls them, see `TrainingStep.flush`.
        as_shipped: True to reproduce defects of OpenSeq2Seq, see below.

    Returns:
        In eager mode a `TrainingStep`, which takes a step when called. In graph mode a tensor,
        which takes a step in a session. Both return the loss before the update, not scaled.

    Raises:
        ValueError: A name or parameter is invalid, the loss is not a scalar, or a required gradient
            is None.
        AttributeError: Both `clip_gradients` and `larc_params` are set.
        KeyError: "AdamW" without `weight_decay`.
        TypeError: The policy or the optimizer is not callable, or the optimizer rejects its
            parameters.

    An error in a run changes nothing. But errors of a variable's constraint, the optimizer's
    `_finish` and the writer occur after the update.

    Differs from:
        OpenSeq2Seq, which clips float64 gradients in float32. `as_shipped=True` reproduces its
        defects: norms overflow if squares overflow float32; clipping raises for variables of shape
        (); LARC returns NaN if learning rate and variable are 0; LogMax, see `LogMaxScaler`;
        NovoGrad forgets its average; `weight_decay` is changed in the caller's dict; a loss scale
        of type int raises; a negative `clip_gradients` clips nothing; `iter_size` is ignored unless
        `on_horovod`.

    Example:
        >>> from thalweg.openseq2seq.optimizers import lr_policies
        >>> w = Variable([1.0, -2.0], name="w")
        >>> step = optimize_loss(
        ...     lambda: (w * w).sum(),
        ...     "Momentum",
        ...     {"momentum": 0.9},
        ...     lambda s: lr_policies.poly_decay(s, 0.1, decay_steps=100),
        ...     clip_gradients=1.0,
        ... )
        >>> step(), step()
        (tensor(5.), tensor(4.5628))

    Reference: OpenSeq2Seq, optimizers.optimizers
    """
    post = PostProcessing.of(summaries, clip_gradients, larc_params, as_shipped)
    mixed, in_graph, reduces = is_mixed(dtype), is_deferred(loss), bool(on_horovod)
    _check_functions(loss, learning_rate_decay_fn, in_graph)
    iter_size = _check_iter_size(iter_size, skip_update_ph, reduces, as_shipped)
    queue = None if summary_writer is None else SummaryQueue(summary_writer, waits=in_graph)
    treatment = Treatment(post, iter_size, reduces, all_reduce, model, queue, summaries is None)
    with loss.graph.as_default() if is_symbolic(loss) else contextlib.nullcontext():
        counter = _global_step(global_step, in_graph)
        live = None if in_graph else LiveRate(learning_rate_decay_fn, counter)
        rate = learning_rate_decay_fn(counter) if live is None else live.value
        inner = _make_optimizer(optimizer, optimizer_params, rate, live, as_shipped)
        scaler = _make_loss_scaler(loss_scaling, loss_scaling_params, as_shipped)
        if mixed:
            inner = _wrap_mixed_precision(inner, loss_scaling, scaler, in_graph, as_shipped)
        step_args = counter, scaler, treatment, skip_update_ph
        if live is not None:
            return TrainingStep(loss, inner, var_list, live, *step_args)
        return step_in_graph(loss, inner, var_list, rate, *step_args)


def _check_functions(loss: object, learning_rate_decay_fn: object, in_graph: bool) -> None:
    """Raise InvalidTypeError if the policy, or the loss in eager mode, is not callable."""
    if not callable(learning_rate_decay_fn):
        raise InvalidTypeError(
            f"learning_rate_decay_fn must be callable, not {show_value(learning_rate_decay_fn)}."
        )
    if not in_graph and not (callable(loss) and not isinstance(loss, Tensor)):
        raise InvalidTypeError(
            f"loss must be a callable that returns the loss in eager mode, not {show_value(loss)}."
        )


def _make_loss_scaler(
    loss_scaling: object, loss_scaling_params: Mapping[str, object] | None, as_shipped: bool
) -> AutomaticLossScaler | None:
    """Return the scaler of a named algorithm, or None for a number."""
    if not isinstance(loss_scaling, str):
        return None
    return AutomaticLossScaler(loss_scaling, loss_scaling_params, as_shipped=as_shipped)


def _wrap_mixed_precision(
    optimizer: Any,
    loss_scaling: Any,
    scaler: AutomaticLossScaler | None,
    in_graph: bool,
    as_shipped: bool,
) -> MixedPrecisionOptimizerWrapper:
    """Return the optimizer with float32 masters; raise if the loss scale is invalid."""
    scale = loss_scaling if scaler is None else scaler
    scope = "" if in_graph else SCOPE
    wrapper = MixedPrecisionOptimizerWrapper(optimizer, scale, as_shipped=as_shipped, scope=scope)
    # The property raises if the scale is invalid.
    _ = wrapper.loss_scale
    return wrapper


def _check_iter_size(iter_size: int, skip: object, on_horovod: bool, as_shipped: bool) -> int:
    """Validate and return the number of runs per update; above 1, `skip` must not be None.

    With `as_shipped` and without `on_horovod` the number is 1, as in OpenSeq2Seq.
    """
    check_count(iter_size)
    if as_shipped and not on_horovod:
        iter_size = 1
    if iter_size > 1 and skip is None:
        raise InvalidArgumentError(
            "iter_size above 1 needs skip_update_ph: it says which runs only add gradients up."
        )
    check_replicas(on_horovod, iter_size)
    return iter_size


def _global_step(global_step: object, in_graph: bool) -> object:
    if global_step is not None:
        assert_global_step(global_step)
        return global_step
    if in_graph:
        return get_or_create_global_step()
    zero = torch.zeros((), dtype=torch.int64, device="cpu")
    return Variable(zero, name="global_step", trainable=False)


def _make_optimizer(
    optimizer: Any,
    params: Mapping[str, object] | None,
    rate: Any,
    live: LiveRate | None,
    as_shipped: bool,
) -> Optimizer | NovoGrad:
    """Return a new optimizer of a name or class, with learning rate `rate` and `params`.

    The weight decay of "AdamW" is multiplied by the learning rate; in eager mode `live` makes the
    product. With `as_shipped`, the product replaces the decay in `params`, too. Raise TypeError if
    `optimizer` is neither a name nor a function that returns an optimizer.
    """
    params = {} if params is None else params
    all_params: dict[str, Any] = {**params}
    if isinstance(optimizer, str) and optimizer == "AdamW":
        product = live.times if live is not None else lambda decay: called(decay) * called(rate)
        all_params = scaled_decay(params, product, in_place=as_shipped)
    cls = optimizer_class(optimizer)
    if as_shipped and isinstance(cls, type) and issubclass(cls, NovoGrad):
        all_params.setdefault("as_shipped", True)
    instance = cls(learning_rate=rate, **all_params)
    if not isinstance(instance, Optimizer):
        raise InvalidTypeError(
            f"optimizer must make an optimizer of thalweg.v1, but {optimizer!r} made {instance!r}."
        )
    return instance
