"""Schedules as plain dicts, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg._base.showing import show_value
from thalweg.schedules.base import LearningRateSchedule
from thalweg.schedules.cosine import CosineDecay, CosineDecayRestarts
from thalweg.schedules.exponential import ExponentialDecay
from thalweg.schedules.inverse_time import InverseTimeDecay
from thalweg.schedules.linear_cosine import LinearCosineDecay, NoisyLinearCosineDecay
from thalweg.schedules.piecewise import PiecewiseConstantDecay
from thalweg.schedules.polynomial import PolynomialDecay

_SCHEDULES: dict[str, type[LearningRateSchedule]] = {
    schedule.__name__: schedule
    for schedule in (
        ExponentialDecay,
        InverseTimeDecay,
        PolynomialDecay,
        PiecewiseConstantDecay,
        CosineDecay,
        CosineDecayRestarts,
        LinearCosineDecay,
        NoisyLinearCosineDecay,
    )
}


def serialize(schedule: LearningRateSchedule) -> dict[str, Any]:
    """Return {"class_name": name of the schedule's class, "config": the schedule's config}.

    Example:
        >>> serialize(ExponentialDecay(0.1, 10, 0.9))["class_name"]
        'ExponentialDecay'

    Differs from:
        This is Keras' legacy format; the newer one adds `module` and `registered_name`, which
        `deserialize` accepts.

    Reference: `tf.keras.optimizers.schedules.serialize`
    """
    return {"class_name": type(schedule).__name__, "config": schedule.get_config()}


def deserialize(
    config: Mapping[str, Any],
    custom_objects: Mapping[str, type[LearningRateSchedule]] | None = None,
) -> LearningRateSchedule:
    """Return the schedule that a dict from `serialize` describes.

    Args:
        config: `{"class_name": ..., "config": ...}`, optionally with `module` and
            `registered_name`.
        custom_objects: {name or registered name: class}, searched before the library's classes.

    Raises:
        ValueError: `config` lacks a key, or names an unknown class.

    Example:
        >>> deserialize({"class_name": "CosineDecay", "config": {
        ...     "initial_learning_rate": 0.1, "decay_steps": 50}})(25)
        tensor(0.0500)

    Reference: `tf.keras.optimizers.schedules.deserialize`
    """
    if not (hasattr(config, "keys") and {"class_name", "config"} <= config.keys()):
        raise ValueError(
            f"Improper config format: {show_value(config)}. "
            "Expected a dict with the keys 'class_name' and 'config'."
        )
    classes = {**_SCHEDULES, **(custom_objects or {})}
    for name in (config.get("registered_name"), config["class_name"]):
        if name in classes:
            return classes[name].from_config(dict(config["config"]))
    raise ValueError(
        f"Unknown learning rate schedule: '{config['class_name']}'. "
        f"Known are {', '.join(classes)}; pass other classes in `custom_objects`."
    )
