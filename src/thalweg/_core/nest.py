"""Nested lists, tuples, named tuples and mappings: iterate over leaves and replace them.

Written by hand because optree and torch's pytrees treat subclasses of list and dict as leaves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, cast


def leaves_of(nest: object) -> Iterator[Any]:
    """Yield the leaves of nested lists, tuples and mappings, in order; keys are skipped."""
    if isinstance(nest, (list, tuple)):
        for item in cast("list[Any]", nest):
            yield from leaves_of(item)
    elif isinstance(nest, Mapping):
        for item in cast("Mapping[Any, Any]", nest).values():
            yield from leaves_of(item)
    else:
        yield nest


def mapped(function: Callable[[Any], object], nest: object) -> Any:
    """Return a copy of nested lists, tuples and mappings with `function` applied to each leaf.

    Sequences keep their type. A mapping with a `copy` method keeps its type; any other becomes a
    dict.
    """
    if isinstance(nest, (list, tuple)):
        items = cast("list[Any]", nest)
        return _build_nest(items, [mapped(function, item) for item in items])
    if isinstance(nest, Mapping):
        mapping = cast("Mapping[Any, Any]", nest)
        # A copy keeps other attributes of a subclass. A mapping that has no method `copy`, such as
        # the slots of an optimizer, may be a view, which a copy shares.
        new_mapping: MutableMapping[Any, Any] = {}
        if isinstance(mapping, MutableMapping) and hasattr(mapping, "copy"):
            new_mapping = copy.copy(mapping)
        new_mapping.update({key: mapped(function, item) for key, item in mapping.items()})
        return new_mapping
    return function(nest)


def packed(nest: object, leaves: Iterator[object]) -> Any:
    """Return a copy of a nest with its leaves replaced by `leaves`, in order."""
    return mapped(lambda _: next(leaves), nest)


def _build_nest(nest: object, items: list[object]) -> object:
    kind = cast("type[Any]", type(nest))
    return kind(*items) if hasattr(nest, "_fields") else kind(items)
