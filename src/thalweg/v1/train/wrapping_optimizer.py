"""An optimizer around another one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor

from thalweg._base.locks import Guard, Lock
from thalweg._base.showing import show_value
from thalweg._base.tracing import untraced
from thalweg._core.hyperparameters import hint
from thalweg._core.slot_optimizer import SlotOptimizer
from thalweg._core.state import Entry
from thalweg._engines.engine_selection import EngineName
from thalweg.errors import InvalidTypeError
from thalweg.v1.train.optimizer import Optimizer


class WrappingOptimizer(Optimizer):
    """Leaves gradients, slots and updates to another optimizer, and does something around these.

    Args:
        opt: The optimizer.
        use_locking: As in `Optimizer`.
        name: As in `Optimizer`; that of the optimizer inside if None.

    Raises:
        InvalidTypeError: `opt` is no optimizer.
    """

    def __init__(self, opt: object, use_locking: bool, name: str | None) -> None:
        if not isinstance(opt, Optimizer):
            raise InvalidTypeError(
                f"opt must be an optimizer of thalweg.v1, not {show_value(opt)}.{hint(opt)}"
            )
        super().__init__(use_locking, opt.get_name() if name is None else name)
        self._opt = opt

    def _innermost(self) -> SlotOptimizer:
        return self._opt._innermost()

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

    def _checkpointed(self) -> object:
        return self._opt._checkpointed()

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: object
    ) -> dict[str, object]:
        """Return the children of the optimizer inside, which is saved in place of this one."""
        return self._opt._trackable_children(save_type, **kwargs)

    def _lookup_dependency(self, name: str) -> object:
        """Return a child of the optimizer inside."""
        return self._opt._lookup_dependency(name)

    def _turn_lock(self) -> Lock:
        return self._opt._turn_lock()

    def _locked(self) -> Guard:
        return self._opt._locked()

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        self._opt._create_slots(var_list)

    def _kept_in_graph(self, variables: Sequence[object]) -> list[object]:
        return self._opt._kept_in_graph(variables)

    def _owners(self) -> list[Tensor]:
        return self._opt._owners()

    def _slot_entries(self, var: Tensor, key: str) -> list[Entry]:
        return self._opt._slot_entries(var, key)

    def _own_entries(self) -> list[Entry]:
        return self._opt._own_entries()

    def _create_for_state(self, variables: Sequence[object], names: Collection[str]) -> None:
        self._opt._create_for_state(variables, names)

    def _forget_awaited(self) -> None:
        self._opt._forget_awaited()

    def _check_has_state(self) -> None:
        self._opt._check_has_state()
        super()._check_has_state()

    def _loaded(self) -> None:
        self._opt._loaded()
