"""What happens to gradients before the rule, as stages of the one pass: nothing, or clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from inspect import signature
from typing import Any, Protocol

import numpy as np

from thalweg.core.pairs import Pair
from thalweg.engines import Tensors, compute_dtype, transform
from thalweg.formula import Formula
from thalweg.indexed_slices import IndexedSlices
from thalweg.rules.clipping import clip_by_global_norm, clip_by_norm, clip_by_value, processed

_STAGES: dict[str, Formula] = {
    "clipvalue": clip_by_value,
    "clipnorm": clip_by_norm,
    "global_clipnorm": clip_by_global_norm,
}
# What stages are given beside the rule's scalars, which must have other names.
SCALARS = frozenset(
    name
    for stage in (*_STAGES.values(), processed)
    for name in list(signature(stage).parameters)[1:]
)

Dtype = type[np.floating[Any]]
Separate = dict[str, np.ndarray]  # scalars that differ by variable, over a step's variables


class Measure(Protocol):
    """What can be known of a step's tensors before it; each question is a sweep over memory."""

    def squares(self, bound: float = np.inf) -> np.ndarray:
        """Sum of squares of each gradient, in float64, its elements clipped to [-bound, bound]."""
        ...

    def peaks(self) -> np.ndarray:
        """Largest magnitude of each gradient, in float64; NaN if it holds a NaN."""
        ...

    def variable_squares(self) -> np.ndarray:
        """Sum of squares of each variable, in float64."""
        ...


class Pipeline:
    """What happens between a step's gradients and its rule. This one does nothing."""

    def __bool__(self) -> bool:
        """Whether anything happens."""
        return False

    @cached_property
    def stages(self) -> tuple[Formula, ...]:
        """The formulas that the update applies to each gradient first."""
        return ()

    def scalars(self, dtype: Dtype) -> dict[str, Any]:
        """The scalars that all variables share, of a compute dtype."""
        return {}

    def separate(self, measure: Measure, dtype: Dtype) -> Separate:
        """The scalars that differ by variable.

        Args:
            measure: Answers questions about the step's tensors.
            dtype: The type in which the first variable is computed.
        """
        return {}


NOTHING = Pipeline()


@dataclass(frozen=True)
class PerVariable(Pipeline):
    """Scalars of a rule that differ from variable to variable.

    Attributes:
        of: Called once a step. Returns float64 arrays over the step's variables.
    """

    of: Callable[[Measure], Separate]

    def __bool__(self) -> bool:
        return True

    def separate(self, measure: Measure, dtype: Dtype) -> Separate:
        """The scalars."""
        return self.of(measure)


@dataclass(frozen=True)
class Clipping(Pipeline):
    """Keras' three ways of clipping; value comes first, then one of the norms.

    Attributes:
        clipvalue: Elements are clipped to [-clipvalue, clipvalue].
        clipnorm: Each gradient is scaled so that its norm is no higher.
        global_clipnorm: All gradients are scaled so that their common norm is no higher.
    """

    clipvalue: float | None = None
    clipnorm: float | None = None
    global_clipnorm: float | None = None

    def options(self) -> dict[str, float | None]:
        """The options by name."""
        return asdict(self)

    def __bool__(self) -> bool:
        return bool(self.stages)

    @cached_property
    def stages(self) -> tuple[Formula, ...]:
        """The formulas that the update applies to each gradient."""
        options = self.options()
        return tuple(stage for key, stage in _STAGES.items() if options[key] is not None)

    def scalars(self, dtype: Dtype) -> dict[str, Any]:
        """The scalars that all variables share."""
        found: dict[str, Any] = {}
        if self.clipvalue is not None:
            found["clipvalue"] = dtype(self.clipvalue)
        if self.clipnorm is not None:
            found["clipnorm"] = dtype(self.clipnorm)
        return found

    def separate(self, measure: Measure, dtype: Dtype) -> Separate:
        """The scalars that depend on the gradients."""
        if self.clipnorm is None and self.global_clipnorm is None:
            return {}
        squares = measure.squares(np.inf if self.clipvalue is None else float(self.clipvalue))
        if self.clipnorm is not None:
            # maximum() keeps NaN, as TensorFlow's does.
            return {"clip_divisor": np.maximum(np.sqrt(squares), self.clipnorm)}
        limit, norm, one = dtype(self.global_clipnorm), dtype(np.sqrt(squares.sum())), dtype(1)
        with np.errstate(all="ignore"):
            scale = limit * min(one / norm, one / limit) if np.isfinite(norm) else np.nan
        return {"clip_scale": np.full(len(squares), scale)}


def clipped(pairs: Sequence[Pair], clipping: Clipping, flush: bool) -> list[Pair]:
    """The pairs with clipped gradients, in memory of their own; sparse ones keep their indices."""
    if not clipping or not pairs:
        return list(pairs)
    values = [grad.values if isinstance(grad, IndexedSlices) else grad for grad, _ in pairs]
    measure = Tensors(values, [var for _, var in pairs])
    separate = clipping.separate(measure, compute_dtype(pairs[0][1].dtype))
    found: list[Pair] = []
    for index, (grad, var) in enumerate(pairs):
        dtype = compute_dtype(var.dtype)
        own = clipping.scalars(dtype)
        own |= {key: dtype(array[index]) for key, array in separate.items()}
        changed = transform(clipping.stages, values[index], own, flush)
        if isinstance(grad, IndexedSlices):
            found.append((IndexedSlices(changed, grad.indices, grad.dense_shape), var))
        else:
            found.append((changed, var))
    return found
