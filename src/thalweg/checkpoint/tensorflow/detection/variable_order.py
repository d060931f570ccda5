"""Order of the trained variables in a file, for assigning an optimizer's slots to variables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from thalweg._formats.keras_files import KerasFile
from thalweg._formats.keras_files.keras3 import Place
from thalweg._formats.stored_tensor import StoredTensor

_NEVER_TRAINED = ("moving_mean", "moving_variance", "seed_generator_state")
# The most layers whose orders are tried; the search recurses once per layer.
_MAX_LAYERS = 300
# The most partial orders of layers that are tried.
_MAX_PREFIXES = 10_000
_FLOATS = ("F16", "BF16", "F32", "F64")
Shape = tuple[int, ...]


def trained_in(file: KerasFile, shapes: Sequence[Shape]) -> list[str] | None:
    """Return the names of the trained variables, one per element of `shapes`; None if ambiguous.

    `shapes` has the shape of one slot per variable, in the order of the model. If the file lists
    layers by name instead of this order, exactly one order of the layers must have these shapes.
    """
    names = [
        name
        for name, array in file.variables.items()
        if name.rpartition("/")[2] not in _NEVER_TRAINED and array.dtype in _FLOATS
    ]
    variable_shapes = {name: file.variables[name].shape for name in names}
    locations = {name: file.places.get(name, (None, name.rpartition("/")[0])) for name in names}
    has_order = not file.places or _is_ordered([*locations.values()])
    if file.kind == "weights.h5" or not has_order:
        return _order_by_blocks(variable_shapes, list(shapes), locations)
    if list(shapes) == list(variable_shapes.values()):
        return names
    order = _find_unique_order(list(variable_shapes.values()), list(shapes))
    return None if order is None else [names[index] for index in order]


def _is_ordered(locations: Sequence[Place]) -> bool:
    """Return True if each place may follow the previous place directly in the model."""
    return all(map(_may_follow, locations, locations[1:]))


def _may_follow(location: Place, next_location: Place) -> bool:
    """Return True if `next_location`, (number of a layer, path), may directly follow `location`."""
    # Two layers of the model, which the file lists in order.
    if location[0] != next_location[0]:
        return location[0] is not None and next_location[0] is not None
    segments, next_segments = location[1].split("/"), next_location[1].split("/")
    pairs = zip(segments, next_segments, strict=False)
    first = next((pair for pair in pairs if pair[0] != pair[1]), None)
    # A layer has its own variables before those of layers inside of it.
    if first is None:
        return len(segments) <= len(next_segments)
    return _layer_class(first[0]) == _layer_class(first[1])


def _layer_class(group: str) -> str:
    """Return the class of a layer in the name of its group: "dense" for "dense_1"."""
    return re.sub(r"_?\d+$", "", group)


def _order_by_blocks(
    variable_shapes: Mapping[str, Shape],
    slot_shapes: Sequence[Shape],
    locations: Mapping[str, Place],
) -> list[str] | None:
    """Return the variables in the order of their slots; None if no or several orders are possible.

    All variables must have a slot. Numbered layers keep their order. If the order of variables in a
    layer is uncertain, `_order_by_layers` finds the order. Without layer numbers, all variables
    count as one layer.

    Args:
        variable_shapes: {name: shape} of the variables, in the order of the file.
        slot_shapes: The shapes of the slots, in the order of the optimizer.
        locations: {name: (layer's number or None, group)} of the variables.
    """
    layer_indices = [locations[name][0] for name in variable_shapes]
    blocks: dict[int | None, list[str]] = {}
    for name, layer_index in zip(variable_shapes, layer_indices, strict=True):
        blocks.setdefault(None if None in layer_indices else layer_index, []).append(name)
    order: list[str] = []
    for names in blocks.values():
        block_shapes = slot_shapes[len(order) : len(order) + len(names)]
        shapes = {name: variable_shapes[name] for name in names}
        is_sure = None not in layer_indices and _is_ordered([locations[name] for name in names])
        block_order = names if is_sure else _order_by_layers(shapes, block_shapes, locations)
        if block_order is None or [shapes[name] for name in block_order] != [*block_shapes]:
            return None
        order += block_order
    return order if len(order) == len(slot_shapes) else None


def _order_by_layers(
    variable_shapes: Mapping[str, Shape],
    slot_shapes: Sequence[Shape],
    locations: Mapping[str, Place],
) -> list[str] | None:
    """Return the variables in the only order of their layers that has the shapes `slot_shapes`.

    The variables of a layer stay together, and layers of one class keep their order. Return None if
    no order or several orders have these shapes, or if there are too many orders to try.
    """
    layers: dict[str, list[str]] = {}
    for name in variable_shapes:
        layers.setdefault(locations[name][1], []).append(name)
    classes: dict[str, list[list[str]]] = {}
    for layer, names in layers.items():
        classes.setdefault(_layer_class(layer), []).append(names)
    queues = list(classes.values())
    ways: dict[tuple[int, ...], list[list[str]]] = {}

    def find_orders(positions: tuple[int, ...], offset: int) -> list[list[str]]:
        """Return up to two orders of the remaining layers, each as names of variables.

        The first `positions[i]` layers of each class `i` are placed already. Their slots are the
        first `offset` slots.
        """
        if positions not in ways and len(ways) < _MAX_PREFIXES:
            ways[positions] = [[]] * (offset == len(slot_shapes))
            for index, queue in enumerate(queues):
                block = queue[positions[index]] if positions[index] < len(queue) else []
                end = offset + len(block)
                shapes = [variable_shapes[name] for name in block]
                if block and shapes == list(slot_shapes[offset:end]):
                    tails = find_orders(
                        (*positions[:index], positions[index] + 1, *positions[index + 1 :]), end
                    )
                    ways[positions] = (ways[positions] + [block + tail for tail in tails])[:2]
                # Two orders suffice to know that the order is not unique.
                if len(ways[positions]) == 2:
                    break
        return ways.get(positions, [])

    orders = find_orders((0,) * len(queues), 0) if len(layers) < _MAX_LAYERS else []
    complete = [order for order in orders if len(order) == len(variable_shapes)]
    return complete[0] if len(orders) == 1 and complete and len(ways) < _MAX_PREFIXES else None


def _find_unique_order(shapes: Sequence[Shape], slot_shapes: Sequence[Shape]) -> list[int] | None:
    """Return the only increasing indices that select `slot_shapes` from `shapes`, else None."""
    # The selection is unique if the first and the last possible indices agree.
    leftmost = _find_leftmost_order(shapes, slot_shapes)
    mirrored = _find_leftmost_order(shapes[::-1], slot_shapes[::-1])
    rightmost = [len(shapes) - 1 - index for index in reversed(mirrored or ())]
    return leftmost if leftmost == rightmost else None


def _find_leftmost_order(shapes: Sequence[Shape], slot_shapes: Sequence[Shape]) -> list[int] | None:
    """Return the smallest increasing indices that select `slot_shapes` from `shapes`.

    Return None if `slot_shapes` is not a subsequence of `shapes`.
    """
    indices: list[int] = []
    remaining = iter(range(len(shapes)))
    for shape in slot_shapes:
        index = next((index for index in remaining if shapes[index] == shape), None)
        if index is None:
            return None
        indices.append(index)
    return indices


@dataclass(frozen=True)
class Owner:
    """A variable of an object checkpoint that may have slots.

    Attributes:
        name: The name in the checkpoint.
        full_name: The name in the program, which may not be unique.
        value: The tensor.
        order: (kind of child, number) of each edge from the root: "layer-1" comes after "layer-0",
            but "decoder" and "encoder" have no order.
    """

    name: str
    full_name: str
    value: StoredTensor
    order: tuple[tuple[int, int], ...] = ()


def owners_of(
    slot_keys: Sequence[tuple[str, Shape]], variables: Sequence[Owner]
) -> tuple[list[Owner | None], list[str]]:
    """Return ([variable of each slot or None], texts about slots without a variable).

    A slot belongs to the variable with its full name and shape. If several variables have this name
    and shape, the slots are paired with them in order. That requires numbered layers, and slots in
    the order of all variables. Otherwise, these slots get None.

    Args:
        slot_keys: The full name and shape of each slot's variable, in the optimizer's order.
    """
    names = {name for name, _ in slot_keys}
    candidates = [owner for owner in variables if owner.full_name in names]
    candidates.sort(key=lambda owner: owner.order)
    groups: dict[tuple[str, Shape], list[Owner]] = {}
    for owner in candidates:
        groups.setdefault((owner.full_name, owner.value.shape), []).append(owner)
    follows = [(owner.full_name, owner.value.shape) for owner in candidates] == list(slot_keys)
    matches: list[Owner | None] = []
    problems: dict[str, None] = {}
    counts, used = Counter(slot_keys), dict[tuple[str, Shape], int]()
    for key in slot_keys:
        name, shape = key
        group = groups.get(key, [])
        occurrence = used[key] = used.get(key, -1) + 1
        has_order = follows and len(group) == counts[key] and _are_numbered(group)
        is_certain = len(group) == 1 or has_order
        matches.append(group[occurrence] if is_certain and occurrence < len(group) else None)
        if not group:
            problems[f"no variable of shape {shape} is called {name!r}, as slots are"] = None
        elif matches[-1] is None:
            count = max(len(group), occurrence + 1)
            problem = (
                f"{count} variables of shape {shape} are called {name!r}, and nothing says which"
                " slots belong to which; give them names of their own in TensorFlow and save again"
            )
            problems[problem] = None
    return matches, list(problems)


def _are_numbered(variables: Sequence[Owner]) -> bool:
    """Return True if the variables' paths differ first in a number, so they have an order."""
    for owner, next_owner in pairwise(variables):
        pairs = zip(owner.order, next_owner.order, strict=False)
        first = next(((step, next_step) for step, next_step in pairs if step != next_step), None)
        if first is None or first[0][0] != first[1][0]:
            return False
    return True
