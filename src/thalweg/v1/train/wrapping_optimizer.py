"""Base class of optimizers that wrap another optimizer."""

from __future__ import annotations

from typing import Any

from thalweg._base.showing import show_value
from thalweg._base.tracing import untraced
from thalweg._core.hyperparameters import hint
from thalweg._engines.engine_selection import EngineName
from thalweg.errors import InvalidTypeError
from thalweg.v1.train.optimizer import Optimizer


def _call_inside(name: str) -> Any:
    """Return a method that calls the method `name` of the wrapped optimizer."""

    def method(self: WrappingOptimizer, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._opt, name)(*args, **kwargs)

    return method


class WrappingOptimizer(Optimizer):
    """Optimizer that delegates gradients, slots and updates to another optimizer.

    Subclasses add work before or after the delegated calls.

    Args:
        opt: The wrapped optimizer.
        use_locking: As in `Optimizer`.
        name: As in `Optimizer`; None selects the name of `opt`.

    Raises:
        InvalidTypeError: `opt` is not an optimizer.
    """

    def __init__(self, opt: object, use_locking: bool, name: str | None) -> None:
        if not isinstance(opt, Optimizer):
            raise InvalidTypeError(
                f"opt must be an optimizer of thalweg.v1, not {show_value(opt)}.{hint(opt)}"
            )
        super().__init__(use_locking, opt.get_name() if name is None else name)
        self._opt = opt

    @property
    def engine(self) -> EngineName | None:
        """The engine of the optimizer inside."""
        return self._opt.engine

    @engine.setter
    def engine(self, name: EngineName | None) -> None:
        self._opt.engine = name

    @untraced
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the pairs of gradient and variable that the wrapped optimizer computes."""
        return self._opt.compute_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return a slot of the optimizer inside."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: object, **kwargs: object) -> list[str]:
        """Return the slots of the optimizer inside."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> list[Any]:
        """Return the variables of the optimizer inside."""
        return self._opt.variables()

    # Checkpoints save the optimizer inside in place of this one.
    _checkpointed = _call_inside("_checkpointed")
    _trackable_children = _call_inside("_trackable_children")
    _lookup_dependency = _call_inside("_lookup_dependency")
    _innermost = _call_inside("_innermost")
    _turn_lock = _call_inside("_turn_lock")
    _locked = _call_inside("_locked")
    _create_slots = _call_inside("_create_slots")
    _kept_in_graph = _call_inside("_kept_in_graph")
    _owners = _call_inside("_owners")
    _slot_entries = _call_inside("_slot_entries")
    _own_entries = _call_inside("_own_entries")
    _create_for_state = _call_inside("_create_for_state")
    _forget_awaited = _call_inside("_forget_awaited")
    _loaded = _call_inside("_loaded")

    def _check_has_state(self) -> None:
        self._opt._check_has_state()
        super()._check_has_state()
