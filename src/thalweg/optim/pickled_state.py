"""States of optimizers for pickles, which are written while other threads may take steps."""

import threading
from copy import deepcopy
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch import Tensor

from thalweg._core.param_groups import params_of, states_of


def copy_state(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the result of torch's `__getstate__` with new groups and copied slots and numbers.

    Parameters and options are not copied, for a pickle may contain them elsewhere. Neither are
    tensors after `share_memory_`, and tensors with a `grad_fn`, which cannot be copied. Return
    `attributes` if there is no other thread, or for a new process, which shares the memory.
    """
    if threading.active_count() == 1 or get_spawning_popen():
        return attributes
    groups, state = attributes["param_groups"], attributes["state"]
    kept = {id(tensor): tensor for tensor in (*params_of(groups), *state)}
    for tensor in (entry for _, entries in states_of(state) for entry in entries.values()):
        # `is_shared` is True for all tensors of a GPU.
        if isinstance(tensor, Tensor) and (
            not tensor.is_leaf or (type(tensor) is Tensor and tensor.is_cpu and tensor.is_shared())
        ):
            kept[id(tensor)] = tensor
    new_groups = [{**group, "params": [*group["params"]]} for group in groups]
    return {**attributes, "state": deepcopy(state, kept), "param_groups": new_groups}
