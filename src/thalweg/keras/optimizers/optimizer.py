"""`Optimizer`, the base class: Keras' OptimizerV2, its hooks and its order of operations.

`Optimizer` inherits from `weights` (iterations, slots), `hyperparameters` (attributes) and
`state_dict`, each derived from the class before. Its mixins are `options` (clipping, functions)
and `differentiation` (`minimize`).
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Self

from torch import Tensor

from thalweg import distribute
from thalweg._base.execution_context import (
    executing_eagerly,
    is_deferred,
    is_symbolic,
    replicas,
    thread,
)
from thalweg._base.locks import importing
from thalweg._base.scatter import scatter
from thalweg._base.showing import show_value
from thalweg._base.tracing import untraced
from thalweg._core.atomic_section import Call
from thalweg._core.commit import StepResult, annotate_not_taken, raise_first
from thalweg._core.config_registry import Configurable
from thalweg._core.dtensor import is_imported, is_on_mesh
from thalweg._core.gradient_stats import transform_gradients
from thalweg._core.gradient_transforms import NOTHING
from thalweg._core.grads_and_vars import Pair, as_pairs
from thalweg._core.graph_mode import graph_mode
from thalweg._core.hyperparameters import hint, is_number
from thalweg._core.plan_cache import PlanCache
from thalweg._core.replay_trigger import annotate_outcome, note_repeated, progress_of
from thalweg._core.slot_dict_view import variable_key
from thalweg._core.slot_optimizer import SlotOptimizer
from thalweg._core.step import run_step, try_rebind
from thalweg._core.step_adapter import Shared
from thalweg.distribute.reduction_tracking import commit_sums
from thalweg.errors import InvalidTypeError, did_you_mean, warn
from thalweg.keras.optimizers.differentiation import Differentiation
from thalweg.keras.optimizers.options import CLIPPING, KerasOptions, Transformer, as_option
from thalweg.keras.optimizers.state_dict import KerasStateDict
from thalweg.keras.optimizers.step_adapter import (
    UPDATES,
    ApplyState,
    KerasStepAdapter,
    call,
    deduplicated,
    has_hooks,
    rows_of,
)
from thalweg.schedules.serialization import deserialize as deserialize_schedule

_ALLOWED = ("clipnorm", "clipvalue", "decay", "global_clipnorm", "lr")
_used_names: Counter[str] = Counter()


def _make_unique_name(cls: type) -> str:
    """Return a name for the class, such as "adam_1", unique in the process."""
    name = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", cls.__name__)
    snake = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().lstrip("_")
    count = _used_names[snake]
    _used_names[snake] += 1
    return f"{snake}_{count}" if count else snake


@cache
def _import_distributed_step() -> Any:
    """Import and return the module of steps in strategies, on first use."""
    with importing:
        return import_module("thalweg.keras.optimizers.distributed_step")


def _make_replay(optimizer: object, cache: PlanCache, pairs: object) -> object:
    """Return a replay of the optimizer's last step, or None if the step cannot be replayed."""
    with importing:
        from thalweg.keras.optimizers.replay import KerasReplay
    return KerasReplay.of(optimizer, cache, pairs)


class Optimizer(KerasStateDict, KerasOptions, Differentiation, SlotOptimizer, Configurable):
    """Base class of Keras' optimizers; derive from it to write one in torch or `thalweg.tf`.

    Override `_resource_apply_dense(grad, var)`, `_resource_apply_sparse(grad, var, indices)`,
    `_create_slots(var_list)` and `get_config()`. The first two change `var` and its slots in place,
    without autograd, and may take `apply_state`. If a hook fails, variables and slots are restored
    from copies made before the step. In graph mode, all hooks are called once, with symbolic
    tensors, and return operations. A session runs the operations as one update. For a fused
    optimizer, write a `thalweg.Rule` and run it with `RuleOptimizer`.

    `repr` shows the hyperparameters, the engine and the bytes of slots; it calls and creates
    nothing.

    Args:
        name: Name of the optimizer, the scope of its variables' names. None derives one from the
            class's name, unique in the process.
        gradient_aggregator: `gradient_aggregator(pairs)` takes and returns a list of (gradient,
            variable) pairs. It is called before clipping. None does not change gradients of a
            single replica.
        gradient_transformers: Functions like `gradient_aggregator`, called in order after it. They
            cannot be combined with clipping.
        **kwargs: `clipvalue` (elements), `clipnorm` (per variable), `global_clipnorm` (all
            variables), `decay` (of the learning rate: `lr / (1 + decay * iterations)`), `lr` (old
            name of learning_rate).

    Attributes:
        HOOKS_AT_EACH_RUN: True if hooks need tensors with values in graph mode, too. All hooks but
            `_create_slots` are then called at each run, with the session's tensors, which they
            change in place. Aggregators and transformers are called at each run, too.

    Raises:
        TypeError: An unknown keyword, or a value that is not a number.
        ValueError: A negative keyword argument, both norms at once, or clipping with transformers.

    Differs from:
        TensorFlow: a callable hyperparameter is called once per `apply_gradients`, not once per
        dtype; half precision is computed in float32 and rounded once per stored value; a
        hyperparameter of NaN and an infinite norm raise errors.

    Reference: tf.keras.optimizers.Optimizer (r2.4), tf_keras.optimizers.legacy.Optimizer
    """

    _NOT_COPIED: ClassVar[tuple[str, ...]] = (*SlotOptimizer._NOT_COPIED, "_read")
    HOOKS_AT_EACH_RUN: ClassVar[bool] = False
    # `apply_gradients` accepts experimental_aggregate_gradients.
    _HAS_AGGREGATE_GRAD = True
    # Hyperparameters of the graph operation whose hooks are being recorded.
    _read: Any = None
    # Subclasses pass this on to assignments and kernels.
    _use_locking = True
    # Hooks by name as this class defines them, to find those that a subclass overrides.
    _DEFAULT_HOOKS: ClassVar[dict[str, Any]] = {}

    def _forget_step(self) -> None:
        """Forget the hyperparameter values that a step has read whose thread has ended."""
        if "_hyper" in vars(self):
            self._hyper.__exit__(None, None, None)

    def __init__(
        self,
        name: str | None = None,
        gradient_aggregator: Transformer | None = None,
        gradient_transformers: Sequence[Transformer] | None = None,
        **kwargs: Any,
    ) -> None:
        for key, value in kwargs.items():
            if key not in _ALLOWED:
                raise TypeError(
                    f"Unexpected keyword argument passed to optimizer: {key}."
                    f" Allowed kwargs are {list(_ALLOWED)}.{self._spelling_hint(key)}"
                )
            # Other values of `lr`, such as schedules, are checked as those of `learning_rate`.
            if key != "lr" or is_number(value):
                kwargs[key] = as_option(key, value)
        if not isinstance(name, str | None):
            raise InvalidTypeError(f"name must be a string, not {show_value(name)}.{hint(name)}")
        if "lr" in kwargs:
            warn("The `lr` argument is deprecated, use `learning_rate`.", DeprecationWarning)
        KerasStateDict.__init__(self)
        self._name = name or _make_unique_name(type(self))
        self._initial_decay = kwargs.get("decay") or 0.0
        clipping = {key: kwargs.get(key) for key in CLIPPING}
        KerasOptions.__init__(self, gradient_aggregator, gradient_transformers, clipping)

    def _spelling_hint(self, keyword: str) -> str:
        """Return a hint at the argument closest to an unknown keyword, or ""."""
        names = inspect.signature(type(self).__init__).parameters.keys() - {"self", "kwargs"}
        hint = did_you_mean(keyword, [*names, *_ALLOWED])
        return f" {hint}" if hint else ""

    @untraced
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[object, Tensor]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Apply gradients to variables.

        Args:
            grads_and_vars: Pairs of a gradient and its variable. A gradient is a tensor (dense, or
                sparse COO over dimension 0), `IndexedSlices`, an array, a list, or None.
            name: Name of the operation in graph mode; eager steps have none.
            experimental_aggregate_gradients: True to call `gradient_aggregator`. Without an
                aggregator, gradients are summed over replicas inside
                `thalweg.distribute.Strategy.run`.

        Returns:
            `iterations`, raised by 1, or None without pairs. In graph mode, return the operation
            that takes the step. The operation reads hyperparameters that are variables or graph
            tensors; callable hyperparameters are called now.

        Raises:
            TypeError: The pairs are malformed, or dtypes differ.
            ValueError: No variable has a gradient, or a gradient does not fit its variable.
            RuntimeError: The call is in a strategy's scope, but in no replica; replicas differ
                (ReplicaMismatchError); or a replica did not answer (ReplicaLostError).

        On these errors, and if a user's function fails, no variable and no slot changes. If a
        constraint fails, the rest of the step is done. A note on the exception tells the two cases
        apart.
        """
        cache, is_locked = self._plans.now(), False
        try:
            with self._lock:
                replay, pairs = None if thread.strategies else cache.replay, grads_and_vars
                # A replay takes lists only, and `zip(gradients, variables)` is the usual argument.
                pairs = list(pairs) if type(pairs) is zip else pairs
                is_locked = True
                # Only callable hyperparameters need the block of `self._hyper`.
                if replay is not None and not replay.calls and replay.take(self, cache, pairs):
                    return self._iterations
                progress = progress_of(cache)
                try:
                    return self._apply(cache, pairs, name, experimental_aggregate_gradients)
                except BaseException as error:
                    annotate_outcome(error, cache, progress)
                    raise
        except BaseException as error:
            # All later errors have their notes already.
            if not is_locked and executing_eagerly():
                annotate_not_taken(error)
            raise

    def _apply(self, cache: PlanCache, pairs: Any, name: str | None, aggregates: bool) -> Any:
        """Take the step of `apply_gradients`: by a replay that calls user functions, or in full.

        Return `iterations`, or None if there are no pairs; in graph mode, return an operation.
        """
        if thread.strategies:
            return _import_distributed_step().step_in_replicas(self, pairs, name, aggregates)
        replay = cache.replay
        with self._hyper:
            if replay is not None and replay.calls and replay.take(self, cache, pairs):
                return self.iterations
            with self._plans.one_step(self._name):
                return self._apply_alone(pairs, name, aggregates)

    def _apply_alone(self, pairs: object, name: str | None, aggregates: bool) -> Tensor | None:
        """Take a step without a strategy; return `iterations`, None (no pairs), or an operation."""
        pairs = pairs if type(pairs) is list else as_pairs(pairs)
        if not pairs:
            return self._apply_nothing()
        hooks = self._make_hooks(aggregates)
        has_dtensors = is_imported() and any(is_on_mesh(var) for _, var in as_pairs(pairs))
        if self._slots.parts is None and not has_dtensors:
            return self._end_step(self._take_step(hooks, pairs), pairs, name, aggregates)
        fingerprint = _import_distributed_step().fingerprint_of(self)
        pairs, hooks.sharing = distribute.share_summed_step(
            self, pairs, hooks, self._clipping, fingerprint
        )
        with distribute.enter_shared_step(hooks.sharing):
            outcome = self._take_step(hooks, pairs)
        return self._end_step(outcome, pairs, name, aggregates)

    def _apply_nothing(self) -> Any:
        """Return the result of a step without pairs: None, or an operation in graph mode."""
        return graph_mode().apply_gradients(self, [], None, False) if is_deferred() else None

    def _take_step(self, hooks: KerasStepAdapter, pairs: Any) -> StepResult | None:
        """Take an eager step, return its `StepResult`; in graph mode, do nothing, return None."""
        transforms = (
            NOTHING if "_transform_gradients" in self._overridden_hooks() else self._clipping
        )
        transforms = self._judged(transforms)
        cache, recorder = self._plans.now(), self._recorder
        with contextlib.nullcontext() if recorder is None else recorder.around(hooks):
            if executing_eagerly():
                outcome = try_rebind(hooks, cache, pairs, transforms)
                if outcome is not None:
                    # A replay would neither measure nor judge later steps.
                    if hooks.watch is None and transforms.judge is None:
                        note_repeated(cache, _make_replay)
                    return outcome
            if is_deferred(*(member for pair in as_pairs(pairs) for member in pair)):
                return None
            return run_step(hooks, cache, pairs, transforms, may_rebind=False)

    def _end_step(
        self, outcome: StepResult | None, pairs: object, name: str | None, aggregates: bool
    ) -> Tensor | None:
        """Return `iterations` after an eager step; in graph mode, build and return an operation.

        Args:
            outcome: `StepResult` of an eager step; its first error is raised. None in graph mode.
            pairs, name, aggregates: Arguments of the operation of graph mode.
        """
        if outcome is None:
            return graph_mode().apply_gradients(self, as_pairs(pairs), name, aggregates)
        commit_sums(self, bool(outcome.errors))
        raise_first(outcome.errors)
        return self.iterations

    def _is_recorded(self) -> bool:
        """Return True if hooks are called once, when a graph is built."""
        return has_hooks(self) and not self.HOOKS_AT_EACH_RUN and distribute.shards_of(self) is None

    def _waited_for(self) -> AbstractContextManager[None]:
        """Return a context manager for computing gradients, for which other replicas wait."""
        if not thread.strategies:
            return contextlib.nullcontext()
        return _import_distributed_step().waited_for(self)

    def _counting_calls(self, shared: Shared, variables: Sequence[Tensor]) -> list[Call]:
        """Return C functions that count a step of these variables beside `iterations`."""
        return []

    def _make_hooks(self, aggregates: bool) -> KerasStepAdapter:
        """Return the adapter of one call of `apply_gradients`."""
        return KerasStepAdapter(self, aggregates)

    @classmethod
    @cache
    def _overridden_hooks(cls) -> frozenset[str]:
        """Return the names of the hooks that a subclass overrides."""
        return frozenset(
            name for name, hook in cls._DEFAULT_HOOKS.items() if getattr(cls, name) is not hook
        )

    def _make_awaited(self, variables: list[Tensor]) -> None:
        """Create all weights of variables that a loaded state awaits."""
        self._create_all_weights(variables)

    def _make_whole(self) -> None:
        """Create the objects that restored values wait for, so that a save includes them."""
        super()._make_whole()
        if self._deferred_dependencies and executing_eagerly():
            _ = self.iterations
            self._create_hypers()

    def _create_slots(self, var_list: list[Tensor]) -> None:
        """Hook: create slots with `add_slot`."""

    def _prepare(self, var_list: Sequence[Tensor]) -> ApplyState:
        """Return the coefficients of a step by device and dtype."""
        state = ApplyState()
        for device, dtype in dict.fromkeys((str(var.device), var.dtype) for var in var_list):
            state[device, dtype] = {}
            self._prepare_local(device, dtype, state)
        return state

    def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: ApplyState) -> None:
        """Hook: put coefficients of a step into `apply_state[var_device, var_dtype]`."""
        coefficients = apply_state[var_device, var_dtype]
        if "learning_rate" in self._hyper:
            coefficients["lr_t"] = self._decayed_lr(var_dtype)
        coefficients.update(self._step_coefficients(var_dtype, coefficients))

    def _step_coefficients(self, dtype: object, state: dict[str, object]) -> dict[str, object]:
        """Return TensorFlow's coefficients of this class by name, for hooks of its subclasses.

        Args:
            state: The coefficients so far, such as the learning rate "lr_t".
        """
        return {}

    def _fallback_apply_state(self, var_device: str, var_dtype: Any) -> dict[str, Any]:
        """Return the coefficients for a hook that was called without `apply_state`."""
        state = ApplyState({(var_device, var_dtype): {}})
        self._prepare_local(var_device, var_dtype, state)
        return state[var_device, var_dtype]

    def _transform_unaggregated_gradients(self, grads_and_vars: list[Pair]) -> Iterable[Pair]:
        """Hook: return the pairs to aggregate, by default unchanged."""
        return grads_and_vars

    def _aggregate_gradients(self, grads_and_vars: list[Pair]) -> Iterable[Pair]:
        """Hook: aggregate gradients over replicas, by `gradient_aggregator` or as sums."""
        if self._aggregator is not None:
            return self._aggregator(grads_and_vars)
        if replicas() == 1:
            return grads_and_vars
        return _import_distributed_step().sum_over_replicas(self, list(grads_and_vars))

    def _transform_gradients(self, grads_and_vars: list[Pair]) -> Iterable[Pair]:
        """Hook: clip gradients, call `gradient_transformers`, and return the new pairs."""
        flush = self._selection().denormals == "flush"
        if is_deferred(*(grad for grad, _ in grads_and_vars)):
            pairs = graph_mode().clip(grads_and_vars, self._clipping, flush)
        else:
            pairs, _ = transform_gradients(grads_and_vars, self._clipping, flush)
        for transformer in self._transformers:
            pairs = as_pairs(transformer(pairs))
        return pairs

    def _resource_apply_dense(self, grad: Tensor, var: Any, apply_state: Any = None) -> Any:
        """Hook: update `var` in place with a dense gradient of its shape and dtype."""
        raise NotImplementedError(f"{type(self).__name__} must override _resource_apply_dense.")

    def _resource_apply_sparse(
        self, grad: Tensor, var: Any, indices: Tensor, apply_state: Any = None
    ) -> Any:
        """Hook: update the rows `indices` of `var`, each named once, with the rows of `grad`."""
        raise NotImplementedError(f"{type(self).__name__} must override _resource_apply_sparse.")

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Tensor, var: Any, indices: Tensor, apply_state: Any = None
    ) -> Any:
        """Hook: update rows of `var`; sum the gradient rows of repeated `indices` first."""
        values, unique = deduplicated(grad, indices)
        return call(self._resource_apply_sparse, (values, var, unique), apply_state)

    def _resource_scatter_add(self, x: Any, i: Any, v: Any) -> Tensor:
        """Add the rows of `v` to the rows `i` of a variable; return its value."""
        if is_symbolic(x):
            return x.scatter_add(rows_of(v, i))
        scatter(x, i, v, "add")
        return x.detach().clone()

    def _resource_scatter_update(self, x: Any, i: Any, v: Any) -> Tensor:
        """Set the rows `i` of a variable to the rows of `v`; return its value."""
        if is_symbolic(x):
            return x.scatter_update(rows_of(v, i))
        scatter(x, i, v, "update")
        return x.detach().clone()

    @property
    def _dense_apply_args(self) -> list[str]:
        """Names of the parameters of `_resource_apply_dense`, with or without `apply_state`."""
        return inspect.getfullargspec(self._resource_apply_dense).args

    @property
    def _sparse_apply_args(self) -> list[str]:
        """Names of the parameters of `_resource_apply_sparse`, with or without `apply_state`."""
        return inspect.getfullargspec(self._resource_apply_sparse).args

    def _call_if_callable(self, param: Any) -> Any:
        """Return the result of a callable, or the argument itself."""
        return param() if callable(param) and not isinstance(param, Tensor) else param

    def __repr__(self) -> str:
        # A subclass has not called __init__ yet.
        if "_hyper" not in vars(self):
            return object.__repr__(self)
        clipping = {key: value for key, value in self._clipping_options().items() if value}
        options = {"engine": self._engine or "auto", **clipping}
        fields = [f"{key}={value}" for key, value in {**self._hyper.shown(), **options}.items()]
        slots = [slot for _, _, slot in self._slots.triples()]
        size = sum(slot.numel() * slot.element_size() for slot in slots)
        count = len(self._slots.owners())
        return (
            f"<{type(self).__name__} '{self._name}' {' '.join(fields)}:"
            f" {size} bytes of slots for {count} variables>"
        )

    def get_config(self) -> dict[str, Any]:
        """Return the name and the clipping options that are set, as arguments of the constructor.

        A subclass adds its own arguments, so that `from_config` makes an equal optimizer.
        """
        clipping = {
            key: value for key, value in self._clipping_options().items() if value is not None
        }
        return {"name": self._name, **clipping}

    def _arguments(self) -> dict[str, object]:
        """Return {constructor argument: value} for arguments that affect updates."""
        try:
            with self._hyper.uncalled():
                arguments = dict(self.get_config())
        # A subclass need not define get_config.
        except NotImplementedError:
            arguments = {}
        arguments.pop("name", None)
        values = self._hyper.numbers()
        arguments |= {name: values.get(name, self._hyper.raw(name)) for name in self._hyper}
        functions = {
            "gradient_transformers": self.gradient_transformers,
            "gradient_aggregator": self.gradient_aggregator,
        }
        return {**arguments, **{name: function for name, function in functions.items() if function}}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """Return an optimizer made from a configuration.

        Args:
            config: A dict that `get_config` returned; not changed. `lr` is accepted for
                `learning_rate`.
            custom_objects: {name: class} for classes named in `config`.
        """
        config = dict(config)
        if "lr" in config:
            config["learning_rate"] = config.pop("lr")
        if isinstance(config.get("learning_rate"), dict):
            config["learning_rate"] = deserialize_schedule(
                config["learning_rate"], custom_objects=custom_objects
            )
        return cls(**config)


_deduplicate_indexed_slices = deduplicated
_var_key = variable_key


Optimizer._DEFAULT_HOOKS = {
    name: getattr(Optimizer, name)
    for name in (
        *UPDATES, "_transform_unaggregated_gradients", "_aggregate_gradients",
        "_transform_gradients", "_prepare", "_prepare_local",
    )
}  # fmt: skip
