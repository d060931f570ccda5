"""Sets a training of `thalweg.openseq2seq` to what a file has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._core import state
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import (
    GLOBAL_STEP,
    TensorFlowCheckpoint,
)
from thalweg.checkpoint.tensorflow.detection.mixed_precision import MixedPrecision
from thalweg.checkpoint.tensorflow.detection.scalars import as_count
from thalweg.checkpoint.tensorflow.mapping.mapped_tensors import MappedTensors, Slots, with_axes
from thalweg.errors import FailedPreconditionError
from thalweg.openseq2seq.micro_batches import MicroBatchStep
from thalweg.openseq2seq.optimizers.accumulation import ACCUMULATOR
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.openseq2seq.optimizers.step import TrainingStep
from thalweg.v1.train.wrapping_optimizer import WrappingOptimizer

_AVERAGE = "grads_ema"


def is_training(opt: object) -> bool:
    """Return True if an object trains with OpenSeq2Seq's additions."""
    return isinstance(opt, TrainingStep | MicroBatchStep | MixedPrecisionOptimizerWrapper)


def inner_of(opt: Any) -> Any:
    """Return the optimizer inside all wrappers; anything else is returned unchanged."""
    while is_training(opt) or isinstance(opt, WrappingOptimizer):
        attribute = "_opt" if isinstance(opt, WrappingOptimizer) else "optimizer"
        opt = getattr(cast(object, opt), attribute)
    return opt


def loading_training(
    opt: Any, placed: MappedTensors, slots: Slots, scalars: Mapping[str, Tensor]
) -> AbstractContextManager[state.Loading]:
    """Return the loading that sets masters, slots, powers, the loss scale and the count of steps.

    Sums of gradients start again, as a training of OpenSeq2Seq starts again to count its batches.

    Args:
        opt: The step of training, or the optimizer of masters.
        placed: The file.
        slots: For each variable its slots by kind.
        scalars: The powers by name.

    Raises:
        CheckpointMismatchError: The training has other parts.
        FailedPreconditionError: The variables of the step are not known yet.
    """
    mixed = placed.file.mixed or MixedPrecision()
    variables = _trained_variables(opt, [var for var, _ in slots])
    keys = dict(zip(map(id, variables), state.keys_of(variables), strict=True))
    given = dict(scalars)
    for var, own in slots:
        if id(var) in keys:
            given |= {f"{keys[id(var)]}/{kind}": each for kind, each in own.items()}
    for name, master in mixed.masters.items():
        if name in placed.places and id(placed.target(name)) in keys:
            key = keys[id(placed.target(name))]
            given[f"{key}/master"] = with_axes(master.tensor(), placed.places[name].axes)
    given |= {f"loss_scale/{name}": value.tensor() for name, value in mixed.scale.items()}
    is_step = not isinstance(opt, MixedPrecisionOptimizerWrapper)
    if is_step:
        given |= _counters_of(opt, placed)
        given |= _zero_accumulators(opt, variables, keys)
    return opt._loading(given, variables)


def with_averages(slots: Slots, file: TensorFlowCheckpoint) -> Slots:
    """Slots with NovoGrad's averages, which are numbered in the order of the variables.

    A file without them is of a training that never stored them: they begin anew.
    """
    averages = file.mixed.averages if file.mixed else []
    values = [each.tensor() for each in averages] or [
        torch.zeros((), dtype=torch.float32, device="cpu") for _ in slots
    ]
    if len(values) != len(slots):
        found = [f"there are {len(values)} averages nvgrad2_ema for {len(slots)} variables"]
        raise state.mismatch(found)
    return [
        (var, {_AVERAGE: value, **own}) for (var, own), value in zip(slots, values, strict=True)
    ]


def _trained_variables(opt: Any, having: Sequence[Tensor]) -> list[Tensor]:
    """The variables that are trained."""
    if isinstance(opt, MixedPrecisionOptimizerWrapper):
        return list(having)
    if not opt._owners():
        raise FailedPreconditionError(
            "The variables are not known before the first step. Give var_list to optimize_loss."
            " Nothing was loaded."
        )
    return opt._owners()


def _counters_of(opt: object, placed: MappedTensors) -> dict[str, Tensor]:
    """The number of updates, and that of batches, which begins anew."""
    steps = placed.file.steps_of(())
    counts: dict[str, Tensor] = {}
    if steps is not None:
        counts[GLOBAL_STEP] = as_count(steps, torch.int64)
    if isinstance(opt, MicroBatchStep):
        counts["micro_batches"] = torch.tensor(0, dtype=torch.int64, device="cpu")
    return counts


def _zero_accumulators(
    opt: Any, variables: Sequence[Tensor], keys: Mapping[int, str]
) -> dict[str, Tensor]:
    if opt._accumulators is None:
        return {}
    is_mixed = opt._mixed is not None
    return {
        f"{keys[id(var)]}/{ACCUMULATOR}": torch.zeros(
            var.shape, dtype=torch.float32 if is_mixed else var.dtype, device="cpu"
        )
        for var in variables
    }
