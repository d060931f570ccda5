"""Configurations of optimizers, with classes, rules and schedules from Keras' registry."""

# Keras has no types, and `optimizer` is one of this library.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportPrivateUsage=false
from __future__ import annotations

from typing import Any, cast

import keras

from thalweg.integrations.keras3.schedules import KerasSchedule
from thalweg.keras import optimizers
from thalweg.keras.optimizers import Optimizer, RuleOptimizer


def plain(optimizer: Optimizer) -> dict[str, Any]:
    """Return `get_config()` for JSON: Python numbers, and {"keras": config} for Keras schedules."""
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
