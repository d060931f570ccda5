"""A step in two sweeps over memory: one measures, one updates; no processed gradient is written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.core.outcome import restored
from thalweg.core.pairs import Pair
from thalweg.core.sweeps import Measured, Sweep
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.backward import Backward, reciprocal, unscaled
from thalweg.openseq2seq.optimizers.clipping import clip_scale
from thalweg.openseq2seq.optimizers.gradients import values_of
from thalweg.openseq2seq.optimizers.larc import Larc
from thalweg.openseq2seq.optimizers.post_process import PostProcessing, note_larc
from thalweg.openseq2seq.optimizers.summaries import Journal, tags_of
from thalweg.openseq2seq.optimizers.update import Inner
from thalweg.v1.train.rule_optimizer import RuleOptimizer


class InSweeps:
    """What a step needs beside its gradients.

    Args:
        how: Clipping, LARC and summaries.
        rate: The learning rate, a number or tensor of shape ().
        scaler: What watches the gradients and decides, or None.
        journal: Gets the summaries, or None.
    """

    def __init__(
        self,
        how: PostProcessing,
        rate: Any,
        scaler: AutomaticLossScaler | None,
        journal: Journal | None,
    ) -> None:
        self._how = how
        self._rate = rate
        self._scaler = scaler
        self._journal = journal

    def take(
        self, inner: Inner, backward: Backward, global_step: Tensor
    ) -> tuple[bool, BaseException | None] | None:
        """Take a step, if it is one of float32 targets with dense gradients by a rule.

        Args:
            inner: What takes it.
            backward: The gradients, raw.
            global_step: The variable that counts updates.

        Returns:
            Whether there was an update, and what was raised after it; None if the step is to be
            taken otherwise.
        """
        optimizer = inner.optimizer
        if self._how.as_shipped or not isinstance(optimizer, RuleOptimizer):
            return None
        if not optimizer.sweeps():
            return None
        present = [i for i, grad in enumerate(backward.gradients) if grad is not None]
        if len(present) < len(backward.gradients):
            backward = backward.only(present)
        pairs, unscaling = _raw(backward)
        copies = [
            None if var is target else var
            for var, target in zip(backward.variables, backward.targets, strict=True)
        ]
        sweep = self._sweep(pairs, unscaling)
        with restored([] if self._scaler is None else list(self._scaler.variables.values())):
            return inner.sweep(optimizer, pairs, sweep, copies, global_step)

    def _sweep(self, pairs: Sequence[Pair], unscaling: np.ndarray) -> Sweep:
        how, scaler = self._how, self._scaler
        return Sweep(
            unscaling=unscaling,
            clip=None if how.clip_gradients is None else partial(_clip, how.clip_gradients),
            trust=None if how.larc is None else partial(_trust, how.larc, self._rate),
            decide=None if scaler is None else partial(_overflows, scaler),
            exact=scaler is not None and scaler.scaler.READS_AMAX,
            watch=None if self._journal is None else partial(self._note, self._journal, pairs),
        )

    def _note(self, journal: Journal, pairs: Sequence[Pair], known: Measured) -> None:
        how = self._how
        shows_norm = "global_gradient_norm" in journal.wanted
        if shows_norm:
            journal.scalar("global_gradient_norm", _single(known.global_norm))
        tags = tags_of([var for _, var in pairs])
        for index, ((grad, var), tag) in enumerate(zip(pairs, tags, strict=True)):
            if "gradients" in journal.wanted:
                factor = float(known.unscaling[index])
                values = values_of(grad).float() * factor * float(known.clip_scale)
                journal.histogram(f"gradients/{tag}", values, masked=True)
            if "gradient_norm" in journal.wanted:
                journal.scalar(f"gradient_norm/{tag}", _single(known.clipped_norms[index]))
            if "variables" in journal.wanted:
                journal.histogram(f"variables/{tag}", var)
            if "variable_norm" in journal.wanted:
                journal.scalar(f"variable_norm/{tag}", _single(known.variable_norms[index]))
        if how.clip_gradients is not None and shows_norm:
            journal.scalar("global_clipped_gradient_norm", _single(known.clipped_global_norm))
        if how.larc is not None and "larc_summaries" in journal.wanted:
            ratios = _ratios(how.larc, self._rate, known.variable_norms, known.clipped_norms)
            found = torch.from_numpy(ratios), torch.from_numpy(known.trust)
            note_larc(journal, how.larc, tags, *found, self._rate)


def _clip(limit: Any, norm: float) -> np.float32:
    scale = clip_scale(torch.tensor(norm, dtype=torch.float32), limit)
    return np.float32(scale.item())


def _ratios(larc: Larc, rate: Any, sizes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        own, others = sizes.astype(np.float32), lengths.astype(np.float32)
        return larc.ratios_of(own, others, float(rate))


def _trust(larc: Larc, rate: Any, sizes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    highest = np.finfo(np.float32).max
    return larc.capped(_ratios(larc, rate, sizes, lengths)).clip(-highest, highest)


def _overflows(scaler: AutomaticLossScaler, has_nan: bool, amax: float) -> bool:
    scaler.scaler.advance(has_nan, amax)
    return has_nan or not np.isfinite(amax)


def _single(norm: Any) -> float:
    """As the step by parts has it: in float32."""
    with np.errstate(all="ignore"):
        return float(np.float32(norm))


def _raw(backward: Backward) -> tuple[list[Pair], np.ndarray]:
    """Pairs of raw gradient and target, and what each gradient is still to be multiplied by.

    A gradient with a penalty is a tensor of its own, unscaled.
    """
    factor = 1.0 if backward.scale is None else reciprocal(backward.scale)
    unscaling = np.full(len(backward.gradients), factor, np.float32)
    gradients = list(backward.gradients)
    penalised = [i for i, penalty in enumerate(backward.penalties) if penalty is not None]
    if penalised:
        made = unscaled(backward.only(penalised))
        for index, grad in zip(penalised, made, strict=True):
            gradients[index] = grad
            unscaling[index] = 1
    return list(zip(gradients, backward.targets, strict=True)), unscaling
