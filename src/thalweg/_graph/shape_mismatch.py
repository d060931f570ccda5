"""Detection of contradicting shapes by *trials*, which run a function with invented unknown sizes.

A trial may fail because of the invented number. But if trials with several numbers fail in one
well-known torch function, and sizes that are equal in all trials contradict each other, each run
fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from thalweg._core.nest import leaves_of

Sizes = tuple[int | None, ...]

_ARITHMETIC = """add sub subtract rsub mul multiply div divide true_divide truediv floor_divide
floordiv remainder mod fmod pow maximum minimum fmax fmin atan2 hypot copysign lerp addcmul addcdiv
where"""
_RELATIONS = """eq ne lt le gt ge greater greater_equal less less_equal not_equal logical_and
logical_or logical_xor bitwise_and bitwise_or bitwise_xor and or xor"""
_LOSSES = "mse_loss l1_loss smooth_l1_loss huber_loss"
# Functions whose tensors must broadcast.
_ELEMENTWISE = frozenset(f"{_ARITHMETIC} {_RELATIONS} {_LOSSES}".split())
_REFLECTED = frozenset(("radd", "rsub", "rmul", "rdiv", "rtruediv", "rfloordiv", "rmod", "rpow"))


class TorchCall(NamedTuple):
    """Name of a called torch function, and shapes of the tensor arguments in order."""

    name: str
    shapes: Sequence[Sizes]


class Failure(TorchFunctionMode):
    """Context manager that records the call of a torch function that raised an error.

    Attributes:
        error: The last error.
        call: The call that raised `error`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.call: TorchCall | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Return the result of a torch function; if it raises, record the call and raise again."""
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            # An error that passes through several calls belongs to the innermost call.
            if error is not self.error:
                leaves = leaves_of((tuple(args), dict(kwargs or {})))
                shapes = [tuple(x.shape) for x in leaves if isinstance(x, torch.Tensor)]
                self.error = error
                self.call = TorchCall(getattr(func, "__name__", "").strip("_"), shapes)
            raise


def common_sizes(shapes: Sequence[Any]) -> Sizes | None:
    """Return the sizes that are equal in all shapes; a size that differs is None.

    Return None if the numbers of dimensions differ, or if a shape is None or unknown.
    """
    if any(not isinstance(shape, Sequence) or len(shape) != len(shapes[0]) for shape in shapes):
        return None
    columns = zip(*shapes, strict=True)
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in columns)


def describe_misfit(calls: Sequence[TorchCall]) -> str:
    """Return why all runs of a function fail; return "" if a run may succeed.

    `calls` has one failed torch call for each trial.
    """
    first = calls[0]
    ranks = [[len(shape) for shape in call.shapes] for call in calls]
    if any(call.name != first.name for call in calls) or any(rank != ranks[0] for rank in ranks):
        return ""
    groups = zip(*(call.shapes for call in calls), strict=True)
    shapes = [common_sizes(group) or () for group in groups]
    if first.name in _ELEMENTWISE or first.name in _REFLECTED:
        return _explain_broadcast_error(shapes)
    if len(shapes) < 2:
        return ""
    if first.name == "linear":
        return _describe_unequal_sizes(shapes[0], -1, shapes[1], -1)
    if first.name in ("matmul", "mm", "bmm", "mv"):
        return _explain_product_error(shapes[0], shapes[1])
    return _explain_product_error(shapes[1], shapes[0]) if first.name == "rmatmul" else ""


def _explain_broadcast_error(shapes: Sequence[Sizes]) -> str:
    """Return why shapes cannot broadcast; return "" if they can. None is an unknown size."""
    columns = itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    for dim, sizes in enumerate(columns, 1):
        distinct = sorted({size for size in sizes if size not in (None, 1)})
        if len(distinct) > 1:
            text = " and ".join(map(str, shapes))
            unequal = f"{distinct[0]} is not {distinct[1]}"
            return f"{text} do not broadcast: {unequal} in dimension -{dim}."
    return ""


def _explain_product_error(lhs: Sizes, rhs: Sizes) -> str:
    """Return why shapes have no matrix product; "" if they may have a product."""
    if not lhs or not rhs:
        return ""
    return _describe_unequal_sizes(
        lhs, -1, rhs, -2 if len(rhs) > 1 else -1
    ) or _explain_broadcast_error([lhs[:-2], rhs[:-2]])


def _describe_unequal_sizes(lhs: Sizes, i: int, rhs: Sizes, j: int) -> str:
    """Return a text if `lhs[i]` and `rhs[j]` are known and differ, else ""."""
    if not lhs or not rhs or None in (lhs[i], rhs[j]) or lhs[i] == rhs[j]:
        return ""
    return f"{lhs} and {rhs} do not fit together: {lhs[i]} is not {rhs[j]}."
