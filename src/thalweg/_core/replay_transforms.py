"""What happens to the gradients of a step that is taken in one call: the scalars of its stages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from thalweg._base.lazy import lazy
from thalweg._core.gradient_stats import GradientStats
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.plan_cache import CachedPlan
from thalweg._core.replay import GuardTable, Launch, Launches, plan_of, replay_kernel, span_of
from thalweg._core.replay_global_norm import ReplayedGlobalNorm
from thalweg._engines.array_types import Float64
from thalweg._engines.cpu.openmp import parallel_address
from thalweg._engines.protocol import Columns, Dtype, Formulas, Stages
from thalweg.formula import gradient_squares

if TYPE_CHECKING:
    from thalweg._engines.cpu.launch import Compiled
    from thalweg._engines.cpu.reductions import Sweep

Scalars = Mapping[Dtype, Mapping[str, Any]]


class _RepeatedStats(GradientStats):
    """What is known of gradients that are measured again and again."""

    def forget(self) -> None:
        """Forget what was measured: other gradients follow, of the same variables."""
        self._sums = {}
        for name in _MEASURED & vars(self).keys():
            del vars(self)[name]


_OF_VARIABLES = {"_narrow", "_norm_dtype"}
_LAZY = {name for name, each in vars(GradientStats).items() if isinstance(each, lazy)}
_MEASURED = _LAZY - _OF_VARIABLES
_NO_FACTOR = {"clip_scale": 1.0, "clip_unit": 1.0}  # until the call that takes the step makes it


class NotMeasured(RuntimeError):
    """Raised if a needed statistic was not computed; a planned step computes it."""


def is_clipped_in_call(how: GradientTransforms) -> bool:
    """Return whether the call that takes a step makes all that depends on its gradients."""
    if how.clipnorm is not None or how.trust is not None:
        return False
    return not how.measured or _is_norm_alone(how)


def _is_norm_alone(how: GradientTransforms) -> bool:
    """Return whether the common norm is all that is measured of gradients."""
    return how.measured == (gradient_squares,) and how.global_clipnorm is not None


class ReplayedTransforms:
    """The gradients of a step, and what was measured of them.

    Args:
        plans: The step: its plans, one after the other.
        launches: Its kernels.
        how: What happened to its gradients.

    Attributes:
        part: The part of a step that is left, after `measure`.
    """

    def __init__(
        self, plans: Sequence[CachedPlan], launches: Launches, how: GradientTransforms
    ) -> None:
        asked = {"clip_divisor": how.clipnorm, "trust_factor": how.trust}
        self._separate = {name for name, each in asked.items() if each is not None}
        apart = launches.all if self._separate else ()
        if any(each.measures is not None for each in apart):
            raise NotMeasured
        self._rows = [_SeparateRows(each, self._separate) for each in apart]
        self._variables = [var for each in plans for var in each.request.variables]
        self._dtypes = {dtype for each in plans for dtype in plan_of(each).dtypes}
        self._asked = how.measured, how.first
        self._sweeps: list[tuple[list[int], Dtype, Sweep]] = []
        self._norm: ReplayedGlobalNorm | None = None  # where that is all that is measured
        self.part = replay_kernel.WHOLE
        if how.measured:
            if not all(plan_of(each).measures_in_place for each in plans):
                raise NotMeasured
            self._sweeps = [
                (each.members, each.dtype, each.group.sweep(*self._asked, each.base))
                for each in launches.all
            ]
            sweeps = [each for *_, each in self._sweeps]
            self._large = [(k, each) for k, each in enumerate(sweeps) if not each.is_serial]
            if not self._separate and _is_norm_alone(how):
                self._norm = ReplayedGlobalNorm(launches.all, sweeps, len(self._variables))
        self._set(how)

    def _set(self, how: GradientTransforms) -> None:
        if how.clip_factor is not None or (how.unscaling is not None and len({*how.unscaling}) > 1):
            raise NotMeasured
        columns = Columns({dtype: {} for dtype in self._dtypes}, {})
        known = _RepeatedStats(how, self, self._variables, columns, (), False)
        for _, dtype, sweep in self._sweeps:
            if sweep.kernel.scalars:
                _set_rows(sweep.kernel, sweep.rows, how, dtype)
        beside: dict[str, Any] = {}
        if self._norm is not None:
            self._norm.set(how, known.usual)
            beside = _NO_FACTOR
        if how.unscaling is not None:
            beside = {"unscaling": how.unscaling[0], **beside}
        # What is known before gradients are.
        self._shared = {dtype: {**beside, **how.shared(dtype)} for dtype in self._dtypes}
        self._of = how, known

    def last_norm(self, taken: int) -> tuple[float, float] | None:
        """Return the global norm and clip factor of a replayed step, or None if not computed."""
        return None if self._norm is None else self._norm.last_norm(taken)

    def spans(self) -> dict[int, tuple[int, int, int]]:
        """Give sweeps chunks whose lengths may change; return those of each variable by index."""
        found: dict[int, tuple[int, int, int]] = {}
        for members, _, sweep in self._sweeps:
            chunks = sweep.copy_chunks()
            for at, member in enumerate(members):
                found[member] = span_of(chunks, sweep.chunks, at)
        return found

    def leave_out_absent(self, switches: tuple[int, int]) -> None:
        """Have the common norm leave out gradients that are not there.

        Args:
            switches: As `GuardTable.gradient_switches`.
        """
        if self._norm is not None:
            self._norm.set_switches(*switches)

    def for_look(self) -> tuple[list[tuple[int, int, int, int]], int]:
        """Return `measures` and `clipping` of `GuardedStep`."""
        measures = [(each.kernel.address, each.address, 0, 1) for *_, each in self._sweeps]
        return measures, 0 if self._norm is None else self._norm.address

    def measure(
        self,
        how: GradientTransforms,
        found: GuardTable,
        begun: int,
        pairs: list[Any] | None = None,
        is_beyond: bool = False,
    ) -> int:
        """Measure what the scalars of the stages are made of, if all is as it was.

        Args:
            how: What happens to gradients.
            found: The step.
            begun, pairs: As `taken` and `pairs` of `GuardTable.take`.
            is_beyond: Whether the step was found to be `replay_kernel.BEYOND`.

        Returns:
            0; else what is not as it was.
        """
        if how is not self._of[0]:
            if how.stages != self._of[0].stages:
                return replay_kernel.OTHER_STEP
            self._set(how)
        if not how.measured:
            return 0
        for place, sweep in self._large:
            count = sweep.threads()
            found.measures[place, 2:] = parallel_address() if count > 1 else 0, count
        if self._norm is None or is_beyond:
            self.part = replay_kernel.UPDATE
            return found.take(pairs, begun, replay_kernel.MEASURE)
        self.part = replay_kernel.CLIPPED
        return 0

    def scalars(
        self, seen: Callable[[GradientStats], None] | None = None
    ) -> tuple[Scalars, Mapping[str, Any]]:
        """The scalars of the stages: those of each dtype, and those of each variable.

        Args:
            seen: Optional function that receives the statistics of the gradients.

        Raises:
            NotMeasured: Something is beyond usual numbers.
        """
        if self.part != replay_kernel.UPDATE:
            return self._shared, {}
        _, known = self._of
        known.forget()
        separate = dict(known.separate)
        separate.pop("unscaling", None)
        if not separate.keys() <= self._separate:
            raise NotMeasured
        if seen is not None:
            seen(known)
        return {
            dtype: {**own, **known.shared(dtype)} for dtype, own in self._shared.items()
        }, separate

    def set_separate(self, separate: Mapping[str, Any]) -> None:
        """Set the scalars of each variable, after those that all have in common."""
        for each in self._rows:
            each.set(separate)

    # What `GradientTransforms.known` asks.

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `Ready`; of what was measured."""
        if (formulas, stages) != self._asked:
            raise NotMeasured
        if len(self._sweeps) == 1 and len(self._sweeps[0][0]) == len(self._variables):
            return list(self._sweeps[0][2].sums().T)
        made = np.zeros((len(self._variables), len(formulas)), np.float64)
        for members, _, sweep in self._sweeps:
            made[members] = sweep.sums()
        return list(made.T)

    def sums_on_device(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Tensor] | None:
        """See `Ready`: the host is where they are."""

    def max_abs(self) -> Float64:
        """See `Ready`; nobody asks."""
        raise NotMeasured

    def max_abs_on_device(self, wanted: Tensor) -> Tensor | None:
        """See `Ready`: the host is where they are."""


class _SeparateRows:
    """A row of scalars for each variable that a kernel updates.

    Args:
        launch: The kernel.
        names: Of the scalars that differ.
    """

    def __init__(self, launch: Launch, names: Collection[str]) -> None:
        self._members = launch.members
        _, self._rows = launch.separate()
        self._columns = {name: launch.names.index(name) for name in names}

    def set(self, separate: Mapping[str, Any]) -> None:
        """Set these scalars in all rows."""
        for name, column in self._columns.items():
            self._rows[:, column] = separate[name][self._members]


def _set_rows(kernel: Compiled, rows: Float64, how: GradientTransforms, dtype: Dtype) -> None:
    shared = how.shared(dtype)
    unscaling = how.unscaling
    rows[0] = [unscaling[0] if name == "unscaling" else shared[name] for name in kernel.scalars]
