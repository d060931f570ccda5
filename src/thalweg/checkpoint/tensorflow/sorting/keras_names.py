"""Sorts a file of Keras: the optimizer's arrays are numbered, or named as they were in Keras 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from thalweg.checkpoint.tensorflow.sorting.contents import (
    FoundOptimizer,
    Slots,
    TensorFlowCheckpoint,
)
from thalweg.checkpoint.tensorflow.sorting.families import KERAS, Family, with_slots
from thalweg.checkpoint.tensorflow.sorting.keras_config import (
    hyperparameters_of,
    notes_of,
    refused_of,
)
from thalweg.checkpoint.tensorflow.sorting.keras_objects import OTHERS
from thalweg.checkpoint.tensorflow.sorting.keras_order import trained_in
from thalweg.checkpoint.tensorflow.sorting.loss_scales import SCALE, STEPS, if_usual, scaled_by
from thalweg.checkpoint.tensorflow.sorting.numbers import INTEGERS, as_number, count_of
from thalweg.storage.json_text import as_object

if TYPE_CHECKING:
    from thalweg.storage.keras_files import KerasFile
    from thalweg.storage.stored import Stored

# Keras goes over the variables once for each of these: what is in one group is interleaved.
_GROUPS = (("m", "v"), ("vhat",), ("accum_grad", "accum_var"), ("accumulator", "linear"))
_SCALING, _INNER = "LossScaleOptimizer", "/inner_optimizer/"


def sorted_file(
    path: str, file: KerasFile, class_name: str | None = None, config: object = None
) -> TensorFlowCheckpoint:
    """The checkpoint that a file is.

    Args:
        path: Where it was read.
        file: What it holds.
        class_name: Optional. What the optimizer is known to be, if the file does not say it.
        config: Optional. Its configuration, likewise.
    """
    given = file
    file = _without_scale(file)
    file = replace(file, class_name=file.class_name or class_name, config=file.config or config)
    optimizers: tuple[FoundOptimizer, ...] = ()
    unknown: dict[str, Stored] = {}
    if file.optimizer:
        found = _by_name(file) or _by_number(file)
        scale = _scale_of(given)
        notes = (*found.notes, *scaled_by(scale))
        found = replace(found, notes=notes, loss_scale=scale)
        optimizers = (found,)
        if found.family is None:
            unknown = dict(file.optimizer)
    return TensorFlowCheckpoint(
        path=path,
        kind=file.kind,
        variables=dict(file.variables),
        optimizers=optimizers,
        unknown=unknown,
        source=given,
    )


def _without_scale(file: KerasFile) -> KerasFile:
    """The file with the optimizer inside of one that scales the loss."""
    own = {name: each for name, each in file.optimizer.items() if _INNER in name}
    inner = as_object(as_object(file.config).get("inner_optimizer"))
    name, config = inner.get("class_name"), inner.get("config")
    if file.kind == "h5" and isinstance(name, str):  # which has the arrays of the inner one alone
        own = own or dict(file.optimizer)
    if not own or file.class_name not in (None, _SCALING):
        return file
    return replace(
        file,
        class_name=name if isinstance(name, str) else None,
        config=as_object(config) if isinstance(config, dict) else None,
        optimizer=own,
    )


def _scale_of(file: KerasFile) -> dict[str, Stored]:
    """What the loss scale around the optimizer remembers."""
    outer = [each for name, each in file.optimizer.items() if _INNER not in name]
    if file.class_name not in (None, _SCALING) or len(outer) == len(file.optimizer):
        return {}
    # Its own count of steps and learning rate come first, and mean nothing.
    return if_usual(dict(zip((STEPS, SCALE), outer[2:4], strict=False)))


def _by_name(file: KerasFile) -> FoundOptimizer | None:
    """The optimizer, if its arrays have the names of OptimizerV2: "Adam/dense/kernel/m"."""
    first = next(iter(file.optimizer))
    scope, _, last = first.rpartition("/")
    if last != "iter":
        return None
    slots: Slots = {}
    scalars: dict[str, Stored] = {}
    for name, value in file.optimizer.items():
        rest = name.removeprefix(f"{scope}/") if scope else name
        owner, _, kind = rest.rpartition("/")
        if owner in file.variables:
            slots.setdefault(owner, {})[kind] = value
        else:
            scalars[rest] = value
    kinds = sorted({kind for own in slots.values() for kind in own})
    families = with_slots(kinds, KERAS)
    named = [each for each in families if each.cls == (file.class_name or scope.split("/")[0])]
    others = sorted(scalars.keys() - {"iter", "momentum_cache"})
    return _found_optimizer(
        file, (named or families) if not others else [], slots, scalars, scope or "Adam"
    )


def _by_number(file: KerasFile) -> FoundOptimizer:
    """The optimizer, by the order of its arrays: iterations, learning rate, slots."""
    scalars, arrays = _split_scalars(file)
    rate, values, fitting = arrays[:0], arrays, list[tuple[Family, Slots]]()
    for rate, values in _ways_to_read(file, arrays):  # noqa: B007
        fitting = _find_fitting(file, values)
        if fitting:
            break
    if rate:
        scalars["learning_rate"] = rate[0]
    slots = fitting[0][1] if len(fitting) == 1 else {}
    name = str((file.config or {}).get("name") or file.class_name or "optimizer")
    optimizer = _found_optimizer(file, [family for family, _ in fitting], slots, scalars, name)
    lost = _describe_lost(file, len(values)) if values and not slots else ()
    return replace(optimizer, lost=lost) if lost else optimizer


def _split_scalars(file: KerasFile) -> tuple[dict[str, Stored], list[Stored]]:
    """The numbers whose places are known, and all other arrays."""
    values = list(file.optimizer.values())
    scalars: dict[str, Stored] = {}
    if values and values[0].dtype in INTEGERS and not values[0].shape:
        scalars["iter"] = values.pop(0)
    if file.class_name == "Nadam" and len(values) > 1 and not values[-1].shape:
        scalars["momentum_cache"] = values.pop()
    return scalars, values


def _find_fitting(file: KerasFile, values: Sequence[Stored]) -> list[tuple[Family, Slots]]:
    """The kinds of optimizer that the file may be of, and the slots that arrays are of each."""
    families = [family for family in KERAS if _may_be(family, file)]
    found = [(family, _slots_of(family, values, file)) for family in families]
    return [(family, slots) for family, slots in found if slots is not None]


def _ways_to_read(file: KerasFile, arrays: list[Stored]) -> list[tuple[list[Stored], list[Stored]]]:
    """What may be the learning rate, and what the other arrays are then; the likeliest first."""
    rate, values = arrays[:1], arrays[1:]
    if any(each.shape for each in rate):  # of a schedule there is none
        rate, values = [], arrays
    if not rate:
        return [(rate, values)]
    with_rate, without = (rate, values), (rate[:0], arrays)
    has_schedule = isinstance((file.config or {}).get("learning_rate"), Mapping)
    if file.kind != "weights.h5":  # its configuration is the file's own
        return [without] if has_schedule else [with_rate]
    return [without, with_rate] if has_schedule else [with_rate, without]


def _describe_lost(file: KerasFile, count: int) -> tuple[str, ...]:
    if file.class_name in OTHERS.values():
        return (f"nothing in thalweg.keras steps like {file.class_name}",)
    kept = f"as {file.class_name} here keeps them" if file.class_name else "without its class"
    return (f"its {count} arrays cannot be told to be slots of its variables, {kept}",)


def _may_be(family: Family, file: KerasFile) -> bool:
    """Whether the file's description allows this kind of optimizer."""
    if file.class_name is None:
        return True
    if family.cls != file.class_name:
        return False
    config = file.config
    if config is None:
        return True
    if "momentum" in family.hypers:
        wanted = bool(config.get("momentum")), bool(config.get("centered"))
        return wanted == ("momentum" in family.slots, "mg" in family.slots)
    return "amsgrad" not in config or bool(config["amsgrad"]) == ("vhat" in family.slots)


def _slots_of(family: Family, values: Sequence[Stored], file: KerasFile) -> Slots | None:
    """The slots, if the optimizer is of this kind; None if it cannot be."""
    groups: list[tuple[str, ...]] = [
        group for group in _GROUPS if group[0] in family.slots and set(group) <= set(family.slots)
    ]
    grouped = {kind for group in groups for kind in group}
    groups += [(kind,) for kind in family.slots if kind not in grouped]
    if not groups:
        return {} if not values else None
    count, rest = divmod(len(values), len(family.slots))
    if rest:
        return None
    shapes = [each.shape for each in values[: count * len(groups[0]) : len(groups[0])]]
    trained = trained_in(file, shapes)
    if trained is None:
        return None
    slots: Slots = {name: {} for name in trained}
    remaining = iter(values)
    for group in groups:
        for name in trained:
            for kind in group:
                slots[name][kind] = next(remaining)
    alike = all(
        each.shape == file.variables[name].shape
        for name, own in slots.items()
        for each in own.values()
    )
    return slots if alike else None


def _found_optimizer(
    file: KerasFile,
    families: Sequence[Family],
    slots: Slots,
    scalars: Mapping[str, Stored],
    name: str,
) -> FoundOptimizer:
    family = families[0] if len(families) == 1 else None
    known = {} if family is None else hyperparameters_of(family, file)
    if family is not None and "learning_rate" in scalars:
        known["learning_rate"] = as_number(scalars["learning_rate"])
    shown = [file.class_name or "no class", f"{len(file.optimizer)} arrays"]
    kinds = sorted({kind for own in slots.values() for kind in own})
    shown += [f"slots {', '.join(kinds)}"] if kinds else []
    return FoundOptimizer(
        name=name,
        face="keras",
        family=family,
        candidates=tuple(dict.fromkeys(each.cls for each in families)),
        evidence=", ".join(shown),
        slots=slots,
        scalars={key: each for key, each in scalars.items() if key != "learning_rate"},
        hyperparameters=known,
        steps=count_of(scalars.get("iter")),
        notes=notes_of(family, file),
        refused=refused_of(file),
    )
