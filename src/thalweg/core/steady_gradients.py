"""What happens to the gradients of a step that is taken in one call: the scalars of its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from thalweg.core.gradient_transforms import GradientStats, GradientTransforms
from thalweg.core.plan_cache import Planned
from thalweg.core.steady import Launches, Snapshot, look, plan_of
from thalweg.engines.arrays import Float64
from thalweg.engines.cpu.launch import Compiled
from thalweg.engines.cpu.measure import Sweep
from thalweg.engines.cpu.team import parallel_address
from thalweg.engines.engine import Columns, Dtype, Stages
from thalweg.formula import Formula

Scalars = Mapping[Dtype, Mapping[str, Any]]


class NotMeasured(RuntimeError):
    """What is asked for was not measured: the careful way does."""


class SteadyGradients:
    """The gradients of a step, and what was measured of them.

    Args:
        planned: The step.
        launches: Its kernels.
        how: What happened to its gradients.
    """

    def __init__(self, planned: Planned, launches: Launches, how: GradientTransforms) -> None:
        self._variables = planned.request.variables
        self._dtypes = plan_of(planned).dtypes
        self._asked = how.measured, how.first
        self._sweeps: list[tuple[list[int], Dtype, Sweep]] = []
        if how.measured:
            self._sweeps = [
                (each.group.members, each.dtype, each.group.sweep(*self._asked, each.base))
                for each in launches.all
            ]
        self._set(how)

    def _set(self, how: GradientTransforms) -> None:
        self.how, self._known = how, how.known(self, self._variables)

    @property
    def measures(self) -> bool:
        """Whether gradients are measured before the update."""
        return bool(self._sweeps)

    @staticmethod
    def are_plain(how: GradientTransforms) -> bool:
        """Whether all gradients have the same scalars, and nobody else is asked about them."""
        return how.clipnorm is None and how.trust is None and how.decide is None and not how.calls

    def records(self) -> list[tuple[int, int, int, int]]:
        """What the look is to measure."""
        return [(each.kernel.address, each.address, 0, 1) for *_, each in self._sweeps]

    def find_scalars(
        self,
        how: GradientTransforms,
        found: Snapshot,
        begun: int,
        seen: Callable[[GradientStats], None],
        pairs: list[Any] | None = None,
    ) -> Scalars | None:
        """The scalars of a step's stages; None if something is not as it was.

        Args:
            how: What happens to its gradients.
            found: The step.
            begun, pairs: As `taken` and `pairs` of `Snapshot.take`.
            seen: Is told what is known of gradients that are measured.

        Raises:
            NotMeasured: Not all gradients have the same ones, or they are beyond usual numbers.
        """
        if how is not self.how:
            if how.stages != self.how.stages:
                return None
            self._set(how)
        if self._sweeps and self._measure(found, begun, pairs):
            return None
        known = self._known
        known.forget()
        separate = dict(known.separate)
        own = {"unscaling": separate.pop("unscaling")[0]} if "unscaling" in separate else {}
        if separate:
            raise NotMeasured
        if self._sweeps:
            seen(known)
        return {dtype: {**own, **known.shared(dtype)} for dtype in self._dtypes}

    def _measure(self, found: Snapshot, begun: int, pairs: list[Any] | None) -> int:
        for place, (_, dtype, sweep) in enumerate(self._sweeps):
            if sweep.kernel.scalars:
                _set_rows(sweep.kernel, sweep.rows, self.how, dtype)
            count = sweep.threads()
            if count > 1 or found.measures[place, 3] > 1:
                found.measures[place, 2:] = parallel_address() if count > 1 else 0, count
        return found.take(pairs, begun, look.MEASURE)

    # What `GradientTransforms.known` asks.

    def sums(
        self, formulas: tuple[Formula, ...], stages: Stages, columns: Columns
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

    def there(
        self, formulas: tuple[Formula, ...], stages: Stages, columns: Columns
    ) -> Sequence[Tensor] | None:
        """See `Ready`: the host is where they are."""

    def max_abs(self) -> Float64:
        """See `Ready`; nobody asks."""
        raise NotMeasured

    def max_abs_on_device(self, wanted: Tensor) -> Tensor | None:
        """See `Ready`: the host is where they are."""


def _set_rows(kernel: Compiled, rows: Float64, how: GradientTransforms, dtype: Dtype) -> None:
    shared = how.shared(dtype)
    unscaling = how.unscaling
    rows[0] = [unscaling[0] if name == "unscaling" else shared[name] for name in kernel.scalars]
