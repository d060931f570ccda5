"""`Optimizer`, the base class: Keras' OptimizerV2, its hooks and its order of operations."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from thalweg.autodiff import GradientTape, gradients_of
from thalweg.engines import Selection, check_gradients, check_name, compute_dtype, current
from thalweg.engines.measure import sums_of_squares
from thalweg.engines.selection import EngineName
from thalweg.errors import InvalidArgumentError, InvalidTypeError, LayoutError, warn
from thalweg.indexed_slices import IndexedSlices
from thalweg.keras.optimizers.hypers import Hypers
from thalweg.keras.optimizers.pairs import (
    Pair,
    as_gradient,
    as_pairs,
    distinct,
    flatten,
    transformed,
)
from thalweg.keras.optimizers.state import State
from thalweg.keras.optimizers.weights import Weights
from thalweg.pipeline import Clipping
from thalweg.schedules import deserialize as deserialize_schedule
from thalweg.variable import Variable, is_variable, name_of, variable_constraint

Transformer = Callable[[list[Pair]], Iterable[Pair]]
ApplyState = dict[tuple[str, torch.dtype], dict[str, Any]]

_ALLOWED = ("clipnorm", "clipvalue", "decay", "global_clipnorm", "lr")
_NOT_TAKEN = "The step was not taken: no variable and no slot has changed."
_used_names: Counter[str] = Counter()


def _unique_name(cls: type) -> str:
    words = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", cls.__name__)
    snake = re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower().lstrip("_")
    count = _used_names[snake]
    _used_names[snake] += 1
    return f"{snake}_{count}" if count else snake


class Optimizer(Hypers, Weights, State):
    """Base class of the optimizers; derive from it to write one in plain torch code.

    Override `_resource_apply_dense(grad, var)`, `_resource_apply_sparse(grad, var, indices)`,
    `_create_slots(var_list)` and `get_config()`. The first two change `var` and its slots in
    place; autograd is off. Should they fail, variables and slots are put back from copies, made
    before each step. To have an optimizer fused instead, write a `thalweg.Rule` and run it with
    `RuleOptimizer`.

    Args:
        name: Name of the optimizer, the scope of its variables' names. None makes one of the
            class's, unique in the process.
        gradient_aggregator: Function from a list of (gradient, variable) to the same, called
            before clipping. None leaves the gradients of a single replica as they are.
        gradient_transformers: Functions of the same kind, called last, in order; not together with
            clipping.
        **kwargs: `clipvalue` (elements), `clipnorm` (per variable), `global_clipnorm` (all
            variables), `decay` (of the learning rate: `lr / (1 + decay * iterations)`), `lr` (old
            name of learning_rate).

    Raises:
        TypeError: An unknown keyword.
        ValueError: A negative keyword argument, both norms, or clipping with transformers.

    Differs from:
        TensorFlow: a callable hyperparameter is called once per `apply_gradients`, not once per
        dtype; half precision is computed in float32 and rounded once per stored value.

    Reference: tf.keras.optimizers.Optimizer (r2.4), tf_keras.optimizers.legacy.Optimizer
    """

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
                    f" Allowed kwargs are {list(_ALLOWED)}."
                )
            _check_not_negative(key, value)
        if "lr" in kwargs:
            warn("The `lr` argument is deprecated, use `learning_rate`.", DeprecationWarning)
        Hypers.__init__(self)
        Weights.__init__(self)
        State.__init__(self)
        self._name = name or _unique_name(type(self))
        self._iterations: Tensor | None = None
        self._engine: EngineName | None = None
        self._initial_decay = kwargs.get("decay") or 0.0
        self._aggregator = gradient_aggregator
        self._transformers: list[Transformer] = list(gradient_transformers or [])
        self._clipping = Clipping()
        self._set_clipping(**{key: kwargs.get(key) for key in self._clipping.options()})

    # Options

    def _set_clipping(self, **changes: Any) -> None:
        for key, value in changes.items():
            _check_not_negative(key, value)
        clipping = Clipping(**{**self._clipping.options(), **changes})
        if clipping.clipnorm is not None and clipping.global_clipnorm is not None:
            raise ValueError("Cannot accept both `clipnorm` and `global_clipnorm`.")
        if clipping and self._transformers:
            raise ValueError("Clipping options cannot be combined with `gradient_transformers`.")
        self._clipping = clipping

    @property
    def clipvalue(self) -> float | None:
        """`float` or `None`. Elements of gradients are clipped to [-clipvalue, clipvalue]."""
        return self._clipping.clipvalue

    @clipvalue.setter
    def clipvalue(self, value: float | None) -> None:
        self._set_clipping(clipvalue=value)

    @property
    def clipnorm(self) -> float | None:
        """`float` or `None`. Each gradient is scaled to a norm of at most this."""
        return self._clipping.clipnorm

    @clipnorm.setter
    def clipnorm(self, value: float | None) -> None:
        self._set_clipping(clipnorm=value)

    @property
    def global_clipnorm(self) -> float | None:
        """`float` or `None`. All gradients are scaled to a common norm of at most this."""
        return self._clipping.global_clipnorm

    @global_clipnorm.setter
    def global_clipnorm(self, value: float | None) -> None:
        self._set_clipping(global_clipnorm=value)

    @property
    def gradient_aggregator(self) -> Transformer | None:
        """The function that aggregates gradients over replicas, or None."""
        return self._aggregator

    @gradient_aggregator.setter
    def gradient_aggregator(self, function: Transformer | None) -> None:
        self._aggregator = function

    @property
    def gradient_transformers(self) -> list[Transformer]:
        """The functions applied to the gradients last."""
        return list(self._transformers)

    @gradient_transformers.setter
    def gradient_transformers(self, functions: Sequence[Transformer] | None) -> None:
        before, self._transformers = self._transformers, list(functions or [])
        try:
            self._set_clipping()
        except ValueError:
            self._transformers = before
            raise

    @property
    def engine(self) -> EngineName | None:
        """The engine of this optimizer; None follows `thalweg.engine(...)`."""
        return self._engine

    @engine.setter
    def engine(self, name: EngineName | None) -> None:
        self._engine = None if name is None else check_name(name)

    def _selection(self) -> Selection:
        selection = current()
        return selection if self._engine is None else selection._replace(name=self._engine)

    @property
    def iterations(self) -> Tensor:
        """Variable. The number of training steps this optimizer has run."""
        if self._iterations is None:
            self._iterations = Variable(np.int64(0), f"{self._name}/iter", trainable=False)
            self._weights.insert(0, self._iterations)
        return self._iterations

    @iterations.setter
    def iterations(self, variable: Tensor) -> None:
        if self._iterations is not None:
            raise RuntimeError(
                "Cannot set `iterations` to a new Variable after the Optimizer weights have been"
                f" created. Here it is attempting to set `iterations` to {variable!r}."
            )
        if not isinstance(variable, Tensor) or variable.dim() or variable.is_floating_point():
            raise InvalidTypeError(f"iterations must be an integer scalar, not {variable!r}.")
        self._iterations = variable
        self._weights.insert(0, variable)

    # Gradients

    def minimize(
        self,
        loss: Callable[[], Tensor] | Tensor,
        var_list: Any,
        grad_loss: Tensor | None = None,
        name: str | None = None,
        tape: GradientTape | None = None,
    ) -> Any:
        """Compute the gradients of a loss and apply them.

        Args:
            loss: A callable without arguments that returns the value to minimize, or a tensor
                computed under `tape`.
            var_list: List or tuple (nested if need be) of variables, or a callable that returns
                one, called after `loss`.
            grad_loss: Optional. Weights of the loss's elements, of its shape.
            name: Accepted for compatibility; eager steps have no name.
            tape: Required when `loss` is a tensor.

        Returns:
            `iterations`, or None if `var_list` is empty.

        Raises:
            ValueError: The loss is a tensor and there is no tape; no variable has a gradient; an
                element of `var_list` is no variable.
        """
        return self.apply_gradients(
            self._compute_gradients(loss, var_list, grad_loss=grad_loss, tape=tape), name=name
        )

    def _transform_loss(self, loss: Tensor) -> Tensor:
        """Hook: changes the loss before it is differentiated."""
        return loss

    def _get_gradients(
        self, tape: GradientTape, loss: Tensor, var_list: list[Tensor], grad_loss: Tensor | None
    ) -> list[tuple[Any, Tensor]]:
        """Hook: the gradients of the loss, paired with the variables."""
        return list(zip(tape.gradient(loss, var_list, grad_loss), var_list, strict=True))

    def _compute_gradients(
        self,
        loss: Callable[[], Tensor] | Tensor,
        var_list: Any,
        grad_loss: Tensor | None = None,
        tape: GradientTape | None = None,
    ) -> list[tuple[Any, Tensor]]:
        """Hook: the gradients of a loss given as a callable, or as a tensor with its tape."""
        is_tensor = isinstance(loss, Tensor)
        if is_tensor and tape is None:
            raise ValueError("`tape` is required when a `Tensor` loss is passed.")
        tape = tape or GradientTape()
        if not callable(var_list):
            var_list = flatten(var_list)
            _check_variables(var_list)
        if isinstance(loss, Tensor):
            value = self._transform_loss(loss)
        else:
            with tape:
                if not callable(var_list):
                    tape.watch(var_list)
                value = self._transform_loss(loss())
        if callable(var_list):
            var_list = flatten(var_list())
            _check_variables(var_list)
        return self._get_gradients(tape, value, var_list, grad_loss) if var_list else []

    def get_gradients(self, loss: Tensor, params: Sequence[Tensor]) -> list[Any]:
        """Gradients of a loss tensor with respect to variables, clipped.

        Raises:
            ValueError: A variable has no gradient.

        Differs from:
            TensorFlow, where this works in graph mode only; here any tensor that autograd tracks
            will do.
        """
        variables = flatten(params)
        gradients = gradients_of(loss, variables)
        for grad, var in zip(gradients, variables, strict=True):
            if grad is None:
                raise ValueError(
                    f"Variable {name_of(var)} has `None` for gradient. Please make sure that all"
                    " of your ops have a gradient defined (i.e. are differentiable)."
                )
        return [grad for grad, _ in self._clipped(list(zip(gradients, variables, strict=True)))]

    def get_updates(self, loss: Tensor, params: Sequence[Tensor]) -> list[Any]:
        """Apply the gradients of a loss tensor; the result of `apply_gradients` in a list."""
        gradients = self.get_gradients(loss, params)
        clipping, self._clipping = self._clipping, Clipping()  # they are clipped already
        try:
            return [self.apply_gradients(zip(gradients, flatten(params), strict=True))]
        finally:
            self._clipping = clipping

    # A step

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Tensor]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Apply gradients to variables.

        Args:
            grads_and_vars: Pairs of a gradient and its variable. A gradient is a tensor (dense, or
                sparse COO over dimension 0), `IndexedSlices`, an array, a list, or None.
            name: Accepted for compatibility; eager steps have no name.
            experimental_aggregate_gradients: Whether `gradient_aggregator` is called.

        Returns:
            `iterations`, raised by 1, or None if there were no pairs.

        Raises:
            TypeError: The pairs are malformed, or dtypes differ.
            ValueError: No variable has a gradient, or a gradient does not fit its variable.

        No variable and no slot has changed then, nor when a callable, a schedule, an aggregator, a
        transformer or a hook fails. A constraint that fails is the only part of its step that is
        not done. A note on the exception says which.
        """
        pairs = self._filtered(as_pairs(grads_and_vars))
        if not pairs:
            return None
        self._called.clear()
        # Slots made in inference mode could not be updated outside it.
        with torch.inference_mode(False), torch.no_grad():
            self._check(pairs)
            with not_taken():
                variables = distinct([var for _, var in pairs])
                self._create_all_weights(variables)
                apply_state = self._prepare(variables)
                if experimental_aggregate_gradients:
                    pairs = list(self._transform_unaggregated_gradients(pairs))
                    pairs = list(self._aggregate_gradients(pairs))
                pairs = list(self._transform_gradients(pairs))
            errors = self._apply(pairs, apply_state)
            self.iterations.add_(1)
        for error in errors:
            raise error
        return self.iterations

    def _filtered(self, pairs: list[tuple[Any, Any]]) -> list[Pair]:
        _check_variables([var for _, var in pairs])
        missing = [name_of(var) for grad, var in pairs if grad is None]
        if missing and len(missing) == len(pairs):
            raise ValueError(f"No gradients provided for any variable: {missing}.")
        if missing:
            warn(
                f"Gradients do not exist for variables {missing} when minimizing the loss.",
                UserWarning,
            )
        return [(as_gradient(grad, var), var) for grad, var in pairs if grad is not None]

    def _check(self, pairs: list[Pair]) -> None:
        gradients, variables = [grad for grad, _ in pairs], [var for _, var in pairs]
        names = [name_of(var) for var in variables]
        check_gradients(variables, gradients, names, scatter=self._scatters())
        for grad, var, title in zip(gradients, variables, names, strict=True):
            if isinstance(grad, IndexedSlices) and variable_constraint(var) is not None:
                raise RuntimeError(
                    f"Cannot use a constraint function on a sparse variable: '{title}'."
                )

    def _scatters(self) -> bool:
        """Whether TensorFlow would use scatter kernels, which word a bad index their own way."""
        return True

    def _create_all_weights(self, var_list: Sequence[Tensor]) -> None:
        """Create `iterations`, hyperparameter variables and slots."""
        _ = self.iterations
        self._create_hypers()
        self._create_slots(list(var_list))
        self._restore(var_list)

    def _create_slots(self, var_list: list[Tensor]) -> None:
        """Hook: create slots with `add_slot`."""

    def _prepare(self, var_list: Sequence[Tensor]) -> ApplyState:
        """The coefficients of a step for each (device, dtype)."""
        state: ApplyState = {}
        for device, dtype in dict.fromkeys((str(var.device), var.dtype) for var in var_list):
            state[device, dtype] = {}
            self._prepare_local(device, dtype, state)
        return state

    def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: ApplyState) -> None:
        """Hook: put coefficients of a step into `apply_state[var_device, var_dtype]`."""
        if "learning_rate" in self._hyper:
            apply_state[var_device, var_dtype]["lr_t"] = self._decayed_lr(var_dtype)

    def _fallback_apply_state(self, var_device: str, var_dtype: Any) -> dict[str, Any]:
        """The coefficients, for a hook that was called without them."""
        state: ApplyState = {(var_device, var_dtype): {}}
        self._prepare_local(var_device, var_dtype, state)
        return state[var_device, var_dtype]

    def _transform_unaggregated_gradients(self, grads_and_vars: list[Pair]) -> Iterable[Pair]:
        """Hook: changes gradients before they are aggregated."""
        return grads_and_vars

    def _aggregate_gradients(self, grads_and_vars: list[Pair]) -> Iterable[Pair]:
        """Hook: aggregates gradients over replicas, by `gradient_aggregator`."""
        if self._aggregator is None:
            return grads_and_vars
        return self._checked(self._aggregator(list(grads_and_vars)))

    def _transform_gradients(self, grads_and_vars: list[Pair]) -> Iterable[Pair]:
        """Hook: clips gradients and calls `gradient_transformers`."""
        pairs = self._clipped(list(grads_and_vars))
        for transformer in self._transformers:
            pairs = list(transformer(pairs))
        return self._checked(pairs) if self._transformers else pairs

    def _checked(self, pairs: Iterable[Any]) -> list[Pair]:
        converted = [(as_gradient(grad, var), var) for grad, var in as_pairs(pairs)]
        self._check(converted)
        return converted

    def _clipped(self, pairs: list[Any]) -> list[Any]:
        clipping = self._clipping
        if not clipping or not pairs:
            return pairs
        values = [grad.values if isinstance(grad, IndexedSlices) else grad for grad, _ in pairs]
        separate = clipping.separate(
            lambda bound: sums_of_squares(values, bound), compute_dtype(pairs[0][1].dtype)
        )
        flush = self._selection().denormals == "flush"
        clipped = []
        for index, (grad, var) in enumerate(pairs):
            dtype = compute_dtype(var.dtype)
            own = clipping.scalars(dtype)
            own |= {key: dtype(array[index]) for key, array in separate.items()}
            clipped.append((transformed(grad, clipping.stages, own, flush), var))
        return clipped

    def _apply(self, pairs: list[Pair], apply_state: ApplyState) -> list[BaseException]:
        """One hook call per pair, in order; a constraint follows its variable's update.

        Returns:
            What constraints raised.
        """
        errors: list[BaseException] = []
        with not_taken(), self._restored([var for _, var in pairs]):
            for grad, var in pairs:
                if isinstance(grad, IndexedSlices):
                    self._resource_apply_sparse_duplicate_indices(
                        grad.values, var, grad.indices, apply_state=apply_state
                    )
                else:
                    _call(self._resource_apply_dense, (grad, var), apply_state)
                    errors += constrain(var)
        return errors

    @contextlib.contextmanager
    def _restored(self, variables: Sequence[Tensor]) -> Iterator[None]:
        """Undo what hooks did to variables and their slots if one of them fails."""
        written = [*variables, *(s for v in variables for s in self._slots.all_of(v).values())]
        kept = [tensor.detach().clone() for tensor in written]
        try:
            yield
        except BaseException:
            for tensor, value in zip(written, kept, strict=True):
                tensor.copy_(value)
            raise

    def _resource_apply_dense(self, grad: Tensor, var: Any, apply_state: Any = None) -> Any:
        """Hook: update `var` in place by a dense gradient of its shape and dtype."""
        raise NotImplementedError(f"{type(self).__name__} must override _resource_apply_dense.")

    def _resource_apply_sparse(
        self, grad: Tensor, var: Any, indices: Tensor, apply_state: Any = None
    ) -> Any:
        """Hook: update the rows `indices` of `var`, each named once, by the rows of `grad`."""
        raise NotImplementedError(f"{type(self).__name__} must override _resource_apply_sparse.")

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Tensor, var: Any, indices: Tensor, apply_state: Any = None
    ) -> Any:
        """Hook: as `_resource_apply_sparse`, where `indices` may name a row twice."""
        summed = IndexedSlices(grad, indices).deduplicated()
        return _call(self._resource_apply_sparse, (summed.values, var, summed.indices), apply_state)

    # Configuration

    def get_config(self) -> dict[str, Any]:
        """The configuration: a dictionary from which `from_config` makes the same optimizer."""
        given = {key: value for key, value in self._clipping.options().items() if value is not None}
        return {"name": self._name, **given}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """An optimizer made of a configuration.

        Args:
            config: As `get_config` returns it, and left as it is; `lr` stands for `learning_rate`.
            custom_objects: Classes that the configuration names, by name.
        """
        config = dict(config)
        if "lr" in config:
            config["learning_rate"] = config.pop("lr")
        if isinstance(config.get("learning_rate"), dict):
            config["learning_rate"] = deserialize_schedule(
                config["learning_rate"], custom_objects=custom_objects
            )
        return cls(**config)


def _check_not_negative(key: str, value: Any) -> None:
    if isinstance(value, int | float | np.number) and value < 0:
        raise ValueError(f"Expected {key} >= 0, received: {value}")


def _check_variables(variables: Iterable[Any]) -> None:
    for var in variables:
        if not isinstance(var, Tensor):
            raise InvalidTypeError(f"Expected a variable, received {var!r}.")
        if not is_variable(var):
            raise NotImplementedError(
                f"Trying to update a Tensor {name_of(var, 'Tensor')!r}: it is no variable. Use"
                " thalweg.Variable or a leaf that requires a gradient."
            )
        if var.is_nested:
            raise LayoutError(
                f"cannot update '{name_of(var)}' in place: it is a nested tensor. Give its parts"
                " to the optimizer one by one."
            )


def _call(hook: Callable[..., Any], args: tuple[Any, ...], apply_state: ApplyState) -> Any:
    """Call a hook, with `apply_state` if it takes it: older subclasses' hooks do not."""
    code = getattr(hook, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if code is None or "apply_state" in names or code.co_flags & 0x08:
        return hook(*args, apply_state=apply_state)
    return hook(*args)


@contextlib.contextmanager
def not_taken() -> Iterator[None]:
    """Say of an exception that nothing has changed."""
    try:
        yield
    except BaseException as error:
        if _NOT_TAKEN not in getattr(error, "__notes__", ()):
            error.add_note(_NOT_TAKEN)
        raise


def constrain(var: Tensor) -> list[BaseException]:
    """Replace a variable's value by what its constraint, if it has one, makes of it.

    Returns:
        What the constraint raised: the update is done by now, and the step goes on.
    """
    constraint = variable_constraint(var)
    if constraint is None:
        return []
    title = name_of(var)
    try:
        value = constraint(var)
        if value.shape != var.shape or value.dtype != var.dtype:
            raise InvalidArgumentError(
                f"The constraint of '{title}' returned {value.dtype} of shape"
                f" {tuple(value.shape)}, expected {var.dtype} of shape {tuple(var.shape)}."
            )
        with torch.no_grad():
            var.copy_(value)
    except BaseException as error:
        error.add_note(f"The step was taken, but without the constraint of '{title}'.")
        return [error]
    return []
