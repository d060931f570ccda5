"""Sets of tensor shapes to measure: three named ones, or those of a model's own file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import torch

from thalweg._formats import format_detection
from thalweg._formats.stored_tensor import ITEM_BYTES, dtype_of
from thalweg.errors import UnsafeCheckpointError
from thalweg.variable import TRAINED

Shape = tuple[int, ...]

DTYPES = frozenset(TRAINED)


@dataclass(frozen=True)
class ShapeSet:
    """Shapes and dtypes of the variables of one model.

    Attributes:
        name: What tables and plots call it.
        shapes: One per variable.
        dtypes: One per variable.
    """

    name: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]

    @property
    def parameters(self) -> int:
        """Number of elements of all variables."""
        return sum(map(prod, self.shapes))

    @property
    def bytes(self) -> int:
        """The memory of one stream: all variables, or all gradients, or one slot of each."""
        return sum(
            prod(shape) * dtype.itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )


def of(name: str, shapes: Iterable[Shape], dtype: torch.dtype = torch.float32) -> ShapeSet:
    """Return a set of one dtype."""
    shapes = tuple(shapes)
    return ShapeSet(name, shapes, (dtype,) * len(shapes))


def gpt2() -> ShapeSet:
    """GPT-2 small: 148 tensors, 124 M parameters, the embedding tied to the output layer."""
    width, layers, vocabulary, context = 768, 12, 50257, 1024
    norm: list[Shape] = [(width,), (width,)]
    block: list[Shape] = [
        *norm,
        (width, 3 * width), (3 * width,), (width, width), (width,),
        *norm,
        (width, 4 * width), (4 * width,), (4 * width, width), (width,),
    ]  # fmt: skip
    return of("gpt2", [(vocabulary, width), (context, width), *block * layers, *norm])


def resnet50() -> ShapeSet:
    """ResNet-50: 161 tensors, 25.6 M parameters, most of them convolutions."""

    def convolution(inner: int, outer: int, kernel: int) -> list[Shape]:
        return [(outer, inner, kernel, kernel), (outer,), (outer,)]

    shapes = convolution(3, 64, 7)
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += convolution(channels, width, 1)
            shapes += convolution(width, width, 3)
            shapes += convolution(width, 4 * width, 1)
            if block == 0:
                shapes += convolution(channels, 4 * width, 1)
            channels = 4 * width
    return of("resnet50", [*shapes, (1000, channels), (1000,)])


def small2000() -> ShapeSet:
    """2,000 tensors of 1,000 elements: the cost of a tensor, not of its memory."""
    return of("small2000", [(1000,)] * 2000)


NAMED: dict[str, Callable[[], ShapeSet]] = {
    "gpt2": gpt2,
    "resnet50": resnet50,
    "small2000": small2000,
}


ACCEPTED = (
    f"{', '.join(NAMED)}, a state_dict saved with torch.save, or a .safetensors file are accepted"
)


def load(name: str) -> ShapeSet:
    """Return a named set, or the shapes in a file: `.safetensors`, or a state_dict saved with
    torch.save.

    Raises:
        ValueError: There is no such set or file, it cannot be read, or it holds no floating
            tensors.
    """
    if name in NAMED:
        return NAMED[name]()
    path = Path(name)
    try:
        with open(path, "rb") as file:
            pairs = _read_pairs(path, file)
    except FileNotFoundError:
        raise ValueError(f"there is no set and no file '{name}'; {ACCEPTED}.") from None
    except OSError as error:
        raise ValueError(f"'{name}' cannot be read: {error.strerror}; {ACCEPTED}.") from None
    pairs = [(shape, dtype) for shape, dtype in pairs if dtype in DTYPES and prod(shape)]
    if not pairs:
        raise ValueError(
            f"'{name}' holds no tensors of float32, float64, float16 or bfloat16; {ACCEPTED}."
        )
    shapes, dtypes = zip(*pairs, strict=True)
    return ShapeSet(path.stem, shapes, dtypes)


def _read_pairs(path: Path, file: BinaryIO) -> list[tuple[Shape, torch.dtype]]:
    is_safetensors = path.suffix == ".safetensors" or file.read(9)[8:] == b"{"
    try:
        return _read_safetensors(path) if is_safetensors else _state_dict(path)
    except Exception as error:  # what a damaged pickle can raise has no end
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(
            f"'{path}' {_what_is_wrong(error, file, is_safetensors)}; {ACCEPTED}."
        ) from None


def _what_is_wrong(error: Exception, file: BinaryIO, is_safetensors: bool) -> str:
    """What is wrong with a file, in words."""
    classes = re.findall(r"GLOBAL (\S+)", str(error))
    if classes:
        return (
            f"holds objects of {classes[0]}, which are not loaded, as that may run code: save"
            " model.state_dict()"
        )
    look = format_detection.identify_file(file)
    if look is not None and look.error is not UnsafeCheckpointError and not is_safetensors:
        return f"is {look.kind}: {look.hint[0].lower()}{look.hint[1:]}"
    if is_safetensors:
        return f"is no safetensors file, or a damaged one: {str(error).rstrip('.')}"
    return "is no state_dict, or a damaged one"  # torch's own advice is to run what is in it


def _read_safetensors(path: Path) -> list[tuple[Shape, torch.dtype]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        slices = [file.get_slice(key) for key in file.keys()]  # noqa: SIM118
        return [
            (tuple(each.get_shape()), dtype_of(each.get_dtype()))
            for each in slices
            if each.get_dtype() in ITEM_BYTES
        ]


def _state_dict(path: Path) -> list[tuple[Shape, torch.dtype]]:
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    found: dict[tuple[int, Shape], torch.Tensor] = {}
    for tensor in _tensors_in(loaded):
        # Tied weights are saved under several names and updated once.
        found.setdefault((tensor.data_ptr(), tuple(tensor.shape)), tensor)
    return [(shape, tensor.dtype) for (_, shape), tensor in found.items()]


def _tensors_in(loaded: object) -> list[torch.Tensor]:
    if not isinstance(loaded, Mapping):
        return []
    tensors = [value for value in loaded.values() if isinstance(value, torch.Tensor)]
    own = [tensor for tensor in tensors if tensor.layout is torch.strided]
    if own:
        return own
    # A training checkpoint keeps the weights under one of its names.
    for key in ("state_dict", "model", "model_state_dict", "module"):
        if found := _tensors_in(loaded.get(key)):
            return found
    return []
