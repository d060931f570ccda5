"""Validation of optimizer state from a TensorFlow file, and the writes that load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._core import state
from thalweg._core.grads_and_vars import distinct
from thalweg._core.hyperparameters import is_function, is_number
from thalweg.checkpoint.step_inference import power_after, steps_of
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import (
    GLOBAL_STEP,
    MixedPrecision,
    TensorFlowCheckpoint,
)
from thalweg.checkpoint.tensorflow.detection.scalars import as_count
from thalweg.checkpoint.tensorflow.importers.optimizer_factory import check_contradictions
from thalweg.checkpoint.tensorflow.mapping.mapped_tensors import MappedTensors, Slots, with_axes
from thalweg.errors import FailedPreconditionError
from thalweg.keras.optimizers.state_dict import FORMAT
from thalweg.openseq2seq.micro_batches import MicroBatchStep
from thalweg.openseq2seq.optimizers.accumulation import ACCUMULATOR
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.openseq2seq.optimizers.step import TrainingStep
from thalweg.v1 import train
from thalweg.v1.contrib.opt import MovingAverageOptimizer
from thalweg.v1.train.wrapping_optimizer import WrappingOptimizer

_OTHERWISE = {"decay": "_initial_decay"}


def loading_keras(
    optimizer: Any, slots: Slots, scalars: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]
) -> AbstractContextManager[state.Loading]:
    """Return a context manager that yields the validated writes of slots and counters.

    Args:
        slots: Pairs (variable, {slot name: slot}).
        scalars: {name: scalar}: the step count as "iter", and Nadam's "momentum_cache".
        hyperparameters: {name: value} in the file. Schedules and callables of the optimizer are
            retained; its other hyperparameters are set.

    Raises:
        CheckpointMismatchError: The optimizer has other slots, or other values of arguments that
            are not hyperparameters.
    """
    store = optimizer._hyper
    # No number depends on the name, "adam" in files of Keras 3.
    values = {name: hyper for name, hyper in hyperparameters.items() if name != "name"}
    for name in [name for name in values if name in store]:
        # The user's schedule or callable takes the place of the file's number.
        if is_function(store.raw(name)):
            del values[name]
    fixed = {name: hyper for name, hyper in values.items() if name not in store}
    # The variable of this name has no effect, as in TensorFlow: the constructor's number counts.
    if "decay" in hyperparameters:
        fixed["decay"] = hyperparameters["decay"]
    current = {name: getattr(optimizer, _OTHERWISE.get(name, name), None) for name in fixed}
    check_contradictions(fixed, current)
    variables = [var for var, _ in slots]
    # The optimizer's variables come first: repeated names are numbered as in its own state.
    all_variables = distinct([*optimizer._owners(), *variables])
    keys = dict(zip(map(id, all_variables), state.keys_of(all_variables), strict=True))
    weights = {name: weight for name, weight in scalars.items() if name != "iter"}
    state_dict = {
        "class_name": type(optimizer).__name__,
        "format": FORMAT,
        "iterations": scalars.get("iter", torch.zeros((), dtype=torch.int64, device="cpu")),
        "hyperparameters": {name: hyper for name, hyper in values.items() if name not in fixed},
        "weights": weights,
        "slots": {keys[id(var)]: dict(by_kind) for var, by_kind in slots},
    }
    return optimizer._loading(state_dict, variables or None)


def without_momentum(slots: Slots) -> Slots:
    """Return slots without "momentum", which newer versions of Keras store even if it is 0."""
    return [
        (var, {kind: slot for kind, slot in by_kind.items() if kind != "momentum"})
        for var, by_kind in slots
    ]


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
    """Return a context manager that yields the validated writes of an OpenSeq2Seq training.

    Masters, slots, beta powers, loss scale and step count are set. Accumulated gradients are set to
    0, as in OpenSeq2Seq.

    Args:
        opt: The training step that `optimize_loss` made, or a `MixedPrecisionOptimizerWrapper`,
            which has no step count and no accumulated gradients.
        slots: For each variable (variable, {slot name: slot}).
        scalars: {name: beta power}.

    Raises:
        CheckpointMismatchError: The state in the file does not fit `opt`.
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
    """Return a copy of `slots` with NovoGrad's averages as slots "grads_ema".

    The averages are zeros if the file has none.

    Raises:
        CheckpointMismatchError: The number of averages is not the number of variables.
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
    """Return the variables that the step `opt` trains.

    For a mixed-precision wrapper, return `variables`.

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
    """Return {"global_step": the file's count, if any}; for micro-batches also a count of 0."""
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
    """Return zeros for the gradient sums of `opt`, or {} if it has none.

    A key of the result is `keys[id(variable)]` with the suffix `/` and `ACCUMULATOR`.
    """
    if opt._accumulators is None:
        return {}
    is_mixed = opt._pipeline.mixed is not None
    return {
        f"{keys[id(var)]}/{ACCUMULATOR}": torch.zeros(
            var.shape, dtype=torch.float32 if is_mixed else var.dtype, device="cpu"
        )
        for var in variables
    }


def loading_v1(
    optimizer: Any, slots: Slots, scalars: Mapping[str, Tensor]
) -> AbstractContextManager[state.Loading]:
    """Return a context manager that yields the validated writes of slots and beta powers.

    Args:
        slots: For each variable (variable, {slot name: slot}).
        scalars: {name: beta power}.

    Raises:
        CheckpointMismatchError: Slots differ, or the powers contradict the optimizer's betas.
    """
    state_dict = dict(scalars)
    betas = _constant_betas(optimizer)
    problems = describe_contradictions(state_dict, betas)
    state.raise_mismatch(problems)
    state_dict |= _implied_powers(state_dict, betas)
    variables = [var for var, _ in slots]
    for key, (_, kinds) in zip(state.keys_of(variables), slots, strict=True):
        state_dict |= {f"{key}/{kind}": slot for kind, slot in kinds.items()}
    return optimizer._loading(state_dict, variables)


def with_moving_averages(optimizer: object, slots: Slots, mapped: MappedTensors) -> Slots:
    """Return a copy of `slots` with the file's moving averages.

    Return `slots` itself unless `optimizer` is, or wraps, a `MovingAverageOptimizer`.
    """
    wrapper: Any = optimizer
    while not isinstance(wrapper, MovingAverageOptimizer):
        if not isinstance(wrapper, WrappingOptimizer):
            return slots
        wrapper = cast(Any, wrapper)._opt
    kind: str = cast(Any, wrapper)._ema.name
    slots_by_id = {id(var): (var, dict(kinds)) for var, kinds in slots}
    for name, average in mapped.file.averages.items():
        if name in mapped.places:
            var = mapped.target(name)
            slots_by_id.setdefault(id(var), (var, {}))[1][kind] = mapped.permute_like(name, average)
    return [*slots_by_id.values()]


def _constant_betas(optimizer: train.Optimizer) -> dict[str, object]:
    """Return {name of the power: beta} of the betas that are numbers."""
    inner: object = inner_of(optimizer)
    if not isinstance(inner, train.AdamOptimizer):
        return {}
    betas = {power: getattr(inner, inner.HYPERS[hyper]) for power, hyper in inner.POWERS.items()}
    return {power: beta for power, beta in betas.items() if is_number(beta)}


def describe_contradictions(powers: Mapping[str, Tensor], betas: Mapping[str, object]) -> list[str]:
    """Return texts that say why `powers` are not powers of `betas` after equal numbers of steps.

    Return [] if there is no contradiction. Powers of 1 or more are not compared.

    Args:
        powers: {name of a power: tensor of the power}. Integer tensors are ignored.
        betas: {name of a power: beta}. Names in only one of the dicts are ignored.
    """
    problems: list[str] = []
    counts: dict[str, int] = {}
    powers = {name: power for name, power in powers.items() if power.is_floating_point()}
    for name in [name for name in powers if name in betas]:
        power, beta = _as_scalars(powers[name], betas[name])
        count = steps_of(power, beta)
        if count is not None:
            counts[name] = count
        elif 0 < power < 1 and 0 < beta < 1:
            short = name.removesuffix("_power")
            problems.append(f"{name!r} is {power!s}, no power of {short}={betas[name]}")
    if len(set(counts.values())) > 1:
        counts_text = " and ".join(f"{name!r} after {count}" for name, count in counts.items())
        problems.append(f"the powers are those of different numbers of steps: {counts_text}")
    for name in [name for name in powers if name in betas and name not in counts and counts]:
        power, beta = _as_scalars(powers[name], betas[name])
        count = next(iter(counts.values()))
        if power == 0 and power_after(beta, count) != 0:
            short = name.removesuffix("_power")
            problems.append(f"{name!r} is 0, no power of {short}={betas[name]} after {count} steps")
    return problems


def _as_scalars(power: Tensor, beta: object) -> tuple[Any, Any]:
    """Return (power, beta) as NumPy scalars of the power's dtype."""
    scalar = power.numpy()[()]
    return scalar, scalar.dtype.type(np.float32(beta) if type(beta) is float else beta)


def _implied_powers(powers: Mapping[str, Tensor], betas: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return {name: power} for betas whose power the file lacks, such as beta2 of contrib's AdaMax.

    The step count is inferred from the powers in the file; if it is unknown, the power is 0.
    """
    if not powers:
        return {}
    counts = [steps_of(*_as_scalars(powers[name], betas[name])) for name in powers if name in betas]
    implied: dict[str, Tensor] = {}
    for name in betas.keys() - powers.keys():
        beta = np.float32(betas[name])
        count = next((other_count for other_count in counts if other_count is not None), None)
        power = np.float32(0) if count is None else power_after(beta, count)
        implied[name] = torch.tensor(float(power), dtype=torch.float32, device="cpu")
    return implied
