"""Learning-rate schedules across the border: thalweg's for Keras, Keras' for thalweg."""

from __future__ import annotations

from typing import Any

import keras
import torch

from thalweg._base.scalars import Number
from thalweg.schedules import LearningRateSchedule, deserialize, serialize
from thalweg.variable import to_tensor


@keras.saving.register_keras_serializable(package="thalweg")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of `thalweg.schedules` that Keras can call and save.

    Args:
        schedule: The schedule.
    """

    def __init__(self, schedule: LearningRateSchedule) -> None:
        self.schedule = schedule

    def __call__(self, step: Any) -> Any:
        """The learning rate at `step`, a number, tensor or variable."""
        return to_tensor(self.schedule.value(int(step)))

    def get_config(self) -> dict[str, Any]:
        return {"schedule": serialize(self.schedule)}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Schedule:
        """Return the schedule that `get_config` describes; your own classes are found if Keras has
        them registered, or in `custom_objects`.
        """
        description = config["schedule"]
        name = description["class_name"]
        registered = keras.saving.get_registered_object(name, custom_objects)
        classes = {name: registered} if registered is not None else None
        return cls(deserialize(description, classes))


class KerasSchedule(LearningRateSchedule):
    """A schedule of Keras that an optimizer of thalweg can ask.

    Args:
        schedule: The schedule.
    """

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule

    def __call__(self, step: Number) -> torch.Tensor:
        """The learning rate at `step`."""
        rate: Any = self.schedule(step)
        return to_tensor(rate).cpu()

    def get_config(self) -> dict[str, Any]:
        """Return the class name and the configuration of Keras' schedule."""
        return {"schedule": keras.saving.serialize_keras_object(self.schedule)}


def for_thalweg(rate: object) -> Any:
    """Return a learning rate as thalweg's optimizers take it."""
    if isinstance(rate, Schedule):
        return rate.schedule
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return KerasSchedule(rate)
    if isinstance(rate, int):  # it would become an integer variable, which takes no fraction
        return float(rate)
    return rate


def for_keras(rate: Any) -> Any:
    """Return a learning rate as Keras' optimizers take it: a schedule, a callable, or a float."""
    if isinstance(rate, KerasSchedule):
        return rate.schedule
    if isinstance(rate, LearningRateSchedule):
        return Schedule(rate)
    if callable(rate) and not isinstance(rate, torch.Tensor):
        return rate
    return float(rate)
