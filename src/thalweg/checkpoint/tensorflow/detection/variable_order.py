"""Variables that have slots: the trained ones, in the model's order or by their names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thalweg._formats.keras_files import KerasFile
    from thalweg._formats.keras_files.keras3 import Place
    from thalweg._formats.stored_tensor import StoredTensor

_NEVER_TRAINED = ("moving_mean", "moving_variance", "seed_generator_state")
_LAYERS = 300  # of a `.weights.h5` file whose order is looked for
_LOOKED_AT = 10_000  # beginnings of orders
_FLOATS = ("F16", "BF16", "F32", "F64")
Shape = tuple[int, ...]


def trained_in(file: KerasFile, shapes: Sequence[Shape]) -> list[str] | None:
    """Return the variables that have slots of these shapes, or None where that is not certain.

    A `.h5` file lists the model's variables in its order, and a `.keras` file its layers. What is
    inside of a layer, and the layers of a class of your own, have the names of attributes there,
    in alphabetical order; a `.weights.h5` file has its layers by class. Each class is in its order:
    which comes when, shapes have to tell.
    """
    names = [
        name
        for name, value in file.variables.items()
        if name.rpartition("/")[2] not in _NEVER_TRAINED and value.dtype in _FLOATS
    ]
    given = {name: file.variables[name].shape for name in names}
    places = {name: file.places.get(name, (None, name.rpartition("/")[0])) for name in names}
    is_known = not file.places or _is_ordered([*places.values()])
    if file.kind == "weights.h5" or not is_known:
        return _by_blocks(given, list(shapes), places)
    if list(shapes) == list(given.values()):
        return names
    chosen = _only_way(list(given.values()), list(shapes))
    return None if chosen is None else [names[index] for index in chosen]


def _is_ordered(places: Sequence[Place]) -> bool:
    """Return whether the model has these places in this order for certain."""
    return all(map(_may_follow, places, places[1:]))


def _may_follow(one: Place, other: Place) -> bool:
    if one[0] != other[0]:  # layers of the model, as they are listed
        return one[0] is not None and other[0] is not None
    parts, others = one[1].split("/"), other[1].split("/")
    first = next((pair for pair in zip(parts, others, strict=False) if pair[0] != pair[1]), None)
    if first is None:  # a layer has its own variables before those of layers inside of it
        return len(parts) <= len(others)
    return _layer_class(first[0]) == _layer_class(first[1])


def _layer_class(group: str) -> str:
    return re.sub(r"_?\d+$", "", group)


def _by_blocks(
    given: Mapping[str, Shape], wanted: Sequence[Shape], places: Mapping[str, Place]
) -> list[str] | None:
    """The variables in the order of the shapes, where the order of the model's layers is known."""
    numbers = [places[name][0] for name in given]
    blocks: dict[int | None, list[str]] = {}
    for name, number in zip(given, numbers, strict=True):
        blocks.setdefault(None if None in numbers else number, []).append(name)
    found: list[str] = []
    for names in blocks.values():
        part = wanted[len(found) : len(found) + len(names)]
        shapes = {name: given[name] for name in names}
        is_sure = None not in numbers and _is_ordered([places[name] for name in names])
        own = names if is_sure else _by_layers(shapes, part, places)
        if own is None or [given[name] for name in own] != list(part):
            return None
        found += own
    return found if len(found) == len(wanted) else None


def _by_layers(
    given: Mapping[str, Shape], wanted: Sequence[Shape], places: Mapping[str, Place]
) -> list[str] | None:
    """The variables in the order of the shapes, if there is just one order of whole layers."""
    layers: dict[str, list[str]] = {}
    for name in given:
        layers.setdefault(places[name][1], []).append(name)
    classes: dict[str, list[list[str]]] = {}
    for layer, names in layers.items():
        classes.setdefault(_layer_class(layer), []).append(names)
    queues = list(classes.values())
    ways: dict[tuple[int, ...], list[list[str]]] = {}

    def find_orders(places: tuple[int, ...], at: int) -> list[list[str]]:
        """Up to two orders of what is left of the layers."""
        if places not in ways and len(ways) < _LOOKED_AT:
            ways[places] = [[]] * (at == len(wanted))
            for index, queue in enumerate(queues):
                block = queue[places[index]] if places[index] < len(queue) else []
                end = at + len(block)
                if block and [given[name] for name in block] == list(wanted[at:end]):
                    rest = find_orders(
                        (*places[:index], places[index] + 1, *places[index + 1 :]), end
                    )
                    ways[places] = (ways[places] + [block + each for each in rest])[:2]
                if len(ways[places]) == 2:
                    break
        return ways.get(places, [])

    orders = find_orders((0,) * len(queues), 0) if len(layers) < _LAYERS else []
    whole = [order for order in orders if len(order) == len(given)]
    return whole[0] if len(orders) == 1 and whole and len(ways) < _LOOKED_AT else None


def _only_way(given: Sequence[Shape], wanted: Sequence[Shape]) -> list[int] | None:
    """The places of `wanted` in `given`, in order, if there is just one way."""
    if len(wanted) > len(given):
        return None
    first = _leftmost_order(given, wanted)
    last = _leftmost_order(given[::-1], wanted[::-1])
    if first is None or last is None:
        return None
    mirrored = [len(given) - 1 - index for index in reversed(last)]
    return first if first == mirrored else None


def _leftmost_order(given: Sequence[Shape], wanted: Sequence[Shape]) -> list[int] | None:
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


@dataclass(frozen=True)
class Owner:
    """A variable of an object checkpoint, which may have slots.

    Attributes:
        name: What it is called there.
        full_name: The name that it had in the program, which others may have had, too.
        value: Its value.
        order: For each step from the root to it, which kind of child that is, and its number:
            "layer-1" comes after "layer-0", and nothing tells which of "decoder" and "encoder"
            comes first.
    """

    name: str
    full_name: str
    value: StoredTensor
    order: tuple[tuple[int, int], ...] = ()


def owners_of(
    wanted: Sequence[tuple[str, Shape]], owners: Sequence[Owner]
) -> tuple[list[Owner | None], list[str]]:
    """Return the variables that slots belong to, and where that is not certain, in words.

    Names decide, then shapes, then the order of layers that are numbered.

    Args:
        wanted: The full name and the shape of what each slot belongs to, in the optimizer's order.
        owners: All variables.
    """
    names = {name for name, _ in wanted}
    having = sorted((each for each in owners if each.full_name in names), key=lambda o: o.order)
    alike: dict[tuple[str, Shape], list[Owner]] = {}
    for each in having:
        alike.setdefault((each.full_name, each.value.shape), []).append(each)
    follows = [(each.full_name, each.value.shape) for each in having] == list(wanted)
    found: list[Owner | None] = []
    lost: dict[str, None] = {}
    counts, taken = Counter(wanted), dict[tuple[str, Shape], int]()
    for key in wanted:
        name, shape = key
        own = alike.get(key, [])
        number = taken[key] = taken.get(key, -1) + 1
        is_certain = len(own) == 1 or (follows and len(own) == counts[key] and _are_numbered(own))
        found.append(own[number] if is_certain and number < len(own) else None)
        if not own:
            lost[f"no variable of shape {shape} is called {name!r}, as slots are"] = None
        elif found[-1] is None:
            text = f"{max(len(own), number + 1)} variables of shape {shape} are called {name!r}"
            lost[
                f"{text}, and nothing says which slots belong to which; give them names of their"
                " own in TensorFlow and save again"
            ] = None
    return found, list(lost)


def _are_numbered(owners: Sequence[Owner]) -> bool:
    """Return whether numbers alone tell variables apart, so that they have an order."""
    for one, other in pairwise(owners):
        pairs = zip(one.order, other.order, strict=False)
        first = next(((a, b) for a, b in pairs if a != b), None)
        if first is None or first[0][0] != first[1][0]:
            return False
    return True
