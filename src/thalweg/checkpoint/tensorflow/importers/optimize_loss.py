"""Loading of `thalweg.openseq2seq` trainings from a TensorFlow file."""

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
    """Return True for a training step or mixed-precision wrapper of OpenSeq2Seq."""
    return isinstance(opt, TrainingStep | MicroBatchStep | MixedPrecisionOptimizerWrapper)


def inner_of(opt: Any) -> Any:
    """Return the optimizer inside all wrappers; other objects are returned unchanged."""
    while is_training(opt) or isinstance(opt, WrappingOptimizer):
        attribute = "_opt" if isinstance(opt, WrappingOptimizer) else "optimizer"
        opt = getattr(cast(object, opt), attribute)
    return opt


def loading_training(
    opt: Any, mapped: MappedTensors, slots: Slots, scalars: Mapping[str, Tensor]
) -> AbstractContextManager[state.Loading]:
    """Return a context manager that yields the `Loading` of an OpenSeq2Seq training.

    The state is masters, slots, powers, the loss scale and the step count. Accumulated gradients
    are set to 0, as OpenSeq2Seq also begins a new sum after loading.

    Args:
        opt: The training step that `optimize_loss` made, or a `MixedPrecisionOptimizerWrapper`,
            which has no step count and no accumulated gradients.
        mapped: The tensors of the file, assigned to variables.
        slots: For each variable its slots by kind.
        scalars: The powers by name.

    Raises:
        CheckpointMismatchError: The training has other parts.
        FailedPreconditionError: The step has no variables before its first call.
    """
    mixed = mapped.file.mixed or MixedPrecision()
    variables = _trained_variables(opt, [var for var, _ in slots])
    keys = dict(zip(map(id, variables), state.keys_of(variables), strict=True))
    state_dict = dict(scalars)
    for var, by_kind in slots:
        if id(var) in keys:
            state_dict |= {f"{keys[id(var)]}/{kind}": slot for kind, slot in by_kind.items()}
    for name, master in mixed.masters.items():
        if name in mapped.places and id(mapped.target(name)) in keys:
            key = keys[id(mapped.target(name))]
            state_dict[f"{key}/master"] = with_axes(master.tensor(), mapped.places[name].axes)
    state_dict |= {f"loss_scale/{name}": scalar.tensor() for name, scalar in mixed.scale.items()}
    is_step = not isinstance(opt, MixedPrecisionOptimizerWrapper)
    if is_step:
        state_dict |= _counters_of(opt, mapped)
        state_dict |= _zero_accumulators(opt, variables, keys)
    return opt._loading(state_dict, variables)


def with_averages(slots: Slots, checkpoint: TensorFlowCheckpoint) -> Slots:
    """Return slots with NovoGrad's averages, which are numbered in the order of the variables.

    If the file has no averages, they are 0, as in a new training.

    Raises:
        CheckpointMismatchError: The file has not as many averages as there are variables.
    """
    averages = checkpoint.mixed.averages if checkpoint.mixed else []
    values = [average.tensor() for average in averages] or [
        torch.zeros((), dtype=torch.float32, device="cpu") for _ in slots
    ]
    if len(values) != len(slots):
        problem = [f"there are {len(values)} averages nvgrad2_ema for {len(slots)} variables"]
        raise state.mismatch(problem)
    return [
        (var, {_AVERAGE: average, **by_kind})
        for (var, by_kind), average in zip(slots, values, strict=True)
    ]


def _trained_variables(opt: Any, variables: Sequence[Tensor]) -> list[Tensor]:
    """Return the trained variables of a step, or `variables` for a mixed-precision wrapper.

    Raises:
        FailedPreconditionError: The step has no variables before its first call.
    """
    if isinstance(opt, MixedPrecisionOptimizerWrapper):
        return list(variables)
    if not opt._owners():
        raise FailedPreconditionError(
            "The variables are not known before the first step. Give var_list to optimize_loss."
            " Nothing was loaded."
        )
    return opt._owners()


def _counters_of(opt: object, mapped: MappedTensors) -> dict[str, Tensor]:
    """Return the file's step count and, for a step of micro-batches, 0 as their number; by key."""
    steps = mapped.file.steps_of(())
    counts: dict[str, Tensor] = {}
    if steps is not None:
        counts[GLOBAL_STEP] = as_count(steps, torch.int64)
    if isinstance(opt, MicroBatchStep):
        counts["micro_batches"] = torch.tensor(0, dtype=torch.int64, device="cpu")
    return counts


def _zero_accumulators(
    opt: Any, variables: Sequence[Tensor], keys: Mapping[int, str]
) -> dict[str, Tensor]:
    """Return a sum of zeros per variable, by key; {} if the step does not accumulate gradients."""
    if opt._accumulators is None:
        return {}
    is_mixed = opt._pipeline.mixed is not None
    return {
        f"{keys[id(var)]}/{ACCUMULATOR}": torch.zeros(
            var.shape, dtype=torch.float32 if is_mixed else var.dtype, device="cpu"
        )
        for var in variables
    }
