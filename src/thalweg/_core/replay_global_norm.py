"""Clip factor of the global norm, computed in the native call of a replayed step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from thalweg._core.gradient_stats import PlainRange
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.replay import Launch
from thalweg._engines.cpu import replay_global_norm
from thalweg._engines.cpu.replay_routines import routine_address

if TYPE_CHECKING:
    from thalweg._engines.cpu.reductions import Sweep


class ReplayedGlobalNorm:
    """Memory block through which native code computes the clip factor of the global norm.

    Args:
        launches: The kernels. A kernel with the scalar `clip_scale` receives the factor.
        sweeps: For each kernel the reduction that sums the squares of its gradients.
        count: The number of gradients.

    Attributes:
        address: The address of the block, which `_engines/cpu/replay_global_norm.py` describes.
    """

    def __init__(self, launches: Sequence[Launch], sweeps: Sequence[Sweep], count: int) -> None:
        self._words = words = np.zeros(replay_global_norm.BLOCK, np.int64)
        self._numbers = words.view(np.float64)
        self._squares = np.zeros(count, np.float64)
        members = [np.array(launch.members, np.int64) for launch in launches]
        sweeps_and_members = zip(sweeps, members, strict=True)
        sweep_rows = [(*sweep.record(), places.ctypes.data) for sweep, places in sweeps_and_members]
        clipping = [launch for launch in launches if "clip_scale" in launch.names]
        rows = [row for launch in clipping for row in launch.columns("clip_scale")]
        records = [np.array(record, np.int64) for record in (sweep_rows, rows)]
        # The addresses in `words` stay valid while these references exist.
        self._references = members, sweeps, records
        words[replay_global_norm.STEP], words[replay_global_norm.COUNT] = -1, count
        words[replay_global_norm.SQUARES] = self._squares.ctypes.data
        for place, record in zip(
            (replay_global_norm.SWEEPS, replay_global_norm.ROWS), records, strict=True
        ):
            words[place], words[place + 1] = len(record), record.ctypes.data
        words[replay_global_norm.ROUTINE] = routine_address("clip")
        self.address = words.ctypes.data

    def set(self, transforms: GradientTransforms, plain_range: PlainRange) -> None:
        """Write limit, epsilon, unscaling and the allowed range of sums to the memory block.

        Args:
            transforms: The transforms of gradients.
            plain_range: The range in which the formula has neither overflow nor denormals. Outside
                of this range, the native call does not take the step.
        """
        words, numbers = self._words, self._numbers
        words[replay_global_norm.IS_FLOAT32] = plain_range.dtype is np.float32
        limit, epsilon = transforms.global_clipnorm, transforms.epsilon
        # Torch's formula is 1 for an infinite limit; TensorFlow's is NaN.
        words[replay_global_norm.USES_TORCH_FORMULA] = limit is None or epsilon is not None
        words[replay_global_norm.HAS_UNSCALING] = transforms.unscaling is not None
        numbers[replay_global_norm.LIMIT] = math.inf if limit is None else limit
        numbers[replay_global_norm.EPSILON] = epsilon or 0.0
        numbers[replay_global_norm.MIN_SQUARE_SUM] = plain_range.lowest
        numbers[replay_global_norm.MAX_SQUARE_SUM] = plain_range.highest
        numbers[replay_global_norm.MAX_NORM] = self._largest_norm = plain_range.largest_norm
        numbers[replay_global_norm.UNSCALING] = 1.0
        # With `clipvalue` the reduction has unscaled the gradients before.
        if transforms.unscaling is not None and transforms.clipvalue is None:
            numbers[replay_global_norm.UNSCALING] = transforms.unscaling[0]

    def set_switches(self, address: int, stride: int) -> None:
        """Make the norm leave out each gradient with a flag of 0.

        Args:
            address: The address of the first gradient's flag; 0 to include all gradients.
            stride: The bytes from a flag to the next one.
        """
        self._words[replay_global_norm.PRESENCE_FLAGS] = address
        self._words[replay_global_norm.PRESENCE_STRIDE] = stride

    def set_largest(self, norm: float) -> None:
        """Make the native call take no step with a norm above `norm`; such steps are planned."""
        self._numbers[replay_global_norm.MAX_NORM] = min(norm, self._largest_norm)

    def next_norm(self) -> Iterator[float]:
        """Return an iterator that reads the last computed norm when advanced, without Python code.

        Advance it after the native call to get the norm of that call.
        """
        return map(self._numbers.item, (replay_global_norm.NORM,))

    def last_norm(self, step_count: int) -> tuple[float, float] | None:
        """Return (norm, clip factor) of the step with the number `step_count`.

        Return None if the native call last computed the norm of another step.
        """
        # One copy in C: a step in a signal handler cannot change the words in between.
        words = self._words.copy()
        if words[replay_global_norm.STEP] != step_count:
            return None
        norm, factor = words.view(np.float64)[[replay_global_norm.NORM, replay_global_norm.FACTOR]]
        return float(norm), float(factor)
