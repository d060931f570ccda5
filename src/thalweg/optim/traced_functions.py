"""Torch functions in a trace: sets with equal effects, arguments, and products with weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor


def _names(text: str) -> frozenset[str]:
    """Return the set of words in a text."""
    return frozenset(text.split())


# Functions that move elements without computing: they act on labels as on the labelled tensors.
STRUCTURAL = _names(
    """
    view reshape view_as reshape_as flatten unflatten transpose swapaxes swapdims permute
    movedim moveaxis t adjoint T mT squeeze unsqueeze expand expand_as repeat repeat_interleave
    tile roll split chunk tensor_split split_with_sizes unbind hsplit vsplit dsplit narrow
    select __getitem__ index_select cat concat concatenate stack hstack vstack dstack flip
    broadcast_to unfold take_along_dim gather masked_select as_strided take pad pixel_shuffle
    pixel_unshuffle atleast_2d atleast_3d diagonal
    """
)
IDENTITIES = _names(
    """
    contiguous clone detach to float half bfloat16 double type type_as cpu data requires_grad_
    """
)
REDUCTIONS = _names(
    """
    mean sum var std norm vector_norm max min amax amin aminmax any all logsumexp var_mean
    std_mean prod argmin histc bincount isnan isinf isfinite nonzero count_nonzero allclose equal
    new_zeros new_empty new_ones new_full
    """
)
MAXIMA = frozenset(["max", "amax", "aminmax"])
SELECTIONS = frozenset(["topk", "sort", "argsort", "argmax", "multinomial", "kthvalue"])
CONTRACTIONS = _names(
    """
    linear matmul rmatmul mm bmm mv dot addmm baddbmm addbmm einsum bilinear conv1d conv2d
    conv3d tensordot scaled_dot_product_attention grouped_mm grouped_mm_fallback cdist outer
    inner chain_matmul
    """
)
QUERIES = _names(
    """
    shape size dim ndim dtype numel stride is_floating_point requires_grad layout
    """
)
ADDED_PRODUCTS = frozenset(["addmm", "baddbmm", "addbmm"])
LOOK_UPS = frozenset(
    ["embedding", "embedding_bag", "__getitem__", "index_select", "gather", "take"]
)
NO_LABEL = -1


def distinct_labels(labels: Tensor) -> Any:
    """Return the distinct positive labels in a CPU tensor, as a sorted NumPy array."""
    # A dimension of stride 0 repeats the same labels.
    labels = labels[tuple(slice(None) if stride else slice(1) for stride in labels.stride())]
    label_values = labels.reshape(-1).numpy()
    label_values = label_values[label_values > 0]
    # Flags take one pass over the labels, where `np.unique` would sort them.
    lowest = label_values.min() if label_values.size else 0
    flags = np.zeros(label_values.max() - lowest + 1 if label_values.size else 0, bool)
    flags[label_values - lowest] = True
    return np.flatnonzero(flags) + lowest


def tensors_in(container: Any) -> list[Tensor]:
    """Return the tensors in a value and in nested containers, in a list."""
    if isinstance(container, Tensor):
        return [container]
    if isinstance(container, Mapping):
        container = list(cast("Mapping[Any, Any]", container).values())
    if isinstance(container, tuple | list):
        elements = cast("Sequence[Any]", container)
        return [tensor for element in elements for tensor in tensors_in(element)]
    return []


def mapped(container: Any, function: Callable[[Any], Any]) -> Any:
    """Return a value with a function applied to all objects that are not containers."""
    if type(container) in (tuple, list):
        return type(container)(mapped(element, function) for element in container)
    if type(container) is dict:
        items = cast("dict[Any, Any]", container).items()
        return {key: mapped(element, function) for key, element in items}
    return function(container)


def covers(output: Tensor, shape: Sequence[int]) -> bool:
    """Return True if the shape of a result is that of an argument, broadcast."""
    sizes = output.shape[output.dim() - len(shape) :]
    return output.dim() >= len(shape) and all(
        size in (1, full) for size, full in zip(shape, sizes, strict=True)
    )


def selected_matrices(name: str, args: tuple[Any, ...], weight: Tensor) -> Tensor | None:
    """Return a view of a weight with the shape of the matrices that a function selects.

    The view repeats the first matrix, because the tensor of indices depends on data. Return None
    for any function that does not select matrices by such a tensor.
    """
    index = None
    if name == "__getitem__":
        key: tuple[Any, ...] = args[1] if isinstance(args[1], tuple) else (args[1],)  # pyright: ignore[reportUnknownVariableType]
        index = key[0] if len(key) == 1 else None
    elif name == "index_select" and args[1] == 0:
        index = args[2]
    if not isinstance(index, Tensor) or index.dtype == torch.bool or weight.dim() < 3:
        return None
    shape = (*index.shape, *weight.shape[1:])
    strides = ((0,) * index.dim(), weight.stride()[1:])
    return weight.as_strided(shape, (*strides[0], *strides[1]), weight.storage_offset())


def positional(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return (args, kwargs) of a product function, with input and weight moved to `args`."""
    kwargs = dict(kwargs)
    for position, names in enumerate((("input",), ("weight", "other", "mat2"))):
        keyword = next((candidate for candidate in names if candidate in kwargs), None)
        if keyword and len(args) == position and name.strip("_") in CONTRACTIONS:
            args = (*args, kwargs.pop(keyword))
    return args, kwargs


def operands_of(name: str, args: tuple[Any, ...]) -> list[Any]:
    """Return the operands of a product function; `name` is the function's name."""
    if name == "einsum":
        return [*args[1]] if isinstance(args[1], tuple | list) else [*args[1:]]
    return [*args]


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
        (letters, indices), both with one element per dimension of the weight. For the letters, see
        `WeightUse.add_product`. Indices are negative dimensions of the result, or None if missing.
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
