"""Transforms of the gradients of a replayed step: norms, and scalars that depend on norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from thalweg._base.lazy import lazy
from thalweg._core.atomic_section import Call
from thalweg._core.gradient_stats import GradientStats
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.plan_cache import CachedPlan
from thalweg._core.replay import GuardTable, Launches, plan_of, replay_block
from thalweg._core.replay_global_norm import ReplayedGlobalNorm
from thalweg._engines.array_types import Float64
from thalweg._engines.cpu.openmp import parallel_address
from thalweg._engines.cpu.replay_records import span_of
from thalweg._engines.protocol import Columns, Dtype, Reduction, as_array

if TYPE_CHECKING:
    from thalweg._engines.cpu.reductions import Sweep

Scalars = Mapping[Dtype, Mapping[str, Any]]


class _RepeatedStats(GradientStats):
    """Statistics of gradients that are reset at each replay."""

    def forget(self) -> None:
        """Drop the results for the last gradients; keep what depends on the variables only."""
        self._sums = {}
        for name in _GRADIENT_FIELDS & vars(self).keys():
            del vars(self)[name]


_VARIABLE_FIELDS = {"_narrow", "_norm_dtype"}
_LAZY = {name for name, member in vars(GradientStats).items() if isinstance(member, lazy)}
_GRADIENT_FIELDS = _LAZY - _VARIABLE_FIELDS
# Placeholders: the native call computes the clip factor.
_NO_FACTOR = {"clip_scale": 1.0, "clip_unit": 1.0}


class NotMeasured(RuntimeError):
    """Raised if a needed statistic was not computed. The step is then planned."""


def has_scalars_in_call(transforms: GradientTransforms) -> bool:
    """Return True if the native call computes all scalars that depend on gradients.

    The native call can compute the factor of the global norm, but neither trust ratios nor factors
    of each gradient's norm.
    """
    if transforms.clipnorm is not None or transforms.trust is not None:
        return False
    return not transforms.measured or transforms.has_global_norm


class ReplayedTransforms:
    """Transforms of gradients in a replayed step.

    Args:
        plans: The plans of the step's rules.
        launches: The kernels of the step.
        transforms: The transforms of the step's gradients.

    Attributes:
        part: The part of a step to replay after `measure`, a constant of `replay_block`.

    Raises:
        NotMeasured: The transforms cannot be replayed.
    """

    def __init__(
        self, plans: Sequence[CachedPlan], launches: Launches, transforms: GradientTransforms
    ) -> None:
        arguments = {"clip_divisor": transforms.clipnorm, "trust_factor": transforms.trust}
        self._variable_names = {
            name for name, argument in arguments.items() if argument is not None
        }
        self._launches = launches.all if self._variable_names else ()
        if any(launch.measures is not None for launch in self._launches):
            raise NotMeasured
        for launch in self._launches:
            launch.use_member_rows()
        self._variables = [var for plan in plans for var in plan.request.variables]
        self._dtypes = {dtype for plan in plans for dtype in plan_of(plan).dtypes}
        self._reduction = Reduction("sums", transforms.measured, transforms.first)
        self._sweeps: list[tuple[list[int], Dtype, Sweep]] = []
        # Set if scalars depend on no other measure than the global norm.
        self._norm: ReplayedGlobalNorm | None = None
        self.part = replay_block.FULL_STEP
        if transforms.measured:
            if not all(plan_of(plan).measures_in_place for plan in plans):
                raise NotMeasured
            self._sweeps = [
                (
                    launch.members,
                    launch.dtype,
                    launch.group.sweep(transforms.measured, transforms.first, launch.base),
                )
                for launch in launches.all
            ]
            sweeps = [sweep for *_, sweep in self._sweeps]
            self._large = [
                (index, sweep) for index, sweep in enumerate(sweeps) if not sweep.is_serial
            ]
            if has_scalars_in_call(transforms):
                self._norm = ReplayedGlobalNorm(launches.all, sweeps, len(self._variables))
        self._set(transforms)

    def _set(self, transforms: GradientTransforms) -> None:
        # Kernels read one unscaling factor for all gradients.
        if transforms.clip_factor is not None or (
            transforms.unscaling is not None and len({*transforms.unscaling}) > 1
        ):
            raise NotMeasured
        columns = Columns({dtype: {} for dtype in self._dtypes}, {})
        stats = _RepeatedStats(transforms, self, self._variables, columns, (), False)
        shared: dict[str, Any] = {}
        if self._norm is not None:
            self._norm.set(transforms, stats.plain_range)
            shared = {} if transforms.global_clipnorm is None else _NO_FACTOR
        if transforms.unscaling is not None:
            shared = {"unscaling": transforms.unscaling[0], **shared}
        # Scalars that do not depend on gradients.
        self._shared = {dtype: {**shared, **transforms.shared(dtype)} for dtype in self._dtypes}
        for _, dtype, sweep in self._sweeps:
            sweep.rows[0] = [self._shared[dtype][name] for name in sweep.kernel.scalars]
        self._transforms, self._stats = transforms, stats

    def last_norm(self, taken: int) -> tuple[float, float] | None:
        """Return (global norm, clip factor) of the step with the number `taken`.

        Return None unless that step was the last whose norm the native call computed.
        """
        return None if self._norm is None else self._norm.last_norm(taken)

    def spans(self) -> dict[int, tuple[int, int, int]]:
        """Copy the chunk tables of kernels that sum squares; kernels then use the copies.

        A chunk is a range of elements of one variable. A replay may set a length in the copy to 0,
        to leave a variable out.

        Returns:
            {index of a variable: (address of the first length in the copy, address of the first
            original length, number of chunks)}.
        """
        spans: dict[int, tuple[int, int, int]] = {}
        for members, _, sweep in self._sweeps:
            chunks = sweep.copy_chunks()
            for position, member in enumerate(members):
                spans[member] = span_of(chunks, sweep.chunks, position)
        return spans

    def leave_out_absent(self, switches: tuple[int, int]) -> None:
        """Make the native call leave missing gradients out of the global norm that it computes.

        Args:
            switches: The address of the first gradient's flag, and the bytes between flags.
        """
        if self._norm is not None:
            self._norm.set_switches(*switches)

    def for_look(self) -> tuple[list[tuple[int, int, int, int]], int]:
        """Return the launches and the memory block for norms, as `GuardedStep` needs them.

        Returns:
            (launches, address). The launches sum squares of gradients. The address is that of
            `ReplayedGlobalNorm`, or 0 if native code does not compute the global norm.
        """
        measures = [(sweep.kernel.address, sweep.address, 0, 1) for *_, sweep in self._sweeps]
        return measures, 0 if self._norm is None else self._norm.address

    def measure(
        self,
        transforms: GradientTransforms,
        guards: GuardTable,
        taken: int,
        pairs: list[Any] | None = None,
        is_beyond: bool = False,
    ) -> int:
        """Compute the norms that the transforms need, if all guards hold.

        Set `part`, which selects what the next native call does: `UPDATE` if norms were computed
        here, `CLIPPED` if the next call computes the global norm. Without norms, `part` is
        unchanged.

        Args:
            taken: The number of steps that were replayed before.
            pairs: Pairs of gradient and variable; None for the gradients of parameters.
            is_beyond: True if the native call returned `replay_block.OUT_OF_RANGE` for this step.

        Returns:
            0, or the constant of the guard that failed.
        """
        if transforms is not self._transforms:
            if transforms.stages != self._transforms.stages:
                return replay_block.OTHER_STEP
            self._set(transforms)
        if not transforms.measured:
            return 0
        for index, sweep in self._large:
            count = sweep.threads()
            guards.measures[index, 2:] = parallel_address() if count > 1 else 0, count
        if self._norm is not None and transforms.judge is not None:
            self._norm.set_largest(transforms.judge.norm_limit())
        if self._norm is None or is_beyond:
            self.part = replay_block.UPDATE
            return guards.replay(pairs, taken, replay_block.MEASURE)
        self.part = replay_block.CLIPPED
        return 0

    def scalars(
        self, report: Callable[[GradientStats], None] | None = None
    ) -> tuple[Scalars, Mapping[str, Any]]:
        """Return the scalars of the transforms, computed from the norms of the last `measure`.

        Args:
            report: Optional. `report(stats)` is called if `measure` has computed norms.

        Returns:
            {compute dtype: {name: scalar}} of scalars that variables share; and {name: vector over
            the variables}, which is empty if `measure` has computed no norms.

        Raises:
            NotMeasured: A norm is too large or too small for the replay.
        """
        if self.part != replay_block.UPDATE:
            return self._shared, {}
        stats = self._stats
        stats.forget()
        by_variable = dict(stats.variable_scalars)
        # The factor is equal for all gradients, and among the shared scalars.
        by_variable.pop("unscaling", None)
        if not by_variable.keys() <= self._variable_names:
            raise NotMeasured
        if report is not None:
            report(stats)
        return {
            dtype: {**shared, **stats.shared(dtype)} for dtype, shared in self._shared.items()
        }, by_variable

    def judge(self) -> Sequence[Call] | None:
        """Return the functions in C that the step judge adds to the writes of a step.

        Return () without a judge. Return None if the norm exceeds the judge's limit; the step must
        then be planned. Call this after `scalars`.
        """
        judge = self._transforms.judge
        if judge is None:
            return ()
        if self._norm is not None and self.part == replay_block.CLIPPED:
            return judge.taking_calls(self._norm.next_norm())
        norm = float(self._stats.global_norm)
        return judge.taking_calls([norm]) if norm <= judge.norm_limit() else None

    def set_by_variable(self, by_variable: Mapping[str, Any]) -> None:
        """Write scalars that differ between variables to the rows of all kernels.

        Call this after the shared scalars were written.

        Args:
            by_variable: {name: vector over the variables}.
        """
        for launch in self._launches:
            names, rows = launch.row_target()
            for name in self._variable_names:
                rows[:, names.index(name)] = by_variable[name][launch.members]

    # Interface of `Reductions`, for `GradientStats`.

    device = None

    def reduce(self, reduction: Reduction, columns: Columns) -> Float64:
        """Return the sums that the last `measure` has computed.

        Raises:
            NotMeasured: `reduction` differs from the replayed reduction.
        """
        if reduction != self._reduction:
            raise NotMeasured
        if len(self._sweeps) == 1 and len(self._sweeps[0][0]) == len(self._variables):
            return self._sweeps[0][2].sums()
        sums = ((members, sweep.sums()) for members, _, sweep in self._sweeps)
        return as_array(reduction.gather(len(self._variables), sums))
