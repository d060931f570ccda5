"""The state of an optimizer: what is saved of it, and whether a saved one fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from thalweg._base.tracing import untraced
from thalweg._core import state
from thalweg._core.state import mismatch
from thalweg.errors import FailedPreconditionError
from thalweg.keras.optimizers import Optimizer

_BESIDE = "keras"  # the part of a state that is not the wrapped optimizer's


class Keras3StateDict:
    """The part of `FusedOptimizer` that has a `state_dict`, which Keras' optimizers have not."""

    name: str
    built: bool
    wrapped: Optimizer
    variables: list[Any]
    _shared: list[tuple[object, Tensor]]

    @untraced
    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer, and Keras' own state under "keras", by name.

        Keras' own state is moving averages of variables and accumulated gradients, if those are on.
        """
        with self.wrapped._lock:
            return {**self.wrapped.state_dict(), _BESIDE: state.snapshot(self._beside())}

    @untraced
    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Set all state from `state_dict()`; all or nothing.

        Before the optimizer is built, slots wait for their variables.

        Raises:
            ValueError: It is the state of another class of optimizer.
            CheckpointMismatchError: Names, shapes or dtypes differ.
            FailedPreconditionError: Keras keeps something, and the optimizer is not built.
        """
        given = dict(state_dict)
        own = given.pop(_BESIDE, {})
        if not isinstance(own, dict):
            raise mismatch([f"{_BESIDE}: {state.shown(own)} is no dictionary"])
        if own and not self.built:
            raise FailedPreconditionError(
                f"{self.name} is not built: call optimizer.build(model.trainable_variables) first."
                " Nothing was loaded."
            )
        with self.wrapped._loading(given) as found:
            state.restore(found, state.fitting(self._beside(), own, self.name))

    def _beside(self) -> list[state.Entry]:
        """What Keras keeps and the wrapped optimizer does not."""
        shared = {id(variable) for variable, _ in self._shared}
        own = [each for each in self.variables if id(each) not in shared]
        names = state.distinct([each.path.removeprefix(f"{self.name}/") for each in own])
        return [state.Entry(name, each.value) for name, each in zip(names, own, strict=True)]


def check_saved(variables: Sequence[Any], store: Any) -> None:
    """Refuse what Keras would skip or load in part.

    Raises:
        CheckpointMismatchError: The numbers of variables or their shapes differ.
    """
    if len(store.keys()) != len(variables):
        counts = f"the state has {len(store.keys())} variables, the optimizer {len(variables)}"
        raise mismatch([counts])
    differences = []
    for index, variable in enumerate(variables):
        saved, own = tuple(store[str(index)].shape), tuple(variable.shape)
        if saved != own:
            differences.append(f"'{variable.path}' has shape {saved} in the state but {own} here")
    if differences:
        raise mismatch(differences)
