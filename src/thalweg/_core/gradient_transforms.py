"""Transforms of gradients before the rule, for all front ends.

    unscale -> clip elements -> clip by a norm -> scale by trust ratios -> detect overflows

Each is a formula inside the update, with a factor that is computed before it: one pass over the
gradients, and over the variables if their norms are needed, then the update. No gradient is
written. `gradient_stats.py` computes the factors, and transforms tensors for optimizers that need
them.
"""

# Formulas of rules are plain arithmetic without types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from torch import Tensor

from thalweg._base.lazy import lazy
from thalweg._core.atomic_section import Call
from thalweg._core.grads_and_vars import Pair
from thalweg._engines.protocol import Dtype, Stages
from thalweg.formula import Formula, gradient_squares, variable_squares
from thalweg.indexed_slices import IndexedSlices, whole, with_values
from thalweg.rules import clipping

if TYPE_CHECKING:
    from thalweg._core.clip_factor import Factor

_STAGES: dict[str, Formula] = {
    "unscaling": clipping.unscale,
    "clipvalue": clipping.clip_by_value,
    "clipnorm": clipping.clip_by_norm,
    "global_clipnorm": clipping.clip_by_global_norm,
    "trust": clipping.scale_by_trust,
}
# Replaces `clip_by_global_norm` if norms beyond float32 do not overflow.
_COMMON_NORM = cast("Formula", clipping.clip_by_common_norm)
# Names of the scalars of these formulas. A rule's scalars must have other names.
SCALARS = frozenset(
    name
    for stage in (*_STAGES.values(), _COMMON_NORM)
    for name in list(signature(stage).parameters)[1:]
)


class Decision(NamedTuple):
    """Decision of a loss scaler or a judge about a step.

    Attributes:
        apply_flag: True if the step is applied; a bool tensor of shape () if a device decides.
        calls: C functions that write the decider's new state, whether or not the step is applied.
    """

    apply_flag: bool | Tensor
    calls: list[Call]


class StepJudge(Protocol):
    """Interface of objects that decide by the global norm whether to take a step."""

    def norm_limit(self) -> float: ...
    def decide(self, stats: Any) -> Decision: ...
    def taking_calls(self, norms: Iterable[float]) -> list[Call]: ...
    def skip_calls(self) -> list[Call]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientTransforms:
    """Transformations and checks of the gradients of a step.

    The *global norm* is the norm of all gradients together, after unscaling and clipping of
    elements.

    Attributes:
        unscaling: Factor of each gradient, applied first; float32 of shape (n,), an array, or a
            tensor if only a device knows it.
        clipvalue: Elements are clipped to [-clipvalue, clipvalue].
        clipnorm: A gradient with a larger norm is scaled down to this norm.
        global_clipnorm: All gradients are scaled down together if the global norm is larger.
        overflow: True if sums of squares beyond float32 are infinite, as in TensorFlow. Sums that
            include float64 gradients are exempt; see `norms_of`. False gives the exact norm of
            `clip_factor.factor_of`.
        casts: True if `overflow` also applies to float64 gradients.
        nan_if_not_finite: True if an infinite global norm makes all gradients NaN.
        epsilon: Term that torch's formula adds to the global norm; None uses TensorFlow's formula.
        clip_factor: The factor of clipping by the global norm, if the norm includes gradients of
            other steps; None computes the factor.
        trust: `trust(variable norms, clipped gradient norms)` returns float32 factors; arrays give
            an array, tensors a tensor, all of shape (n,). Sparse gradients become dense.
        decide: `decide(contains NaN, largest magnitude)` returns a `Decision` from the transformed
            gradients; writes nothing.
        decides_there: True if `decide` also accepts bool and float64 tensors of shape (), which it
            gets if the statistics are on a device.
        exact: True if `decide` needs the largest magnitude. Otherwise it may get 0 for gradients
            far from overflow, which saves a pass over memory.
        judge: Optional. Decides after `decide` whether the step is taken, from all statistics.
        calls: Functions in C that run with the writes of the step, also if the step is skipped.
        watch: Optional. `watch(stats)` is called with the `GradientStats` before `decide`.
        narrow: True if gradients of float32 variables may be 16-bit.
    """

    unscaling: Any = None
    clipvalue: float | None = None
    clipnorm: float | None = None
    global_clipnorm: float | None = None
    overflow: bool = True
    casts: bool = False
    nan_if_not_finite: bool = True
    epsilon: float | None = None
    clip_factor: Factor | None = None
    trust: Callable[[Any, Any], Any] | None = None
    decide: Callable[[Any, Any], Decision] | None = None
    decides_there: bool = False
    exact: bool = False
    judge: StepJudge | None = None
    calls: Sequence[Call] = ()
    watch: Callable[[Any], None] | None = None
    narrow: bool = False

    def __bool__(self) -> bool:
        """Return True if there is any transformation, callback or call."""
        has_callbacks = (self.decide, self.judge, self.watch) != (None, None, None)
        return has_callbacks or bool(self.stages) or bool(self.calls)

    @lazy
    def stages(self) -> Stages:
        """The formulas that the update applies to each gradient."""
        active = {key: stage for key, stage in _STAGES.items() if getattr(self, key) is not None}
        if "global_clipnorm" in active and not self.overflow:
            active["global_clipnorm"] = _COMMON_NORM
        return tuple(active.values())

    @lazy
    def measured(self) -> tuple[Formula, ...]:
        """Formulas of squares that each step sums over each variable; () if none are needed."""
        if self.trust is not None:
            return gradient_squares, variable_squares
        is_open = self.global_clipnorm is not None and self.clip_factor is None
        by_norm = self.clipnorm is not None or is_open
        decides = self.decide is not None or self.judge is not None
        return (gradient_squares,) if by_norm or decides else ()

    @lazy
    def first(self) -> Stages:
        """Return the stages before norms if elements are clipped, or else ()."""
        if self.clipvalue is None:
            return ()
        return tuple(stage for stage in self.stages if stage in _BEFORE_NORMS)

    @property
    def has_global_norm(self) -> bool:
        """True if the common norm clips gradients or decides on the step."""
        return self.global_clipnorm is not None or self.judge is not None

    @property
    def reduces_variables(self) -> bool:
        """True if a factor of a gradient is a reduction over that gradient or its variable."""
        return self.clipnorm is not None or self.trust is not None

    def shared(self, dtype: Dtype) -> dict[str, Any]:
        """Return the limits of clipping as scalars of a compute dtype, by name."""
        scalars: dict[str, Any] = {}
        if self.clipvalue is not None:
            scalars["clipvalue"] = dtype(self.clipvalue)
        if self.clipnorm is not None:
            scalars["clipnorm"] = dtype(self.clipnorm)
        return scalars


NOTHING = GradientTransforms()
_BEFORE_NORMS: Stages = (_STAGES["unscaling"], _STAGES["clipvalue"])


def before_norms(transforms: GradientTransforms) -> Stages:
    """Return the stages that norms include: unscaling and clipping of elements."""
    return tuple(stage for stage in transforms.stages if stage in _BEFORE_NORMS)


def all_dense(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs; sparse gradients are replaced by dense gradients in the variable's dtype.

    Rows with equal indices are added, and rows without an index are 0.
    """
    return [
        (whole(with_values(grad, grad.values.to(var.dtype)), var), var)
        if isinstance(grad, IndexedSlices)
        else (grad, var)
        for grad, var in pairs
    ]
