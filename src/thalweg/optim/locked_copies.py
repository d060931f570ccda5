"""Copies and pickles of optimizers, made while no other thread takes a step."""

from __future__ import annotations

import copy
import threading
from typing import Any, Self

from torch import Tensor

from thalweg._core.param_groups import params_of
from thalweg.optim.step_cache import StepCache


class LockedCopies:
    """Mixin by which a copy or a pickle of an optimizer has the state of one step."""

    step_cache: StepCache

    def __copy__(self) -> Self:
        return self._reconstruct(None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._reconstruct(memo)

    def _reconstruct(self, memo: dict[int, Any] | None) -> Self:
        """Copy as `copy` does without `__copy__` and `__deepcopy__`; block steps meanwhile.

        Args:
            memo: As for `__deepcopy__`; None for a copy that shares state and parameters.
        """
        has_own_method = type(self).__reduce_ex__ is not LockedCopies.__reduce_ex__
        with self.step_cache.lock:
            reduce = self.__reduce_ex__ if has_own_method else super().__reduce_ex__
            return copy._reconstruct(self, memo, *reduce(4))  # pyright: ignore

    def __reduce_ex__(self, protocol: Any) -> Any:
        cache = self.step_cache
        with cache.lock:
            # A pickler reads tensors later, without the lock.
            cache.is_pickling = threading.active_count() > 1
            try:
                return super().__reduce_ex__(protocol)
            finally:
                cache.is_pickling = False


def copy_state(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the result of torch's `__getstate__`, with copied slots and numbers.

    Parameters and the values of options are shared with the original, for a pickle may contain
    them elsewhere, too. So are tensors that have a `grad_fn`, which cannot be copied.
    """
    groups, state = attributes["param_groups"], attributes["state"]
    entries = (entry for numbers in state.values() for entry in numbers.values())
    derived = [entry for entry in entries if isinstance(entry, Tensor) and not entry.is_leaf]
    memo = {id(tensor): tensor for tensor in (*params_of(groups), *state, *derived)}
    return {
        **attributes,
        "defaults": {**attributes["defaults"]},
        "state": copy.deepcopy(state, memo),
        "param_groups": [{**group, "params": [*group["params"]]} for group in groups],
    }
