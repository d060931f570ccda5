"""Statistics of a step's gradients, computed at first use."""

# Formulas of rules are plain arithmetic without types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg import _engines
from thalweg._base.lazy import lazy
from thalweg._core import norms, vectors
from thalweg._core.clip_factor import (
    HIGHEST,
    LOWEST,
    SCALED_SQUARES,
    Factor,
    Norm,
    exact_norm,
    factor_of,
    largest_plain_norm,
    parts_of,
)
from thalweg._core.gradient_transforms import Decision, GradientTransforms, all_dense
from thalweg._core.grads_and_vars import Pair
from thalweg._core.validation import check_memories, check_readable
from thalweg._engines import compute_dtype
from thalweg._engines.array_types import Array
from thalweg._engines.protocol import (
    NO_COLUMNS,
    PEAKS,
    Columns,
    Dtype,
    Formulas,
    Reduction,
    Reductions,
    as_array,
)
from thalweg.formula import Formula, gradient_squares, variable_squares
from thalweg.indexed_slices import values_of, with_values
from thalweg.variable import titles_of

_STANDARD = (gradient_squares, variable_squares)
# Below this norm all elements are finite in float32, even after rounding.
_SAFE = 1e38


class PlainRange(NamedTuple):
    """Range of sums of squares and of norms in which the clip factor's formula needs no scaling."""

    dtype: Dtype
    lowest: float
    highest: float
    largest_norm: float


class GradientStats:
    """Statistics of a step's gradients, before and after their transforms.

    A statistic is computed at first use. Sums that are requested together need one pass over
    memory.

    Args:
        reductions: Computes reductions over the tensors of the step.
        variables: The variables, whose dtypes determine the compute dtypes.
        columns: The scalars of the rule, if there is one.
        formulas: Further sums, computed in the same pass if possible.
        on_host: True if all statistics must be on the host.
    """

    def __init__(
        self,
        transforms: GradientTransforms,
        reductions: Reductions,
        variables: Sequence[Tensor],
        columns: Columns | None = None,
        formulas: Formulas = (),
        on_host: bool = False,
    ) -> None:
        self._transforms = transforms
        self._reductions = reductions
        self._variables = variables
        if columns is None:
            columns = Columns({compute_dtype(var.dtype): {} for var in variables}, {})
        self._columns = columns
        # Sums stay on a device if no decision of the host depends on them.
        on_host = on_host or transforms.judge is not None
        self._on_host = on_host or bool(transforms.decide and not transforms.decides_there)
        self._sums: dict[Formula, Any] = {}
        self.request_sums((*transforms.measured, *formulas))

    @lazy
    def _narrow(self) -> Array:
        """Variables whose gradients are computed in float32, as a bool array of shape (n,)."""
        dtypes = [var.dtype for var in self._variables]
        if len({*dtypes}) == 1:
            return np.full(len(dtypes), compute_dtype(dtypes[0]) is np.float32)
        return np.array([compute_dtype(dtype) is np.float32 for dtype in dtypes], bool)

    @lazy
    def _norm_dtype(self) -> Dtype:
        """Dtype in which the global norm is computed."""
        return np.float32 if self._narrow.all() else np.float64

    @property
    def _is_float64(self) -> bool:
        """True if squares may overflow float64."""
        return self._norm_dtype is np.float64

    @property
    def _needs_extra_sums(self) -> bool:
        """True if the global norm must be exact although squares may overflow float64."""
        transforms = self._transforms
        is_open = transforms.global_clipnorm is not None and transforms.clip_factor is None
        return is_open and not transforms.overflow and self._is_float64

    @property
    def _roots_overflow(self) -> bool:
        """True if `_root_norms` may overflow float64 while clipped gradients do not."""
        transforms = self._transforms
        if transforms.overflow or transforms.global_clipnorm is None or not self._is_float64:
            return False
        return isinstance(self._root_norms, Tensor) or not np.isfinite(self._root_norms).all()

    def _overflow_mask(self, vector: object) -> object:
        """Return a bool mask of shape (n,) of sums that overflow beyond float32; a bool for all."""
        if not self._transforms.overflow or self._transforms.casts or self._narrow.all():
            return self._transforms.overflow
        return vectors.place_like(self._narrow, vector) if self._narrow.any() else False

    @property
    def _does_overflow(self) -> bool:
        """True if the global sum of squares overflows like float32."""
        transforms = self._transforms
        return transforms.overflow and (transforms.casts or self._norm_dtype is np.float32)

    def _reduce(self, reduction: Reduction, columns: Columns) -> Any:
        """Return the results of a reduction, on the host if all statistics must be there."""
        results = self._reductions.reduce(reduction, columns)
        return as_array(results) if self._on_host else results

    def _sum_over(self, formula: Formula) -> Any:
        """Return the sum of `formula` over each raw gradient; float64 of shape (n,).

        With `clipvalue`, the elements are unscaled and clipped first. The first call also computes
        all sums requested by `__init__` or `request_sums`, in one pass over memory. The result is
        an array, or a tensor if sums stay on a device.
        """
        if formula not in self._sums:
            formulas = tuple(dict.fromkeys((*self._pending, formula)))
            transforms, columns = self._transforms, self._round_columns(self._columns)
            rows = columns.shared.items()
            shared = {dtype: {**row, **transforms.shared(dtype)} for dtype, row in rows}
            by_variable = columns.by_variable
            if transforms.unscaling is not None:
                by_variable = {**by_variable, "unscaling": transforms.unscaling}
            if self._on_host or self._reductions.device is None:
                rows = by_variable.items()
                by_variable = {name: vectors.place_like(row, None) for name, row in rows}
            # Reading whether squares overflow float64 would synchronize with the device.
            # So these sums join the pass, and the device selects one of them.
            elif self._needs_extra_sums:
                formulas += SCALED_SQUARES
            reduction = Reduction("sums", formulas, transforms.first)
            sums = self._reduce(reduction, Columns(shared, by_variable))
            self._sums |= zip(formulas, sums.T, strict=True)
        return self._sums[formula]

    def _round_columns(self, columns: Columns) -> Columns:
        """Return scalars rounded to the compute dtypes, as in updates."""
        shared = {dtype: vectors.rounded(row, dtype) for dtype, row in columns.shared.items()}
        by_variable = {
            name: self._round_vector(vector) for name, vector in columns.by_variable.items()
        }
        return columns._replace(shared=shared, by_variable=by_variable)

    def _round_vector(self, vector: Any) -> object:
        if isinstance(vector, Tensor):
            return vector
        values: Array = vector
        with np.errstate(over="ignore"):
            return np.where(self._narrow, values.astype(np.float32), values)

    @lazy
    def _root_norms(self) -> Any:
        """Norm of each unscaled gradient with clipped elements, without emulated overflow."""
        return self._compute_roots(gradient_squares)

    def _compute_roots(self, formula: Formula) -> object:
        """Return the roots of sums of squares, unscaled unless the sums are of clipped elements."""
        transforms, squares = self._transforms, self._sum_over(formula)
        with np.errstate(all="ignore"):
            roots = vectors.functions_of(squares).sqrt(squares)
            if transforms.unscaling is None or transforms.clipvalue is not None:
                return roots
            return roots * vectors.place_like(transforms.unscaling, roots)

    def _compute_squares(self, formula: Formula) -> object:
        """Return the sum of squares of each unscaled gradient with clipped elements."""
        if self._transforms.unscaling is None:
            return self._sum_over(formula)
        roots = self._root_norms if formula is gradient_squares else self._compute_roots(formula)
        with np.errstate(all="ignore"):
            return vectors.functions_of(roots).square(roots)

    def _mark_overflows(self, roots: Any) -> object:
        """Return norms, with infinity if TensorFlow's float32 sum of squares would overflow.

        Norms are unchanged for variables without emulation of TensorFlow's overflow.
        """
        overflow = self._overflow_mask(roots)
        if overflow is False:
            return roots
        ops = vectors.functions_of(roots)
        with np.errstate(all="ignore"):
            return ops.where(ops.isinf(norms.norms_of(ops.square(roots), overflow)), np.inf, roots)

    @lazy
    def gradient_norms(self) -> Any:
        """Norm of each unscaled gradient with clipped elements; float64 of shape (n,)."""
        return self._mark_overflows(self._root_norms)

    @lazy
    def variable_norms(self) -> Any:
        """Norm of each variable before the step; float64 of shape (n,)."""
        squares = self._sum_over(variable_squares)
        return norms.norms_of(squares, self._overflow_mask(squares))

    @lazy
    def global_norm(self) -> Any:
        """Global norm of the unscaled gradients with clipped elements, of shape ()."""
        if not self._transforms.overflow:
            return self._norm.value
        with np.errstate(all="ignore"):
            return norms.global_norm(self._compute_squares(gradient_squares), self._does_overflow)

    @lazy
    def _norm(self) -> Norm:
        """Global norm that does not overflow."""
        return exact_norm(self._compute_squares, not self._is_float64)

    @property
    def plain_range(self) -> PlainRange:
        """Range of sums of squares and of norms in which the clip factor's plain formula is exact.

        Outside of this range, the factor needs sums of scaled squares, which do not overflow.
        """
        transforms, dtype = self._transforms, self._norm_dtype
        if transforms.overflow:
            highest = norms.HIGHEST if self._does_overflow else HIGHEST
            return PlainRange(dtype, 0.0, highest, np.inf)
        limit, lowest = transforms.global_clipnorm, LOWEST if self._is_float64 else 0.0
        largest = np.inf if limit is None else largest_plain_norm(limit, dtype)
        return PlainRange(dtype, lowest, HIGHEST, largest)

    @lazy
    def clip_factor(self) -> Factor:
        """Factor by which clipping by the global norm scales all gradients; 1 without clipping."""
        transforms, dtype = self._transforms, self._norm_dtype
        limit = transforms.global_clipnorm
        if limit is None:
            return Factor(dtype(1))
        if transforms.clip_factor is not None:
            return transforms.clip_factor
        if not transforms.overflow:
            return factor_of(
                self._norm, limit, dtype, transforms.epsilon, transforms.nan_if_not_finite
            )
        with np.errstate(all="ignore"):
            device = vectors.place_of(self.global_norm)
            norm = vectors.round_to(self.global_norm, dtype, device)
            bound = vectors.number(dtype(limit), device)
        return Factor(norms.clip_factor(norm, bound, transforms.nan_if_not_finite))

    @property
    def clip_scale(self) -> Any:
        """Clip factor as one number."""
        return self.clip_factor.value

    @lazy
    def clipped_norms(self) -> Any:
        """Norm of each gradient after clipping."""
        limit = self._transforms.clipnorm
        with np.errstate(all="ignore"):
            if limit is not None:
                roots = self._root_norms * limit / vectors.at_least(self.gradient_norms, limit)
            else:
                roots = self._root_norms * self.clip_scale
        return self._mark_overflows(roots)

    @property
    def clipped_global_norm(self) -> Any:
        """Global norm of the gradients after clipping, of shape ()."""
        with np.errstate(all="ignore"):
            squares = vectors.functions_of(self.clipped_norms).square(self.clipped_norms)
            return norms.global_norm(squares, self._does_overflow)

    @lazy
    def trust_ratios(self) -> Any:
        """Trust ratio of each gradient, of shape (n,)."""
        if self._transforms.trust is None:
            return np.ones(len(self.clipped_norms), np.float32)
        return self._transforms.trust(self.variable_norms, self.clipped_norms)

    def shared(self, dtype: Dtype) -> dict[str, Any]:
        """Return {name: scalar} of the transforms' scalars that are equal for all variables.

        Args:
            dtype: The compute dtype of the scalars.
        """
        scalars = self._transforms.shared(dtype)
        if self._transforms.global_clipnorm is not None and self._has_one_factor:
            scale, unit = self.clip_parts
            scalars |= {"clip_scale": dtype(scale), "clip_unit": dtype(unit)}
        return scalars

    @lazy
    def _has_one_factor(self) -> bool:
        """True if `clip_parts` are host numbers, equal for all variables."""
        scale, _ = self.clip_parts
        return not isinstance(scale, Tensor) and getattr(scale, "ndim", 0) == 0

    @lazy
    def clip_parts(self) -> tuple[Any, Any]:
        """Scale and unit of `clip_factor`, of shape () or for each variable."""
        factor = self.clip_factor
        return factor if self._transforms.overflow else parts_of(factor, self._narrow)

    @lazy
    def variable_scalars(self) -> dict[str, Any]:
        """{name: vector of shape (n,)} of the transforms' scalars that differ between variables."""
        transforms = self._transforms
        scalars: dict[str, Array] = {}
        if transforms.unscaling is not None:
            sums, factors = self._sums.values(), transforms.unscaling
            is_on_host = sums and not any(isinstance(sum_, Tensor) for sum_ in sums)
            scalars["unscaling"] = vectors.place_like(factors, None) if is_on_host else factors
        if transforms.clipnorm is not None:
            # maximum() keeps NaN, as TensorFlow's does.
            scalars["clip_divisor"] = vectors.at_least(self.gradient_norms, transforms.clipnorm)
        if transforms.global_clipnorm is not None and not self._has_one_factor:
            for name, component in zip(("clip_scale", "clip_unit"), self.clip_parts, strict=True):
                scalars[name] = vectors.for_each(self._variables, component)
        if transforms.trust is not None:
            scalars["trust_factor"] = self.trust_ratios
        return scalars

    def measure(self, formula: Formula, columns: Columns) -> Any:
        """Return the sums of a rule's formula over transformed gradients; float64 of shape (n,).

        Squares of gradients are computed from their norms. Most other formulas take a pass over
        memory.
        """
        if formula is variable_squares or not self._transforms.stages:
            return self._sum_over(formula)
        if formula is gradient_squares and not self._roots_overflow:
            with np.errstate(all="ignore"):
                roots = self.clipped_norms
                roots = roots if self._transforms.trust is None else roots * self.trust_ratios
                return vectors.functions_of(roots).square(roots)
        reduction = Reduction("sums", (formula,), self._transforms.stages)
        return self._reduce(reduction, self._round_columns(columns)).T[0]

    def request_sums(self, formulas: Formulas, columns: Columns | None = None) -> None:
        """Set the sums that the next pass over memory computes, but do not start a pass.

        Formulas over transformed gradients are ignored: only `measure` can compute them.

        Args:
            columns: Optional. New scalars. Cached sums of `formulas` are dropped if they may depend
                on scalars. None keeps the present scalars and sums.
        """
        if columns is not None:
            self._columns = columns
            # A sum under the old scalars would be wrong. The standard squares read no scalars.
            for formula in set(formulas).difference(_STANDARD):
                self._sums.pop(formula, None)
        has_stages = bool(self._transforms.stages)
        direct = [formula for formula in formulas if formula in _STANDARD or not has_stages]
        self._pending = tuple(formula for formula in direct if formula not in self._sums)

    def decision(self) -> Decision:
        """Decide whether to apply the step. The `Decision` includes calls that write new state.

        `transforms.watch(self)` is called first. Then the loss scaler `transforms.decide` may skip
        the step because of an overflow. If not, `transforms.judge` may skip the step because of an
        unusual norm. Without a loss scaler and a judge, the step is applied.
        """
        transforms = self._transforms
        if transforms.watch is not None:
            transforms.watch(self)
        decision = Decision(True, [])
        if transforms.decide is not None:
            decision = transforms.decide(*self._find_extremes(transforms.exact))
        # With a judge, statistics are on the host, so `apply_flag` is a bool here.
        if transforms.judge is not None and decision.apply_flag:
            verdict = transforms.judge.decide(self)
            decision = Decision(verdict.apply_flag, [*decision.calls, *verdict.calls])
        elif transforms.judge is not None:
            decision = Decision(False, [*decision.calls, *transforms.judge.skip_calls()])
        return Decision(decision.apply_flag, [*decision.calls, *transforms.calls])

    def _find_extremes(self, exact: bool) -> tuple[Any, Any]:
        """Return (True if a transformed gradient contains NaN, largest magnitude of all elements).

        Without `exact`, return (False, 0.0) without a pass over memory if all norms are below 1e38.
        Both results are tensors if the norms are on a device.
        """
        with np.errstate(all="ignore"):
            # No element is larger than the norm, after none of the multiplications.
            bounds = [self.gradient_norms, self.clipped_norms]
            if self._transforms.trust is not None:
                bounds.append(self.clipped_norms * self.trust_ratios)
            if isinstance(bounds[0], Tensor):
                # The device reads `is_checked`, so the host need not wait for the norms.
                unsafe = ~(torch.stack(bounds) < _SAFE).all()
                is_checked = torch.ones_like(unsafe) if exact else unsafe
                peaks = self._process_peaks(
                    self._reduce(replace(PEAKS, is_checked=is_checked), NO_COLUMNS)
                )
                return peaks.isnan().any(), peaks.amax()
            if not exact and all((bound < _SAFE).all() for bound in bounds):
                return False, 0.0
            peaks = self._process_peaks(self._reduce(PEAKS, NO_COLUMNS))
        return bool(np.isnan(peaks).any()), float(np.max(peaks, initial=0.0))

    def _process_peaks(self, max_abs: Any) -> Any:
        """Return the largest magnitude of each transformed gradient, rounded as in the update.

        Args:
            max_abs: The largest magnitude of each raw gradient, float64 of shape (n,).
        """
        dtypes = [compute_dtype(var.dtype) for var in self._variables]
        peaks: list[Any] = [None] * len(dtypes)
        for dtype in dict.fromkeys(dtypes):
            members = [index for index, var_dtype in enumerate(dtypes) if var_dtype is dtype]
            dtype_peaks = self._process_in(dtype, max_abs, members)
            for index, peak in zip(members, dtype_peaks, strict=True):
                peaks[index] = peak
        return vectors.join_numbers(peaks, vectors.place_of(max_abs))

    def _process_in(self, dtype: Dtype, raw_peaks: Any, members: Sequence[int]) -> Any:
        """Return the largest magnitudes of the transformed gradients of `members`, as a vector.

        Args:
            dtype: The compute dtype of these variables; each operation is rounded to it.
            raw_peaks: The largest magnitude of each raw gradient, for all variables.
            members: The indices of the variables, in the order of the result.
        """
        transforms, device = self._transforms, vectors.place_of(raw_peaks)

        def rounded(vector: object) -> Any:
            return vectors.round_to(vectors.pick_members(vector, members), dtype, device)

        # Rounding keeps the order of numbers, so the largest one stays the largest.
        max_abs = rounded(raw_peaks)
        if transforms.unscaling is not None:
            max_abs = max_abs * rounded(transforms.unscaling)
        if transforms.clipvalue is not None:
            max_abs = vectors.at_most(max_abs, dtype(transforms.clipvalue))
        if transforms.clipnorm is not None:
            limit = vectors.at_least(self.gradient_norms, transforms.clipnorm)
            max_abs = max_abs * dtype(transforms.clipnorm) / rounded(limit)
        if transforms.global_clipnorm is not None:
            for component in self.clip_parts:
                max_abs = max_abs * rounded(vectors.for_each(raw_peaks, component))
        return max_abs if transforms.trust is None else max_abs * rounded(self.trust_ratios)


def transform_gradients(
    pairs: Sequence[Pair], transforms: GradientTransforms, flush: bool
) -> tuple[list[Pair], Decision]:
    """Return (pairs with transformed copies of the gradients, the step's decision).

    Gradients get their variables' dtypes. With `flush`, denormals are treated as 0. The decision's
    calls include `transforms.calls`.

    Raises:
        LayoutError: A gradient or a variable has no memory that holds its elements.
    """
    if not transforms or not pairs:
        return list(pairs), Decision(True, [])
    variables: list[Tensor] = [var for _, var in pairs]
    check_readable([grad for grad, _ in pairs], titles_of(variables))
    check_memories(variables)
    if transforms.trust is not None:
        pairs = all_dense(pairs)
    values = [values_of(grad) for grad, _ in pairs]
    dtypes = dict.fromkeys(compute_dtype(var.dtype) for var in variables)
    stats = GradientStats(transforms, _engines.Tensors(values, variables, flush), variables)
    shared: Mapping[Dtype, object] = {dtype: stats.shared(dtype) for dtype in dtypes}
    columns = Columns(shared, stats.variable_scalars)
    processed_pairs: list[Pair] = []
    for index, (grad, var) in enumerate(pairs):
        scalars = columns.scalars_of(index, compute_dtype(var.dtype))
        processed_grad = _engines.transform(
            transforms.stages, values[index], scalars, flush, var.dtype
        )
        processed_pairs.append((with_values(grad, processed_grad), var))
    return processed_pairs, stats.decision()
