"""Saved state of optimizers of Keras 3, and checks of loaded states."""

# `wrapped` is an optimizer of this library.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor

from thalweg._base.tracing import untraced
from thalweg._core import state
from thalweg._core.state import mismatch
from thalweg.errors import FailedPreconditionError
from thalweg.keras.optimizers import Optimizer

_KERAS_KEY = "keras"  # the part of a state that is not the wrapped optimizer's


class Keras3StateDict:
    """Mixin that adds `state_dict` and `load_state_dict` to `FusedOptimizer`."""

    name: str
    built: bool
    wrapped: Optimizer
    variables: list[Any]
    _shared: list[tuple[Any, Tensor]]

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
            FailedPreconditionError: The state has Keras' variables, but the optimizer is not built.
        """
        fields = dict(state_dict)
        extra = cast("dict[str, object]", fields.pop(_KERAS_KEY, {}))
        if not isinstance(extra, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise mismatch([f"{_KERAS_KEY}: {state.shown(extra)} is no dictionary"])
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


def check_saved(variables: Sequence[Any], store: Any) -> None:
    """Raise CheckpointMismatchError if the variables in `store` differ in number or shape."""
    if len(store.keys()) != len(variables):
        counts = f"the state has {len(store.keys())} variables, the optimizer {len(variables)}"
        raise mismatch([counts])
    differences: list[str] = []
    for index, variable in enumerate(variables):
        saved_shape, shape = tuple(store[str(index)].shape), tuple(variable.shape)
        if saved_shape != shape:
            differences.append(
                f"'{variable.path}' has shape {saved_shape} in the state but {shape} here"
            )
    if differences:
        raise mismatch(differences)
