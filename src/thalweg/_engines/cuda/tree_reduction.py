"""Totals of leaves (sums over 65,536 elements) of several tensors, in a few kernel launches.

The order is defined in `_engines/reduction_order.py`: neighbours are added in pairs, level by
level. A program adds `FAN` leaves, which are ten levels. A tensor of more than 67 million elements
has more leaves; the next launch adds the results of the last one.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.array_types import Int64, enumerate_runs
from thalweg._engines.cuda import launch
from thalweg._engines.cuda.codegen_measure import FAN
from thalweg._engines.cuda.host_device_mirror import send_constant


class LaunchedTree:
    """Kernel launches that add up the leaves of each tensor on a GPU; see `reduction_order.Tree`.

    Args:
        counts: (tensors,) leaves of each tensor.
    """

    def __init__(self, counts: Int64, device: torch.device) -> None:
        self._levels: list[tuple[Tensor, Tensor]] = []  # where each program begins; how many it has
        while True:
            # A tensor without leaves has a program, too, which stores 0.
            programs = np.maximum(-(-counts // FAN), 1)
            tensor, program = enumerate_runs(programs)
            first = (np.cumsum(counts) - counts)[tensor] + FAN * program
            sizes = np.minimum(counts[tensor] - FAN * program, FAN)
            self._levels.append(
                (send_constant(first, np.int64, device), send_constant(sizes, np.int64, device))
            )
            if (programs <= 1).all():
                break
            counts = programs

    def combine(self, leaves: Tensor) -> Tensor:
        """Return the sum of the leaves of each tensor; 0 for a tensor without leaves.

        Args:
            leaves: (leaves,) or (leaves, measures) float64. Not changed.
        """
        measures = leaves.shape[1] if leaves.dim() > 1 else 1
        for first, sizes in self._levels:
            parents = leaves.new_empty((len(sizes), *leaves.shape[1:]))
            arguments = (first, sizes, leaves.contiguous(), parents, measures)
            launch.combine_kernel().bind_to((len(sizes), measures), arguments, False).run()
            leaves = parents
        return leaves
