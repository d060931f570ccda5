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
_COMMON_NORM = cast("Formula", clipping.clip_by_common_norm)  # in place of that by the global norm
# What stages are given beside the rule's scalars, which must have other names.
SCALARS = frozenset(
    name
    for stage in (*_STAGES.values(), _COMMON_NORM)
    for name in list(signature(stage).parameters)[1:]
)


class Decision(NamedTuple):
    """Decision of a loss scaler about a step.

    Attributes:
        apply_flag: Whether the step is applied; a bool tensor of shape () if a device decides.
        calls: C functions that write the scaler's new state, whether or not the step is applied.
    """

    apply_flag: bool | Tensor
    calls: list[Call]


class StepJudge(Protocol):
    """Decisions about steps by the common norm of their gradients; see `SpikeJudge`."""

    def norm_limit(self) -> float: ...
    def decide(self, stats: Any) -> Decision: ...
    def taking_calls(self, norms: Iterable[float]) -> list[Call]: ...
    def skip_calls(self) -> list[Call]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientTransforms:
    """Transformations and checks of the gradients of a step.

    Attributes:
        unscaling: What each gradient is multiplied by first, float32 of shape (n,); a tensor where
            a device knows it.
        clipvalue: Elements are clipped to [-clipvalue, clipvalue].
        clipnorm: Each gradient is scaled so that its norm is no higher.
        global_clipnorm: All gradients are scaled so that their common norm is no higher.
        overflow: Whether a sum of squares beyond float32 is infinite, unless it is of float64
            gradients, or has some among others'; see `norms_of`. Without it the common norm has
            no ends; see `clip_factor.factor_of`.
        casts: Whether it is infinite of float64 gradients, too.
        nan_if_not_finite: Whether an infinite common norm makes NaN of everything.
        epsilon: Added to the common norm by the factor of torch; without it that is TensorFlow's.
        clip_factor: What gradients are multiplied by, where it is known: the norm is common with
            gradients elsewhere.
        trust: Gives the factors of the norms of variables and of clipped gradients, float64 of
            shape (n,), as float32: of arrays, or of tensors of a device. Sparse gradients are made
            dense for it.
        decide: Given whether a processed gradient holds a NaN and the largest magnitude: whether
            the step is taken. It writes nothing.
        decides_there: Whether `decide` takes tensors of shape () of the variables' device, bool and
            float64, too; it is given them where that device can tell.
        exact: Whether `decide` uses a finite magnitude; it may be 0 otherwise, which saves a
            sweep.
        judge: Optional. Decides after `decide` whether the step is taken, with all statistics.
        calls: Functions in C that are called with the writes of the step, or in their place where
            `decide` has it left out.
        watch: Is shown what is known, a `GradientStats`, before `decide`: arrays, or tensors of a
            device where measures have stayed there.
        narrow: Whether gradients of float32 variables may be of a 16-bit type.
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
        """Return the formulas whose sums are needed in each step."""
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
        """Return the scalars shared by all variables, in a compute dtype, by name."""
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
    """Return the pairs with sparse gradients made dense: equal indices are summed in the dtype of
    the variable.
    """
    return [
        (whole(with_values(grad, grad.values.to(var.dtype)), var), var)
        if isinstance(grad, IndexedSlices)
        else (grad, var)
        for grad, var in pairs
    ]
