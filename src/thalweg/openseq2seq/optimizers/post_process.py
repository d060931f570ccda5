"""Processing of complete gradients: clipping, LARC, and their summaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.execution_context import is_deferred
from thalweg._base.showing import show_value
from thalweg._core.gradient_stats import GradientStats
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.grads_and_vars import Pair
from thalweg._core.hyperparameters import check_size, is_number
from thalweg._core.options.larc import Larc
from thalweg._core.vectors import for_each, number, place_of
from thalweg._engines import Tensors
from thalweg.errors import InvalidTypeError, OptionError
from thalweg.indexed_slices import IndexedSlices, values_of
from thalweg.openseq2seq.optimizers.clipping import check_limit, refuse_scalars
from thalweg.openseq2seq.optimizers.gradients import (
    Gradient,
    check_given,
    concretes,
    map_pairs,
    refuse_none,
    transform_present,
)
from thalweg.openseq2seq.optimizers.name_tables import OF_GRADIENTS, checked_summaries
from thalweg.openseq2seq.optimizers.summaries import (
    Journal,
    check_writer,
    collect_summaries,
    tags_of,
)
from thalweg.openseq2seq.params import check_params


def larc_of(larc_params: Mapping[str, Any]) -> Larc:
    """Return the `Larc` of a config's parameters.

    Raises:
        ValueError: A parameter is missing, unknown or of another type, or the mode is unknown.
    """
    check_params(
        larc_params,
        {"larc_eta": float},
        {"larc_mode": ["clip", "scale"], "min_update": float, "epsilon": float},
    )
    return Larc(
        larc_params["larc_eta"],
        larc_params.get("larc_mode", "clip") == "clip",
        larc_params.get("min_update", 1e-7),
        larc_params.get("epsilon", 1e-7),
    )


class PostProcessing(NamedTuple):
    """Settings of the processing of gradients.

    Attributes:
        clip_gradients: The maximum global norm, or None.
        larc: The settings of LARC, or None.
        summaries: The names of the summaries to make.
        as_shipped: True to reproduce defects of OpenSeq2Seq.
    """

    clip_gradients: Any = None
    larc: Larc | None = None
    summaries: tuple[str, ...] = ()
    as_shipped: bool = False

    @classmethod
    def of(
        cls,
        summaries: Sequence[str] | None,
        clip_gradients: object,
        larc_params: Mapping[str, object] | None,
        as_shipped: bool = False,
    ) -> PostProcessing:
        """Return the settings from the arguments of `optimize_loss`.

        Raises:
            ValueError: A summary has an unknown name, or a parameter of LARC is wrong. Without
                `as_shipped`, also if `clip_gradients` is below 0 or NaN.
            AttributeError: Both clipping and LARC are enabled.
            TypeError: `clip_gradients` is not a number.
        """
        summary_names = checked_summaries(summaries)
        if clip_gradients is not None and larc_params is not None:
            raise OptionError(
                "LARC and gradient norm clipping should not be used together: give clip_gradients"
                " or larc_params."
            )
        if not (clip_gradients is None or is_number(clip_gradients)):
            raise InvalidTypeError(
                f"clip_gradients must be a number, not {show_value(clip_gradients)}."
            )
        check = check_size if as_shipped else check_limit
        check("clip_gradients", clip_gradients)
        larc = None if larc_params is None else larc_of(larc_params)
        return cls(clip_gradients, larc, summary_names, as_shipped)

    def check(self, pairs: Sequence[tuple[object, object]]) -> None:
        """Raise for (gradient, variable) pairs with gradients that cannot be processed.

        Raises:
            InvalidArgumentError: A gradient is None although clipping, LARC or the summary of the
                global norm is enabled. With clipping and `as_shipped`, a variable has shape ().
        """
        reasons = {
            "the summary global_gradient_norm": "global_gradient_norm" in self.summaries,
            "clip_gradients": self.clip_gradients is not None,
            "larc_params": self.larc is not None,
        }
        needing = [name for name, is_enabled in reasons.items() if is_enabled]
        if needing:
            refuse_none(pairs, f"{' and '.join(needing)} would need its norm")
        if self.as_shipped and self.clip_gradients is not None:
            refuse_scalars(var for _, var in pairs)

    def process(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        rate: object,
        journal: Journal | None,
    ) -> list[Gradient]:
        """Return gradients clipped or scaled by LARC; write summaries into `journal`, if any."""
        pairs = [(g, var) for g, var in zip(gradients, variables, strict=True) if g is not None]
        return transform_present(
            gradients, variables, self.gradient_transforms(pairs, rate, journal)
        )[0]

    def gradient_transforms(
        self, pairs: Sequence[Pair], rate: object, journal: Journal | None, **others: Any
    ) -> GradientTransforms:
        """Return the transforms of gradients for the core step.

        Args:
            pairs: (gradient, target) pairs; gradients are not changed.
            rate: The learning rate of the step, a number or tensor of shape ().
            journal: Receives the summaries of the step; None omits summaries.
            **others: Further fields of the `GradientTransforms`.
        """
        clip, unscaling = self.clip_gradients, others.get("unscaling")
        return GradientTransforms(
            global_clipnorm=None if clip is None else float(clip),
            overflow=self.as_shipped,
            casts=True,
            nan_if_not_finite=False,
            trust=None
            if self.larc is None
            else partial(self._find_factors, self.larc, pairs, rate),
            watch=None
            if journal is None
            else partial(self._record_summaries, journal, pairs, rate, unscaling),
            narrow=True,
            **others,
        )

    def _find_factors(
        self, larc: Larc, pairs: Sequence[Pair], rate: object, sizes: object, lengths: object
    ) -> object:
        """Return the factors by which LARC multiplies gradients, in one array or tensor.

        Args:
            pairs: (gradient, target) pairs. A factor is finite in the target's dtype.
            sizes: The norms of the targets, an array or tensor.
            lengths: The norms of the gradients.
        """
        dtypes = [var.dtype for _, var in pairs]
        return larc.factors(larc.ratios(sizes, lengths, rate, self.as_shipped), dtypes)

    def _record_summaries(
        self,
        journal: Journal,
        pairs: Sequence[Pair],
        rate: object,
        unscaling: Any,
        stats: GradientStats,
    ) -> None:
        """Write the summaries of a step's gradients and variables into a journal.

        `unscaling` has the factors that unscale the gradients; None for 1. `stats` are the
        statistics of the unscaled gradients.
        """
        rows = self._measure_rows(pairs, unscaling, stats)
        shows_norm = "global_gradient_norm" in journal.names
        if shows_norm:
            journal.scalar("global_gradient_norm", _round_norm(rows.global_norm))
        tags = tags_of([var for _, var in pairs])
        clip_factors = [for_each(tags, factors) for factors in stats.clip_parts]
        for index, ((grad, var), tag) in enumerate(zip(pairs, tags, strict=True)):
            if "gradients" in journal.names:
                factor = 1.0 if unscaling is None else unscaling[index]
                values = _scale_gradient(
                    grad, [factor, *(factors[index] for factors in clip_factors)]
                )
                journal.histogram(f"gradients/{tag}", values, masked=True)
            if "gradient_norm" in journal.names:
                journal.scalar(f"gradient_norm/{tag}", _round_norm(rows.clipped_norms[index]))
            if "variables" in journal.names:
                journal.histogram(f"variables/{tag}", var)
            if "variable_norm" in journal.names:
                journal.scalar(f"variable_norm/{tag}", _round_norm(stats.variable_norms[index]))
        if self.clip_gradients is not None and shows_norm:
            journal.scalar("global_clipped_gradient_norm", _round_norm(stats.clipped_global_norm))
        if self.larc is not None and "larc_summaries" in journal.names:
            self._record_larc(self.larc, journal, tags, rate, stats)

    def _measure_rows(
        self, pairs: Sequence[Pair], unscaling: object, stats: GradientStats
    ) -> GradientStats:
        """Return statistics for which sparse rows with equal indices are separate, not summed.

        `stats` itself is returned, unless LARC is enabled and a gradient is sparse: then `stats`
        has sums of such rows.
        """
        if self.larc is None or not any(isinstance(grad, IndexedSlices) for grad, _ in pairs):
            return stats
        values, variables = [values_of(grad) for grad, _ in pairs], [var for _, var in pairs]
        transforms = GradientTransforms(unscaling=unscaling, overflow=self.as_shipped, casts=True)
        return GradientStats(transforms, Tensors(values, variables), variables)

    def _record_larc(
        self, larc: Larc, journal: Journal, tags: Sequence[str], rate: Any, stats: GradientStats
    ) -> None:
        """Add the summaries of LARC to the journal, for each variable's tag."""
        ratios = larc.ratios(stats.variable_norms, stats.clipped_norms, rate, self.as_shipped)
        for tag, ratio, factor in zip(tags, ratios, stats.trust_ratios, strict=True):
            if larc.clips:
                journal.scalar(f"larc_clip_on/{tag}", ratio < 1, int)
            journal.scalar(f"larc_grad_update/{tag}", factor)
            rate_scalar = number(np.float32(float(rate)), place_of(factor))
            journal.scalar(f"larc_final_lr/{tag}", rate_scalar * factor)


def _round_norm(norm: Any) -> object:
    """Return a norm in float32, as OpenSeq2Seq computes it."""
    with np.errstate(all="ignore"):
        return norm.float() if isinstance(norm, Tensor) else np.float32(norm)


def _scale_gradient(grad: Any, factors: Sequence[Any]) -> Tensor:
    """Return a gradient's values times factors as a new float32 tensor."""
    values = values_of(grad).float()
    for factor in factors:
        values = values * (factor if isinstance(factor, Tensor) else float(factor))
    return values


def post_process_gradients(
    grads_and_vars: Sequence[tuple[object, object]],
    summaries: Sequence[str] | None,
    lr: object,
    clip_gradients: object,
    larc_params: Mapping[str, object] | None,
    *,
    as_shipped: bool = False,
    summary_writer: object = None,
    global_step: int = 0,
) -> list[tuple[Any, Any]]:
    """Clip gradients by their global norm, or scale them by LARC.

    Args:
        grads_and_vars: (gradient, variable) pairs.
        summaries: Names in `OPTIMIZER_SUMMARIES`; None selects the defaults. In graph mode
            summaries of gradients and variables are in the collection SUMMARIES, too.
        lr: The learning rate, a number or tensor of shape ().
        clip_gradients: The maximum global norm, or None.
        larc_params: None, or a dict of `larc_eta` (float, required), `larc_mode` ("clip" by
            default, or "scale"), `min_update` (1e-7) and `epsilon` (1e-7), see `Larc`.
        as_shipped: True to reproduce defects of OpenSeq2Seq: norms overflow if squares overflow
            float32. Clipping raises for variables of shape (). LARC returns NaN if the variable's
            norm and the learning rate are 0.
        summary_writer: Optional. Receives the summaries of gradients and variables.
        global_step: The step number that the writer receives.

    Returns:
        The pairs with new gradients. LARC makes sparse gradients dense.

    Raises:
        ValueError: There are no pairs, a summary or parameter is invalid, or a gradient is None
            although clipping, LARC or the summary "global_gradient_norm" needs it.
        AttributeError: Both `clip_gradients` and `larc_params` are set.

    Reference: OpenSeq2Seq, optimizers.optimizers
    """
    settings = PostProcessing.of(summaries, clip_gradients, larc_params, as_shipped)
    grads_and_vars = check_given(grads_and_vars)
    check_writer(summary_writer)
    settings.check(grads_and_vars)
    gradients = [grad for grad, _ in grads_and_vars]
    variables = [var for _, var in grads_and_vars]

    def process(gradients: Any, variables: Any, rate: object) -> list[Gradient]:
        if summary_writer is None:
            return settings.process(gradients, variables, rate, None)
        journal = Journal(settings.summaries)
        new_gradients = settings.process(gradients, variables, rate, journal)
        journal.finish(global_step).write(summary_writer)
        return new_gradients

    def tell(gradients: Any, variables: Any, rate: object, scope: str) -> Callable[[Any], None]:
        journal = Journal(settings.summaries, scope)
        with no_grad():
            settings.process(concretes(gradients), variables, rate, journal)
        return journal.finish(0).write

    if OF_GRADIENTS.intersection(settings.summaries) and is_deferred(*gradients, *variables, lr):
        collect_summaries(tell, [gradients, variables, lr])
    options = {"name": "post_process_gradients", "dense": settings.larc is not None}
    return map_pairs(process, grads_and_vars, lr, **options)
