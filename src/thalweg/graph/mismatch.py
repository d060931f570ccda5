"""Shapes that cannot fit together, though some of their sizes are not known yet.

A trial with sizes made up for the unknown ones may fail because of them. Where the first call that
fails is one of a few well-known functions, and sizes that are the same in two trials contradict
each other, no run can do better.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from thalweg.graph.nest import leaves_of

Sizes = tuple[int | None, ...]

_ARITHMETIC = """add sub subtract rsub mul multiply div divide true_divide truediv floor_divide
floordiv remainder mod fmod pow maximum minimum fmax fmin atan2 hypot copysign lerp addcmul addcdiv
where"""
_RELATIONS = """eq ne lt le gt ge greater greater_equal less less_equal not_equal logical_and
logical_or logical_xor bitwise_and bitwise_or bitwise_xor and or xor"""
_LOSSES = "mse_loss l1_loss smooth_l1_loss huber_loss"
_ELEMENTWISE = frozenset(f"{_ARITHMETIC} {_RELATIONS} {_LOSSES}".split())
_REFLECTED = frozenset(("radd", "rsub", "rmul", "rdiv", "rtruediv", "rfloordiv", "rmod", "rpow"))


class Call(NamedTuple):
    """A call of one of torch's functions: its name, and the shapes of its tensors in order."""

    name: str
    shapes: Sequence[Sizes]


class FirstFailure(TorchFunctionMode):
    """Notes the first of torch's functions that raises an error in the block, as `found`."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Call | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            if self.found is None:
                leaves = leaves_of((tuple(args), dict(kwargs or {})))
                shapes = [tuple(x.shape) for x in leaves if isinstance(x, torch.Tensor)]
                self.found = Call(getattr(func, "__name__", "").strip("_"), shapes)
            raise


def misfit(one: Call | None, other: Call | None) -> str:
    """Why a call that failed in two trials fails in every run, "" if that is not known."""
    if one is None or other is None or one.name != other.name:
        return ""
    if [len(shape) for shape in one.shapes] != [len(shape) for shape in other.shapes]:
        return ""
    shapes = [
        tuple(a if a == b else None for a, b in zip(*pair, strict=True))
        for pair in zip(one.shapes, other.shapes, strict=True)
    ]
    if one.name in _ELEMENTWISE or one.name in _REFLECTED:
        return _not_broadcast(shapes)
    if len(shapes) < 2:
        return ""
    if one.name == "linear":
        return _unlike(shapes[0], -1, shapes[1], -1)
    if one.name in ("matmul", "mm", "bmm", "mv"):
        return _no_product(shapes[0], shapes[1])
    return _no_product(shapes[1], shapes[0]) if one.name == "rmatmul" else ""


def _not_broadcast(shapes: Sequence[Sizes]) -> str:
    columns = itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    for place, sizes in enumerate(columns, 1):
        known = sorted({size for size in sizes if size not in (None, 1)})
        if len(known) > 1:
            listed = " and ".join(map(str, shapes))
            return f"{listed} do not broadcast: {known[0]} is not {known[1]} in dimension -{place}."
    return ""


def _no_product(left: Sizes, right: Sizes) -> str:
    if not left or not right:
        return ""
    return _unlike(left, -1, right, -2 if len(right) > 1 else -1) or _not_broadcast(
        [left[:-2], right[:-2]]
    )


def _unlike(left: Sizes, i: int, right: Sizes, j: int) -> str:
    if not left or not right or None in (left[i], right[j]) or left[i] == right[j]:
        return ""
    return f"{left} and {right} do not fit together: {left[i]} is not {right[j]}."
