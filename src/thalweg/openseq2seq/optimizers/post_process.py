"""What happens to gradients once they are complete: clipping, LARC, and their summaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.core.hyperparameters import is_number
from thalweg.errors import InvalidTypeError, OptionError
from thalweg.openseq2seq.optimizers.clipping import clipped, refuse_scalars
from thalweg.openseq2seq.optimizers.gradients import (
    Gradient,
    each,
    refuse_none,
    values_of,
    whole,
)
from thalweg.openseq2seq.optimizers.larc import Larc, saturated
from thalweg.openseq2seq.optimizers.norms import global_norm, own_norm
from thalweg.openseq2seq.optimizers.summaries import Journal, check_writer, tags_of
from thalweg.openseq2seq.optimizers.tables import checked_summaries


class PostProcessing(NamedTuple):
    """What is to be done.

    Attributes:
        clip_gradients: The largest global norm, or None.
        larc: How LARC scales, or None.
        summaries: The names of the summaries to make.
        as_shipped: Whether defects of OpenSeq2Seq are computed as well.
    """

    clip_gradients: Any = None
    larc: Larc | None = None
    summaries: tuple[str, ...] = ()
    as_shipped: bool = False

    @classmethod
    def of(
        cls,
        summaries: Sequence[str] | None,
        clip_gradients: Any,
        larc_params: Mapping[str, Any] | None,
        as_shipped: bool = False,
    ) -> PostProcessing:
        """From the arguments of `optimize_loss`.

        Raises:
            ValueError: A summary has an unknown name, or a parameter of LARC is wrong.
            AttributeError: There are both clipping and LARC.
            TypeError: `clip_gradients` is no number.
        """
        wanted = checked_summaries(summaries)
        if clip_gradients is not None and larc_params is not None:
            raise OptionError(
                "LARC and gradient norm clipping should not be used together: give clip_gradients"
                " or larc_params."
            )
        if not (clip_gradients is None or is_number(clip_gradients)):
            raise InvalidTypeError(f"clip_gradients must be a number, not {clip_gradients!r}.")
        larc = None if larc_params is None else Larc.of(larc_params)
        return cls(clip_gradients, larc, wanted, as_shipped)

    def check(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Refuse gradients with which it cannot be done.

        Raises:
            InvalidArgumentError: One is None that must not be, or, `as_shipped`, of shape ().
        """
        reasons = {
            "the summary global_gradient_norm": "global_gradient_norm" in self.summaries,
            "clip_gradients": self.clip_gradients is not None,
            "larc_params": self.larc is not None,
        }
        needing = [name for name, is_given in reasons.items() if is_given]
        if needing:
            refuse_none(gradients, variables, f"{' and '.join(needing)} would need its norm")
        if self.as_shipped and self.clip_gradients is not None:
            refuse_scalars(variables)


def post_processed(
    how: PostProcessing,
    gradients: Sequence[Gradient],
    variables: Sequence[Tensor],
    rate: Any,
    journal: Journal | None = None,
) -> list[Gradient]:
    """Gradients clipped or scaled by LARC; neither they nor the variables are written to.

    Args:
        how: What to do.
        gradients: A tensor, slices or None for each variable.
        variables: What will be updated.
        rate: The learning rate of the step, a number or tensor of shape ().
        journal: Optional. Gets the summaries.
    """
    how.check(gradients, variables)
    wanted = frozenset() if journal is None else journal.wanted
    made = list(gradients)
    clips = how.clip_gradients is not None
    if clips or "global_gradient_norm" in wanted:
        norm = _norm(made, how)
        if journal is not None and "global_gradient_norm" in wanted:
            journal.scalar("global_gradient_norm", norm)
        if clips:
            made = clipped(made, variables, how.clip_gradients, norm)
    if journal is not None:
        _describe(journal, made, variables, how.as_shipped)
        if clips and "global_gradient_norm" in wanted:
            journal.scalar("global_clipped_gradient_norm", _norm(made, how))
    if how.larc is not None:
        made = _scaled_by_larc(how, how.larc, made, variables, rate, journal)
    return made


def _norm(gradients: Sequence[Gradient], how: PostProcessing) -> Tensor:
    present = [values_of(grad) for grad in gradients if grad is not None]
    return global_norm(present, how.as_shipped)


def _describe(
    journal: Journal,
    gradients: Sequence[Gradient],
    variables: Sequence[Tensor],
    as_shipped: bool,
) -> None:
    for grad, var, tag in zip(gradients, variables, tags_of(variables), strict=True):
        if grad is None:
            continue
        values = values_of(grad)
        if "gradients" in journal.wanted:
            journal.histogram(f"gradients/{tag}", values, masked=True)
        if "gradient_norm" in journal.wanted:
            journal.scalar(f"gradient_norm/{tag}", own_norm(values, as_shipped))
        if "variables" in journal.wanted:
            journal.histogram(f"variables/{tag}", var)
        if "variable_norm" in journal.wanted:
            journal.scalar(f"variable_norm/{tag}", own_norm(var, as_shipped))


def _scaled_by_larc(
    how: PostProcessing,
    larc: Larc,
    gradients: Sequence[Gradient],
    variables: Sequence[Tensor],
    rate: Any,
    journal: Journal | None,
) -> list[Gradient]:
    dense = [
        whole(grad, var) for grad, var in zip(gradients, variables, strict=True) if grad is not None
    ]
    ratios = larc.ratios(dense, variables, rate, how.as_shipped)
    factors = [
        saturated(factor, var.dtype).to(var.device)
        for factor, var in zip(larc.capped(ratios), variables, strict=True)
    ]
    if journal is not None and "larc_summaries" in journal.wanted:
        note_larc(journal, larc, tags_of(variables), ratios, factors, rate)
    return [factor * grad for factor, grad in zip(factors, dense, strict=True)]


def note_larc(
    journal: Journal,
    larc: Larc,
    tags: Sequence[str],
    ratios: Iterable[Tensor],
    factors: Iterable[Tensor],
    rate: Any,
) -> None:
    """Note what LARC did to each variable.

    Args:
        journal: Where.
        larc: How.
        tags: The variables' names in tags.
        ratios: r of each, before it is capped.
        factors: What the gradient of each is multiplied by.
        rate: The learning rate.
    """
    for tag, ratio, factor in zip(tags, ratios, factors, strict=True):
        if larc.clips:
            journal.scalar(f"larc_clip_on/{tag}", ratio < 1, int)
        journal.scalar(f"larc_grad_update/{tag}", factor)
        final = torch.as_tensor(rate, dtype=factor.dtype, device=factor.device) * factor
        journal.scalar(f"larc_final_lr/{tag}", final)


def post_process_gradients(
    grads_and_vars: Sequence[tuple[Any, Any]],
    summaries: Sequence[str] | None,
    lr: Any,
    clip_gradients: Any,
    larc_params: Mapping[str, Any] | None,
    *,
    as_shipped: bool = False,
    summary_writer: Any = None,
    global_step: int = 0,
) -> list[tuple[Any, Any]]:
    """Clip gradients by their global norm, or scale them by LARC.

    Args:
        grads_and_vars: Pairs of a gradient and its variable.
        summaries: Names out of `OPTIMIZER_SUMMARIES`; the default ones if None.
        lr: The learning rate, a number or tensor of shape ().
        clip_gradients: The largest global norm, or None.
        larc_params: A dict, or None: `larc_eta` (float, required), `larc_mode` ("clip", which is
            the default, or "scale"), `min_update` (1e-7) and `epsilon` (1e-7), see `Larc`.
        as_shipped: Whether defects of OpenSeq2Seq are computed as well: norms overflow where
            squares leave float32, clipping refuses variables of shape (), and LARC gives NaN to a
            variable of norm 0 where the learning rate is 0.
        summary_writer: Optional. Gets the summaries that belong here.
        global_step: The step that the writer is told.

    Returns:
        The pairs with new gradients. LARC makes sparse gradients dense.

    Raises:
        ValueError: A summary or parameter is unknown or wrong, or a gradient is None whose norm
            is needed.
        AttributeError: There are both `clip_gradients` and `larc_params`.

    Reference: OpenSeq2Seq, optimizers.optimizers
    """
    how = PostProcessing.of(summaries, clip_gradients, larc_params, as_shipped)
    check_writer(summary_writer)
    gradients = [grad for grad, _ in grads_and_vars]
    variables = [var for _, var in grads_and_vars]
    how.check(gradients, variables)

    def process(gradients: Any, variables: Any, rate: Any) -> list[Gradient]:
        journal = None if summary_writer is None else Journal(how.summaries)
        made = post_processed(how, gradients, variables, rate, journal)
        if journal is not None:
            journal.write(summary_writer, global_step)
        return made

    made = each(
        process,
        gradients,
        variables,
        lr,
        name="post_process_gradients",
        dtypes=[var.dtype for var in variables],
        dense=how.larc is not None,
    )
    return list(zip(made, variables, strict=True))
