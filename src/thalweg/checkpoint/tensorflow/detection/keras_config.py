"""Hyperparameters in the optimizer configuration of a Keras file."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch

from thalweg._core.hyperparameters import is_number
from thalweg._formats.keras_files import KerasFile
from thalweg._formats.stored_tensor import StoredTensor, of_tensor
from thalweg.checkpoint.tensorflow.detection.scalars import shortest_decimal
from thalweg.checkpoint.tensorflow.detection.slot_families import Family
from thalweg.errors import InvalidConfigError
from thalweg.keras import optimizers
from thalweg.rules import nadam
from thalweg.schedules import deserialize

# Note on RMSprop: Keras since 2.11 computes other numbers than OptimizerV2.
EPSILON_NOTE = (
    "this Keras adds epsilon to the mean square, and OptimizerV2 to its root: means of squares near"
    " epsilon make other steps"
)
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
_MOST_STEPS = 10_000
_UNSUPPORTED = ("weight_decay", "use_ema", "loss_scale_factor", "gradient_accumulation_steps")


def hyperparameters_of(family: Family, file: KerasFile) -> dict[str, Any]:
    """Return {constructor argument: value} for a family's class, from a file's configuration.

    Raises:
        InvalidConfigError: The configuration has an invalid schedule.
    """
    config = file.config or {}
    accepted = inspect.signature(getattr(optimizers, family.cls)).parameters
    arguments = {
        name: shortest_decimal(argument) if is_legacy(file) else argument
        for name, argument in config.items()
        if name in accepted and isinstance(argument, bool | int | float | str)
    }
    arguments |= {name: config[name] for name in _CLIPPING if config.get(name) is not None}
    if isinstance(config.get("learning_rate"), Mapping):
        arguments["learning_rate"] = _make_schedule(config["learning_rate"])
    if "decay" in config and _is_optimizer_v2(file):
        arguments["decay"] = config["decay"]
    if family.cls == "Nadam" and not is_legacy(file):
        # psi: in Keras the momentum's schedule has no factor.
        arguments["decay"] = config.get("schedule_decay", 1.0)
    return {**family.options, **arguments}


def is_legacy(file: KerasFile) -> bool:
    """Return True if the optimizer is an OptimizerV2, which Keras replaced in 2.11."""
    return next(iter(file.optimizer), "").rpartition("/")[2] == "iter"


def notes_of(family: Family | None, file: KerasFile) -> tuple[str, ...]:
    """Return notes for the user about continuing with the optimizer."""
    if family is None or family.cls != "RMSprop" or "momentum" in family.slots:
        return ()
    return () if _is_optimizer_v2(file) else (EPSILON_NOTE,)


def _is_optimizer_v2(file: KerasFile) -> bool:
    """Return True if the optimizer has the formulas and options of OptimizerV2."""
    return is_legacy(file) or file.package == "thalweg"


def refused_of(file: KerasFile) -> tuple[str, ...]:
    """Return the file's options that this library lacks, as "name=value"."""
    config = file.config or {}
    return tuple(f"{name}={config[name]}" for name in _UNSUPPORTED if config.get(name))


def momentum_product(file: KerasFile, steps: int) -> dict[str, StoredTensor]:
    """Return {"momentum_cache": Nadam's product after `steps` steps}; {} if beta_1 is no number.

    Keras 2.11 to 2.15 does not save the product, and restarts at 1 after loading. The result is the
    product of an uninterrupted training.
    """
    beta = (file.config or {}).get("beta_1", 0.9)
    if not is_number(beta) or not 0 <= beta < 1:
        return {}
    schedule: Any = cast(Any, nadam).schedule
    product, beta_1 = np.float32(1), np.float32(beta)
    for step in range(1, min(steps, _MOST_STEPS) + 1):
        product = product * schedule(beta_1, np.float32(1), np.float32(step))
        if product == 0:
            break
    # The later factors are beta_1, as powers of 0.96 are 0 by then.
    product = product * beta_1 ** np.float32(max(steps - _MOST_STEPS, 0))
    tensor = torch.tensor(float(product), dtype=torch.float32, device="cpu")
    return {"momentum_cache": of_tensor(tensor)}


def _make_schedule(config: Mapping[str, object]) -> object:
    """Return the schedule of a serialized configuration; raise InvalidConfigError if invalid."""
    try:
        return deserialize(dict(config))
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidConfigError(
            f"the schedule of the learning rate cannot be made: {error}"
        ) from error
