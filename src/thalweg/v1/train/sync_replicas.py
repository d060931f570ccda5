"""`SyncReplicasOptimizer`: worker threads compute gradients, and a *chief* thread takes the steps.

The chief applies the means of the workers' gradients. After handing over gradients, a worker waits
in the session's `Rendezvous` for a token, the value of the global step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.execution_context import is_deferred
from thalweg._base.showing import show_value
from thalweg._base.tracing import untraced
from thalweg._core.grads_and_vars import as_gradient, as_pairs
from thalweg._core.state import check_eager
from thalweg._core.validation import check_pairs
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import IndexedSlices, whole
from thalweg.v1.train.monitored.session_run_hook import SessionRunHook
from thalweg.v1.train.moving_averages import ExponentialMovingAverage
from thalweg.v1.train.optimizer import Optimizer
from thalweg.v1.train.queue_runner import QueueRunner
from thalweg.v1.train.rendezvous import DenseAccumulator, Rendezvous, SparseAccumulator
from thalweg.v1.train.slot_creator import base_name
from thalweg.v1.train.wrapping_optimizer import WrappingOptimizer

_GRADIENTS = (_graph.SymbolicTensor, _graph.SymbolicSlices, Tensor, IndexedSlices)


class SyncReplicasOptimizer(WrappingOptimizer):
    """Optimizer that applies mean gradients of several workers by another optimizer.

    Workers are threads that run the operation of `apply_gradients` in one session. The operation
    hands over gradients and waits for the step. The chief, a thread of `get_chief_queue_runner()`,
    takes a step after receiving `replicas_to_aggregate` gradients of the present step. Gradients
    computed before the last step are dropped.

    Dense gradients are averaged over all gradients. A row of sparse gradients is averaged over the
    gradients that contain the row. Gradients are added in order of arrival, so last bits may vary
    with more than two workers. A missing gradient counts as zeros.

    All workers of one session that train common variables cooperate, even through several
    optimizers. Sessions are independent. Waits end with CancelledError when the session is closed
    or the chief's coordinator stops. If the chief or a thread of its coordinator fails, waits end
    with an error that names the cause.

    Args:
        opt: The optimizer that takes the steps.
        replicas_to_aggregate: Number of workers' gradients per step.
        total_num_replicas: Number of workers; by default `replicas_to_aggregate`. With more
            workers, a step does not wait for the slowest. With fewer, a worker adds several
            gradients per step.
        variable_averages: Optional. An `ExponentialMovingAverage`, updated after each step.
        variables_to_average: Optional. Variables of `variable_averages`; all trainable variables by
            default.
        use_locking: Accepted for compatibility; the argument of `opt` is used.
        name: Name scope of the operations.

    Attributes:
        local_step_init_op: Operation that sets a worker's local step to the global step. All three
            attributes exist after `apply_gradients`.
        chief_init_op: Operation that starts the chief and its worker, also after a stop.
        ready_for_local_init_op: Names of uninitialized global variables. If empty, the other two
            operations may run.

    Raises:
        TypeError: `opt` is not a v1 optimizer, or `variable_averages` has no method `apply`.
        ValueError: A number of replicas is not a positive integer.

    Differs from:
        TensorFlow: here a worker's gradients are added all together or not at all, optimizers of
        different variables do not share tokens, and a shared local step never decreases. A gradient
        that does not fit its variable raises in the worker's run.

    Example:
        >>> import threading
        >>> from thalweg import v1
        >>> with v1.Graph().as_default():
        ...     w = v1.Variable([1.0, 2.0])
        ...     grad = v1.placeholder("float32", [2])
        ...     opt = SyncReplicasOptimizer(v1.train.GradientDescentOptimizer(0.5), 2)
        ...     step = v1.train.get_or_create_global_step()
        ...     train_op = opt.apply_gradients([(grad, w)], step)
        ...     hook = opt.make_session_run_hook(is_chief=True, num_tokens=0)
        ...     hook.begin()
        ...     with v1.Session() as session:
        ...         session.run(v1.global_variables_initializer())
        ...         hook.after_create_session(session, None)
        ...         feeds = {grad: [1.0, 1.0]}, {grad: [3.0, 0.0]}
        ...         run = lambda feed: session.run(train_op, feed)
        ...         workers = [threading.Thread(target=run, args=[feed]) for feed in feeds]
        ...         for worker in workers:
        ...             worker.start()
        ...         for worker in workers:
        ...             worker.join()
        ...         print(session.run(w), session.run(step))
        [0.   1.75] 1

    Reference: tf.train.SyncReplicasOptimizer; https://arxiv.org/abs/1604.00981
    """

    local_step_init_op: _graph.Operation
    chief_init_op: _graph.Operation
    ready_for_local_init_op: _graph.SymbolicTensor

    def __init__(
        self,
        opt: Optimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        variable_averages: ExponentialMovingAverage | None = None,
        variables_to_average: Sequence[object] | None = None,
        use_locking: bool = False,
        name: str = "sync_replicas",
    ) -> None:
        super().__init__(opt, use_locking, name)
        if not (variable_averages is None or hasattr(variable_averages, "apply")):
            raise InvalidTypeError(
                "variable_averages must have a method apply, not be"
                f" {show_value(variable_averages)}."
            )
        if total_num_replicas is None:
            total_num_replicas = replicas_to_aggregate
        self._replicas_to_aggregate = _check_count("replicas_to_aggregate", replicas_to_aggregate)
        self._total_num_replicas = _check_count("total_num_replicas", total_num_replicas)
        self._tokens_per_step = max(self._replicas_to_aggregate, self._total_num_replicas)
        self._variable_averages = variable_averages
        self._variables_to_average = variables_to_average
        self._rendezvous_ops: _RendezvousOps | None = None
        self._chief_queue_runner: QueueRunner | None = None

    def _check_has_state(self) -> None:
        check_eager(f"The state of {self._name}", is_eager=False)

    @untraced
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[object, object]],
        global_step: object = None,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
    ) -> Any:
        """Build the operations of a worker and of the chief; return the worker's operation.

        The worker's operation writes only `sync_rep_local_step`; the chief's thread takes the step.

        Args:
            grads_and_vars: (gradient, variable) pairs. A gradient is a tensor, `IndexedSlices`, or
                None.
            global_step: The variable that counts the steps.
            name: Name of the worker's operation.
            skip_gradients_aggregation: Accepted for compatibility.

        Raises:
            RuntimeError: In eager mode.
            ValueError: There are no pairs, no variable has a gradient, or `global_step` is None.
            TypeError: `global_step` is not a graph variable, or a gradient has another type.
        """
        grads_and_vars_list = as_pairs(grads_and_vars)
        if not is_deferred(*chain.from_iterable(grads_and_vars_list)):
            raise RuntimeError(
                "SyncReplicasOptimizer works in graph mode only: its workers are runs of a session."
                " Build a Graph, or call thalweg.v1.disable_eager_execution() first."
            )
        if not grads_and_vars_list:
            raise ValueError("Must supply at least one variable")
        if global_step is None:
            raise ValueError("Global step is required to check staleness")
        step = _graph.graph_variable_of(global_step)
        if not isinstance(step, _graph.GraphVariable):
            raise InvalidTypeError(
                f"global_step must be a variable of the graph, not {show_value(global_step)}."
            )
        for grad, var in grads_and_vars_list:
            if grad is not None and not isinstance(grad, _GRADIENTS):
                raise InvalidTypeError(
                    f"Unknown grad type! The gradient of '{base_name(var)}' is of type"
                    f" {type(grad).__name__}; expected a tensor, IndexedSlices or None."
                )
        with step.graph.as_default():
            pairs = [(grad, _graph.graph_variable_of(var)) for grad, var in grads_and_vars_list]
            return self._build_update(pairs, step, name or self._name)

    def _build_update(
        self, pairs: list[tuple[object, object]], global_step: _graph.GraphVariable, name: str
    ) -> _graph.Operation:
        """Build all operations, set the attributes, and return the worker's operation."""
        graph = _graph.get_default_graph()
        rendezvous_ops = _RendezvousOps([pair for pair in pairs if pair[0] is not None], self._opt)
        # Without the workers' control inputs: the chief's runs lack their feeds.
        with graph.control_dependencies(None):
            with graph.name_scope(self._name) as scope:
                means = rendezvous_ops.take(self._replicas_to_aggregate)
            chief = self._make_chief_step(rendezvous_ops, pairs, means, global_step)
            local_step = _graph.make_variable(
                0,
                "sync_rep_local_step",
                dtype=global_step.dtype,
                collections=[_graph.GraphKeys.LOCAL_VARIABLES],
            )
            # Read no later than the variables, so that stale gradients are recognized.
            stamp = local_step.read_value()
            with graph.name_scope(scope):
                start = _make_local_step_init(local_step, global_step)
                begin = rendezvous_ops.begin(global_step, start_op=start)
                ready = _graph.report_uninitialized_variables(_graph.global_variables())
                runner = _ChiefQueueRunner(rendezvous_ops, chief)
        with graph.name_scope(scope):
            token = rendezvous_ops.meet(stamp)
        train_op = _graph.operation(
            _advance_local_step, [_graph.by_reference(local_step), token], name
        )
        self.local_step_init_op, self.chief_init_op = start, begin
        self.ready_for_local_init_op = ready
        self._local_step, self._global_step = local_step, global_step
        self._rendezvous_ops, self._chief_queue_runner = rendezvous_ops, runner
        return train_op

    def _make_chief_step(
        self,
        rendezvous_ops: _RendezvousOps,
        worker_pairs: list[tuple[object, object]],
        gradient_means: list[object],
        global_step: _graph.GraphVariable,
    ) -> _graph.Operation:
        """Return the chief's operation: take means, apply them, hand out tokens, update averages.

        Args:
            rendezvous_ops: The operations of the rendezvous.
            worker_pairs: The worker's (gradient or None, variable) pairs.
            gradient_means: Symbolic means of the gradients that are not None.
        """
        graph = _graph.get_default_graph()
        mean_iterator = iter(gradient_means)
        pairs = [(None if grad is None else next(mean_iterator), var) for grad, var in worker_pairs]
        waited = [grad for grad, _ in pairs if grad is not None]
        # After the wait, so that what the optimizer reads is of this step.
        with graph.name_scope(None), graph.control_dependencies(waited):
            update = self._opt.apply_gradients(pairs, global_step)
        with graph.control_dependencies([update]):
            last_op = rendezvous_ops.put_tokens(global_step, self._tokens_per_step)
        if self._variable_averages is not None:
            with graph.name_scope(None), graph.control_dependencies([last_op]):
                last_op = self._variable_averages.apply(self._variables_to_average)
        return last_op

    def get_chief_queue_runner(self) -> QueueRunner:
        """Return the queue runner whose thread is the chief.

        Raises:
            ValueError: `apply_gradients` was not called before.
        """
        if self._chief_queue_runner is None:
            raise ValueError("Should be called after apply_gradients().")
        return self._chief_queue_runner

    def get_init_tokens_op(self, num_tokens: int = -1) -> _graph.Operation:
        """Return an operation that hands out tokens, for a run before the first step.

        A worker with a token can hand over further gradients before the first step. The token's
        value is the present global step. Gradients that a worker computes with this token are
        dropped if they arrive after the first step.

        Args:
            num_tokens: The number of tokens; -1 means `replicas_to_aggregate`. At least
                `replicas_to_aggregate` - `total_num_replicas` are required. 0 hands out none.

        Raises:
            ValueError: `apply_gradients` was not called before, or there are too few tokens.
        """
        if self._rendezvous_ops is None:
            raise ValueError("get_init_tokens_op() should be called after apply_gradients().")
        minimum_tokens = self._replicas_to_aggregate - self._total_num_replicas
        if num_tokens == -1:
            num_tokens = self._replicas_to_aggregate
        elif num_tokens < minimum_tokens:
            raise ValueError(
                f"Too few tokens to finish the first step: {num_tokens} (given) vs {minimum_tokens}"
                " (needed)"
            )
        graph = self._global_step.graph
        with graph.as_default(), graph.control_dependencies(None):
            if num_tokens <= 0:
                return _graph.no_op(name="no_op_init_tokens")
            return self._rendezvous_ops.put_tokens(self._global_step, num_tokens, check=True)

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> SessionRunHook:
        """Return a hook that initializes the worker, and on the chief starts the queue runner.

        Args:
            is_chief: True to start the chief's thread in the worker's session.
            num_tokens: As in `get_init_tokens_op`.
        """
        return _SyncReplicasHook(self, is_chief, num_tokens)


class _RendezvousOps:
    """Factory of graph operations that use the running session's `Rendezvous`.

    Args:
        pairs: (symbolic gradient, variable) pairs. Gradients are not None.
        opt: The optimizer that applies the means.
    """

    def __init__(self, pairs: list[tuple[Any, Any]], opt: Optimizer) -> None:
        self._gradients = [grad for grad, _ in pairs]
        self._variables = tuple(var for _, var in pairs)
        self._kinds = [_choose_accumulator(grad) for grad in self._gradients]
        self._opt = opt

    def here(self) -> Rendezvous:
        """Return the rendezvous of the running session; the first call creates it."""
        session: Any = _graph.current_session()
        # Optimizers of the same variables share a rendezvous.
        key = (Rendezvous, self._variables, tuple(self._kinds))
        return session.resource(key, lambda: Rendezvous(lambda: [kind() for kind in self._kinds]))

    def handle(self) -> _graph.SymbolicTensor:
        """Return a symbolic tensor; a run of it returns the session's `Rendezvous` object."""
        return _graph.operation(self.here, [], "rendezvous", kind="pure", outputs=_graph.Output())

    def meet(self, stamp: _graph.SymbolicTensor) -> _graph.SymbolicTensor:
        """Add an operation that hands over a worker's gradients and waits for a token.

        Args:
            stamp: The local step at which the gradients were computed.

        Returns:
            A symbolic tensor with the token's value, of the dtype of `stamp`.
        """
        names = [base_name(var) for var in self._variables]
        dtype = stamp.dtype

        def meet(gradients: list[object], leaves: list[Tensor], local_step: Tensor) -> Tensor:
            accumulated = [
                _as_kind(grad, leaf, name, kind)
                for grad, leaf, name, kind in zip(
                    gradients, leaves, names, self._kinds, strict=True
                )
            ]
            # Checked here: an error must be raised in the run of the worker that caused it.
            indices = [index for index, grad in enumerate(accumulated) if grad is not None]
            pairs = [(accumulated[index], leaves[index]) for index in indices]
            check_pairs(pairs, [names[index] for index in indices], scatter=self._opt._scatters())
            step = self.here().meet(accumulated, local_step.item())
            return torch.tensor(step, dtype=dtype, device="cpu")

        references = [_graph.by_reference(var) for var in self._variables]
        return _graph.operation(
            meet,
            [self._gradients, references, stamp],
            "meet",
            kind="blocking",
            outputs=_graph.Output(dtype, ()),
        )

    def take(self, required: int) -> list[Any]:
        """Return symbolic mean gradients; a run waits for gradients of `required` workers."""
        outputs = [
            _graph.Output(grad.dtype, var.shape)
            for grad, var in zip(self._gradients, self._variables, strict=True)
        ]
        means = _graph.operation(
            lambda: self.here().take(required), [], "take", kind="blocking", outputs=outputs
        )
        return [
            _make_slices(mean) if kind is SparseAccumulator else mean
            for mean, kind in zip(means, self._kinds, strict=True)
        ]

    def put_tokens(
        self, global_step: _graph.GraphVariable, count: int, check: bool = False
    ) -> _graph.Operation:
        """Return an operation that hands out `count` tokens with the value of the global step.

        With `check`, a run of the operation raises if the rendezvous was stopped.
        """

        def put(leaf: Tensor) -> None:
            rendezvous = self.here()
            if check:
                rendezvous.check()
            rendezvous.put_tokens(leaf.item(), count)

        return _graph.operation(put, [_graph.by_reference(global_step)], "sync_token_q_EnqueueMany")

    def begin(
        self, global_step: _graph.GraphVariable, start_op: _graph.Operation
    ) -> _graph.Operation:
        """Return an operation that starts or restarts the rendezvous at the step `global_step`.

        The operation runs after `start_op`.
        """
        return _graph.operation(
            lambda leaf: self.here().begin(leaf.item()),
            [_graph.by_reference(global_step)],
            "chief_init",
            control_inputs=[start_op],
        )


class _ChiefQueueRunner(QueueRunner):
    """Queue runner whose only thread is the chief. When the thread ends, waiting workers raise."""

    def __init__(self, rendezvous_ops: _RendezvousOps, chief_op: _graph.Operation) -> None:
        super().__init__(enqueue_ops=[chief_op])
        self._rendezvous = rendezvous_ops.handle()

    @property
    def name(self) -> str:
        return "sync_token_q"

    @property
    def _has_cancel(self) -> bool:
        return True

    def _end_waits(self, sess: Any, error: BaseException | None) -> None:
        sess.run(self._rendezvous).stop(error)


class _SyncReplicasHook(SessionRunHook):
    """Session hook that prepares a worker. With `is_chief`, it also starts the chief's thread."""

    def __init__(self, optimizer: SyncReplicasOptimizer, is_chief: bool, num_tokens: int) -> None:
        self._optimizer = optimizer
        self._is_chief = is_chief
        self._num_tokens = num_tokens
        self._tokens: _graph.Operation | None = None

    def begin(self) -> None:
        """With `is_chief`, create the operation that hands out the first tokens.

        Raises:
            ValueError: `apply_gradients` was not called before, or there are too few tokens.
        """
        if self._optimizer._rendezvous_ops is None:
            raise ValueError(
                "SyncReplicasOptimizer.apply_gradient should be called before using the hook."
            )
        if self._is_chief:
            self._tokens = self._optimizer.get_init_tokens_op(self._num_tokens)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Initialize the local step; with `is_chief`, hand out tokens and start the chief's thread.

        Raises:
            RuntimeError: A global variable is not initialized.
        """
        optimizer = self._optimizer
        init = optimizer.chief_init_op if self._is_chief else optimizer.local_step_init_op
        missing = session.run(optimizer.ready_for_local_init_op)
        if len(missing):
            names = ", ".join(name.decode() for name in missing)
            raise RuntimeError(
                "Init operations did not make model ready for SyncReplicasOptimizer local_init."
                f" Init op: {init.name}, error: Variables not initialized: {names}"
            )
        session.run(init)
        if self._tokens is not None:
            session.run(self._tokens)
            runner = optimizer.get_chief_queue_runner()
            runner.create_threads(session, coord=coord, daemon=True, start=True)


def _check_count(name: str, counter: object) -> int:
    if not isinstance(counter, Integral) or counter < 1:
        raise InvalidArgumentError(f"{name} must be a positive integer, not {show_value(counter)}.")
    return int(counter)


def _choose_accumulator(grad: object) -> type[DenseAccumulator] | type[SparseAccumulator]:
    by_rows = isinstance(grad, _graph.SymbolicSlices | IndexedSlices) or (
        isinstance(grad, Tensor) and grad.layout == torch.sparse_coo
    )
    return SparseAccumulator if by_rows else DenseAccumulator


def _as_kind(grad: object, var: Tensor, name: str, kind: object) -> Any:
    """Convert a gradient to the type that an accumulator of class `kind` adds.

    Args:
        grad: A dense or sparse tensor, IndexedSlices, or None.
        var, name: The variable of the gradient; its name for errors.
        kind: `DenseAccumulator` or `SparseAccumulator`.

    Returns:
        For `DenseAccumulator`, a dense tensor; repeated rows are summed. For `SparseAccumulator`,
        IndexedSlices; a dense gradient gives all rows. For None, None.

    Raises:
        InvalidTypeError, InvalidArgumentError, LayoutError: As in `as_gradient`.
    """
    if grad is None:
        return None
    grad = as_gradient(grad, var, name)
    if kind is DenseAccumulator:
        return whole(grad, var)
    if kind is SparseAccumulator and isinstance(grad, Tensor):
        rows = torch.arange(len(grad), dtype=torch.int64, device=grad.device)
        return IndexedSlices(grad, rows, grad.shape)
    return grad


def _make_slices(source: _graph.SymbolicTensor) -> _graph.SymbolicSlices:
    source.may_be_sparse = True
    return _graph.SymbolicSlices.of(source)


def _advance_local_step(local_step: Tensor, token: Tensor) -> None:
    # Workers share the variable, and may come here in another order than their tokens.
    local_step.copy_(torch.maximum(local_step, token))


def _make_local_step_init(
    local_step: _graph.GraphVariable, global_step: _graph.GraphVariable
) -> _graph.Operation:
    """Return an operation that initializes the local step with the value of the global step."""

    def initialize_local_step(leaf: Tensor) -> None:
        session: Any = _graph.current_session()
        session.initialize(local_step, leaf.clone())

    return _graph.operation(
        initialize_local_step, [_graph.by_reference(global_step)], "local_step_init"
    )
