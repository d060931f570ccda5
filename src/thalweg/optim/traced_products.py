"""Products of weights and activations: the roles of a weight's dimensions, and shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def product_roles(
    name: str, args: Sequence[Any], operands: Sequence[Any], at: int
) -> tuple[str, list[int | None]] | None:
    """Return the role of each dimension of a weight in a product, and their places in the result.

    Args:
        name: The name of torch's function.
        args: Its arguments.
        operands: The two tensors that are multiplied.
        at: The index of the weight among these.

    Returns:
        The roles, as for `WeightUse.add_product`, and for each dimension the dimension of the
        result, or None; or None if this is not a product of a weight and activations.
    """
    name = name.strip("_")
    if name == "einsum":
        return _einsum_roles(str(args[0]), at)
    weight: Tensor = operands[at]
    ndim = weight.dim()
    if name == "linear" and at == 1 and ndim == 2:
        return "oi", [-1, None]
    if name.startswith("conv") and at == 1 and ndim > 2 and name[4:5].isdigit():
        return "o" + "i" * (ndim - 1), [1 - ndim] + [None] * (ndim - 1)
    if name.startswith("grouped_mm") and at == 1 and ndim == 3:
        return "bio", [None, None, -1]
    if name not in ("matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm"):
        return None
    if ndim < 2:
        return None
    other = operands[1 - at]
    places: list[int | None] = [axis - ndim for axis in range(ndim - 2)]
    if at == 1:
        return "b" * (ndim - 2) + "io", [*places, None, -1]
    return "b" * (ndim - 2) + "oi", [*places, -1 if other.dim() == 1 else -2, None]


def _einsum_roles(equation: str, at: int) -> tuple[str, list[int | None]] | None:
    terms, result = _terms(equation)
    if len(terms) != 2 or not result or "." in terms[at]:
        return None
    own, other = terms[at], terms[1 - at]
    tail = result.rsplit(".", maxsplit=1)[-1]
    roles, places = "", list[int | None]()
    for letter in own:
        roles += "i" if letter not in result else "b" if letter in other else "o"
        place = tail.index(letter) - len(tail) if letter in tail else result.find(letter)
        places.append(place if letter in result else None)
    return roles, places


def _terms(equation: str) -> tuple[list[str], str]:
    """Return the letters of the operands of an `einsum` and of its result, with "." for "..."."""
    operands, _, result = equation.replace(" ", "").replace("...", ".").partition("->")
    return operands.split(","), result


def product_shape(
    func: Callable[..., Any],
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    factors: Sequence[Tensor],
) -> tuple[int, ...]:
    """Return the shape of a product for which `product_roles` has roles.

    Torch computes shapes of meta tensors, too, but imports its compiler for this.

    Args:
        func: The function of torch.
        name: Its name.
        args, kwargs: Its arguments.
        factors: The two tensors that are multiplied.
    """
    first, second = factors
    name = name.strip("_")
    if name == "linear":
        return (*first.shape[:-1], second.shape[0])
    if name.startswith("grouped_mm"):
        return (*first.shape[:-1], second.shape[-1])
    if name.startswith("conv"):
        return _convolution_shape(func, first, second, args, kwargs)
    if name == "einsum":
        return _einsum_shape(str(args[0]), factors)
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    rows = first.shape[-2:-1] if first.dim() > 1 else ()
    columns = second.shape[-1:] if second.dim() > 1 else ()
    return (*batch, *rows, *columns)


def _convolution_shape(
    func: Callable[..., Any],
    activations: Tensor,
    weight: Tensor,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[int, ...]:
    # One channel has the same spatial sizes as all.
    channels = 1 - weight.dim()
    options = {key: kwargs[key] for key in ("stride", "padding", "dilation") if key in kwargs}
    kernel = torch.zeros(1, 1, *weight.shape[2:], dtype=activations.dtype)
    channel = func(activations.narrow(channels, 0, 1), kernel, None, *args[3:6], **options)
    sizes = list(channel.shape)
    sizes[channels] = weight.shape[0]
    return tuple(sizes)


def _einsum_shape(equation: str, factors: Sequence[Tensor]) -> tuple[int, ...]:
    terms, result = _terms(equation)
    sizes: dict[str, tuple[int, ...]] = {}
    for letters, factor in zip(terms, factors, strict=True):
        before, dot, after = letters.partition(".")
        end = factor.dim() - len(after)
        sizes |= {letter: (size,) for letter, size in zip(before, factor.shape, strict=False)}
        sizes |= {letter: (size,) for letter, size in zip(after, factor.shape[end:], strict=True)}
        if dot:
            sizes[dot] = tuple(factor.shape[len(before) : end])
    return tuple(size for letter in result for size in sizes[letter])
