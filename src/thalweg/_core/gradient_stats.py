"""What is known of a step's gradients while they are processed, measured when it is asked for."""

# Formulas of rules are plain arithmetic without types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg import _engines
from thalweg._base.lazy import lazy
from thalweg._core import norms, vectors
from thalweg._core.clip_factor import (
    FURTHER,
    HIGHEST,
    LOWEST,
    Factor,
    Norm,
    exact_norm,
    factor_of,
    furthest_of,
    parts_of,
)
from thalweg._core.gradient_transforms import Decision, GradientTransforms, Measures, all_dense
from thalweg._core.grads_and_vars import Pair
from thalweg._core.validation import check_memories, check_readable
from thalweg._engines import compute_dtype
from thalweg._engines.array_types import Array
from thalweg._engines.protocol import Columns, Dtype, Formulas
from thalweg.formula import Formula, gradient_squares, variable_squares
from thalweg.indexed_slices import values_of, with_values
from thalweg.variable import titles_of

_STANDARD = (gradient_squares, variable_squares)
_SAFE = 1e38  # norms below it leave every element finite in float32, rounding included


class Usual(NamedTuple):
    """Numbers of which the plain formula makes the factor that clips by the common norm.

    Attributes:
        dtype: What it is computed in.
        lowest, highest: Sums of squares.
        furthest: The highest norm.
    """

    dtype: Dtype
    lowest: float
    highest: float
    furthest: float


class GradientStats:
    """What is known of a step's gradients while they are processed.

    Everything is measured when it is first asked for, what is asked for together in one sweep.
    """

    def __init__(
        self,
        how: GradientTransforms,
        measures: Measures,
        variables: Sequence[Tensor],
        columns: Columns,
        formulas: tuple[Formula, ...],
        numbers: bool,
    ) -> None:
        self._how = how
        self._measures = measures
        self._variables = variables
        self._columns = columns
        # A formula of the rule's own sees processed gradients.
        now = [each for each in formulas if each in _STANDARD or not how.stages]
        self._wanted = tuple(dict.fromkeys((*how.measured, *now)))
        # Measures stay on a device where nothing on the host is to be decided by them.
        self._stays = not (numbers or (how.decide and not how.decides_there))
        self._sums: dict[Formula, object] = {}

    @lazy
    def _narrow(self) -> Array:
        """Of which variables gradients are computed in float32; bool of shape (n,)."""
        dtypes = [var.dtype for var in self._variables]
        if len({*dtypes}) == 1:
            return np.full(len(dtypes), compute_dtype(dtypes[0]) is np.float32)
        return np.array([compute_dtype(dtype) is np.float32 for dtype in dtypes], bool)

    @lazy
    def _norm_dtype(self) -> Dtype:
        """What the common norm is computed in."""
        return np.float32 if self._narrow.all() else np.float64

    @property
    def _is_wide(self) -> bool:
        """Whether squares may leave float64."""
        return self._norm_dtype is np.float64

    @property
    def _may_leave(self) -> bool:
        """Whether the common norm has no ends though squares may leave float64."""
        how = self._how
        is_open = how.global_clipnorm is not None and how.clip_factor is None
        return is_open and not how.overflow and self._is_wide

    @property
    def _has_left(self) -> bool:
        """Whether `_root_norms` may be beyond float64, but not what clipping makes of gradients."""
        how = self._how
        if how.overflow or how.global_clipnorm is None or not self._is_wide:
            return False
        return isinstance(self._root_norms, Tensor) or not np.isfinite(self._root_norms).all()

    def _overflow_mask(self, vector: object) -> object:
        """Which sums of squares are infinite beyond float32: all, none, or some of a vector's."""
        if not self._how.overflow or self._how.casts or self._narrow.all():
            return self._how.overflow
        return vectors.place_like(self._narrow, vector) if self._narrow.any() else False

    @property
    def _does_overflow(self) -> bool:
        """Whether the common sum of squares is infinite beyond float32."""
        return self._how.overflow and (self._how.casts or self._norm_dtype is np.float32)

    def _sum_over(self, formula: Formula) -> object:
        """A sum over raw gradients, or over clipped elements where elements are clipped.

        Float64 of shape (n,): an array, or a tensor where measures stay on a device.
        """
        if formula not in self._sums:
            wanted = tuple(dict.fromkeys((*self._wanted, formula)))
            how, columns = self._how, self._columns
            columns = self._as_updates_see(columns)
            shared = {dtype: {**own, **how.shared(dtype)} for dtype, own in columns.shared.items()}
            separate = columns.separate
            if how.unscaling is not None:
                separate = {**separate, "unscaling": how.unscaling}
            # A device does not tell whether squares have left float64.
            further = FURTHER if self._may_leave else ()
            asked = how.first, Columns(shared, separate)
            found = (
                self._measures.sums_on_device((*wanted, *further), *asked) if self._stays else None
            )
            if found is None:
                here = {name: vectors.place_like(each, None) for name, each in separate.items()}
                found = self._measures.compute_sums(wanted, how.first, Columns(shared, here))
                further = ()
            self._sums |= zip((*wanted, *further), found, strict=True)
        return self._sums[formula]

    def _as_updates_see(self, columns: Columns) -> Columns:
        """Scalars rounded to the compute dtypes, which sums over float64 would not do."""
        shared = {dtype: vectors.rounded(own, dtype) for dtype, own in columns.shared.items()}
        separate = {name: self._rounded(each) for name, each in columns.separate.items()}
        return columns._replace(shared=shared, separate=separate)

    def _rounded(self, vector: Any) -> object:
        if isinstance(vector, Tensor):  # which alone the device knows
            return vector
        values: Array = vector
        with np.errstate(over="ignore"):
            return np.where(self._narrow, values.astype(np.float32), values)

    @property
    def _unscaling(self) -> Any:
        """What gradients are multiplied by first; on the host if measures are there."""
        values, measured = self._how.unscaling, self._sums.values()
        is_here = self._sums and not any(isinstance(each, Tensor) for each in measured)
        return vectors.place_like(values, None) if is_here else values

    @lazy
    def _root_norms(self) -> Any:
        """The norm of each gradient, unscaled, its elements clipped, as if none overflowed."""
        return self._roots_of(gradient_squares)

    def _roots_of(self, formula: Formula) -> object:
        how, squares = self._how, self._sum_over(formula)
        with np.errstate(all="ignore"):
            found = vectors.functions_of(squares).sqrt(squares)
            if how.unscaling is None or how.clipvalue is not None:
                return found
            return found * vectors.place_like(how.unscaling, found)

    def _squares_of(self, formula: Formula) -> object:
        """The squares of each gradient, unscaled, its elements clipped, added up."""
        if self._how.unscaling is None:
            return self._sum_over(formula)
        roots = self._root_norms if formula is gradient_squares else self._roots_of(formula)
        with np.errstate(all="ignore"):
            return vectors.functions_of(roots).square(roots)

    def _mark_overflows(self, roots: Any) -> object:
        """Norms, infinite where a sum of squares may not be as large as theirs."""
        overflow = self._overflow_mask(roots)
        if overflow is False:
            return roots
        of = vectors.functions_of(roots)
        with np.errstate(all="ignore"):
            return of.where(of.isinf(norms.norms_of(of.square(roots), overflow)), np.inf, roots)

    @lazy
    def gradient_norms(self) -> Any:
        """The norm of each gradient, unscaled, its elements clipped; float64 of shape (n,)."""
        return self._mark_overflows(self._root_norms)

    @lazy
    def variable_norms(self) -> Any:
        """The norm of each variable before the step; float64 of shape (n,)."""
        squares = self._sum_over(variable_squares)
        return norms.norms_of(squares, self._overflow_mask(squares))

    @lazy
    def global_norm(self) -> Any:
        """The common norm of the gradients, unscaled, their elements clipped, of shape ()."""
        if not self._how.overflow:
            return self._norm.value
        with np.errstate(all="ignore"):
            return norms.global_norm(self._squares_of(gradient_squares), self._does_overflow)

    @lazy
    def _norm(self) -> Norm:
        """The same where it has no ends."""
        return exact_norm(self._squares_of, not self._is_wide)

    @property
    def usual(self) -> Usual:
        """Where the common norm gives a factor by the plain formula."""
        how, dtype = self._how, self._norm_dtype
        if how.overflow or how.global_clipnorm is None:
            return Usual(dtype, 0.0, norms.HIGHEST if self._does_overflow else HIGHEST, np.inf)
        lowest = LOWEST if self._is_wide else 0.0
        return Usual(dtype, lowest, HIGHEST, furthest_of(how.global_clipnorm, dtype))

    @lazy
    def clip_factor(self) -> Factor:
        """What clipping by the common norm multiplies all gradients by; 1 without it."""
        how, dtype = self._how, self._norm_dtype
        limit = how.global_clipnorm
        if limit is None:
            return Factor(dtype(1))
        if how.clip_factor is not None:
            return how.clip_factor
        if not how.overflow:
            return factor_of(self._norm, limit, dtype, how.epsilon, how.whole_is_nan)
        with np.errstate(all="ignore"):
            there = vectors.place_of(self.global_norm)
            norm = vectors.round_to(self.global_norm, dtype, there)
            bound = vectors.number(dtype(limit), there)
        return Factor(norms.clip_factor(norm, bound, how.whole_is_nan))

    @property
    def clip_scale(self) -> Any:
        """The same in one number."""
        return self.clip_factor.value

    @lazy
    def clipped_norms(self) -> Any:
        """The norm of each gradient after clipping."""
        limit = self._how.clipnorm
        with np.errstate(all="ignore"):
            if limit is not None:
                roots = self._root_norms * limit / vectors.at_least(self.gradient_norms, limit)
            else:
                roots = self._root_norms * self.clip_scale
        return self._mark_overflows(roots)

    @property
    def clipped_global_norm(self) -> Any:
        """The common norm of the gradients after clipping, of shape ()."""
        with np.errstate(all="ignore"):
            squares = vectors.functions_of(self.clipped_norms).square(self.clipped_norms)
            return norms.global_norm(squares, self._does_overflow)

    @lazy
    def trust(self) -> Any:
        """What each gradient is multiplied by last, of shape (n,)."""
        if self._how.trust is None:
            return np.ones(len(self.clipped_norms), np.float32)
        return self._how.trust(self.variable_norms, self.clipped_norms)

    def shared(self, dtype: Dtype) -> dict[str, Any]:
        """The scalars of the stages that all variables share, of a compute dtype."""
        found = self._how.shared(dtype)
        if self._how.global_clipnorm is not None and self._has_one_factor:
            scale, unit = self.clip_parts
            found |= {"clip_scale": dtype(scale), "clip_unit": dtype(unit)}
        return found

    @lazy
    def _has_one_factor(self) -> bool:
        """Whether `clip_parts` are numbers of the host, the same ones for all variables."""
        scale, _ = self.clip_parts
        return not isinstance(scale, Tensor) and getattr(scale, "ndim", 0) == 0

    @lazy
    def clip_parts(self) -> tuple[Any, Any]:
        """Scale and unit of `clip_factor`, of shape () or for each variable."""
        return self.clip_factor if self._how.overflow else parts_of(self.clip_factor, self._narrow)

    @lazy
    def separate(self) -> dict[str, Any]:
        """The scalars of the stages that differ by variable."""
        how = self._how
        found: dict[str, Array] = {}
        if how.unscaling is not None:
            found["unscaling"] = self._unscaling
        if how.clipnorm is not None:
            # maximum() keeps NaN, as TensorFlow's does.
            found["clip_divisor"] = vectors.at_least(self.gradient_norms, how.clipnorm)
        if how.global_clipnorm is not None and not self._has_one_factor:
            for name, part in zip(("clip_scale", "clip_unit"), self.clip_parts, strict=True):
                found[name] = vectors.for_each(self._variables, part)
        if how.trust is not None:
            found["trust_factor"] = self.trust
        return found

    def measure(self, formula: Formula, columns: Columns) -> Any:
        """A rule's measure: of the processed gradients; float64 of shape (n,).

        That of a formula of the rule's own costs a sweep where gradients are processed.
        """
        if formula is variable_squares or not self._how.stages:
            return self._sum_over(formula)
        if formula is gradient_squares and not self._has_left:
            with np.errstate(all="ignore"):
                found = self.clipped_norms
                found = found if self._how.trust is None else found * self.trust
                return vectors.functions_of(found).square(found)
        asked = (formula,), self._how.stages, self._as_updates_see(columns)
        found = self._measures.sums_on_device(*asked) if self._stays else None
        return (self._measures.compute_sums(*asked) if found is None else found)[0]

    def want(self, formulas: Formulas, columns: Columns | None = None) -> None:
        """What else is to be measured from now on, in one sweep if that can be.

        Args:
            formulas: What is.
            columns: What they may ask for, if that is more than there was.
        """
        if columns is not None:
            self._columns = columns
            for each in set(formulas).difference(_STANDARD):  # of other scalars it is another sum
                self._sums.pop(each, None)
        own = [each for each in formulas if each in _STANDARD or not self._how.stages]
        self._wanted = tuple(each for each in own if each not in self._sums)

    def decision(self) -> Decision:
        """Whether the step is taken."""
        how = self._how
        if how.watch is not None:
            how.watch(self)
        decision = Decision(True, [])
        if how.decide is not None:
            decision = how.decide(*self._find_extremes(how.exact))
        return Decision(decision.taken, [*decision.calls, *how.calls])

    def _find_extremes(self, exact: bool) -> tuple[Any, Any]:
        """Whether a processed gradient holds a NaN, and the largest magnitude among them."""
        with np.errstate(all="ignore"):
            # No element is larger than the norm, after none of the multiplications.
            bounds = [self.gradient_norms, self.clipped_norms]
            if self._how.trust is not None:
                bounds.append(self.clipped_norms * self.trust)
            if isinstance(bounds[0], Tensor):
                unsafe = ~(torch.stack(bounds) < _SAFE).all()
                max_abs = self._measures.max_abs_on_device(
                    torch.ones_like(unsafe) if exact else unsafe
                )
                if max_abs is not None:
                    max_abs = self._process_peaks(max_abs)
                    return max_abs.isnan().any(), max_abs.amax()  # NaN wins
            if not exact and all((each < _SAFE).all() for each in bounds):
                return False, 0.0
            max_abs = self._process_peaks(self._measures.max_abs())
        return bool(np.isnan(max_abs).any()), float(np.max(max_abs, initial=0.0))

    def _process_peaks(self, max_abs: Any) -> Any:
        """The largest magnitude of each processed gradient, in the arithmetic of its update.

        Args:
            max_abs: That of each gradient as it came, float64 of shape (n,).
        """
        kinds = [compute_dtype(var.dtype) for var in self._variables]
        found: list[Any] = [None] * len(kinds)
        for dtype in dict.fromkeys(kinds):
            own = [index for index, kind in enumerate(kinds) if kind is dtype]
            for index, peak in zip(own, self._processed_in(dtype, max_abs, own), strict=True):
                found[index] = peak
        return vectors.join_numbers(found, vectors.place_of(max_abs))

    def _processed_in(self, dtype: Dtype, found: Any, own: Sequence[int]) -> Any:
        how, there = self._how, vectors.place_of(found)

        def each(vector: object) -> Any:
            return vectors.round_to(vectors.pick_members(vector, own), dtype, there)

        # Rounding keeps the order of numbers, so the largest one stays the largest.
        max_abs = each(found)
        if how.unscaling is not None:
            max_abs = max_abs * each(how.unscaling)
        if how.clipvalue is not None:
            max_abs = vectors.at_most(max_abs, dtype(how.clipvalue))
        if how.clipnorm is not None:
            limit = vectors.at_least(self.gradient_norms, how.clipnorm)
            max_abs = max_abs * dtype(how.clipnorm) / each(limit)
        if how.global_clipnorm is not None:
            for part in self.clip_parts:
                max_abs = max_abs * each(vectors.for_each(found, part))
        return max_abs if how.trust is None else max_abs * each(self.trust)


def known_of(
    how: GradientTransforms,
    measures: Measures,
    variables: Sequence[Tensor],
    columns: Columns | None = None,
    formulas: Formulas = (),
    numbers: bool = False,
) -> GradientStats:
    """What is measured of a step.

    Args:
        how: What happens to its gradients.
        measures: Answers questions about the step's tensors.
        variables: The variables, whose dtypes say what is computed in what.
        columns: The scalars of the rule, if there is one.
        formulas: What else is to be measured; in the same sweep, if that can be.
        numbers: Whether all is wanted as numbers of the host.
    """
    if columns is None:
        columns = Columns({compute_dtype(var.dtype): {} for var in variables}, {})
    return GradientStats(how, measures, variables, columns, formulas, numbers)


def materialised(
    pairs: Sequence[Pair], how: GradientTransforms, flush: bool
) -> tuple[list[Pair], Decision]:
    """The pairs with processed gradients, in memory of their own; sparse ones keep their indices.

    Gradients get the dtypes of their variables.

    Raises:
        LayoutError: A gradient or a variable has no memory that holds its elements.
    """
    if not how or not pairs:
        return list(pairs), Decision(True, [])
    variables: list[Tensor] = [var for _, var in pairs]
    check_readable([grad for grad, _ in pairs], titles_of(variables))
    check_memories(variables)
    if how.trust is not None:
        pairs = all_dense(pairs)
    values = [values_of(grad) for grad, _ in pairs]
    dtypes = dict.fromkeys(compute_dtype(var.dtype) for var in variables)
    known = known_of(how, _engines.Tensors(values, variables, flush), variables)
    shared: Mapping[Dtype, object] = {dtype: known.shared(dtype) for dtype in dtypes}
    columns = Columns(shared, known.separate)
    found: list[Pair] = []
    for index, (grad, var) in enumerate(pairs):
        own = columns.scalars_of(index, compute_dtype(var.dtype))
        changed = _engines.transform(how.stages, values[index], own, flush, var.dtype)
        found.append((with_values(grad, changed), var))
    return found, known.decision()
