"""Which variables of a file of Keras have slots: those that were trained, in the model's order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thalweg.storage.keras_files import KerasFile

_NEVER_TRAINED = ("moving_mean", "moving_variance", "seed_generator_state")
_LAYERS = 300  # of a `.weights.h5` file whose order is looked for
_LOOKED_AT = 10_000  # beginnings of orders
_FLOATS = ("F16", "BF16", "F32", "F64")
Shape = tuple[int, ...]


def trained_in(file: KerasFile, shapes: Sequence[Shape]) -> list[str] | None:
    """The variables that have slots of these shapes, or None where that is not certain.

    A `.keras` and a `.h5` file list the model's variables in its order. A `.weights.h5` file has
    its layers by class, each class in its order: which class comes when, shapes have to tell.
    """
    names = [
        name
        for name, value in file.variables.items()
        if name.rpartition("/")[2] not in _NEVER_TRAINED and value.dtype in _FLOATS
    ]
    given = {name: file.variables[name].shape for name in names}
    if file.kind == "weights.h5":
        return _by_layers(given, list(shapes))
    if list(shapes) == list(given.values()):
        return names
    chosen = _only_way(list(given.values()), list(shapes))
    return None if chosen is None else [names[index] for index in chosen]


def _by_layers(given: Mapping[str, Shape], wanted: Sequence[Shape]) -> list[str] | None:
    """The variables in the order of the shapes, if there is just one order of whole layers."""
    layers: dict[str, list[str]] = {}
    for name in given:
        layers.setdefault(name.rpartition("/")[0], []).append(name)
    classes: dict[str, list[list[str]]] = {}
    for layer, names in layers.items():
        classes.setdefault(re.sub(r"_?\d+$", "", layer), []).append(names)
    queues = list(classes.values())
    ways: dict[tuple[int, ...], list[list[str]]] = {}

    def found(places: tuple[int, ...], at: int) -> list[list[str]]:
        """Up to two orders of what is left of the layers."""
        if places not in ways and len(ways) < _LOOKED_AT:
            ways[places] = [[]] * (at == len(wanted))
            for index, queue in enumerate(queues):
                block = queue[places[index]] if places[index] < len(queue) else []
                end = at + len(block)
                if block and [given[name] for name in block] == list(wanted[at:end]):
                    rest = found((*places[:index], places[index] + 1, *places[index + 1 :]), end)
                    ways[places] = (ways[places] + [block + each for each in rest])[:2]
                if len(ways[places]) == 2:
                    break
        return ways.get(places, [])

    orders = found((0,) * len(queues), 0) if len(layers) < _LAYERS else []
    whole = [order for order in orders if len(order) == len(given)]
    return whole[0] if len(orders) == 1 and whole and len(ways) < _LOOKED_AT else None


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
