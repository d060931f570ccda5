"""Copies and pickles of optimizers, made while no other thread takes a step."""

from __future__ import annotations

import copy
import threading
from multiprocessing.context import get_spawning_popen
from typing import Any, Self

from torch import Tensor

from thalweg._core.param_groups import params_of, states_of
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
            # A pickler reads tensors later, without the lock; a new process shares their memory.
            cache.is_pickling = threading.active_count() > 1 and get_spawning_popen() is None
            try:
                return super().__reduce_ex__(protocol)
            finally:
                cache.is_pickling = False


def copy_state(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the result of torch's `__getstate__`, with copied slots and numbers.

    Parameters and the values of options are shared with the original, for a pickle may contain
    them elsewhere, too. So are tensors in the memory of several processes, and tensors with a
    `grad_fn`, which cannot be copied.
    """
    groups, state = attributes["param_groups"], attributes["state"]
    entries = (entry for _, numbers in states_of(state) for entry in numbers.values())
    tensors = (entry for entry in entries if isinstance(entry, Tensor))
    shared_tensors = [tensor for tensor in tensors if not tensor.is_leaf or _is_shared(tensor)]
    memo = {id(tensor): tensor for tensor in (*params_of(groups), *state, *shared_tensors)}
    return {
        **attributes,
        "defaults": {**attributes["defaults"]},
        "state": copy.deepcopy(state, memo),
        "param_groups": [{**group, "params": [*group["params"]]} for group in groups],
    }


def _is_shared(tensor: Tensor) -> bool:
    """Return True if `share_memory_` was called with a tensor in host memory."""
    # For other devices, `is_shared` is always True.
    is_host = type(tensor) is Tensor and tensor.device.type == "cpu"
    return is_host and tensor.is_shared()  # pyright: ignore[reportUnknownVariableType]
