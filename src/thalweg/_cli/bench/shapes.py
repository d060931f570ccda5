"""Sets of tensor shapes to measure: three named sets, or the shapes in a model's file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast

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
        name: The name in tables and plots.
        shapes: The shape of each variable.
        dtypes: The dtype of each variable.
    """

    name: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]

    @property
    def parameters(self) -> int:
        """Return the number of elements of all variables."""
        return sum(map(prod, self.shapes))

    @property
    def bytes(self) -> int:
        """Return the bytes of one stream: all variables, all gradients, or one slot of each."""
        return sum(
            prod(shape) * dtype.itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )


def of(name: str, shapes: Iterable[Shape], dtype: torch.dtype = torch.float32) -> ShapeSet:
    """Build a named set whose shapes all have one dtype."""
    shapes = tuple(shapes)
    return ShapeSet(name, shapes, (dtype,) * len(shapes))


def gpt2() -> ShapeSet:
    """Return the shapes of GPT-2 small: 148 tensors, 124 M parameters, tied embeddings."""
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
    """Return the shapes of ResNet-50: 161 tensors, 25.6 M parameters, most in convolutions."""

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
    """Return 2,000 shapes of 1,000 elements, which measure the cost per tensor."""
    return of("small2000", [(1000,)] * 2000)


SETS: dict[str, Callable[[], ShapeSet]] = {
    make.__name__: make for make in (gpt2, resnet50, small2000)
}
ACCEPTED = (
    f"{', '.join(SETS)}, a state_dict saved with torch.save, or a .safetensors file are accepted"
)


def load(name: str) -> ShapeSet:
    """Return a named set, or the shapes in a `.safetensors` file or a file with a state_dict.

    Raises:
        ValueError: The set or file does not exist, cannot be read, or has no floating tensors.
    """
    if name in SETS:
        return SETS[name]()
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
    # A damaged pickle can raise any exception.
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(
            f"'{path}' {_describe_damage(error, file, is_safetensors)}; {ACCEPTED}."
        ) from None


def _describe_damage(error: Exception, file: BinaryIO, is_safetensors: bool) -> str:
    """Return the reason why a file could not be read, as the end of a sentence."""
    classes = re.findall(r"GLOBAL (\S+)", str(error))
    if classes:
        return (
            f"holds objects of {classes[0]}, which are not loaded, as that may run code: save"
            " model.state_dict()"
        )
    identified = format_detection.identify_file(file)
    if (
        identified is not None
        and identified.error is not UnsafeCheckpointError
        and not is_safetensors
    ):
        return f"is {identified.kind}: {identified.advice[0].lower()}{identified.advice[1:]}"
    if is_safetensors:
        return f"is no safetensors file, or a damaged one: {str(error).rstrip('.')}"
    # Torch's message advises to run the code in the file.
    return "is no state_dict, or a damaged one"


def _read_safetensors(path: Path) -> list[tuple[Shape, torch.dtype]]:
    from safetensors import safe_open

    with cast(Any, safe_open(path, framework="pt")) as file:
        slices = [file.get_slice(key) for key in file.keys()]  # noqa: SIM118
        return [
            (tuple(tensor.get_shape()), dtype_of(tensor.get_dtype()))
            for tensor in slices
            if tensor.get_dtype() in ITEM_BYTES
        ]


def _state_dict(path: Path) -> list[tuple[Shape, torch.dtype]]:
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    tensors: dict[tuple[int, Shape], torch.Tensor] = {}
    for tensor in _tensors_in(loaded):
        # Tied weights are saved under several names and updated once.
        tensors.setdefault((tensor.data_ptr(), tuple(tensor.shape)), tensor)
    return [(shape, tensor.dtype) for (_, shape), tensor in tensors.items()]


def _tensors_in(loaded: object) -> list[torch.Tensor]:
    if not isinstance(loaded, Mapping):
        return []
    document = cast("Mapping[object, object]", loaded)
    tensors = [value for value in document.values() if isinstance(value, torch.Tensor)]
    strided = [tensor for tensor in tensors if tensor.layout is torch.strided]
    if strided:
        return strided
    # A training checkpoint keeps the weights under one of its names.
    for key in ("state_dict", "model", "model_state_dict", "module"):
        if nested_tensors := _tensors_in(document.get(key)):
            return nested_tensors
    return []
