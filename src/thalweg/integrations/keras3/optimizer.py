"""`FusedOptimizer`: an optimizer of Keras 3 that wraps an optimizer of thalweg."""

# Keras has no types, and `wrapped` is an optimizer of this library.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypedDict, Unpack, cast

import keras
import torch
from keras.src.backend.common.stateless_scope import in_stateless_scope
from torch import Tensor

from thalweg._base.context_managers import writable
from thalweg._base.showing import show_value
from thalweg._base.tracing import untraced
from thalweg._core import state
from thalweg.distribute import get_strategy, shards_of
from thalweg.errors import FailedPreconditionError, InvalidTypeError
from thalweg.integrations.keras3.schedules import deserialize, for_keras, for_thalweg, serialize
from thalweg.integrations.keras3.shared_variables import share, slot_variables
from thalweg.keras.optimizers import Optimizer
from thalweg.variable import named_variables, variable_constraint

_KERAS_KEY = "keras"  # the part of a state that is not the wrapped optimizer's
# Keras' own setter of the property that is overridden below.
_set_rate: Any = keras.optimizers.Optimizer.learning_rate.fset


class Keras3Options(TypedDict, total=False):
    """Options that Keras' code handles; see `keras.optimizers.Optimizer`."""

    weight_decay: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None


def _delegate(name: str, description: str) -> property:
    """Return a property that reads and sets the attribute `name` of `self.wrapped`.

    As long as `self.wrapped` is not set, reads return None and writes do nothing.
    """

    def read(self: Any) -> float | None:
        wrapped = self.__dict__.get("wrapped")
        return None if wrapped is None else getattr(wrapped, name)

    def write(self: Any, value: float | None) -> None:
        wrapped = self.__dict__.get("wrapped")
        # Keras' constructor sets all three options to None before `wrapped` is set.
        if wrapped is not None:
            setattr(wrapped, name, value)

    return property(read, write, doc=description)


@keras.saving.register_keras_serializable(package="thalweg")
class FusedOptimizer(keras.optimizers.Optimizer):
    """Optimizer of Keras 3 that wraps an optimizer of thalweg, for `model.compile`.

    Clipping and the update run fused, on the memory of the model's variables. Slots, `iterations`
    and the learning rate share memory with `wrapped`, so both optimizers see every change. Keras'
    code does weight decay, moving averages, gradient accumulation and loss scaling.

    Args:
        wrapped: Any optimizer of `thalweg.keras.optimizers`, a `RuleOptimizer` or a custom
            subclass.
        **options: `weight_decay`, `use_ema`, `ema_momentum`, `ema_overwrite_frequency`,
            `loss_scale_factor` and `gradient_accumulation_steps`, as in Keras.

    Attributes:
        wrapped: The optimizer that takes the steps.

    Raises:
        InvalidTypeError: `wrapped` is not an optimizer of thalweg.

    Differs from:
        Keras: `clipvalue` may be combined with a norm; values are clipped before norms. A bound of
        0 clips to 0. With `gradient_accumulation_steps`, schedules count updates, not batches.
        Loading a mismatched state raises an error instead of a warning.
    """

    clipvalue = _delegate(
        "clipvalue", "Elements of gradients are clipped to [-clipvalue, clipvalue]."
    )
    clipnorm = _delegate(
        "clipnorm", "Largest norm of each gradient, to which larger ones are scaled; None if off."
    )
    global_clipnorm = _delegate(
        "global_clipnorm",
        "Largest common norm of all gradients, to which larger ones are scaled; None if off.",
    )

    def __init__(self, wrapped: Optimizer, **options: Unpack[Keras3Options]) -> None:
        if not isinstance(wrapped, Optimizer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidTypeError(
                f"Expected an optimizer of thalweg.keras.optimizers, not {show_value(wrapped)}."
            )
        rated = "learning_rate" in wrapped._hyper
        rate: Any = wrapped._hyper.raw("learning_rate") if rated else 0.0
        if isinstance(rate, Tensor) and not rate.is_floating_point():
            raise InvalidTypeError(
                f"The learning_rate of '{wrapped._name}' is an integer variable. Give a float to"
                " its constructor."
            )
        super().__init__(for_keras(rate), name=wrapped._name, **options)
        self.wrapped = wrapped
        self._tensors: list[Tensor] = []  # of the variables it was built with
        self._shared: list[tuple[Any, Tensor]] = []  # variables of Keras over the wrapped one's
        self._share(self._iterations, wrapped.iterations)
        # An int would become an integer variable, which cannot hold fractions.
        if isinstance(rate, int):
            wrapped._set_hyper("learning_rate", float(rate))
        wrapped._create_hypers()
        if rated and isinstance(self._learning_rate, keras.Variable):
            self._share(self._learning_rate, wrapped._hyper.raw("learning_rate"))

    def _share(self, variable: Tensor, tensor: Any) -> None:
        """Make a variable of Keras share memory with `tensor`."""
        share(variable, tensor)
        self._shared.append((variable, tensor))

    def build(self, variables: Sequence[Any]) -> None:
        """Create the slots of Keras variables; do nothing if the optimizer is built."""
        if self.built:
            return
        trained = [var for var in variables if not self._overwrite_variable_with_gradient(var)]
        tensors = named_variables([(var.path, var.value) for var in trained])
        with writable():
            if tensors:
                self.wrapped._create_all_weights(tensors)
        slots = slot_variables(self, trained, tensors)
        super().build(variables)
        self._tensors = [var.value for var in variables]
        self._shared += slots

    def _clip_gradients(self, grads: Sequence[object]) -> Sequence[object]:
        """Return the gradients unchanged: the wrapped optimizer clips them."""
        return grads

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Do nothing: `_backend_update_step` calls Keras' method after its checks."""

    @untraced
    def _backend_update_step(
        self, grads: Sequence[object], trainable_variables: Sequence[object], learning_rate: object
    ) -> None:
        """Take a step, eager or stateless; called by Keras."""
        if in_stateless_scope():
            self._apply_stateless(grads, trainable_variables)
            return
        with self.wrapped._lock:
            self._apply_here(grads, trainable_variables)

    def _apply_here(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        """Apply Keras' weight decay and the update of `wrapped` to `variables` in place.

        Raise FailedPreconditionError if a variable's tensor was replaced, or slots are sharded.
        """
        wrapped, tensors = self.wrapped, [var.value for var in variables]
        for var, tensor in zip(variables, tensors, strict=True):
            if tensor is not self._tensors[self._get_variable_index(var)]:
                raise FailedPreconditionError(
                    f"'{var.path}' holds another tensor than when the optimizer was built. Make a"
                    " new optimizer and compile the model again."
                )
            # Keras applies the constraints of its variables after the step.
            if variable_constraint(tensor) is not None:
                tensor.constraint = None
        if shards_of(wrapped) is not None:
            raise FailedPreconditionError(
                "Keras has variables of the slots, which cannot be shared out over ranks. Make the"
                " strategy without shard_slots."
            )
        pairs = list(zip(replica_shares(grads), tensors, strict=True))
        # The checks of a step come before the decay, which would remain after an error.
        if self.weight_decay is not None:
            hooks = wrapped._make_hooks(False)
            hooks.check_pairs(hooks.convert_pairs(pairs), False)
            super()._apply_weight_decay(variables)
        # Keras counts the batches itself, also those that only add to accumulated gradients.
        batch_count = int(wrapped.iterations)
        wrapped.iterations.fill_(batch_count // (self.gradient_accumulation_steps or 1))
        try:
            wrapped.apply_gradients(pairs)
        finally:
            wrapped.iterations.fill_(batch_count)

    def _apply_stateless(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        """Take a step on copies of the variables; assign the results in Keras' stateless scope.

        The variables themselves do not change.
        """
        shared = [*((var, var._value) for var in variables), *self._shared]
        # A stateless call must not write to the variables that model and optimizer share.
        copies = {
            id(tensor): torch.nn.Parameter(var.value.detach().clone(), requires_grad=False)
            for var, tensor in shared
        }
        if self.weight_decay is not None:
            rate = self.learning_rate
            for var in variables:
                if self._use_weight_decay(var):
                    copies[id(var._value)].mul_(1 - self.weight_decay * rate)
        twin: Optimizer = copy.deepcopy(self.wrapped, {**copies})
        twin.iterations.floor_divide_(self.gradient_accumulation_steps or 1)
        pairs = [(grad, copies[id(var._value)]) for grad, var in zip(grads, variables, strict=True)]
        twin.apply_gradients(pairs)
        for var, tensor in shared:
            if var is not self._iterations:
                var.assign(copies[id(tensor)])

    @property
    def learning_rate(self) -> Any:
        """The learning rate now; set it to a number, a schedule or a callable."""
        return self._get_current_learning_rate()

    @learning_rate.setter
    def learning_rate(self, learning_rate: object) -> None:
        rate = for_thalweg(learning_rate)
        if callable(rate) and not isinstance(rate, Tensor):
            self.wrapped._set_hyper("learning_rate", rate)
            learning_rate = for_keras(rate)
        _set_rate(self, learning_rate)

    def __getattr__(self, name: str) -> Any:
        wrapped = self.__dict__.get("wrapped")
        if name == "lr":
            return self.learning_rate
        if wrapped is not None and name in wrapped._hyper:
            return getattr(wrapped, name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: object) -> None:
        wrapped = self.__dict__.get("wrapped")
        name = "learning_rate" if name == "lr" else name
        if wrapped is not None and name in wrapped._hyper and name != "learning_rate":
            wrapped._set_hyper(name, value)
        else:
            super().__setattr__(name, value)

    def get_weights(self) -> list[Any]:
        """Return the weights of the wrapped optimizer, `iterations` first, as NumPy arrays."""
        return self.wrapped.get_weights()

    def set_weights(self, weights: Sequence[object]) -> None:
        """Set the values of `get_weights`, or values for all of `variables`, as in Keras."""
        if len(weights) == len(self.variables) != len(self.wrapped.weights):
            with self.wrapped._lock.to_load():
                super().set_weights(weights)
                self.wrapped._lock.loaded()
        else:
            self.wrapped.set_weights(weights)

    def save_own_variables(self, store: object) -> None:
        """Write the state to the store of a saved model."""
        with self.wrapped._lock:
            super().save_own_variables(store)

    def load_own_variables(self, store: object) -> None:
        """Load the optimizer's variables from `store`, {index as text: array} in a saved model.

        Raises:
            CheckpointMismatchError: Variables differ in number or shape; nothing was loaded.
        """
        if self.built:
            _check_saved(self.variables, store)
        with self.wrapped._lock.to_load():
            super().load_own_variables(store)
            self.wrapped._lock.loaded()

    @untraced
    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer, with Keras' additional state under "keras".

        The additional state is moving averages of variables and accumulated gradients, if those are
        on.
        """
        with self.wrapped._lock:
            return {**self.wrapped.state_dict(), _KERAS_KEY: state.snapshot(self._beside())}

    @untraced
    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Load a dict that `state_dict()` returned; change nothing on an error.

        If the optimizer is not built, slots are loaded later, when `build` creates them.

        Raises:
            ValueError: The state belongs to another class of optimizer.
            CheckpointMismatchError: Names, shapes or dtypes differ.
            FailedPreconditionError: There are entries under "keras"; the optimizer is not built.
        """
        fields = dict(state_dict)
        extra = cast("dict[str, object]", fields.pop(_KERAS_KEY, {}))
        if not isinstance(extra, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise state.mismatch([f"{_KERAS_KEY}: {state.shown(extra)} is no dictionary"])
        if extra and not self.built:
            raise FailedPreconditionError(
                f"{self.name} is not built: call optimizer.build(model.trainable_variables) first."
                " Nothing was loaded."
            )
        with self.wrapped._loading(fields) as loading:
            state.restore(loading, state.fitting(self._beside(), extra, self.name))

    def _beside(self) -> list[state.Entry]:
        """Return the entries of state that Keras has and the wrapped optimizer has not."""
        shared = {id(variable) for variable, _ in self._shared}
        extra = [var for var in self.variables if id(var) not in shared]
        names = state.distinct([var.path.removeprefix(f"{self.name}/") for var in extra])
        return [state.Entry(name, var.value) for name, var in zip(names, extra, strict=True)]

    def get_config(self) -> dict[str, Any]:
        """Return the configuration: Keras' entries, and the wrapped optimizer as "wrapped"."""
        config = super().get_config()
        for name in ("name", "learning_rate", "clipnorm", "clipvalue", "global_clipnorm"):
            del config[name]
        return {**config, "wrapped": serialize(self.wrapped)}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """Return an optimizer from a configuration.

        Your rules, classes and schedules are found in Keras' registry, or in `custom_objects`.
        """
        config = dict(config)
        return cls(deserialize(config.pop("wrapped"), custom_objects), **config)


def _check_saved(variables: Sequence[Any], store: Any) -> None:
    """Raise CheckpointMismatchError if the variables in `store` differ in number or shape."""
    if len(store.keys()) != len(variables):
        counts = f"the state has {len(store.keys())} variables, the optimizer {len(variables)}"
        raise state.mismatch([counts])
    differences: list[str] = []
    for index, variable in enumerate(variables):
        saved_shape, shape = tuple(store[str(index)].shape), tuple(variable.shape)
        if saved_shape != shape:
            differences.append(
                f"'{variable.path}' has shape {saved_shape} in the state but {shape} here"
            )
    if differences:
        raise state.mismatch(differences)


def from_thalweg(optimizer: Optimizer, **options: Unpack[Keras3Options]) -> FusedOptimizer:
    """Return a Keras 3 optimizer around an optimizer of thalweg; see `FusedOptimizer`.

    Example:
        >>> from thalweg.keras.optimizers import RMSprop
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile(optimizer=from_thalweg(RMSprop(0.01)), loss="mse")
    """
    return FusedOptimizer(optimizer, **options)


def replica_shares(grads: Sequence[Any]) -> list[Any]:
    """Return the gradients divided by the number of replicas, as one replica's share of means."""
    count = get_strategy().num_replicas_in_sync
    return [grad if grad is None or count == 1 else grad / count for grad in grads]
