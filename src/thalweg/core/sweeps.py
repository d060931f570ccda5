"""Gradients unscaled, clipped by their global norm and scaled per variable, inside the update.

What this needs to know comes from one sweep over the gradients, and over the variables where their
norms are asked for; the update is the second sweep, and no gradient is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from thalweg.core.pipeline import NOTHING, Dtype, Measure, Pipeline, Separate
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Formula
from thalweg.rules.clipping import processed

_SAFE = 1e38  # norms below it leave every element finite in float32, rounding included


class SkippedStep(Exception):
    """The step is not to be taken; nothing has changed."""


@dataclass
class Measured:
    """What is known of a step's gradients when they are processed.

    Attributes:
        measure: Of the gradients as they came, and of the variables.
        unscaling: What each gradient is multiplied by first, float32 numbers of shape (n,).
        trust: What each is multiplied by last, of shape (n,).
        clip_scale: What all are multiplied by in between.
    """

    measure: Measure
    unscaling: np.ndarray
    trust: np.ndarray
    clip_scale: np.float32

    @cached_property
    def gradient_norms(self) -> np.ndarray:
        """The norm of each unscaled gradient, before clipping; float64 of shape (n,)."""
        with np.errstate(all="ignore"):
            return np.sqrt(self.measure.squares()) * self.unscaling

    @property
    def clipped_norms(self) -> np.ndarray:
        """The norm of each unscaled gradient after clipping."""
        with np.errstate(all="ignore"):
            return self.gradient_norms * self.clip_scale

    @cached_property
    def variable_norms(self) -> np.ndarray:
        """The norm of each variable before the step; float64 of shape (n,)."""
        return np.sqrt(self.measure.variable_squares())

    @property
    def global_norm(self) -> float:
        """The common norm of the unscaled gradients, before clipping."""
        return _together(self.gradient_norms)

    @property
    def clipped_global_norm(self) -> float:
        """The common norm of the unscaled gradients after clipping."""
        return _together(self.clipped_norms)

    def extremes(self, exact: bool) -> tuple[bool, float]:
        """Whether a processed gradient holds a NaN, and the largest magnitude among them.

        Args:
            exact: Whether a finite magnitude matters; it is 0 otherwise, where that saves a sweep.
        """
        with np.errstate(all="ignore"):
            # No element is larger than the norm, after none of the three multiplications.
            norms = self.gradient_norms, self.clipped_norms, self.clipped_norms * self.trust
            if not exact and all((each < _SAFE).all() for each in norms):
                return False, 0.0
        peaks = self.peaks()
        return bool(np.isnan(peaks).any()), float(np.max(peaks, initial=0.0))

    # As a rule's own pipeline sees it, the gradients are the processed ones.

    def squares(self, bound: float = np.inf) -> np.ndarray:
        """Sum of squares of each processed gradient."""
        if bound != np.inf:
            raise InvalidArgumentError("Clipping by value does not go together with a sweep.")
        with np.errstate(all="ignore"):
            return np.square(self.clipped_norms * self.trust)

    def peaks(self) -> np.ndarray:
        """Largest magnitude of each processed gradient, in the float32 of the update."""
        # Rounding keeps the order of numbers, so the largest one stays the largest.
        with np.errstate(all="ignore"):
            largest = self.measure.peaks().astype(np.float32)
            return largest * self.unscaling * self.clip_scale * self.trust

    def variable_squares(self) -> np.ndarray:
        """Sum of squares of each variable."""
        return np.square(self.variable_norms)


def _together(norms: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.square(norms).sum()))


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep(Pipeline):
    """OpenSeq2Seq's way from raw gradients to the rule, for variables computed in float32.

    Attributes:
        unscaling: What each gradient is multiplied by first, float32 of shape (n,).
        clip: Gives the common factor for a global norm, as float32; None clips nothing.
        trust: Gives the factors of norms of variables and of clipped gradients, float64 arrays of
            shape (n,), as float32; None scales nothing.
        decide: Given whether there is a NaN and the largest magnitude: whether the step is
            skipped. It is asked once, last, and may remember the answer. None skips nothing.
        exact: Whether `decide` looks at a finite magnitude.
        watch: Is shown what is known, after clipping and scaling and before `decide`.
        inner: What the rule's own optimizer does to gradients, after all this.
    """

    unscaling: np.ndarray
    clip: Callable[[float], np.float32] | None = None
    trust: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    decide: Callable[[bool, float], bool] | None = None
    exact: bool = False
    watch: Callable[[Measured], None] | None = None
    inner: Pipeline = NOTHING

    def __bool__(self) -> bool:
        return True

    @cached_property
    def stages(self) -> tuple[Formula, ...]:
        """The formulas."""
        return (processed, *self.inner.stages)

    def scalars(self, dtype: Dtype) -> dict[str, Any]:
        """Those of the rule's own optimizer."""
        return self.inner.scalars(dtype)

    def separate(self, measure: Measure, dtype: Dtype) -> Separate:
        """The factors of each gradient.

        Raises:
            SkippedStep: `decide` says so.
        """
        known = Measured(measure, self.unscaling, np.ones_like(self.unscaling), np.float32(1))
        if self.clip is not None:
            known.clip_scale = self.clip(known.global_norm)
        if self.trust is not None:
            known.trust = self.trust(known.variable_norms, known.clipped_norms)
        if self.watch is not None:
            self.watch(known)
        if self.decide is not None and self.decide(*known.extremes(self.exact)):
            raise SkippedStep
        return {
            "unscaling": known.unscaling,
            "clip_scale": np.full_like(known.unscaling, known.clip_scale),
            "trust_factor": known.trust,
            **self.inner.separate(known, dtype),
        }
