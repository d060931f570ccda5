"""The factor that clips gradients by their common norm, made in the call that takes the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from thalweg._core.gradient_stats import Usual
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.replay import Launch
from thalweg._engines.cpu import replay_global_norm
from thalweg._engines.cpu.replay_routines import norm_routine

if TYPE_CHECKING:
    from thalweg._engines.cpu.reductions import Sweep


class ReplayedGlobalNorm:
    """What `look_norm` reads and writes.

    Args:
        launches: The kernels that are given the factor.
        sweeps: What measures the gradients of each.
        count: How many gradients there are.
    """

    def __init__(self, launches: Sequence[Launch], sweeps: Sequence[Sweep], count: int) -> None:
        self._words = words = np.zeros(replay_global_norm.BLOCK, np.int64)
        self._numbers = words.view(np.float64)
        self._squares = np.zeros(count, np.float64)
        members = [np.array(each.members, np.int64) for each in launches]
        beside = zip(sweeps, members, strict=True)
        own = [(*each.record(), places.ctypes.data) for each, places in beside]
        rows = [row for each in launches for row in each.columns("clip_scale")]
        records = [np.array(each, np.int64) for each in (own, rows)]
        self._held = members, sweeps, records
        words[replay_global_norm.TAKEN], words[replay_global_norm.COUNT] = -1, count
        words[replay_global_norm.SQUARES] = self._squares.ctypes.data
        for place, each in zip(
            (replay_global_norm.SWEEPS, replay_global_norm.ROWS), records, strict=True
        ):
            words[place], words[place + 1] = len(each), each.ctypes.data
        words[replay_global_norm.ROUTINE] = norm_routine()
        self.address = words.ctypes.data

    def set(self, how: GradientTransforms, usual: Usual) -> None:
        """Have it make the factor of gradients to which this happens."""
        words, numbers = self._words, self._numbers
        words[replay_global_norm.IS_NARROW] = usual.dtype is np.float32
        words[replay_global_norm.IS_TORCHS] = how.epsilon is not None
        words[replay_global_norm.UNSCALES] = how.unscaling is not None
        numbers[replay_global_norm.LIMIT] = how.global_clipnorm
        numbers[replay_global_norm.EPSILON] = how.epsilon or 0.0
        numbers[replay_global_norm.LOWEST] = usual.lowest
        numbers[replay_global_norm.HIGHEST] = usual.highest
        numbers[replay_global_norm.FURTHEST] = usual.furthest
        numbers[replay_global_norm.UNSCALING] = 1.0
        if how.unscaling is not None and how.clipvalue is None:  # else it was before the measure
            numbers[replay_global_norm.UNSCALING] = how.unscaling[0]

    def set_switches(self, address: int, stride: int) -> None:
        """Have the norm leave out gradients that are not there.

        Args:
            address: Address of the flag of the first gradient; 0 if all are present.
            stride: Bytes between flags.
        """
        self._words[replay_global_norm.SWITCHES], self._words[replay_global_norm.SWITCH_STRIDE] = (
            address,
            stride,
        )

    def last_norm(self, taken: int) -> tuple[float, float] | None:
        """Return norm and clip factor of a step, or None if the last call was another step."""
        words = self._words.copy()
        if words[replay_global_norm.TAKEN] != taken:
            return None
        norm, factor = words.view(np.float64)[[replay_global_norm.NORM, replay_global_norm.FACTOR]]
        return float(norm), float(factor)
