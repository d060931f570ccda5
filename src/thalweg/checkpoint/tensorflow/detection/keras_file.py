"""Sorting of a Keras file, whose optimizer arrays are numbered, or named as in Keras 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from thalweg._formats.json_text import as_object
from thalweg._formats.keras_files import KerasFile
from thalweg._formats.keras_files.config import optimizer_of
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import (
    FoundOptimizer,
    Slots,
    TensorFlowCheckpoint,
    with_loss_scale,
)
from thalweg.checkpoint.tensorflow.detection.keras_config import (
    hyperparameters_of,
    momentum_product,
    notes_of,
    refused_of,
)
from thalweg.checkpoint.tensorflow.detection.keras_objects import SLOT_KINDS
from thalweg.checkpoint.tensorflow.detection.scalars import (
    INTEGERS,
    SCALE,
    STEPS,
    as_number,
    count_of,
    if_valid,
)
from thalweg.checkpoint.tensorflow.detection.slot_families import (
    KERAS,
    SCALING,
    UNSUPPORTED,
    Family,
    keras_class,
    with_slots,
)
from thalweg.checkpoint.tensorflow.detection.variable_order import trained_in

# Keras goes over the variables once for each of these: what is in one group is interleaved.
_GROUPS = (("m", "v"), ("vhat",), ("accum_grad", "accum_var"), ("accumulator", "linear"))
# Slots of options around the update, which Keras creates before those of the update, by option.
_OPTION_SLOTS = {"average": "use_ema", "gradient_accumulator": "gradient_accumulation_steps"}
_INNER = "/inner_optimizer/"
# The name of the count of steps since Keras 2.11.
_ITERATION = "iteration"


def sorted_file(
    path: str, file: KerasFile, class_name: str | None = None, config: object = None
) -> TensorFlowCheckpoint:
    """Sort the arrays of a file into variables and the state of its optimizer.

    Args:
        class_name: Optional. The class of the optimizer, if the file names no class of Keras.
        config: Optional. The optimizer's configuration, if the file has none.
    """
    package = file.package
    if (file.class_name or "").startswith("thalweg>"):
        package = "thalweg"
    plain_name = keras_class(file.class_name) or file.class_name
    source = file = replace(file, class_name=plain_name, package=package)
    file = _without_scale(file)
    class_name = keras_class(file.class_name) or class_name or file.class_name
    file = replace(file, class_name=class_name, config=file.config or config)
    optimizers: tuple[FoundOptimizer, ...] = ()
    unknown: dict[str, StoredTensor] = {}
    if file.optimizer:
        detected = _sort_by_name(file) or _sort_by_kind(file) or _sort_by_number(file)
        optimizers = (with_loss_scale(detected, _scale_of(source)),)
        if detected.family is None:
            unknown = dict(file.optimizer)
    return TensorFlowCheckpoint(
        path=path,
        kind=file.kind,
        variables=dict(file.variables),
        optimizers=optimizers,
        unknown=unknown,
        source=source,
    )


def _without_scale(file: KerasFile) -> KerasFile:
    """Return a copy of the file with the inner optimizer instead of a loss-scaling wrapper.

    A file without a wrapper is returned unchanged.
    """
    if file.class_name not in (None, *SCALING):
        return file
    arrays = {name: array for name, array in file.optimizer.items() if _INNER in name}
    inner = as_object(as_object(file.config).get("inner_optimizer"))
    class_name, config = optimizer_of(file.kind, inner or None)
    # A .h5 file has the arrays of the inner optimizer alone.
    if file.kind == "h5" and class_name is not None:
        arrays = arrays or dict(file.optimizer)
    if not arrays:
        return file
    return replace(file, class_name=class_name, config=config, optimizer=arrays)


def _scale_of(file: KerasFile) -> dict[str, StoredTensor]:
    """Return the state of the loss scale in a loss-scaling wrapper; {} if there is none."""
    outer = [array for name, array in file.optimizer.items() if _INNER not in name]
    if file.class_name not in (None, *SCALING) or len(outer) == len(file.optimizer):
        return {}
    # Its own count of steps and learning rate come first, and mean nothing.
    return if_valid(dict(zip((STEPS, SCALE), outer[2:4], strict=False)))


def _sort_by_name(file: KerasFile) -> FoundOptimizer | None:
    """Return the optimizer if arrays are named as in OptimizerV2, "Adam/dense/kernel/m".

    Return None unless the first array is the step count, such as "Adam/iter".
    """
    first = next(iter(file.optimizer))
    scope, _, last_name = first.rpartition("/")
    if last_name != "iter":
        return None
    slots: Slots = {}
    scalars: dict[str, StoredTensor] = {}
    for name, array in file.optimizer.items():
        short_name = name.removeprefix(f"{scope}/") if scope else name
        owner, _, kind = short_name.rpartition("/")
        if owner in file.variables:
            slots.setdefault(owner, {})[kind] = array
        else:
            scalars[short_name] = array
    kinds = sorted({kind for by_kind in slots.values() for kind in by_kind})
    families = with_slots(kinds, KERAS)
    class_name = file.class_name or scope.split("/")[0]
    matching = [family for family in families if family.cls == class_name]
    unknown_scalars = sorted(scalars.keys() - {"iter", "momentum_cache"})
    return _describe_optimizer(
        file, (matching or families) if not unknown_scalars else [], slots, scalars, scope or "Adam"
    )


def _sort_by_kind(file: KerasFile) -> FoundOptimizer | None:
    """Return the optimizer if arrays are named as in Keras 2.11 to 2.15, "Adam/m/dense/kernel".

    Return None if a name has another form, or the optimizer's class does not have these slots.
    """
    scope = f"{(file.config or {}).get('name')}/"
    kinds = SLOT_KINDS.get(file.class_name or "", {})
    scalars: dict[str, StoredTensor] = {}
    slots: Slots = {}
    for name, array in file.optimizer.items():
        kind, _, owner = name.removeprefix(scope).partition("/")
        if name == _ITERATION:
            scalars["iter"] = array
        elif owner not in file.variables:
            return None
        elif kind not in _OPTION_SLOTS:
            slots.setdefault(owner, {})[kinds.get(kind, kind)] = array
    slot_kinds = {kind for owned in slots.values() for kind in owned}
    families = [family for family in with_slots(slot_kinds, KERAS) if family.cls == file.class_name]
    if not families:
        return None
    return _describe_optimizer(file, families, slots, scalars, scope.removesuffix("/"))


def _sort_by_number(file: KerasFile) -> FoundOptimizer:
    """Return the optimizer of a file with numbered arrays: iterations, learning rate, slots.

    The arrays must fit the slots of exactly one class. If not, the result has no slots, and the
    reason is in its `lost`.
    """
    scalars, arrays = _split_scalars(file)
    rate, values, matches = arrays[:0], arrays, list[tuple[Family, Slots]]()
    for rate, values in _list_splits(file, arrays):  # noqa: B007
        matches = _fit_families(file, values)
        if matches:
            break
    if rate:
        scalars["learning_rate"] = rate[0]
    slots = matches[0][1] if len(matches) == 1 else {}
    name = str((file.config or {}).get("name") or file.class_name or "optimizer")
    optimizer = _describe_optimizer(file, [family for family, _ in matches], slots, scalars, name)
    problems = _describe_lost(file, len(values)) if values and not slots else ()
    return replace(optimizer, lost=problems) if problems else optimizer


def _split_scalars(file: KerasFile) -> tuple[dict[str, StoredTensor], list[StoredTensor]]:
    """Return ({name: scalar}, list of all other arrays).

    Scalars are "iter" and Nadam's "momentum_cache", if the file has them.
    """
    values = list(file.optimizer.values())
    scalars: dict[str, StoredTensor] = {}
    if values and values[0].dtype in INTEGERS and not values[0].shape:
        scalars["iter"] = values.pop(0)
    # Keras 3 keeps the product last, thalweg.integrations.keras3 behind the learning rate.
    position = 1 if file.package == "thalweg" else -1
    if file.class_name == "Nadam" and len(values) > 1 and not values[position].shape:
        scalars["momentum_cache"] = values.pop(position)
    return scalars, values


def _fit_families(file: KerasFile, values: Sequence[StoredTensor]) -> list[tuple[Family, Slots]]:
    """Return (family, {variable: {kind: slot}}) for each class that may have the slots `values`.

    `values` are the arrays of the optimizer without scalars. Slots of options that Keras adds to
    any class, such as moving averages, are left out of the result.
    """
    families = [family for family in KERAS if _is_possible(family, file, has_arrays=bool(values))]
    config = file.config or {}
    option_kinds = tuple(kind for kind, option in _OPTION_SLOTS.items() if config.get(option))
    for extra_kinds in dict.fromkeys((option_kinds, ())):
        slots = [_assign_arrays(family, values, file, extra_kinds) for family in families]
        pairs = zip(families, slots, strict=True)
        matches = [(family, slots) for family, slots in pairs if slots is not None]
        if matches:
            return matches
    return []


def _list_splits(
    file: KerasFile, arrays: list[StoredTensor]
) -> list[tuple[list[StoredTensor], list[StoredTensor]]]:
    """Return the possible divisions of `arrays` as pairs ([learning rate] or [], slots).

    There is no rate if Keras saved a schedule, or if the first array is not a scalar. In a
    `.weights.h5` file, a first scalar may be a rate or a slot: two pairs, the likelier first.
    """
    splits = [(arrays[:1], arrays[1:]), (arrays[:0], arrays)]
    # An array that is not a scalar is a slot.
    if not arrays or arrays[0].shape:
        return splits[1:]
    if isinstance((file.config or {}).get("learning_rate"), Mapping):
        splits.reverse()
    # Formats other than `.weights.h5` contain the configuration.
    return splits if file.kind == "weights.h5" else splits[:1]


def _describe_lost(file: KerasFile, count: int) -> tuple[str, ...]:
    """Return the reason why `count` slots of a file cannot be assigned to variables."""
    if file.class_name in UNSUPPORTED.values():
        return (f"nothing in thalweg.keras steps like {file.class_name}",)
    if file.class_name is not None and keras_class(file.class_name) is None:
        return (f"{file.class_name} is not a class of Keras",)
    reason = f"as {file.class_name} here keeps them" if file.class_name else "without its class"
    return (f"its {count} arrays cannot be told to be slots of its variables, {reason}",)


def _is_possible(family: Family, file: KerasFile, has_arrays: bool) -> bool:
    """Return False if the class or options in the file rule out this family of slots.

    `has_arrays` is True if the file has arrays that may be slots.
    """
    if file.class_name is None:
        return True
    if family.cls != file.class_name:
        return False
    config = file.config
    if config is None:
        return True
    if family.cls == "SGD" and not config.get("momentum"):
        # Keras 2.11 to 2.15 keeps the slots even if they have no effect.
        return has_arrays or not family.slots
    if "momentum" in family.hypers:
        expected = bool(config.get("momentum")), bool(config.get("centered"))
        return expected == ("momentum" in family.slots, "mg" in family.slots)
    return "amsgrad" not in config or bool(config["amsgrad"]) == ("vhat" in family.slots)


def _assign_arrays(
    family: Family, values: Sequence[StoredTensor], file: KerasFile, extra_kinds: Sequence[str]
) -> Slots | None:
    """Assign an optimizer's numbered slots to the file's variables.

    Keras lists one kind of slot for all trained variables, then the next kind. Some kinds, such as
    "m" and "v", are interleaved: m and v of a variable, then m and v of the next variable.

    Args:
        family: The optimizer's class, with its kinds of slots.
        values: The arrays of the optimizer in the order of the file, without scalars.
        file: The file, with its variables in order, including variables that are not trained.
        extra_kinds: Kinds that are listed before the family's kinds, and omitted from the result.

    Returns:
        {name of a trained variable: {kind: array}}. None if the number of arrays or their shapes do
        not fit, or if the trained variables are ambiguous.
    """
    interleaved = _GROUPS[-1:] if file.package == "thalweg" else _GROUPS
    groups: list[tuple[str, ...]] = [
        group for group in interleaved if set(group) <= set(family.slots)
    ]
    grouped = {kind for group in groups for kind in group}
    groups += [(kind,) for kind in family.slots if kind not in grouped]
    groups = [*((kind,) for kind in extra_kinds), *groups]
    if not groups:
        return {} if not values else None
    count, remainder = divmod(len(values), sum(map(len, groups)))
    if remainder:
        return None
    # All slots have their variables' shapes, so the first group shows which are trained.
    shapes = [array.shape for array in values[: count * len(groups[0]) : len(groups[0])]]
    trained = trained_in(file, shapes)
    if trained is None:
        return None
    slots: Slots = {name: {} for name in trained}
    locations = [(name, kind) for group in groups for name in trained for kind in group]
    for (name, kind), array in zip(locations, values, strict=True):
        if array.shape != file.variables[name].shape:
            return None
        slots[name][kind] = array
    return {name: {kind: by_kind[kind] for kind in family.slots} for name, by_kind in slots.items()}


def _describe_optimizer(
    file: KerasFile,
    families: Sequence[Family],
    slots: Slots,
    scalars: Mapping[str, StoredTensor],
    name: str,
) -> FoundOptimizer:
    """Return the optimizer in a file; `family` is None unless `families` has one element.

    Args:
        families: The classes that the arrays fit, with their slots.
        slots: {variable: {kind: slot}}.
        scalars: {name: scalar}. "iter" is also the step count. "learning_rate" becomes a
            hyperparameter. A missing "momentum_cache" of Nadam is computed.
        name: The name of the optimizer in the file.
    """
    family = families[0] if len(families) == 1 else None
    steps = count_of(scalars.get("iter"))
    if family is not None and "momentum_cache" in family.powers:
        # A product in the file takes precedence.
        product = {} if steps is None else momentum_product(file, steps)
        scalars = {**product, **scalars}
    arguments = {} if family is None else hyperparameters_of(family, file)
    if family is not None and "learning_rate" in scalars:
        arguments["learning_rate"] = as_number(scalars["learning_rate"])
    evidence = [file.class_name or "no class", f"{len(file.optimizer)} arrays"]
    kinds = sorted({kind for by_kind in slots.values() for kind in by_kind})
    evidence += [f"slots {', '.join(kinds)}"] if kinds else []
    return FoundOptimizer(
        name=name,
        face="keras",
        family=family,
        candidates=tuple(dict.fromkeys(family.cls for family in families)),
        evidence=", ".join(evidence),
        slots=slots,
        scalars={key: scalar for key, scalar in scalars.items() if key != "learning_rate"},
        hyperparameters=arguments,
        steps=steps,
        notes=notes_of(family, file),
        refused=refused_of(file),
    )
