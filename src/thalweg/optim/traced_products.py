"""Products of weights and activations: the roles of a weight's dimensions, and shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def product_roles(
    name: str, args: Sequence[Any], operands: Sequence[Any], weight_index: int
) -> tuple[str, list[int | None]] | None:
    """Return the roles of a weight's dimensions in a product: outputs, inputs or batch.

    Return None if this is not a product of a weight and activations.

    Args:
        name: The name of the torch function.
        operands: The two tensors that are multiplied.
        weight_index: The index of the weight in `operands`.

    Returns:
        A letter per dimension, as for `WeightUse.add_product`; and for each dimension its negative
        index in the result, or None if the result lacks the dimension.
    """
    name = name.strip("_")
    if name == "einsum":
        return _einsum_roles(str(args[0]), weight_index)
    weight: Tensor = operands[weight_index]
    ndim = weight.dim()
    if name == "linear" and weight_index == 1 and ndim == 2:
        return "oi", [-1, None]
    if name.startswith("conv") and weight_index == 1 and ndim > 2 and name[4:5].isdigit():
        return "o" + "i" * (ndim - 1), [1 - ndim] + [None] * (ndim - 1)
    if name.startswith("grouped_mm") and weight_index == 1 and ndim == 3:
        return "bio", [None, None, -1]
    if name not in ("matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm"):
        return None
    if ndim < 2:
        return None
    activations = operands[1 - weight_index]
    dims: list[int | None] = [axis - ndim for axis in range(ndim - 2)]
    if weight_index == 1:
        return "b" * (ndim - 2) + "io", [*dims, None, -1]
    return "b" * (ndim - 2) + "oi", [*dims, -1 if activations.dim() == 1 else -2, None]


def _einsum_roles(equation: str, weight_index: int) -> tuple[str, list[int | None]] | None:
    """Return the roles of a weight in an `einsum`, or None; see `product_roles`."""
    terms, output = _terms(equation)
    if len(terms) != 2 or not output or "." in terms[weight_index]:
        return None
    weight_letters, other_letters = terms[weight_index], terms[1 - weight_index]
    tail = output.rsplit(".", maxsplit=1)[-1]
    roles, dims = "", list[int | None]()
    for letter in weight_letters:
        roles += "i" if letter not in output else "b" if letter in other_letters else "o"
        dim = tail.index(letter) - len(tail) if letter in tail else output.find(letter)
        dims.append(dim if letter in output else None)
    return roles, dims


def _terms(equation: str) -> tuple[list[str], str]:
    """Return the letters of the operands of an `einsum` and of its result, with "." for "..."."""
    operands, _, output = equation.replace(" ", "").replace("...", ".").partition("->")
    return operands.split(","), output


def product_shape(
    func: Callable[..., Any],
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    factors: Sequence[Tensor],
) -> tuple[int, ...]:
    """Return the shape of a product that `product_roles` recognizes.

    Args:
        factors: The two tensors that are multiplied.
    """
    # Torch would import its compiler to compute shapes of meta tensors.
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
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])  # pyright: ignore[reportUnknownMemberType]
    rows = first.shape[-2:-1] if first.dim() > 1 else ()
    columns = second.shape[-1:] if second.dim() > 1 else ()
    return (*batch, *rows, *columns)  # pyright: ignore[reportUnknownVariableType]


def _convolution_shape(
    func: Callable[..., Any],
    activations: Tensor,
    weight: Tensor,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[int, ...]:
    """Return the shape of the result of a convolution."""
    # One channel has the same spatial sizes as all.
    channels = 1 - weight.dim()
    options = {key: kwargs[key] for key in ("stride", "padding", "dilation") if key in kwargs}
    kernel = torch.zeros(1, 1, *weight.shape[2:], dtype=activations.dtype, device="cpu")
    channel = func(activations.narrow(channels, 0, 1), kernel, None, *args[3:6], **options)
    sizes = list(channel.shape)
    sizes[channels] = weight.shape[0]
    return tuple(sizes)


def _einsum_shape(equation: str, factors: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the shape of the result of an `einsum`."""
    terms, output = _terms(equation)
    sizes: dict[str, tuple[int, ...]] = {}
    for letters, factor in zip(terms, factors, strict=True):
        leading_letters, dot, trailing_letters = letters.partition(".")
        end = factor.dim() - len(trailing_letters)
        sizes |= {
            letter: (size,) for letter, size in zip(leading_letters, factor.shape, strict=False)
        }
        sizes |= {
            letter: (size,)
            for letter, size in zip(trailing_letters, factor.shape[end:], strict=True)
        }
        if dot:
            sizes[dot] = tuple(factor.shape[len(leading_letters) : end])
    return tuple(size for letter in output for size in sizes[letter])
