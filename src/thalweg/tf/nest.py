"""`tf.nest`: nested sequences and mappings; mappings are in the order of sorted keys."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from typing import Any

from thalweg.tf.missing import attribute_of

__all__ = ["assert_same_structure", "flatten", "is_nested", "map_structure", "pack_sequence_as"]


def is_nested(structure: object) -> bool:
    """Return True for a mapping, a view of a mapping, and a sequence that is not a string."""
    kinds = Sequence, Mapping, MappingView
    return isinstance(structure, kinds) and not isinstance(structure, str | bytes)


def flatten(structure: object, expand_composites: bool = False) -> list[Any]:
    """Return the leaves of a nest in a list; a value that is not a nest is a leaf.
    `expand_composites` is ignored.
    """
    if not is_nested(structure):
        return [structure]
    return [leaf for item in _items_of(structure) for leaf in flatten(item)]


def pack_sequence_as(
    structure: object, flat_sequence: Iterable[object], expand_composites: bool = False
) -> Any:
    """Return a copy of the nested `structure` with its leaves replaced by `flat_sequence`.

    Raise ValueError if the numbers of leaves differ.
    """
    leaves, leaf_count = list(flat_sequence), len(flatten(structure))
    if len(leaves) != leaf_count:
        raise ValueError(
            f"The structure has {leaf_count} elements, but flat_sequence {len(leaves)}."
        )
    return _pack_leaves(structure, iter(leaves))


def map_structure(func: Callable[..., object], *structure: object, **options: object) -> Any:
    """Call `func` with corresponding leaves of nested structures; return a nest of the results.

    Args:
        structure: The structures, which must be equal; the result has the types of the first.
        options: Ignored: `check_types`, `expand_composites`.

    Raises:
        TypeError: No structure is given.
        ValueError: The structures differ.
    """
    if not structure:
        raise TypeError("map_structure needs a structure.")
    first, *siblings = structure
    for sibling in siblings:
        assert_same_structure(first, sibling, check_types=False)
    return _pack_leaves(
        first, iter([func(*arguments) for arguments in zip(*map(flatten, structure), strict=True)])
    )


def assert_same_structure(
    nest1: Any, nest2: Any, check_types: bool = True, expand_composites: bool = False
) -> None:
    """Raise ValueError unless both structures have equal lengths and keys at all levels.

    With `check_types`, raise TypeError if types of corresponding items differ. All lists are one
    type, all mappings are one type, and named tuples with equal names and fields are one type.
    """
    if is_nested(nest1) != is_nested(nest2):
        raise _structure_error(nest1, nest2)
    if not is_nested(nest1):
        return
    if check_types and _kind_of(nest1) != _kind_of(nest2):
        raise TypeError(f"One is a {type(nest1).__name__}, the other a {type(nest2).__name__}.")
    keys = [set(nest) if isinstance(nest, Mapping) else len(nest) for nest in (nest1, nest2)]
    if keys[0] != keys[1]:
        raise _structure_error(nest1, nest2)
    for first_item, second_item in zip(_items_of(nest1), _items_of(nest2), strict=True):
        assert_same_structure(first_item, second_item, check_types)


def _structure_error(nest1: object, nest2: object) -> ValueError:
    return ValueError(f"These do not have the same nested structure: {nest1} and {nest2}.")


def _kind_of(nest: object) -> object:
    for kind in (list, Mapping):
        if isinstance(nest, kind):
            return kind
    fields = getattr(nest, "_fields", None)
    return type(nest) if fields is None else (type(nest).__name__, fields)


def _items_of(nest: Any) -> Iterator[object]:
    return (nest[key] for key in sorted(nest)) if isinstance(nest, Mapping) else iter(nest)


def _pack_leaves(nest: Any, leaves: Iterator[object]) -> object:
    if not is_nested(nest):
        return next(leaves)
    items = [_pack_leaves(item, leaves) for item in _items_of(nest)]
    if isinstance(nest, Mapping):
        items_by_key = dict(zip(sorted(nest), items, strict=True))
        entries = {key: items_by_key[key] for key in nest}
        kind: Any = type(nest)
        if not isinstance(nest, dict):
            return kind(entries)
        # A copy keeps other attributes of a subclass, such as the factory of a defaultdict.
        clone = copy.copy(nest)
        clone.update(entries)
        return clone
    # Views and ranges cannot be made of new items.
    if isinstance(nest, MappingView | range):
        return items
    return type(nest)(*items) if hasattr(nest, "_fields") else type(nest)(items)


__getattr__ = attribute_of("nest")
