"""`tf.nest`: nests of lists, tuples and dicts, taken apart and put together."""

from __future__ import annotations

from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from typing import Any

import pytest

import thalweg.tf as tf
from case_batches import many

Pair = namedtuple("Pair", "first second")
Twin = namedtuple("Pair", "first second")  # another class that is the same to TensorFlow
OtherPair = namedtuple("Pair", "first third")


class Numbers(list[Any]):
    """A list by another name."""


class Table(dict[str, Any]):
    """A dict by another name."""


FLAT: dict[str, tuple[Any, list[Any]]] = {
    "leaf": (3, [3]),
    "text": ("ab", ["ab"]),
    "none": (None, [None]),
    "empty": ([], []),
    "list": ([1, (2, [3])], [1, 2, 3]),
    "dict by key": ({"b": [1, 2], "a": 3}, [3, 1, 2]),
    "ordered dict by key": (OrderedDict(b=1, a=2), [2, 1]),
    "named": (Pair(1, {"x": 2}), [1, 2]),
    "list of a class": (Numbers([1, Numbers([2])]), [1, 2]),
    "dict of a class": (Table(b=1, a=[2]), [2, 1]),
    "dict with a default": (defaultdict(list, b=1, a=2), [2, 1]),
    "mapping": (UserDict(b=1, a=2), [2, 1]),
    "queue": (deque([1, [2]]), [1, 2]),
    "sequence": (UserList([1, (2,)]), [1, 2]),
}


@many("kind", list(FLAT))
def test_flatten_and_pack_round_trip(kind: str) -> None:
    structure, flat = FLAT[kind]
    assert tf.nest.flatten(structure) == flat
    assert tf.nest.is_nested(structure) == (kind not in ("leaf", "text", "none"))
    new = tf.nest.pack_sequence_as(structure, flat)
    assert (new, type(new)) == (structure, type(structure))
    assert list(new) == list(structure) if isinstance(structure, dict) else True


def test_map_structure_keeps_the_default_of_a_defaultdict() -> None:
    assert tf.nest.map_structure(str, defaultdict(list, a=1))["there is none"] == []


@pytest.mark.parametrize("nest", [range(2), {0: "x", 1: "y"}.keys(), {"x": 0, "y": 1}.values()])
def test_unconstructible_sequences_become_lists(nest: Any) -> None:
    assert tf.nest.flatten({"x": nest}) == [0, 1]
    assert tf.nest.map_structure(str, nest) == ["0", "1"]


STRUCTURES: dict[str, tuple[Any, Any, bool]] = {
    "lists": ([1], Numbers([2]), True),
    "lists of classes": (Numbers([1]), Numbers([2]), True),
    "dicts": ({"a": 1}, OrderedDict(a=2), True),
    "mappings": (Table(a=1), UserDict(a=2), True),
    "named": (Pair(1, 2), Twin(3, 4), True),
    "named otherwise": (Pair(1, 2), OtherPair(3, 4), False),
    "named and not": (Pair(1, 2), (3, 4), False),
    "queue and list": (deque([1]), [2], False),
}


@pytest.mark.parametrize("kind", STRUCTURES)
def test_structure_types_compare_as_in_tensorflow(kind: str) -> None:
    first, second, is_same_structure = STRUCTURES[kind]
    tf.nest.assert_same_structure(first, second, check_types=False)
    if is_same_structure:
        tf.nest.assert_same_structure(first, second)
        return
    with pytest.raises(TypeError, match=f"One is a {type(first).__name__}, the other a"):
        tf.nest.assert_same_structure(first, second)


def test_map_structure_passes_corresponding_leaves() -> None:
    first, second = {"b": 1, "a": (2, 3)}, {"a": [10, 20], "b": 30}
    assert tf.nest.map_structure(lambda x, y: x + y, first, second) == {"b": 31, "a": (12, 23)}
    assert tf.nest.map_structure(str, Pair(1, [2])) == Pair("1", ["2"])


INVALID: dict[str, tuple[Any, type[Exception], str]] = {
    "too few": (lambda n: n.pack_sequence_as([1, 2], [3]), ValueError, "2 elements.* 1"),
    "too many": (lambda n: n.pack_sequence_as(1, [3, 4]), ValueError, "1 elements.* 2"),
    "other length": (lambda n: n.assert_same_structure([1], [1, 2]), ValueError, "same nested"),
    "other depth": (lambda n: n.assert_same_structure([1], [[1]]), ValueError, "same nested"),
    "other keys": (lambda n: n.assert_same_structure({"a": 1}, {"b": 1}), ValueError, "same nes"),
    "other types": (lambda n: n.assert_same_structure([1], (1,)), TypeError, "list.*tuple"),
    "mapped": (lambda n: n.map_structure(max, [1], [1, 2]), ValueError, "same nested"),
    "nothing": (lambda n: n.map_structure(max), TypeError, "needs a structure"),
}


@many("kind", list(INVALID))
def test_different_structures_raise(kind: str) -> None:
    call, error, match = INVALID[kind]
    with pytest.raises(error, match=match):
        call(tf.nest)
    tf.nest.assert_same_structure([1], (1,), check_types=False)
