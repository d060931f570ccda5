"""Schedules and configurations, converted between thalweg and Keras, with Keras' registry."""

# Keras has no types, and `optimizer` is one of this library.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportPrivateUsage=false
from __future__ import annotations

from typing import Any, cast

import keras
import torch

from thalweg import schedules
from thalweg._base.scalars import Number
from thalweg.keras import optimizers
from thalweg.keras.optimizers import Optimizer, RuleOptimizer
from thalweg.schedules import LearningRateSchedule
from thalweg.variable import to_tensor


@keras.saving.register_keras_serializable(package="thalweg")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Keras schedule that calls a schedule of `thalweg.schedules`.

    Args:
        schedule: The schedule of `thalweg.schedules`.
    """

    def __init__(self, schedule: LearningRateSchedule) -> None:
        self.schedule = schedule

    def __call__(self, step: Any) -> Any:
        """Return the learning rate at `step`, a number, tensor or variable."""
        return to_tensor(self.schedule.value(int(step)))

    def get_config(self) -> dict[str, Any]:
        return {"schedule": schedules.serialize(self.schedule)}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Schedule:
        """Return a new schedule from a dict that `get_config` returned.

        A custom class is looked up in `custom_objects` and in Keras' registry.
        """
        description = config["schedule"]
        name = description["class_name"]
        registered = cast(Any, keras.saving.get_registered_object(name, custom_objects))
        classes = {name: registered} if registered is not None else None
        return cls(schedules.deserialize(description, classes))


class KerasSchedule(LearningRateSchedule):
    """Schedule of thalweg that calls a schedule of Keras."""

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule

    def __call__(self, step: Number) -> torch.Tensor:
        """Return the learning rate at `step` as a tensor."""
        rate: Any = self.schedule(step)
        return to_tensor(rate).cpu()

    def get_config(self) -> dict[str, Any]:
        """Return the class name and the configuration of Keras' schedule."""
        return {"schedule": keras.saving.serialize_keras_object(self.schedule)}


def for_thalweg(rate: object) -> Any:
    """Return a learning rate for thalweg: wrap a schedule of Keras, and unwrap a `Schedule`.

    An int becomes a float. Any other value is returned unchanged.
    """
    if isinstance(rate, Schedule):
        return rate.schedule
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return KerasSchedule(rate)
    # An int would become an integer variable, which cannot hold fractions.
    if isinstance(rate, int):
        return float(rate)
    return rate


def for_keras(rate: Any) -> Any:
    """Return a learning rate in Keras' form: a schedule, a callable, or a float."""
    if isinstance(rate, KerasSchedule):
        return rate.schedule
    if isinstance(rate, LearningRateSchedule):
        return Schedule(rate)
    if callable(rate) and not isinstance(rate, torch.Tensor):
        return rate
    return float(rate)


def plain(optimizer: Optimizer) -> dict[str, Any]:
    """Return the `get_config()` of an optimizer, with values that JSON accepts.

    Tensors and NumPy numbers become Python numbers. A schedule of Keras becomes {"keras": config}.
    """
    rate: Any = optimizer._hyper.raw("learning_rate") if "learning_rate" in optimizer._hyper else 0
    config = optimizer.get_config()
    for name, value in config.items():
        if name == "learning_rate" and isinstance(rate, KerasSchedule):
            config[name] = {"keras": keras.saving.serialize_keras_object(rate.schedule)}
        elif hasattr(value, "item"):
            config[name] = value.item()
    return config


def serialize(optimizer: Optimizer) -> dict[str, Any]:
    """Return the class name and the configuration, for `deserialize`."""
    return {"class_name": type(optimizer).__name__, "config": plain(optimizer)}


def deserialize(
    serialized: dict[str, Any], custom_objects: dict[str, Any] | None = None
) -> Optimizer:
    """Return a new optimizer from a dict that `serialize` returned.

    Custom classes are looked up in `custom_objects` and in Keras' registry.
    """
    config = dict(serialized["config"])
    for name, value in config.items():
        # The form in which `plain` writes a schedule of Keras.
        if isinstance(value, dict) and set(cast("dict[str, Any]", value)) == {"keras"}:
            saved = cast("dict[str, Any]", value["keras"])
            schedule = cast(Any, keras.saving.deserialize_keras_object(saved, custom_objects))
            config[name] = KerasSchedule(schedule)
    names = [serialized["class_name"], config.get("rule")]
    schedules: list[dict[str, Any]] = [item for item in config.values() if isinstance(item, dict)]
    names += [schedule["class_name"] for schedule in schedules if "class_name" in schedule]
    registered: dict[str, Any] = {
        name: keras.saving.get_registered_object(name, custom_objects) for name in names if name
    }
    classes: dict[str, Any] = {"RuleOptimizer": RuleOptimizer}
    classes |= {name: entry for name, entry in registered.items() if entry is not None}
    return optimizers.deserialize({**serialized, "config": config}, classes)
