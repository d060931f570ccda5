"""Which variables of a file of Keras have slots: those that were trained, in the model's order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thalweg.storage.keras_files import KerasFile

_NEVER_TRAINED = ("moving_mean", "moving_variance", "seed_generator_state")
_FLOATS = ("F16", "BF16", "F32", "F64")
Shape = tuple[int, ...]


def trained_in(file: KerasFile, shapes: Sequence[Shape]) -> list[str] | None:
    """The variables that have slots of these shapes, or None where that is not certain.

    A `.keras` and a `.h5` file list the model's variables in its order. A `.weights.h5` file has
    its layers by class, numbered: there shapes have to tell them apart where classes differ.
    """
    names = [
        name
        for name, value in file.variables.items()
        if name.rpartition("/")[2] not in _NEVER_TRAINED and value.dtype in _FLOATS
    ]
    own = [file.variables[name].shape for name in names]
    if file.kind == "weights.h5" and not _one_class(names):
        if len(set(own)) < len(own):
            return None
        places = dict(zip(own, names, strict=True))
        return [places[shape] for shape in shapes] if set(shapes) <= set(places) else None
    if list(shapes) == own:
        return names
    chosen = _only_way(own, list(shapes))
    return None if chosen is None else [names[index] for index in chosen]


def _one_class(names: Sequence[str]) -> bool:
    """Whether all layers are called alike but for their numbers."""
    stems = {re.sub(r"(_\d+)?/[^/]*$", "", name) for name in names}
    return len(stems) <= 1


def _only_way(given: Sequence[Shape], wanted: Sequence[Shape]) -> list[int] | None:
    """The places of `wanted` in `given`, in order, if there is just one way."""
    if len(wanted) > len(given):
        return None
    first = _leftmost(given, wanted)
    last = _leftmost(given[::-1], wanted[::-1])
    if first is None or last is None:
        return None
    mirrored = [len(given) - 1 - index for index in reversed(last)]
    return first if first == mirrored else None


def _leftmost(given: Sequence[Shape], wanted: Sequence[Shape]) -> list[int] | None:
    found: list[int] = []
    at = 0
    for shape in wanted:
        while at < len(given) and given[at] != shape:
            at += 1
        if at == len(given):
            return None
        found.append(at)
        at += 1
    return found
