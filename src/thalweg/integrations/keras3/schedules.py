"""Adapters of learning-rate schedules: thalweg's for Keras, and Keras' for thalweg."""

# Keras has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
from __future__ import annotations

from typing import Any, cast

import keras
import torch

from thalweg._base.scalars import Number
from thalweg.schedules import LearningRateSchedule, deserialize, serialize
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
        return {"schedule": serialize(self.schedule)}

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
        return cls(deserialize(description, classes))


class KerasSchedule(LearningRateSchedule):
    """Schedule of thalweg that calls a schedule of Keras.

    Args:
        schedule: The schedule of Keras.
    """

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
    """Return a learning rate in thalweg's form: schedules of Keras are wrapped."""
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
